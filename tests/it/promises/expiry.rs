//! Never leaked: units that are not paid in time become free again, not a moment before their deadline, and sell again.

use crate::support::crowd::{Terms, World, answered, bought, buy, done, drain_all, payment};
use crate::support::poll::{PATIENCE, within};
use flashsale::domain::order::OrderState;
use flashsale::domain::order::payment::{Payment, PaymentOutcome};
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use flashsale::domain::sale::Sale;
use flashsale::flow;
use futures_util::FutureExt as _;
use futures_util::future::{join, join_all};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpaid_units_come_back_after_their_deadline_and_sell_again_to_the_same_shoppers() {
    let world = World::new().await;
    let terms = Terms {
        window_seconds: 1,
        limit: 1,
        ..Terms::of(40, 4)
    };
    let sale = world.sale(&terms).await;
    let mut workers = [
        world.start("worker").await,
        world.start("worker").await,
        world.start("worker").await,
    ];
    let users: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
    join_all(users.iter().map(|user| bought(&world.app, &sale, user, "first", 1))).await;
    within(PATIENCE, "every order expires", async || {
        let expired = "select count(*) from orders where sale_id = $1 and state = 'expired'";
        world.number(expired, sale.id).await == 40
    })
    .await;
    let item = world.rested(&sale).await;
    assert_eq!((item.stock.available, item.stock.held), (40, 0), "{item:?}");
    let early = "select count(*) from orders where sale_id = $1 and resolved_at < expires_at";
    assert_eq!(world.number(early, sale.id).await, 0);

    // From here on nothing expires, so that the stock can be seen to sell out exactly.
    for worker in &mut workers {
        worker.kill();
    }
    for user in &users {
        let replayed = buy(&world.app, &sale, user, "first", 1).await;
        assert!(matches!(replayed, PurchaseOutcome::Replayed(_)), "{replayed:?}");
    }
    join_all(users.iter().map(|user| bought(&world.app, &sale, user, "second", 1))).await;
    let more = buy(&world.app, &sale, &users[0], "third", 1).await;
    assert!(
        matches!(more, PurchaseOutcome::Refused(Refusal::LimitReached { .. })),
        "{more:?}"
    );
    let late = buy(&world.app, &sale, "late", "k", 1).await;
    assert_eq!(late, PurchaseOutcome::Refused(Refusal::SoldOut));
    assert_eq!(world.settled(&sale).await.stock.held, 40);
}

const EXPIRED: &str = "select count(*) from orders where sale_id = $1 and state = 'expired'";

