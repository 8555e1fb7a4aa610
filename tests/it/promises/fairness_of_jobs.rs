//! Every job of the ledger gets its turn: none waits for another for ever, none has its work undone by waiting jobs, and
//! none keeps others waiting as long as it has work.

use crate::support::crowd::{SKU, Terms, World, answered, bought, done, drain_all, payment, shopper_at};
use crate::support::poll::{PATIENCE, once_within, within};
use crate::support::servers;
use chrono::{TimeDelta, Utc};
use flashsale::domain::fault::Fault;
use flashsale::domain::guard::{Effect, Layer, PageViewLimits};
use flashsale::domain::ids::OrderId;
use flashsale::domain::order::event::{Event, Position, Reserved};
use flashsale::domain::order::payment::PaymentOutcome;
use flashsale::domain::order::{CancelOutcome, OrderState};
use flashsale::domain::sale::pulse::Counts;
use flashsale::domain::sale::{Item, NewSale, PurchaseRate, Sale, SaleState};
use flashsale::flow::operate::restock::RestockOutcome;
use flashsale::flow::settle::drain::drain_to_now;
use flashsale::flow::{self, App};
use flashsale::ledger::operate::restock::TakenRestock;
use flashsale::ledger::outbox::{Message, Outgoing};
use flashsale::ledger::recover::standing::{NotedServer, WholeShard};
use flashsale::ledger::settle::drain::Drained;
use sqlx::{Postgres, Transaction};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use uuid::Uuid;

/// Two items whose order by bytes is not that of people.
const SKUS: [&str; 2] = ["B", "a"];

async fn sale_of_two_items(world: &World) -> Arc<Sale> {
    let now = Utc::now();
    let item = |sku: &str| Item::plain(sku.parse().unwrap(), 10, 10);
    let new = NewSale {
        purchase_rate: PurchaseRate {
            limit: 1_000,
            window_ms: 1_000,
        },
        ..NewSale::plain(
            SKUS.map(item).to_vec(),
            now - TimeDelta::minutes(1),
            now + TimeDelta::hours(1),
        )
    };
    let id = flow::operate::drafts::create(&world.app, &new).await.unwrap().id;
    flow::operate::preload::load(&world.app, id).await.unwrap().unwrap().0
}

/// The event of one unit of an item.
fn event(sale: &Sale, seq: i64, item: u16) -> Event {
    let mut order = *Uuid::new_v4().as_bytes();
    order[..4].copy_from_slice(&sale.number.to_be_bytes());
    let reserved = Reserved {
        order: OrderId(Uuid::from_bytes(order)),
        user: format!("u{seq}").parse().unwrap(),
        key: "k".parse().unwrap(),
        item,
        quantity: 1,
        created_at: Utc::now().timestamp_millis(),
    };
    Event::untraced(Position { epoch: 1, seq }, Vec::new(), Ok(reserved))
}

/// Stores other orders at the positions of these events.
async fn take_places(world: &World, sale: &Sale, seqs: &[i64]) {
    let order = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
         currency, state, created_at, expires_at, resolved_at, epoch, seq) \
         select gen_random_uuid(), $1, 0, $2, 'another' || seq, 'k', 1, 0, 'EUR', 'cancelled', now(), \
         now() + interval '1 hour', now(), 1, seq from unnest($3::int8[]) as seq";
    let order = sqlx::query(order).bind(sale.id.0).bind(sale.items[0].sku.as_str());
    order.bind(seqs).execute(&world.pool).await.unwrap();
}

async fn apply(world: &World, sale: &Sale, events: &[Event]) -> Drained {
    let claim = world.app.ledger.claim_shard(sale.id, 0).await.unwrap().unwrap();
    claim.apply(sale, events, 0).await.unwrap()
}

