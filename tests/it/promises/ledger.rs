//! The ledger is the last line of defence: it stores each event once, and its constraints refuse impossible rows.

mod retirement;

use crate::support::crowd::{SKU, Terms, World, bought, buy, cancel, done, drain_all, payment};
use crate::support::poll::{PATIENCE, Patience, within};
use crate::support::raw::Raw;
use flashsale::domain::ids::{OrderId, SaleId};
use flashsale::domain::order::OrderState;
use flashsale::domain::order::dead_letter::Settled;
use flashsale::domain::order::payment::{PaymentOutcome, Refund};
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use flashsale::domain::sale::{Sale, Transition};
use flashsale::flow;
use flashsale::flow::operate::restock::RestockOutcome;
use flashsale::flow::settle::drain::{DrainOutcome, drain_batch};
use flashsale::stock::keys::ShardKey;
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

fn first_shard(sale: &Sale) -> ShardKey {
    ShardKey {
        sale: sale.id,
        shard: 0,
    }
}

async fn state_of(world: &World, order: OrderId, user: &str) -> OrderState {
    let order = flow::settle::order::read_order(&world.app, order, &user.parse().unwrap()).await;
    order.unwrap().unwrap().state
}

/// A drain that has just ended may still hold the shard for a moment; the next one gets `Busy`.
async fn everything_is_drained(world: &World, sale: &Sale) {
    within(PATIENCE, "every event is drained", async || {
        done(drain_all(&world.app).await);
        world.app.stock.undrained(&[first_shard(sale)]).await.unwrap() == [0]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drains_that_race_and_batches_that_come_twice_take_every_event_in_once() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(100, 1)).await;
    let users: Vec<String> = (0..60).map(|n| format!("u{n}")).collect();
    join_all(users.iter().map(|user| bought(&world.app, &sale, user, "k", 1))).await;
    let events = world.app.stock.events(first_shard(&sale), 1000).await.unwrap();
    assert_eq!(events.len(), 60);

    // A drain that dies holding the shard has done nothing and blocks nobody.
    let claim = world.app.ledger.claim_shard(sale.id, 0).await.unwrap().unwrap();
    assert_eq!(drain_batch(&world.app, &sale, 0).await.unwrap(), DrainOutcome::Busy);
    drop(claim);

    let apps = [world.another().await, world.another().await, world.another().await];
    let drains = (0..9).map(|n| {
        let (app, sale) = (Arc::clone(&apps[n % 3]), Arc::clone(&sale));
        tokio::spawn(async move {
            let patience = Patience::of(PATIENCE);
            loop {
                match drain_batch(&app, &sale, 0).await.unwrap() {
                    DrainOutcome::Drained { drained, .. } => return drained.inserted,
                    DrainOutcome::Empty => return 0,
                    DrainOutcome::Busy => patience.pause("the shard is free").await,
                }
            }
        })
    });
    let inserted: usize = join_all(drains).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(inserted, 60);

    // The position goes back, and the same batch comes again.
    world
        .execute(
            "update shards set drained_epoch = 0, drained_seq = 0 where sale_id = $1",
            sale.id,
        )
        .await
        .unwrap();
    let claim = world.app.ledger.claim_shard(sale.id, 0).await.unwrap().unwrap();
    let drained = claim.apply(&sale, &events, 0).await.unwrap();
    assert_eq!((drained.inserted, drained.revoked, drained.dead), (0, 0, 0));
    assert_eq!(world.settled(&sale).await.stock.held, 60);
}

/// An event's value, as the purchase script packs it.
fn event(item: u16, quantity: u32, order: Uuid, identity: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(item.to_be_bytes());
    bytes.extend(quantity.to_be_bytes());
    bytes.extend(&chrono::Utc::now().timestamp_millis().to_be_bytes()[2..]);
    bytes.extend([0; 6]);
    bytes.extend(order.as_bytes());
    bytes.extend(identity.as_bytes());
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_cannot_be_drained_are_kept_with_their_bytes_and_hold_nothing_up() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let first = bought(&world.app, &sale, "first", "k", 1).await;
    let of_this_sale = |low: u8| {
        let mut bytes = *first.id.0.as_bytes();
        bytes[15] ^= low;
        Uuid::from_bytes(bytes)
    };
    let hostile: Vec<(&str, Vec<u8>)> = vec![
        ("sold", event(0, 1, of_this_sale(1), "k\nkind")),
        ("reserved", vec![0; 7]),
        ("reserved", event(9, 1, of_this_sale(2), "k\nitem")),
        ("reserved", event(0, 1, Uuid::from_u128(7), "k\nother sale")),
        ("reserved", event(0, 0, of_this_sale(3), "k\nno units")),
        ("reserved", event(0, 1, of_this_sale(4), "k\nfirst")),
        ("reserved", event(0, 1, of_this_sale(5), "no user")),
    ];
    {
        let raw = Raw::connect(&world.redis);
        for (field, value) in &hostile {
            let mut add = redis::cmd("XADD");
            add.arg(first_shard(&sale).events()).arg("1-*").arg(field).arg(value);
            let _id: String = raw.call(&mut add);
        }
    }
    let last = bought(&world.app, &sale, "last", "k", 2).await;
    let DrainOutcome::Drained { drained, .. } = drain_batch(&world.app, &sale, 0).await.unwrap() else {
        panic!("nothing was drained");
    };
    assert_eq!((drained.inserted, drained.dead), (2, hostile.len()));
    assert_eq!(state_of(&world, first.id, "first").await, OrderState::Reserved);
    assert_eq!(state_of(&world, last.id, "last").await, OrderState::Reserved);
    let kept: Vec<Vec<u8>> = sqlx::query_scalar("select event from dead_letters where sale_id = $1 order by seq")
        .bind(sale.id.0)
        .fetch_all(&world.pool)
        .await
        .unwrap();
    let sent: Vec<Vec<u8>> = hostile.into_iter().map(|(_, value)| value).collect();
    assert_eq!(kept, sent);
    assert_eq!(drain_batch(&world.app, &sale, 0).await.unwrap(), DrainOutcome::Empty);
    // The shard never had these orders. After a rebuild, only events that name no order remain to be listed.
    flow::recover::attend::rebuild_sale(&world.app, sale.id)
        .await
        .unwrap()
        .unwrap();
    let audit = flow::watch::audit::audit(&world.app, sale.id).await.unwrap().unwrap();
    let named = audit.differences.iter().map(|difference| {
        let (event, _) = difference.split_once(" could not be stored").unwrap();
        event
    });
    let unreadable = [2, 3, 4, 5, 8].map(|seq| format!("shard 0: event 1-{seq}"));
    assert_eq!(named.collect::<Vec<_>>(), unreadable);
    let stats = flow::watch::stats::stats(&world.app, sale.id).await.unwrap().unwrap();
    assert_eq!(stats.alerts.dead_letters, 7);
    // They are listed with their readable fields until an operator settles them.
    let list = async |settled| flow::settle::dead_letters::dead_letters(&world.app, sale.id, settled, None, 10).await;
    let letters = list(Some(false)).await.unwrap().unwrap();
    let read: Vec<_> = letters
        .iter()
        .map(|it| it.event.as_ref().map(|it| (it.sku.as_deref(), it.quantity)))
        .collect();
    let (mug, nothing) = (Some((Some(SKU), 1)), None);
    assert_eq!(
        read,
        [mug, nothing, Some((None, 1)), mug, Some((Some(SKU), 0)), mug, nothing]
    );
    assert_eq!(letters[1].bytes.as_deref(), Some(&*"\\x00".repeat(7)));
    assert_eq!(letters.iter().filter(|it| it.bytes.is_some()).count(), 2);
    for letter in &letters {
        let (id, note) = (letter.position.parse().unwrap(), "informed nobody".parse().unwrap());
        let settled = flow::settle::dead_letters::settle(&world.app, sale.id, id, &note)
            .await
            .unwrap();
        assert!(matches!(settled, Settled::Noted(it) if it.settled_at.is_some()));
    }
    assert_eq!(differences(&world, &sale).await, [""; 0]);
    let stats = flow::watch::stats::stats(&world.app, sale.id).await.unwrap().unwrap();
    assert_eq!(stats.alerts.dead_letters, 0);
    let anywhere = world.app.ledger.alerts(None).await.unwrap();
    assert_eq!(anywhere.dead_letters, 0);
    assert_eq!(list(Some(false)).await.unwrap().unwrap(), []);
    assert_eq!(list(Some(true)).await.unwrap().unwrap().len(), 7);
}

/// A shopper's order that the ledger cannot store, because another order has its event's position.
async fn unstorable(world: &World, sale: &Sale, user: &str) -> OrderId {
    let order = bought(&world.app, sale, user, "k", 3).await;
    let in_its_place = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, \
         amount_minor, currency, state, created_at, expires_at, resolved_at, epoch, seq) \
         values (gen_random_uuid(), $1, 0, 'mug', 'somebody', 'k', 1, 0, 'EUR', 'cancelled', now(), \
         now() + interval '1 hour', now(), 1, 1)";
    assert_eq!(world.execute(in_its_place, sale.id).await.unwrap(), 1);
    everything_is_drained(world, sale).await;
    let dead = "select count(*) from dead_letters where sale_id = $1";
    assert_eq!(world.number(dead, sale.id).await, 1);
    order.id
}

