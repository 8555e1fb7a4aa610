//! A sale that is over leaves Redis, and stays in the ledger.

use super::everything_is_drained;
use crate::support::crowd::{SKU, Terms, World, bought, buy, cancel, payment, shopper_at, try_buy};
use crate::support::poll::{PATIENCE, answer, within};
use crate::support::raw::Raw;
use flashsale::domain::ids::SaleId;
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use flashsale::domain::order::{CancelOutcome, OrderState};
use flashsale::domain::sale::{Sale, SaleState, Transition};
use flashsale::flow;
use flashsale::flow::operate::restock::RestockOutcome;
use flashsale::flow::settle::drain::drain_to_now;
use flashsale::ledger::operate::retirement::Retiring;
use tokio::time::Instant;

fn keys_of(world: &World, sale: SaleId) -> usize {
    Raw::connect(&world.redis).dump(&format!("{{{sale}:*")).len()
}

/// Buys with an order that the ledger cannot store.
async fn put_aside(world: &World, sale: &Sale) {
    let user = shopper_at(sale, 0);
    let order = bought(&world.app, sale, &user, "k", 1).await;
    let in_its_place = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
         currency, state, created_at, expires_at, resolved_at, epoch, seq) \
         select gen_random_uuid(), $1, 0, i.sku, 'somebody', 'k', 1, 0, 'EUR', 'cancelled', now(), \
         now() + interval '1 hour', now(), 1, s.drained_seq + 1 from items i join shards s using (sale_id) \
         where i.sale_id = $1 and s.shard = 0";
    world.execute(in_its_place, sale.id).await.unwrap();
    let by = Instant::now() + PATIENCE;
    assert!(drain_to_now(&world.app, sale, &[0], by).await.unwrap());
    let letters = "select count(*) from dead_letters where sale_id = $1";
    assert_eq!(world.number(letters, sale.id).await, 1);
    // Whether or not the message was delivered by then.
    within(PATIENCE, "the order is revoked", async || {
        match flow::settle::cancel::cancel(&world.app, order.id, &user.parse().unwrap()).await {
            Err(fault) => assert!(fault.to_string().contains("is being revoked"), "{fault}"),
            Ok(CancelOutcome::NotCancellable(state)) => {
                assert_eq!(state, OrderState::Revoked);
                return true;
            }
            other => panic!("{other:?}"),
        }
        flow::settle::release::release_waiting(&world.app).await.unwrap();
        false
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_leaves_redis_a_day_after_its_end_and_its_orders_stay() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(6, 2)).await;
    let open = bought(&world.app, &sale, "holds", "k", 1).await;
    let pays = bought(&world.app, &sale, "pays", "k", 2).await;
    flow::settle::pay::pay(&world.app, &payment("p", pays.id, 2))
        .await
        .unwrap();
    world.settled(&sale).await;
    put_aside(&world, &sale).await;
    bought(&world.app, &sale, "not stored", "k", 1).await;
    let ended = "update sales set starts_at = now() - interval '50 hours', ends_at = now() - interval '26 hours', \
                 over_at = now() - interval '1 hour' where sale_id = $1";
    world.execute(ended, sale.id).await.unwrap();
    // The shards learn of it like of any change.
    world
        .execute(
            "update sales set state_version = state_version + 1 where sale_id = $1",
            sale.id,
        )
        .await
        .unwrap();
    let changed = world.app.ledger.sale(sale.id).await.unwrap().unwrap();
    for shard in 0..sale.shards {
        world.app.stock.set_state(&changed, shard).await.unwrap();
    }

    let app = world.another().await;
    flow::operate::retire::retire_ended(&app).await.unwrap();
    assert!(keys_of(&world, sale.id) > 0, "an order is still open");
    cancel(&app, open.id, "holds").await;
    // No process keeps the shards of such a sale any more, so the job `release` makes sure of the delivery.
    flow::settle::release::release_waiting(&app).await.unwrap();
    flow::operate::retire::retire_ended(&app).await.unwrap();
    assert!(keys_of(&world, sale.id) > 0, "an order is not in the ledger");
    // It never will be, if its epoch is over.
    let over = "update shards set epoch = epoch + 1 where sale_id = $1";
    world.execute(over, sale.id).await.unwrap();
    flow::operate::retire::retire_ended(&app).await.unwrap();
    assert_eq!(keys_of(&world, sale.id), 0);

    let audit = flow::watch::audit::audit(&app, sale.id).await.unwrap().unwrap();
    let [item] = &audit.items[..] else { panic!("{audit:?}") };
    assert!(audit.balanced && audit.ledger_only, "{audit:?}");
    assert_eq!((item.ledger.held, item.ledger.sold), (0, 2), "{audit:?}");
    assert_eq!(item.ledger.free, item.total - 2);
    let more = "update grants set sold = sold + 1 where sale_id = $1 and sold > 0";
    world.execute(more, sale.id).await.unwrap();
    let audit = flow::watch::audit::audit(&app, sale.id).await.unwrap().unwrap();
    assert!(!audit.balanced && audit.differences[0].contains("grant"), "{audit:?}");
    let less = "update grants set sold = sold - 1 where sale_id = $1 and sold > 0";
    world.execute(less, sale.id).await.unwrap();

    for (user, order, state) in [
        ("holds", &open, OrderState::Cancelled),
        ("pays", &pays, OrderState::Paid),
    ] {
        let user = user.parse().unwrap();
        let found = flow::settle::order::read_order(&app, order.id, &user)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((found.state, found.confirmed), (state, true));
        let all = flow::settle::order::list_orders(&app, sale.id, &user)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(all.orders.iter().map(|it| it.id).collect::<Vec<_>>(), [order.id]);
    }
    let late = buy(&app, &changed, "late", "k", 1).await;
    assert_eq!(
        late,
        PurchaseOutcome::Unprobed(Refusal::NotOpen {
            state: SaleState::Closed
        })
    );
    assert_eq!(flow::operate::retire::retire_ended(&app).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_sale_leaves_redis_a_day_after_it_was_closed() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(6, 2)).await;
    let far = "update sales set ends_at = '9999-01-01' where sale_id = $1";
    world.execute(far, sale.id).await.unwrap();
    let order = bought(&world.app, &sale, "u", "k", 1).await;
    world.settled(&sale).await;
    flow::operate::transition::transition(&world.app, sale.id, Transition::Close)
        .await
        .unwrap();
    cancel(&world.app, order.id, "u").await;
    world.settled(&sale).await;
    let app = world.another().await;
    assert_eq!(flow::operate::retire::retire_ended(&app).await.unwrap(), 0);
    let retired = "select count(*) from sales where sale_id = $1 and retired_at is not null";
    for (hours, expected) in [("24", 0), ("26", 1)] {
        let ago = "update sales set closed_at = now() - interval '1 hour' * HOURS, \
                   over_at = over_at - interval '1 hour' where sale_id = $1";
        sqlx::query(sqlx::AssertSqlSafe(ago.replace("HOURS", hours)))
            .bind(sale.id.0)
            .execute(&world.pool)
            .await
            .unwrap();
        let app = world.another().await;
        flow::operate::retire::retire_ended(&app).await.unwrap();
        assert_eq!(world.number(retired, sale.id).await, expected, "{hours} hours");
        let late = buy(&app, &sale, "late", "k", 1).await;
        let refusal = Refusal::NotOpen {
            state: SaleState::Closed,
        };
        let has_left = expected != 0;
        let refused = if has_left {
            PurchaseOutcome::Unprobed
        } else {
            PurchaseOutcome::Refused
        };
        assert_eq!(late, refused(refusal));
    }
    // The process that sold it does not wait for a lost shard either.
    within(PATIENCE, "the process that sold it knows", async || {
        let late = try_buy(&world.app, &sale, "late", "k", 1).await;
        late.is_ok_and(|it| {
            it == PurchaseOutcome::Unprobed(Refusal::NotOpen {
                state: SaleState::Closed,
            })
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_redis_still_sells_is_not_retired_by_a_postgres_that_is_ahead() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(6, 1)).await;
    // The same as a clock of Postgres that is two days ahead: the sale is over for Postgres, but not for Redis.
    let over = "update sales set closed_at = now() - interval '26 hours' where sale_id = $1";
    world.execute(over, sale.id).await.unwrap();
    let app = world.another().await;
    assert_eq!(flow::operate::retire::retire_ended(&app).await.unwrap(), 0);
    assert!(keys_of(&world, sale.id) > 0);
    // It goes on selling, gives back, and takes more units.
    flow::recover::attend::reconcile_all(&app).await.unwrap();
    assert_eq!(flow::recover::renew::renew(&app).await.unwrap(), 1);
    let order = bought(&app, &sale, "ada", "k", 6).await;
    flow::settle::cancel::cancel(&app, order.id, &"ada".parse().unwrap())
        .await
        .unwrap();
    world.settled(&sale).await;
    bought(&app, &sale, "ben", "k", 6).await;
    let key = "more".parse().unwrap();
    let restock = flow::operate::restock::restock(&app, sale.id, &key, &SKU.parse().unwrap(), 2).await;
    assert!(matches!(restock, Ok(RestockOutcome::Applied(_))), "{restock:?}");
    bought(&app, &sale, "eve", "k", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_no_worker_saw_end_leaves_redis_after_all_processes_know() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(6, 1)).await;
    let over = "update sales set state = 'closed', closed_at = now() - interval '26 hours' where sale_id = $1";
    world.execute(over, sale.id).await.unwrap();
    let app = world.another().await;
    // The first run only notes that it is over.
    assert_eq!(flow::operate::retire::retire_ended(&app).await.unwrap(), 0);
    assert!(!world.app.ledger.sale(sale.id).await.unwrap().unwrap().leaving);
    let later = "update sales set over_at = over_at - interval '6 minutes' where sale_id = $1";
    world.execute(later, sale.id).await.unwrap();
    assert_eq!(flow::operate::retire::retire_ended(&app).await.unwrap(), 0);
    assert!(world.app.ledger.sale(sale.id).await.unwrap().unwrap().leaving);
    assert!(keys_of(&world, sale.id) > 0);
    let later = "update sales set over_at = over_at - interval '31 minutes' where sale_id = $1";
    world.execute(later, sale.id).await.unwrap();
    assert_eq!(flow::operate::retire::retire_ended(&app).await.unwrap(), 1);
    assert_eq!(keys_of(&world, sale.id), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_sales_that_have_to_wait_keep_no_other_in_redis() {
    let world = World::new().await;
    let draft = world.draft(&Terms::of(6, 1)).await;
    // By Redis's clock these sales are not over.
    let waiting = "insert into sales (sale_id, name, state, starts_at, ends_at, shards, payment_window_seconds, \
             rate_limit, rate_window_ms, durability, guards, secret, closed_at) \
         select gen_random_uuid(), name, 'active', starts_at, ends_at, shards, payment_window_seconds, rate_limit, \
             rate_window_ms, durability, guards, secret, now() - interval '26 hours' \
         from sales, generate_series(1, 100) where sale_id = $1";
    assert_eq!(world.execute(waiting, draft).await.unwrap(), 100);
    let sale = world.sale(&Terms::of(6, 1)).await;
    let over = "update sales set state = 'closed', closed_at = now() - interval '26 hours', \
                ends_at = now() + interval '2 hours', over_at = now() - interval '1 hour' where sale_id = $1";
    world.execute(over, sale.id).await.unwrap();
    let app = world.another().await;
    assert_eq!(flow::operate::retire::retire_by_pages(&app, 30).await.unwrap(), 1);
    assert_eq!(keys_of(&world, sale.id), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_retire_a_sale_share_its_shoppers_and_go_on_where_the_last_one_stopped() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(6, 2)).await;
    for user in ["a", "b", "c"] {
        bought(&world.app, &sale, user, "k", 1).await;
    }
    everything_is_drained(&world, &sale).await;
    let over = "update sales set over_at = now() - interval '1 hour' where sale_id = $1";
    world.execute(over, sale.id).await.unwrap();
    let ledger = &world.app.ledger;
    let users =
        |page: &Retiring| -> Vec<String> { page.shoppers.iter().map(|(_, user)| user.as_str().to_owned()).collect() };
    let first = ledger.next_to_retire(sale.id, &[0, 1], 2).await.unwrap().unwrap();
    assert_eq!(users(&first), ["a", "b"]);
    assert!(
        ledger.next_to_retire(sale.id, &[0, 1], 2).await.unwrap().is_none(),
        "another has it"
    );
    drop(first);
    // It crashed before it had noted anything.
    let first = answer("the same shoppers are there again", || async {
        ledger.next_to_retire(sale.id, &[0, 1], 2).await.unwrap()
    })
    .await;
    assert_eq!(users(&first), ["a", "b"]);
    first.removed().await.unwrap();
    let second = ledger.next_to_retire(sale.id, &[0, 1], 2).await.unwrap().unwrap();
    assert_eq!(users(&second), ["c"]);
    second.removed().await.unwrap();
    let last = ledger.next_to_retire(sale.id, &[0, 1], 2).await.unwrap().unwrap();
    assert!(last.shoppers.is_empty());
    assert!(last.retired().await.unwrap(), "no other shard is left");
    assert!(ledger.next_to_retire(sale.id, &[0, 1], 2).await.unwrap().is_none());
}