/// Drains a batch beside a transaction that locks the grants of both items in the order of their bytes. The transaction
/// holds the first grant before, and needs the second one at once.
async fn drain_beside_locked_grants(world: &World, sale: &Arc<Sale>, events: Vec<Event>) -> Drained {
    let grant = "select from grants where sale_id = $1 and sku = $2 for no key update nowait";
    let mut other = world.pool.begin().await.unwrap();
    let first = sqlx::query(grant).bind(sale.id.0).bind(SKUS[0]);
    first.execute(&mut *other).await.unwrap();
    let drain: JoinHandle<Drained> = {
        let (app, sale) = (Arc::clone(&world.app), Arc::clone(sale));
        tokio::spawn(async move {
            let claim = app.ledger.claim_shard(sale.id, 0).await.unwrap().unwrap();
            claim.apply(&sale, &events, 0).await.unwrap()
        })
    };
    within(PATIENCE, "the batch waits for a grant", async || {
        let waiting = "select count(*) from pg_stat_activity \
                       where datname = current_database() and wait_event_type = 'Lock' and $1 is not null";
        world.number(waiting, sale.id).await == 1
    })
    .await;
    let second = sqlx::query(grant).bind(sale.id.0).bind(SKUS[1]);
    second.execute(&mut *other).await.unwrap();
    other.commit().await.unwrap();
    drain.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_bad_events_takes_grants_in_the_same_order_as_everybody() {
    let world = World::new().await;
    let sale = sale_of_two_items(&world).await;
    take_places(&world, &sale, &[2]).await;
    let events = vec![event(&sale, 1, 1), event(&sale, 2, 1), event(&sale, 3, 0)];
    let drained = drain_beside_locked_grants(&world, &sale, events).await;
    assert_eq!((drained.events, drained.inserted, drained.dead), (3, 2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_taken_by_their_bytes_also_where_the_database_sorts_as_people_do() {
    let world = World::with(servers::redis(), servers::database_of_people().await).await;
    let sale = sale_of_two_items(&world).await;
    let events = vec![event(&sale, 1, 0), event(&sale, 2, 1)];
    let drained = drain_beside_locked_grants(&world, &sale, events).await;
    assert_eq!((drained.events, drained.inserted, drained.dead), (2, 2, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_bad_events_are_put_aside_in_several_transactions_and_hold_nothing_up() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(100, 1)).await;
    let bad: Vec<i64> = (1..=100).filter(|seq| seq % 5 == 0 || (41..60).contains(seq)).collect();
    take_places(&world, &sale, &bad).await;
    let events: Vec<Event> = (1..=100).map(|seq| event(&sale, seq, 0)).collect();
    let (mut left, mut whole) = (events.as_slice(), Drained::default());
    let mut turns = 0;
    while !left.is_empty() {
        let drained = apply(&world, &sale, left).await;
        assert!(drained.events > 0);
        left = &left[drained.events..];
        whole.inserted += drained.inserted;
        whole.dead += drained.dead;
        turns += 1;
        let position = "select drained_seq from shards where sale_id = $1";
        assert_eq!(world.number(position, sale.id).await, 100 - left.len() as i64);
    }
    assert_eq!((whole.inserted, whole.dead), (100 - bad.len(), bad.len()));
    assert!((2..=5).contains(&turns), "{turns}");
    let held = "select held from grants where sale_id = $1";
    assert_eq!(world.number(held, sale.id).await, 100 - bad.len() as i64);
    let letters = "select count(*) from dead_letters where sale_id = $1";
    assert_eq!(world.number(letters, sale.id).await, bad.len() as i64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_sells_what_it_has_borrowed_is_granted_some_to_spare() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(100, 2)).await;
    let events: Vec<Event> = (1..=60).map(|seq| event(&sale, seq, 0)).collect();
    let drained = apply(&world, &sale, &events).await;
    assert_eq!((drained.inserted, drained.revoked), (60, 0));
    // Ten were missing; the other shard could spare fifty.
    let granted = "select granted from grants where sale_id = $1 and shard = 0";
    assert_eq!(world.number(granted, sale.id).await, 75);
    // The last units are found all the same, and no more than there are.
    let events: Vec<Event> = (61..=103).map(|seq| event(&sale, seq, 0)).collect();
    let drained = apply(&world, &sale, &events).await;
    assert_eq!((drained.inserted, drained.revoked), (43, 3));
    assert_eq!(world.number(granted, sale.id).await, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_commits_also_after_its_caller_gave_up() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    bought(&world.app, &sale, "u", "k", 1).await;
    let mut lock = world.pool.begin().await.unwrap();
    let grants = "select from grants where sale_id = $1 for no key update";
    sqlx::query(grants).bind(sale.id.0).execute(&mut *lock).await.unwrap();
    let deadline = Instant::now() + Duration::from_millis(300);
    assert!(!drain_to_now(&world.app, &sale, &[0], deadline).await.unwrap());
    lock.rollback().await.unwrap();
    // Nobody else drains.
    within(PATIENCE, "the order is in the ledger", async || {
        let orders = "select count(*) from orders where sale_id = $1";
        world.number(orders, sale.id).await == 1
    })
    .await;
}

/// Locks the grants of the first so many shards, as a long transaction does, until it is rolled back.
async fn lock_grants(world: &World, sale: &Sale, shards: i16) -> Transaction<'static, Postgres> {
    let mut lock = world.pool.begin().await.unwrap();
    let grants = "select from grants where sale_id = $1 and shard < $2 for no key update";
    let grants = sqlx::query(grants).bind(sale.id.0).bind(shards);
    grants.execute(&mut *lock).await.unwrap();
    lock
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_that_are_long_at_the_ledger_keep_another_one_from_its_turn_for_a_moment_only() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(40, 4)).await;
    // The order of the shards is random: in one of four runs no job waits.
    for round in 1..=4 {
        for shard in 0..4 {
            let user = shopper_at(&sale, shard);
            bought(&world.app, &sale, &user, &format!("k{round}"), 1).await;
        }
        let lock = lock_grants(&world, &sale, 3).await;
        let app = Arc::clone(&world.app);
        let round_of_the_drain = tokio::spawn(async move { drain_all(&app).await });
        within(PATIENCE, "the last shard is drained", async || {
            let orders = "select count(*) from orders where sale_id = $1 and shard = 3";
            world.number(orders, sale.id).await == round
        })
        .await;
        assert!(!round_of_the_drain.is_finished(), "the others were not long at it");
        lock.rollback().await.unwrap();
        assert_eq!(round_of_the_drain.await.unwrap().unwrap(), 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_wait_for_the_drain_leave_connections_to_the_others() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(128, 32)).await;
    for shard in 0..32 {
        bought(&world.app, &sale, &shopper_at(&sale, shard), "k", 1).await;
    }
    let lock = lock_grants(&world, &sale, 32).await;
    let deadline = Instant::now() + PATIENCE;
    let mut waiting = JoinSet::new();
    for shard in 0..32 {
        let (app, sale) = (Arc::clone(&world.app), Arc::clone(&sale));
        waiting.spawn(async move { drain_to_now(&app, &sale, &[shard], deadline).await });
    }
    within(PATIENCE, "four stand before the lock", async || {
        let stuck = "select count(*) from pg_stat_activity where datname = current_database() \
                     and wait_event_type = 'Lock' and $1::uuid is not null";
        world.number(stuck, sale.id).await == 4
    })
    .await;
    // It asks for a connection of the same pool.
    world.app.ledger.beat().await.unwrap();
    lock.rollback().await.unwrap();
    while let Some(drained) = waiting.join_next().await {
        assert!(drained.unwrap().unwrap());
    }
    let orders = "select count(*) from orders where sale_id = $1";
    assert_eq!(world.number(orders, sale.id).await, 32);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_on_which_much_is_due_keeps_no_other_from_its_turn() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(4_000, 2)).await;
    let due = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
         currency, created_at, expires_at, epoch, seq) \
         select gen_random_uuid(), $1, shard, 'mug', 'u' || shard, n::text, 1, 0, 'EUR', now() - interval '1 hour', \
         now() - interval '1 minute', 1, n from generate_series(0, 1) as shard, generate_series(1, 1200) as n";
    assert_eq!(world.execute(due, sale.id).await.unwrap(), 2_400);
    world
        .execute("update grants set held = 1200 where sale_id = $1", sale.id)
        .await
        .unwrap();
    let expired = "select count(*) from orders where sale_id = $1 and state = 'expired'";
    // A run on a slow machine ends before all of them have had their turn.
    within(PATIENCE, "every order expires", async || {
        done(flow::settle::expire::expire_due(&world.app).await);
        world.number(expired, sale.id).await == 2_400
    })
    .await;
    let apart = "with turns as (select shard, min(resolved_at) as first, max(resolved_at) as last from orders \
         where sale_id = $1 group by shard) \
         select count(*) from turns a join turns b on a.shard < b.shard and (a.last < b.first or b.last < a.first)";
    assert_eq!(world.number(apart, sale.id).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_somebody_has_locked_keeps_no_other_from_expiring() {
    let world = World::new().await;
    let (locked, other) = (world.sale(&Terms::of(80, 8)).await, world.sale(&Terms::of(10, 1)).await);
    for (sale, shards) in [(&locked, 8), (&other, 1)] {
        for shard in 0..shards {
            bought(&world.app, sale, &shopper_at(sale, shard), "k", 1).await;
        }
    }
    drain_all(&world.app).await.unwrap();
    for sale in [&locked, &other] {
        let due = "update orders set created_at = now() - interval '1 hour', expires_at = now() - interval '1 minute' \
             where sale_id = $1";
        world.execute(due, sale.id).await.unwrap();
    }
    // As a rebuild does.
    let lock = lock_grants(&world, &locked, 8).await;
    let reserved = "select count(*) from orders where sale_id = $1 and state = 'reserved'";
    // As long as one lock is waited for elsewhere; here it stands before eight.
    once_within(Duration::from_secs(5), "the other sale's orders expire", async || {
        // It reports faults, and did the rest.
        let run = flow::settle::expire::expire_due(&world.app).await;
        assert!(matches!(&run, Err(fault) if fault.is_passing()), "{run:?}");
        (world.number(reserved, other.id).await == 0).then_some(())
    })
    .await;
    assert_eq!(world.number(reserved, locked.id).await, 8);
    lock.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_of_a_sale_that_cannot_be_waited_for_keep_no_other_from_being_settled() {
    let world = World::new().await;
    let (stuck, other) = (world.sale(&Terms::of(10, 1)).await, world.sale(&Terms::of(10, 1)).await);
    let on_its_way = bought(&world.app, &stuck, "ada", "k", 1).await;
    let there = bought(&world.app, &other, "ada", "k", 1).await;
    let lock = lock_grants(&world, &stuck, 1).await;
    let taken_in = drain_to_now(&world.app, &other, &[0], Instant::now() + PATIENCE).await;
    assert!(taken_in.unwrap());
    // Waiting for each of the first would take longer than this test's patience.
    for n in 0..20 {
        let early = payment(&format!("early-{}-{n}", stuck.id), on_its_way.id, 1);
        let recorded = world.app.ledger.record_payment(&early, PaymentOutcome::Pending).await;
        assert_eq!(recorded.unwrap(), PaymentOutcome::Pending);
    }
    let late = payment(&format!("late-{}", stuck.id), there.id, 1);
    world
        .app
        .ledger
        .record_payment(&late, PaymentOutcome::Pending)
        .await
        .unwrap();
    let run = tokio::time::timeout(PATIENCE, flow::settle::pay::settle_pending(&world.app)).await;
    assert_eq!(run.expect("the run comes to an end").unwrap(), 1);
    let paid = world.app.ledger.order(there.id).await.unwrap().unwrap();
    assert_eq!(paid.state, OrderState::Paid);
    lock.rollback().await.unwrap();
    within(PATIENCE, "the first is settled, and the rest owed back", async || {
        drain_all(&world.app).await.unwrap();
        flow::settle::pay::settle_pending(&world.app).await.unwrap();
        world.app.ledger.pending_payments(None, 1).await.unwrap().is_empty()
    })
    .await;
    let paid = world.app.ledger.order(on_its_way.id).await.unwrap().unwrap();
    assert_eq!(paid.state, OrderState::Paid);
    let due = "select count(*) from payments where outcome = 'refund_due' and $1::uuid is not null";
    assert_eq!(world.number(due, stuck.id).await, 19);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_payments_of_a_sale_that_cannot_be_drained_leave_the_next_sale_its_turn() {
    let world = World::new().await;
    let (stuck, other) = (world.sale(&Terms::of(10, 1)).await, world.sale(&Terms::of(10, 1)).await);
    let on_its_way = bought(&world.app, &stuck, "ada", "k", 1).await;
    let there = bought(&world.app, &other, "ada", "k", 1).await;
    let lock = lock_grants(&world, &stuck, 1).await;
    let taken_in = drain_to_now(&world.app, &other, &[0], Instant::now() + PATIENCE).await;
    assert!(taken_in.unwrap());
    let early = "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, received_at) \
         select 'early-' || n, 'early-' || n, $1::uuid::text, 1, 'EUR', 'pending', now() - interval '1 minute' \
         from generate_series(1, 1200) as n";
    sqlx::query(early)
        .bind(on_its_way.id.0)
        .execute(&world.pool)
        .await
        .unwrap();
    let late = payment("late", there.id, 1);
    let recorded = world.app.ledger.record_payment(&late, PaymentOutcome::Pending).await;
    assert_eq!(recorded.unwrap(), PaymentOutcome::Pending);
    let run = tokio::time::timeout(PATIENCE, flow::settle::pay::settle_pending(&world.app)).await;
    assert_eq!(run.expect("the run ends").unwrap(), 1);
    let paid = world.app.ledger.order(there.id).await.unwrap().unwrap();
    assert_eq!(paid.state, OrderState::Paid);
    lock.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_and_cancellations_of_a_locked_sale_leave_connections_to_other_sales() {
    let world = World::new().await;
    let (locked, other) = (
        world.sale(&Terms::of(500, 1)).await,
        world.sale(&Terms::of(10, 1)).await,
    );
    let mut orders = Vec::new();
    // Of each kind so many more than connections that the last would get none in time if each waited for the lock. With
    // still more payments, a slow machine could not record all of them in time.
    for n in 0..180 {
        orders.push(bought(&world.app, &locked, &format!("u{n}"), "k", 1).await);
    }
    let to_pay = bought(&world.app, &other, "ada", "pay", 1).await;
    let to_cancel = bought(&world.app, &other, "ada", "cancel", 1).await;
    drain_all(&world.app).await.unwrap();
    let lock = lock_grants(&world, &locked, 1).await;
    let (mut paying, mut cancelling) = (JoinSet::new(), JoinSet::new());
    for (n, order) in orders.iter().enumerate() {
        let (app, id) = (Arc::clone(&world.app), order.id);
        if n < 60 {
            paying.spawn(async move { flow::settle::pay::pay(&app, &payment(&format!("p{n}"), id, 1)).await });
        } else {
            let user = format!("u{n}").parse().unwrap();
            cancelling.spawn(async move { flow::settle::cancel::cancel(&app, id, &user).await });
        }
    }
    let met = "select (select count(*) from pg_stat_activity where datname = current_database() \
               and wait_event_type = 'Lock') + (select count(*) from payments where outcome = 'pending') \
               where $1::uuid is not null";
    within(PATIENCE, "one of them waits for the lock, or has", async || {
        world.number(met, locked.id).await > 0
    })
    .await;
    let paid = flow::settle::pay::pay(&world.app, &payment("other", to_pay.id, 1)).await;
    assert!(matches!(paid, Ok(PaymentOutcome::Applied)), "{paid:?}");
    let cancelled = flow::settle::cancel::cancel(&world.app, to_cancel.id, &"ada".parse().unwrap()).await;
    assert!(matches!(cancelled, Ok(CancelOutcome::Cancelled(_))), "{cancelled:?}");
    // The money is durable, and the provider does not send it again.
    while let Some(paid) = paying.join_next().await {
        let paid = paid.unwrap();
        assert!(matches!(paid, Ok(PaymentOutcome::Pending)), "{paid:?}");
    }
    while let Some(cancelled) = cancelling.join_next().await {
        let cancelled = cancelled.unwrap();
        assert!(matches!(cancelled, Err(Fault::Unavailable(_))), "{cancelled:?}");
    }
    // A run of the job waits for a locked sale once. Waiting for each payment would take twice as long as this.
    let waited = tokio::time::timeout(Duration::from_secs(6), flow::settle::pay::settle_pending(&world.app)).await;
    assert_eq!(waited.expect("the run ends").unwrap(), 0);
    lock.rollback().await.unwrap();
    within(PATIENCE, "every payment is settled", async || {
        flow::settle::pay::settle_pending(&world.app).await.unwrap();
        world.app.ledger.pending_payments(None, 1).await.unwrap().is_empty()
    })
    .await;
    let paid = "select count(*) from orders where sale_id = $1 and state = 'paid'";
    assert_eq!(world.number(paid, locked.id).await, 60);
    world.settled(&locked).await;
}

/// The free units of each shard.
async fn free(world: &World, sale: &Sale) -> i64 {
    let survey = world
        .app
        .stock
        .survey(sale.id, sale.shards, &SKU.parse().unwrap())
        .await;
    survey.into_iter().map(|it| it.unwrap().counters.available).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restock_does_not_queue_up_behind_a_wave_of_orders_that_ended() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let order = bought(&world.app, &sale, "u", "k", 1).await;
    drain_all(&world.app).await.unwrap();
    let user = "u".parse().unwrap();
    world.app.ledger.cancel(order.id, &user).await.unwrap();
    let wave = "insert into outbox (sale_id, shard, message) \
         select sale_id, shard, message from outbox, generate_series(1, 4000) where sale_id = $1";
    assert_eq!(world.execute(wave, sale.id).await.unwrap(), 4_000);
    let (key, sku) = ("more".parse().unwrap(), SKU.parse().unwrap());
    let restock = || flow::operate::restock::restock(&world.app, sale.id, &key, &sku, 4);
    let outcome = answered("the units are there", restock).await;
    assert!(matches!(outcome, RestockOutcome::Applied(_)), "{outcome:?}");
    assert!(free(&world, &sale).await >= 13, "the four are not there");
    let left = "select count(*) from outbox where sale_id = $1";
    assert!(world.number(left, sale.id).await > 0, "there was no wave");
    assert_eq!(world.settled(&sale).await.stock.available, 14);
}

/// Asks an instance for four units, under the key `more`. It keeps no permits, so it does not know the epoch of the
/// shards, and cannot bring the units. Returns it.
async fn restock_without_permits(world: &World, sale: &Sale) -> Arc<App> {
    let other = world.another().await;
    let (key, sku) = ("more".parse().unwrap(), SKU.parse().unwrap());
    let unknown = flow::operate::restock::restock(&other, sale.id, &key, &sku, 4).await;
    assert!(matches!(&unknown, Err(fault) if fault.is_passing()), "{unknown:?}");
    other
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restock_is_answered_once_its_units_are_there() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let (key, sku) = ("more".parse().unwrap(), SKU.parse().unwrap());
    restock_without_permits(&world, &sale).await;
    assert_eq!(free(&world, &sale).await, 10);
    within(PATIENCE, "the same request finds them there", async || {
        let outcome = flow::operate::restock::restock(&world.app, sale.id, &key, &sku, 4).await;
        if let Err(fault) = &outcome {
            assert!(fault.is_passing(), "{fault}");
            return false;
        }
        true
    })
    .await;
    assert_eq!(free(&world, &sale).await, 14);
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_an_instance_without_permits_could_not_bring_are_tried_again_soon() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let other = restock_without_permits(&world, &sale).await;
    // As after several restarts of Redis in a row.
    let tried = "update outbox set attempts = 6, not_before = now() where sale_id = $1";
    assert_eq!(world.execute(tried, sale.id).await.unwrap(), 2);
    flow::settle::release::release_of(&other, sale.id).await.unwrap();
    let again = "select count(*) from outbox where sale_id = $1 and attempts = 7";
    assert_eq!(world.number(again, sale.id).await, 2);
    let put_off = "select count(*) from outbox where sale_id = $1 and not_before > now() + interval '3 seconds'";
    assert_eq!(world.number(put_off, sale.id).await, 0);
}

/// A sale with an undelivered message about an order that was cancelled.
async fn with_a_decision(world: &World) -> Arc<Sale> {
    let sale = world.sale(&Terms::of(10, 1)).await;
    let order = bought(&world.app, &sale, "u", "k", 1).await;
    drain_all(&world.app).await.unwrap();
    let user = "u".parse().unwrap();
    world.app.ledger.cancel(order.id, &user).await.unwrap();
    sale
}

#[tokio::test]
async fn messages_of_operators_leave_half_of_each_batch_to_orders() {
    let world = World::new().await;
    let sale = with_a_decision(&world).await;
    let bans = "insert into outbox (sale_id, shard, message, not_before) \
         select $1, 0, jsonb_build_object('kind', 'ban', 'user', 'bot-' || n), now() - interval '1 hour' \
         from generate_series(1, 20) as n";
    assert_eq!(world.execute(bans, sale.id).await.unwrap(), 20);
    let batch = world.app.ledger.take_outgoing(10, Some(sale.id), &[]).await.unwrap();
    let of_orders = |it: &&Outgoing| matches!(it.message, Message::Resolve { .. });
    assert_eq!(batch.messages.iter().filter(of_orders).count(), 1);
    assert_eq!(batch.messages.len(), 6);
}

#[tokio::test]
async fn messages_of_a_claimed_shard_are_taken_by_the_first_batch_after_the_claim() {
    let mut world = World::new().await;
    let sale = with_a_decision(&world).await;
    // A keeper would settle the claim.
    world.end_keeper().await;
    let old = "update outbox set not_before = now() - interval '1 hour' where sale_id = $1";
    let claim = "update shards set run_id = '?' || run_id where sale_id = $1";
    let end = "update shards set run_id = ltrim(run_id, '?') where sale_id = $1";
    for (change, due) in [(old, None), (claim, Some(0)), (end, Some(1))] {
        world.execute(change, sale.id).await.unwrap();
        if let Some(due) = due {
            let batch = world.app.ledger.take_outgoing(10, None, &[]).await.unwrap();
            assert_eq!(batch.messages.len(), due, "{change}");
        }
    }
}

#[tokio::test]
async fn postponed_messages_are_due_once_their_shard_is_reconciled() {
    let world = World::new().await;
    let sale = with_a_decision(&world).await;
    let put_off = "update outbox set not_before = now() + interval '1 minute', attempts = 6 where sale_id = $1";
    assert_eq!(world.execute(put_off, sale.id).await.unwrap(), 1);
    let due = "select count(*) from outbox where sale_id = $1 and not_before <= now()";
    assert_eq!(world.number(due, sale.id).await, 0);
    let found = WholeShard {
        shard: 0,
        server: "another server".into(),
        before: NotedServer::default(),
        wrote: Position { epoch: 1, seq: 100 },
        lost: 0,
    };
    world.app.ledger.note_reconciled(sale.id, &[found]).await.unwrap();
    assert_eq!(world.number(due, sale.id).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_nobody_can_read_keeps_no_other_from_its_shard() {
    let world = World::new().await;
    let (sale, other) = (with_a_decision(&world).await, with_a_decision(&world).await);
    let wrong = "insert into outbox (sale_id, shard, message, not_before) \
         select $1, 0, jsonb_build_object('kind', 'state of ' || n), now() - interval '1 hour' \
         from generate_series(1, 600) as n";
    assert_eq!(world.execute(wrong, sale.id).await.unwrap(), 600);
    // A younger one would wait for a worker that can read it.
    let old = "update outbox set created_at = now() - interval '2 hours' where sale_id = $1 and message ->> 'kind' like 'state of %'";
    world.execute(old, sale.id).await.unwrap();
    flow::settle::release::release_waiting(&world.app).await.unwrap();
    let waiting = "select count(*) from outbox where sale_id = $1 and failure is null";
    let failed = "select count(*) from outbox where sale_id = $1 and failure like 'no message: %' and attempts = 1";
    for (sale, unreadable) in [(&sale, 600), (&other, 0)] {
        within(PATIENCE, "readable messages are delivered", async || {
            flow::settle::release::release_waiting(&world.app).await.unwrap();
            world.number(waiting, sale.id).await == 0
        })
        .await;
        assert_eq!(world.number(failed, sale.id).await, unreadable);
    }
    // They keep nobody from counting or from rebuilding the shard either.
    let stats = flow::watch::stats::stats(&world.app, sale.id).await.unwrap().unwrap();
    assert_eq!(stats.alerts.failed_releases, 600);
    assert!(
        flow::watch::audit::audit(&world.app, sale.id)
            .await
            .unwrap()
            .unwrap()
            .balanced
    );
    flow::recover::attend::rebuild_sale(&world.app, sale.id)
        .await
        .unwrap()
        .unwrap();
    // A newer version may be able to read them.
    let kept = "select count(*) from outbox where sale_id = $1 and message ->> 'kind' like 'state of %'";
    assert_eq!(world.number(kept, sale.id).await, 600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shoppers_with_too_many_page_views_keep_nobody_from_the_ledger() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    bought(&world.app, &sale, "u", "k", 1).await;
    let limits = PageViewLimits {
        alert_above: 1,
        ..PageViewLimits::default()
    };
    // Every new guard warning waits for this one.
    let mut lock = world.pool.begin().await.unwrap();
    let turn = "select pg_advisory_xact_lock(hashtextextended('raising of alerts', 0))";
    sqlx::query(turn).execute(&mut *lock).await.unwrap();
    let mut views = JoinSet::new();
    for _ in 0..40 {
        let (app, user) = (
            Arc::clone(&world.app),
            format!("views-{}", uuid::Uuid::new_v4().simple()),
        );
        views.spawn(async move {
            let user = user.parse().unwrap();
            for _ in 0..2 {
                flow::sell::browse::count_page_view(&app, &user, None, &limits).await?;
            }
            Ok::<_, Fault>(())
        });
    }
    let waiting = "select count(*) from pg_stat_activity \
         where datname = current_database() and wait_event_type = 'Lock' and $1 is not null";
    within(PATIENCE, "a page view waits for the lock", async || {
        world.number(waiting, sale.id).await > 0
    })
    .await;
    drain_all(&world.app).await.unwrap();
    let orders = "select count(*) from orders where sale_id = $1";
    assert_eq!(world.number(orders, sale.id).await, 1);
    assert!(world.number(waiting, sale.id).await <= 2);
    lock.rollback().await.unwrap();
    while let Some(view) = views.join_next().await {
        view.unwrap().unwrap();
    }
    let raised = "select count(*) from guard_alerts where user_id like 'views-%' and $1 is not null";
    assert_eq!(world.number(raised, sale.id).await, 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_decisions_do_not_keep_a_leaving_sale_in_redis() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let ended = "update sales set starts_at = now() - interval '50 hours', \
                 ends_at = now() - interval '24 hours 31 minutes' where sale_id = $1";
    world.execute(ended, sale.id).await.unwrap();
    assert_eq!(flow::operate::retire::retire_ended(&world.app).await.unwrap(), 0);
    let later = "update sales set over_at = over_at - interval '6 minutes' where sale_id = $1";
    world.execute(later, sale.id).await.unwrap();
    within(PATIENCE, "no process attends to it any more", async || {
        flow::recover::attend::reconcile_all(&world.app).await.unwrap();
        flow::recover::renew::renew(&world.app).await.unwrap() == 0
    })
    .await;
    // As it was decided, and requested, a moment before it began to leave.
    let (early, late) = ("early".parse().unwrap(), "late".parse().unwrap());
    let sku = SKU.parse().unwrap();
    let (restock, _) = world.app.ledger.begin_restock(sale.id, &early, &sku, 4).await.unwrap();
    let TakenRestock::Pending(pending) = world.app.ledger.take_restock(restock).await.unwrap() else {
        panic!("somebody else decides it");
    };
    assert!(pending.add(&sale).await.unwrap());
    for (key, quantity) in [("more", 3), ("less", -3)] {
        let key = key.parse().unwrap();
        world
            .app
            .ledger
            .begin_restock(sale.id, &key, &sku, quantity)
            .await
            .unwrap();
    }
    let refused = "insert into outbox (sale_id, shard, message, failure) \
         select $1, 0, jsonb_build_object('kind', 'state'), 'a test'";
    world.execute(refused, sale.id).await.unwrap();
    let outcome = flow::operate::restock::restock(&world.app, sale.id, &late, &sku, 4).await;
    assert!(
        matches!(outcome, Ok(RestockOutcome::NotLoaded(SaleState::Closed))),
        "{outcome:?}"
    );
    flow::operate::restock::settle_pending(&world.app).await.unwrap();
    flow::settle::release::release_waiting(&world.app).await.unwrap();
    let left = "select (select count(*) from outbox where sale_id = $1 and failure is null) \
         + (select count(*) from restocks where sale_id = $1 and state = 'pending')";
    assert_eq!(world.number(left, sale.id).await, 0);
    let later = "update sales set ends_at = now() - interval '26 hours', over_at = over_at - interval '1 hour' where sale_id = $1";
    world.execute(later, sale.id).await.unwrap();
    flow::operate::retire::retire_ended(&world.app).await.unwrap();
    let retired = "select count(*) from sales where sale_id = $1 and retired_at is not null";
    assert_eq!(world.number(retired, sale.id).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_other_sales_do_not_wait_for_a_sale_that_is_being_archived() {
    let world = World::new().await;
    let archived = world.draft(&Terms::of(1, 1)).await;
    let other = world.draft(&Terms::of(1, 1)).await;
    // As `sale archive` locks it, until all its rows are in the file and deleted.
    let mut archive = world.pool.begin().await.unwrap();
    let lock = sqlx::query("select from sales where sale_id = $1 for update").bind(archived.0);
    lock.execute(&mut *archive).await.unwrap();
    let counts = Counts {
        answers: [("sold_out".to_owned(), 1)].into(),
        ..Counts::default()
    };
    let counted = [archived, other].map(|sale| (sale, counts.clone()));
    world.app.ledger.add_history(&counted).await.unwrap();
    let refused = HashMap::from([archived, other].map(|sale| ((sale, Layer::Address, Effect::Refused), 1)));
    assert_eq!(world.app.ledger.add_refusal_counts(&refused).await.unwrap(), 1);
    archive.rollback().await.unwrap();
    for (sale, rows) in [(archived, 0), (other, 2)] {
        let counted = "select (select count(*) from sale_history where sale_id = $1) \
             + (select count(*) from guard_stopped where sale_id = $1)";
        assert_eq!(world.number(counted, sale).await, rows);
    }
}