async fn differences(world: &World, sale: &Sale) -> Vec<String> {
    let audit = flow::watch::audit::audit(&world.app, sale.id).await.unwrap().unwrap();
    assert_eq!(audit.balanced, audit.differences.is_empty());
    audit.differences
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_cannot_be_stored_is_revoked_and_its_units_are_sold_once() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let order = unstorable(&world, &sale, "a").await;
    // Both sides count the undelivered message.
    assert_eq!(differences(&world, &sale).await, [""; 0]);
    within(PATIENCE, "the shard gets the message", async || {
        flow::settle::release::release_waiting(&world.app).await.unwrap();
        world.pending_work(&sale).await.is_empty()
    })
    .await;
    assert_eq!(state_of(&world, order, "a").await, OrderState::Revoked);
    let paid = flow::settle::pay::pay(&world.app, &payment("late", order, 3))
        .await
        .unwrap();
    assert_eq!(paid, PaymentOutcome::Unmatched);
    assert_eq!(
        differences(&world, &sale).await,
        ["mug, shard 0: 3 units are withheld for revoked orders"]
    );

    flow::recover::attend::rebuild_sale(&world.app, sale.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(differences(&world, &sale).await, [""; 0]);
    let again = buy(&world.app, &sale, "a", "k", 3).await;
    assert!(
        matches!(&again, PurchaseOutcome::Replayed(it) if it.state == OrderState::Revoked),
        "{again:?}"
    );
    bought(&world.app, &sale, "b", "k", 10).await;
    assert_eq!(
        buy(&world.app, &sale, "c", "k", 1).await,
        PurchaseOutcome::Refused(Refusal::SoldOut)
    );
    everything_is_drained(&world, &sale).await;
    assert_eq!(differences(&world, &sale).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_before_the_delivery_of_a_revocation_leaves_nobody_with_the_order() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let order = unstorable(&world, &sale, "a").await;
    flow::recover::attend::rebuild_sale(&world.app, sale.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(differences(&world, &sale).await, [""; 0]);
    let found = flow::settle::order::read_order(&world.app, order, &"a".parse().unwrap()).await;
    assert_eq!(found.unwrap(), None);
    // A shopper who repeats the request gets the same order, if it is still there.
    bought(&world.app, &sale, "b", "k", 8).await;
    assert_eq!(
        buy(&world.app, &sale, "a", "k", 3).await,
        PurchaseOutcome::Refused(Refusal::SoldOut)
    );
    bought(&world.app, &sale, "a", "k2", 2).await;
    everything_is_drained(&world, &sale).await;
    assert_eq!(differences(&world, &sale).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn constraints_refuse_impossible_rows() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    bought(&world.app, &sale, "holds", "k", 1).await;
    let pays = bought(&world.app, &sale, "pays", "k", 2).await;
    let cancels = bought(&world.app, &sale, "cancels", "k", 1).await;
    let paid = flow::settle::pay::pay(&world.app, &payment("p", pays.id, 2))
        .await
        .unwrap();
    assert_eq!(paid, PaymentOutcome::Applied);
    let again = flow::settle::pay::pay(&world.app, &payment("refunded", pays.id, 2))
        .await
        .unwrap();
    assert_eq!(again, PaymentOutcome::RefundDue);
    let refund = flow::settle::pay::settle_refund(&world.app, "pay-refunded", &"re_1".parse().unwrap()).await;
    assert!(matches!(refund.unwrap(), Refund::Settled(_)));
    cancel(&world.app, cancels.id, "cancels").await;
    world.settled(&sale).await;
    for (sql, constraint) in [
        (
            "update grants set held = granted - sold + 1 where sale_id = $1",
            "grants_never_oversold",
        ),
        (
            "update grants set sold = granted - held + 1 where sale_id = $1",
            "grants_never_oversold",
        ),
        (
            "update grants set held = -1 where sale_id = $1",
            "grants_held_not_negative",
        ),
        (
            "update grants set sold = -1 where sale_id = $1",
            "grants_sold_not_negative",
        ),
        (
            "update grants set granted = granted + 1 where sale_id = $1 and shard = 0",
            "grants_add_up",
        ),
        ("update items set stock = stock + 1 where sale_id = $1", "grants_add_up"),
        (
            "update orders set state = 'reserved', paid_at = null, resolved_at = null \
             where sale_id = $1 and state = 'paid'",
            "orders_leave_reserved_once",
        ),
        (
            "update orders set state = 'paid', paid_at = now() where sale_id = $1 and state = 'cancelled'",
            "orders_leave_reserved_once",
        ),
        (
            "update orders set state = 'expired', paid_at = null where sale_id = $1 and state = 'paid'",
            "orders_leave_reserved_once",
        ),
        (
            "update orders set state = 'paid', resolved_at = now() where sale_id = $1 and state = 'reserved'",
            "orders_paid_has_time",
        ),
        (
            "update orders set expires_at = created_at where sale_id = $1",
            "orders_expire_after_creation",
        ),
        (
            "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
             currency, created_at, expires_at, epoch, seq) select gen_random_uuid(), sale_id, shard, sku, user_id, \
             idempotency_key, quantity, amount_minor, currency, created_at, expires_at, epoch, seq + 1000 \
             from orders where sale_id = $1",
            "orders_one_outcome_a_key",
        ),
        (
            "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
             currency, created_at, expires_at, epoch, seq) select gen_random_uuid(), sale_id, shard, sku, user_id, \
             'other', quantity, amount_minor, currency, created_at, expires_at, epoch, seq \
             from orders where sale_id = $1",
            "orders_one_event_each",
        ),
        (
            "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
             currency, created_at, expires_at, epoch, seq) select gen_random_uuid(), sale_id, 9, sku, user_id, \
             'other', quantity, amount_minor, currency, created_at, expires_at, epoch, seq \
             from orders where sale_id = $1 limit 1",
            "orders_have_grants",
        ),
        (
            "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
             currency, created_at, expires_at, epoch, seq) select gen_random_uuid(), sale_id, shard, 'NONE', user_id, \
             'other', quantity, amount_minor, currency, created_at, expires_at, epoch, seq + 1000 \
             from orders where sale_id = $1",
            "orders_have_grants",
        ),
        (
            "update orders set sku = 'NONE' where sale_id = $1",
            "orders_have_grants",
        ),
        ("delete from grants where sale_id = $1", "orders_have_grants"),
        (
            "update grants set shard = shard + 10 where sale_id = $1",
            "orders_have_grants",
        ),
        (
            "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, \
             matched_order_id, settled_at) select 'second', 'second', order_id, amount_minor, currency, 'applied', \
             order_id, now() from orders where sale_id = $1 and state = 'paid'",
            "payments_one_applied_an_order",
        ),
        (
            "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, settled_at) \
             select 'pay-p', 'other', sale_id, 1, 'EUR', 'unmatched', now() from sales where sale_id = $1",
            "payments_pkey",
        ),
        (
            "update payments set refunded_at = now(), refund_reference = 're_1' where payment_id = 'pay-p' \
             and $1::uuid is not null",
            "payments_refunded_were_due",
        ),
        (
            "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, settled_at, \
             refunded_at) select 'other', 'other', sale_id, 1, 'EUR', 'unmatched', now(), now() from sales \
             where sale_id = $1",
            "payments_refund_has_reference",
        ),
        (
            "with refunded as (select $1::uuid) update payments set refund_reference = 're_2' \
             where payment_id = 'pay-refunded'",
            "payments_refunded_once",
        ),
        (
            "with refunded as (select $1::uuid) update payments set refunded_at = null, refund_reference = null \
             where payment_id = 'pay-refunded'",
            "payments_refunded_once",
        ),
    ] {
        let error = world.execute(sql, sale.id).await.expect_err(sql);
        let violated = error.as_database_error().and_then(|error| error.constraint());
        assert_eq!(violated, Some(constraint), "{sql}: {error}");
    }
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_a_forgetful_redis_sells_again_are_revoked_to_the_unit() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(5, 1)).await;
    let key = first_shard(&sale).item(&SKU.parse().unwrap());
    let before: Vec<u8> = Raw::connect(&world.redis).call(redis::cmd("DUMP").arg(&key));
    for user in ["a", "b", "c"] {
        bought(&world.app, &sale, user, "k", 1).await;
    }
    everything_is_drained(&world, &sale).await;
    let _ok: String =
        Raw::connect(&world.redis).call(redis::cmd("RESTORE").arg(&key).arg(0).arg(before).arg("REPLACE"));

    let mut orders = Vec::new();
    for user in ["d", "e", "f", "g", "h"] {
        orders.push((user, bought(&world.app, &sale, user, "k", 1).await.id));
    }
    assert_eq!(
        buy(&world.app, &sale, "i", "k", 1).await,
        PurchaseOutcome::Refused(Refusal::SoldOut)
    );
    everything_is_drained(&world, &sale).await;
    flow::settle::release::release_waiting(&world.app).await.unwrap();

    let api = world.start("api").await;
    for (n, (user, order)) in orders.iter().enumerate() {
        let expected = if n < 2 { "reserved" } else { "revoked" };
        let answer = api.client().order(user, *order).await.unwrap();
        assert_eq!(answer.body["state"], expected, "{user}: {answer:?}");
        assert_eq!(answer.body["confirmed"], true);
    }
    let stats = flow::watch::stats::stats(&world.app, sale.id).await.unwrap().unwrap();
    assert_eq!((stats.orders.reserved, stats.orders.revoked), (5, 3));
    let audit = flow::watch::audit::audit(&world.app, sale.id).await.unwrap().unwrap();
    assert!(!audit.balanced);
    let reported = audit
        .differences
        .iter()
        .any(|it| it.contains("3 units are withheld for revoked orders"));
    assert!(reported, "{:?}", audit.differences);
    // The money for a revoked order is owed back, and nothing is left to sell.
    let paid = flow::settle::pay::pay(&world.app, &payment("late", orders[4].1, 1))
        .await
        .unwrap();
    assert_eq!(paid, PaymentOutcome::RefundDue);
    assert_eq!(
        buy(&world.app, &sale, "j", "k", 1).await,
        PurchaseOutcome::Refused(Refusal::SoldOut)
    );
}