/// A sale with two orders, whose holds end a moment from now, one after the other.
async fn sale_with_two_deadlines(world: &World) -> Arc<Sale> {
    let sale = world.sale(&Terms::of(2, 1)).await;
    for user in ["ada", "ben"] {
        bought(&world.app, &sale, user, "k", 1).await;
    }
    answered("the orders are stored", || drain_all(&world.app)).await;
    // The first heartbeat ends an outage, which would move the deadlines.
    answered("a worker is there", || world.app.ledger.beat()).await;
    let forget = "delete from outages where $1::uuid is not null";
    world.execute(forget, sale.id).await.unwrap();
    let soon = "update orders set expires_at = now() + case user_id when 'ada' then interval '250 milliseconds' \
         else interval '500 milliseconds' end where sale_id = $1";
    world.execute(soon, sale.id).await.unwrap();
    sale
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_run_expires_orders_at_two_deadlines_and_wakes_the_release() {
    let world = World::new().await;
    let mut sales = Vec::new();
    within(PATIENCE, "one run expires both orders", async || {
        let sale = sale_with_two_deadlines(&world).await;
        sales.push(Arc::clone(&sale));
        // On a slow machine, a run may end between the deadlines.
        done(flow::settle::expire::expire_on_time(&world.app).await);
        world.number(EXPIRED, sale.id).await == 2
    })
    .await;
    let sale = sales.pop().unwrap();
    let early = "select count(*) from orders where sale_id = $1 and resolved_at < expires_at";
    assert_eq!(world.number(early, sale.id).await, 0);
    let woken = world.app.releases_wanted.notified().now_or_never();
    assert!(woken.is_some(), "the release sleeps");
    assert_eq!(world.settled(&sale).await.stock.available, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_one_worker_waits_for_deadlines_no_other_does() {
    let world = World::new().await;
    let other = world.another().await;
    let turn = answered("the other worker waits", || other.ledger.turn_to_await_deadlines()).await;
    within(PATIENCE, "a run ends before the deadlines", async || {
        let sale = sale_with_two_deadlines(&world).await;
        // On a slow machine, a run may begin after the deadlines.
        done(flow::settle::expire::expire_on_time(&world.app).await);
        world.number(EXPIRED, sale.id).await == 0
    })
    .await;
    turn.unwrap().end().await.unwrap();
}

/// Otherwise the next deadline of the shard would be found only after that payment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_deadline_of_a_shard_is_that_of_an_order_without_a_pending_payment() {
    let world = World::new().await;
    let sale = sale_with_two_deadlines(&world).await;
    let pending = "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome) \
         select 'pay', 'msg', order_id::text, 1, 'EUR', 'pending' from orders where sale_id = $1 and user_id = 'ada'";
    world.execute(pending, sale.id).await.unwrap();
    let due = world.app.ledger.shards_with_due_orders(None).await.unwrap();
    let [first] = due.as_slice() else {
        panic!("{due:?}");
    };
    let last = "select (extract(epoch from max(expires_at)) * 1000)::int8 from orders where sale_id = $1";
    assert_eq!(first.first, world.number(last, sale.id).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_workers_expire_every_order_once_and_none_early() {
    let world = World::new().await;
    let terms = Terms {
        window_seconds: 1,
        ..Terms::of(200, 4)
    };
    let sale = world.sale(&terms).await;
    let apps = [world.another().await, world.another().await, world.another().await];
    let all_expired = "select count(*) from orders where sale_id = $1 and state = 'expired'";
    // The deadlines are spread over several rounds of the workers.
    let mut expired = 0;
    let mut bought_so_far = 0;
    within(PATIENCE, "every order expires", async || {
        if bought_so_far < 200 {
            let wave = (bought_so_far..bought_so_far + 10).map(|n| format!("u{n}"));
            let wave: Vec<String> = wave.collect();
            join_all(wave.iter().map(|user| bought(&world.app, &sale, user, "k", 1))).await;
            bought_so_far += 10;
            done(drain_all(&world.app).await);
        }
        let runs = join_all(apps.iter().map(|app| flow::settle::expire::expire_due(app))).await;
        expired += runs.into_iter().map(done).sum::<usize>();
        world.number(all_expired, sale.id).await == 200
    })
    .await;
    // A run whose fault passes, as when another worker has the lock, does not say how many it expired.
    assert!(expired <= 200, "{expired}");
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.available, item.stock.held), (200, 0), "{item:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_whose_payment_is_pending_does_not_expire_and_is_paid() {
    let world = World::new().await;
    let terms = Terms {
        window_seconds: 1,
        ..Terms::of(10, 1)
    };
    let sale = world.sale(&terms).await;
    // While the row of the shard is locked, its events cannot be drained.
    let mut lock = world.pool.begin().await.unwrap();
    let shard = "select from shards where sale_id = $1 for no key update";
    sqlx::query(shard).bind(sale.id.0).execute(&mut *lock).await.unwrap();
    let paid = bought(&world.app, &sale, "paid", "k", 1).await;
    let wrong = bought(&world.app, &sale, "wrong", "k", 1).await;
    bought(&world.app, &sale, "unpaid", "k", 1).await;
    let too_little = Payment {
        amount_minor: 1,
        ..payment("too-little", wrong.id, 1)
    };
    let in_time = payment("in-time", paid.id, 1);
    let (one, other) = Box::pin(join(
        flow::settle::pay::pay(&world.app, &in_time),
        flow::settle::pay::pay(&world.app, &too_little),
    ))
    .await;
    assert_eq!(
        (one.unwrap(), other.unwrap()),
        (PaymentOutcome::Pending, PaymentOutcome::Pending)
    );
    lock.rollback().await.unwrap();
    drain_all(&world.app).await.unwrap();
    within(PATIENCE, "the order that nobody paid expires", async || {
        flow::settle::expire::expire_due(&world.app).await.unwrap() == 1
    })
    .await;
    flow::settle::pay::settle_pending(&world.app).await.unwrap();
    // A settled payment holds nothing any more.
    assert_eq!(flow::settle::expire::expire_due(&world.app).await.unwrap(), 1);
    for (order, state) in [(paid.id, OrderState::Paid), (wrong.id, OrderState::Expired)] {
        let order = world.app.ledger.order(order).await.unwrap().unwrap();
        assert_eq!(order.state, state);
    }
    let outcomes = "select count(*) from payments where outcome = \
         case payment_id when 'pay-in-time' then 'applied' else 'refund_due' end and $1::uuid is not null";
    assert_eq!(world.number(outcomes, sale.id).await, 2);
    world.settled(&sale).await;
}