/// The content of every key of a sale, without the order in which Redis keeps it.
fn contents(world: &World, sale: SaleId) -> BTreeMap<String, BTreeSet<Vec<Vec<u8>>>> {
    let raw = Raw::connect(&world.redis);
    let keys: Vec<String> = raw.call(redis::cmd("KEYS").arg(format!("{{{sale}:*")));
    let content = |key: String| {
        let kind: String = raw.call(redis::cmd("TYPE").arg(&key));
        let (command, width) = match kind.as_str() {
            "hash" => ("HGETALL", 2),
            "set" => ("SMEMBERS", 1),
            "string" => {
                let mut bytes: Vec<u8> = raw.call(redis::cmd("GET").arg(&key));
                if key.ends_with(":shard") {
                    // Its permit is renewed all the time.
                    bytes.drain(2..8);
                }
                return (key, BTreeSet::from([vec![bytes]]));
            }
            _ => {
                let events: u32 = raw.call(redis::cmd("XLEN").arg(&key));
                return (key, BTreeSet::from([vec![events.to_string().into_bytes()]]));
            }
        };
        let flat: Vec<Vec<u8>> = raw.call(redis::cmd(command).arg(&key));
        (key, flat.chunks(width).map(<[Vec<u8>]>::to_vec).collect())
    };
    keys.into_iter().map(content).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_delivered_again_in_any_order_change_nothing() {
    let world = World::new().await;
    for sql in [
        "create table delivered (like outbox)",
        "create function keep() returns trigger language plpgsql security definer as \
         'begin insert into delivered select new.*; return new; end'",
        "create trigger keep before insert on outbox for each row execute function keep()",
    ] {
        sqlx::query(sql).execute(&world.pool).await.unwrap();
    }
    let sale = world
        .sale(&Terms {
            window_seconds: 1,
            ..Terms::of(20, 4)
        })
        .await;
    let mut orders = Vec::new();
    for user in ["expires", "pays", "cancels"] {
        orders.push(bought(&world.app, &sale, user, "k", 2).await);
    }
    flow::settle::pay::pay(&world.app, &payment("p", orders[1].id, 2))
        .await
        .unwrap();
    cancel(&world.app, orders[2].id, "cancels").await;
    within(PATIENCE, "an order expires", async || {
        flow::settle::expire::expire_due(&world.app).await.unwrap() > 0
    })
    .await;
    for (key, quantity, applied) in [("more", 9, true), ("fewer", -5, true), ("too many", -100, false)] {
        let (key, sku) = (key.parse().unwrap(), SKU.parse().unwrap());
        let outcome = flow::operate::restock::restock(&world.app, sale.id, &key, &sku, quantity)
            .await
            .unwrap();
        assert_eq!(matches!(outcome, RestockOutcome::Applied(_)), applied, "{outcome:?}");
    }
    for transition in [Transition::Pause, Transition::Resume] {
        flow::operate::transition::transition(&world.app, sale.id, transition)
            .await
            .unwrap();
    }
    let item = world.settled(&sale).await;
    assert_eq!(
        (item.total, item.stock.available, item.stock.sold),
        (24, 22, 2),
        "{item:?}"
    );

    let before = contents(&world, sale.id);
    let kinds = "select count(distinct message->>'kind') from delivered where sale_id = $1";
    assert_eq!(world.number(kinds, sale.id).await, 5);
    sqlx::query("alter table outbox disable trigger keep")
        .execute(&world.pool)
        .await
        .unwrap();
    for order in ["order by outbox_id desc", "order by random()"] {
        let again = format!(
            "insert into outbox (sale_id, shard, message) select sale_id, shard, message from delivered {order}"
        );
        sqlx::query(sqlx::AssertSqlSafe(again))
            .execute(&world.pool)
            .await
            .unwrap();
        assert!(flow::settle::release::release_waiting(&world.app).await.unwrap() > 0);
        world.settled(&sale).await;
        assert_eq!(contents(&world, sale.id), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restocks_withdrawals_and_purchases_at_once_keep_every_unit() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(40, 4)).await;
    let apps = [Arc::clone(&world.app), world.another().await];
    let changes = (0..24usize).map(|n| {
        let (app, sale) = (Arc::clone(&apps[n % 2]), Arc::clone(&sale));
        tokio::spawn(async move {
            let (key, sku) = (format!("k{n}").parse().unwrap(), SKU.parse().unwrap());
            let quantity = if n % 2 == 0 { 3 } else { -2 };
            let patience = Patience::of(PATIENCE);
            loop {
                match flow::operate::restock::restock(&app, sale.id, &key, &sku, quantity).await {
                    Ok(RestockOutcome::Applied(_)) => break quantity,
                    Ok(RestockOutcome::Insufficient { .. }) => break 0,
                    Ok(other) => panic!("{other:?}"),
                    Err(fault) => assert!(fault.is_passing(), "{fault}"),
                }
                patience.pause("a restock is decided").await;
            }
        })
    });
    let buyers = (0..30).map(|n| {
        let (app, sale) = (Arc::clone(&apps[n % 2]), Arc::clone(&sale));
        tokio::spawn(async move {
            let outcome = buy(&app, &sale, &format!("u{n}"), "k", 1).await;
            assert!(matches!(
                outcome,
                PurchaseOutcome::Reserved(_)
                    | PurchaseOutcome::Replayed(_)
                    | PurchaseOutcome::Refused(Refusal::SoldOut)
            ));
            // The others may have all connections meanwhile.
            done(drain_all(&app).await);
        })
    });
    let (changes, buyers) = futures_util::future::join(join_all(changes), join_all(buyers)).await;
    for buyer in buyers {
        buyer.unwrap();
    }
    let changed: i64 = changes.into_iter().map(Result::unwrap).sum();
    let item = world.settled(&sale).await;
    assert_eq!(item.total, 40 + changed);
    world.sells_out(&sale).await;
}
