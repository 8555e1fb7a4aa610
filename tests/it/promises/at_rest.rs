//! A sale that is over costs nothing while nobody asks for it, and answers later requests as before.

use crate::support::crowd::{Terms, World, answered, bought, buy, cancel, done, drain_all};
use crate::support::poll::{PATIENCE, within};
use crate::support::raw::Raw;
use crate::support::servers::{DurableRedis, fresh_redis};
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use flashsale::domain::order::{CancelOutcome, Order, OrderState};
use flashsale::domain::sale::{Sale, SaleState, Transition};
use flashsale::flow;
use flashsale::flow::operate::transition::TransitionOutcome;
use std::sync::Arc;

/// A sale with orders of three shoppers that has just been closed.
async fn closed(world: &World) -> (Arc<Sale>, Vec<Order>) {
    let sale = world.sale(&Terms::of(10, 2)).await;
    let mut orders = Vec::new();
    for user in ["ada", "bob", "eve"] {
        orders.push(bought(&world.app, &sale, user, "k", 1).await);
    }
    let close = || flow::operate::transition::transition(&world.app, sale.id, Transition::Close);
    let closed = answered("the sale is closed", close).await;
    assert!(matches!(closed, TransitionOutcome::Done(_)), "{closed:?}");
    world.settled(&sale).await;
    (sale, orders)
}

/// Waits until the sale rests, and no shard of it has a permit any more.
async fn rests(world: &World, sale: &Sale) {
    within(PATIENCE, "no process renews the permits", async || {
        let now = answered("Redis tells the time", || world.app.stock.now()).await;
        let readings = answered("the shards are read", || world.app.stock.read_shards(sale)).await;
        // Permits may also lapse on a slow machine: such shards count as halted, or sell again.
        let counts = world.app.permits.count_shards();
        (counts.selling, counts.halted) == (0, 0) && readings.iter().all(|it| it.record.permit_until <= now)
    })
    .await;
}

async fn is_replayed(world: &World, sale: &Sale, user: &str, order: &Order, state: OrderState) {
    let outcome = buy(&world.app, sale, user, "k", 1).await;
    let PurchaseOutcome::Replayed(found) = outcome else {
        panic!("{user}: {outcome:?}")
    };
    assert_eq!((found.id, found.state), (order.id, state), "{user}");
}

/// Every request that is allowed until a day after the end of a sale.
async fn answers(world: &World, sale: &Sale, orders: &[Order]) {
    is_replayed(world, sale, "ada", &orders[0], OrderState::Reserved).await;
    let late = buy(&world.app, sale, "late", "k", 1).await;
    assert_eq!(
        late,
        PurchaseOutcome::Refused(Refusal::NotOpen {
            state: SaleState::Closed
        })
    );
    let own = flow::settle::order::list_orders(&world.app, sale.id, &"bob".parse().unwrap()).await;
    assert_eq!(own.unwrap().unwrap().orders.len(), 1);
    let cancelled = cancel(&world.app, orders[1].id, "bob").await;
    assert!(matches!(cancelled, CancelOutcome::Cancelled(_)), "{cancelled:?}");
    let due = "update orders set created_at = created_at - interval '1 hour', \
               expires_at = expires_at - interval '1 hour' where sale_id = $1 and user_id = 'eve'";
    assert_eq!(world.execute(due, sale.id).await.unwrap(), 1);
    let expired = "select count(*) from orders where sale_id = $1 and state = 'expired'";
    within(PATIENCE, "the hold expires", async || {
        done(flow::settle::expire::expire_due(&world.app).await);
        world.number(expired, sale.id).await == 1
    })
    .await;
    let item = world.settled(sale).await;
    assert_eq!((item.stock.available, item.stock.held), (9, 1), "{item:?}");
    is_replayed(world, sale, "bob", &orders[1], OrderState::Cancelled).await;
    is_replayed(world, sale, "eve", &orders[2], OrderState::Expired).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_renews_or_polls_a_sale_that_is_over_and_it_answers_as_before() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let (sale, orders) = closed(&world).await;
    rests(&world, &sale).await;
    let raw = Raw::connect(&world.redis);
    let polls = || raw.command_counts().get("xlen").copied().unwrap_or_default();
    let before = polls();
    drain_all(&world.app).await.unwrap();
    assert_eq!(polls(), before, "its streams are not asked for");
    assert_eq!(world.app.permits.count_shards().halted, 0, "no shard counts as halted");
    answers(&world, &sale, &orders).await;
    rests(&world, &sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_over_answers_as_before_after_a_restart_of_redis() {
    let mut redis = DurableRedis::start();
    let world = World::on(redis.url()).await;
    let (sale, orders) = closed(&world).await;
    rests(&world, &sale).await;
    redis.kill();
    redis.restart();
    answers(&world, &sale, &orders).await;
    let rebuilds = "select sum(rebuilds)::int8 from shards where sale_id = $1";
    assert_eq!(world.number(rebuilds, sale.id).await, 0);
    rests(&world, &sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_sale_that_is_over_is_rebuilt_at_the_next_request() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let (sale, orders) = closed(&world).await;
    rests(&world, &sale).await;
    let _ok: String = Raw::connect(&world.redis).call(&mut redis::cmd("FLUSHALL"));
    answers(&world, &sale, &orders).await;
    rests(&world, &sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_sale_with_holds_that_is_over_is_rebuilt_by_the_conservation_check() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let (sale, _) = closed(&world).await;
    rests(&world, &sale).await;
    let _ok: String = Raw::connect(&world.redis).call(&mut redis::cmd("FLUSHALL"));
    within(PATIENCE, "its units are counted", async || {
        let counted = flow::watch::conservation::check_sales(&world.app).await;
        counted.is_ok_and(|sales| sales == 1)
    })
    .await;
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.available, item.stock.held), (7, 3), "{item:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_are_taken_out_of_a_sale_that_is_over() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let (sale, _) = closed(&world).await;
    rests(&world, &sale).await;
    let sku = sale.items[0].sku.clone();
    for (key, quantity, left) in [("out", -4, 3), ("in", 2, 5)] {
        let request = key.parse().unwrap();
        within(
            PATIENCE,
            "the units are counted",
            async || match flow::operate::restock::restock(&world.app, sale.id, &request, &sku, quantity).await {
                Ok(outcome) => matches!(outcome, flow::operate::restock::RestockOutcome::Applied(_)),
                Err(fault) => {
                    assert!(fault.is_passing(), "{fault}");
                    false
                }
            },
        )
        .await;
        let item = world.settled(&sale).await;
        assert_eq!((item.stock.available, item.total), (left, left + 3), "{item:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_reaches_a_sale_that_is_over_though_its_reconciling_was_broken_off() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let (sale, _) = closed(&world).await;
    rests(&world, &sale).await;
    let claimed = "update shards set run_id = '?' || run_id where sale_id = $1";
    assert_eq!(world.execute(claimed, sale.id).await.unwrap(), 2);
    let due = "update orders set created_at = created_at - interval '1 hour', \
               expires_at = expires_at - interval '1 hour' where sale_id = $1";
    world.execute(due, sale.id).await.unwrap();
    within(PATIENCE, "the shards have their units back", async || {
        done(flow::settle::expire::expire_due(&world.app).await);
        done(flow::recover::upkeep::finish_transfers(&world.app).await);
        done(flow::settle::release::release_waiting(&world.app).await);
        let readings = world.app.stock.read_shards(&sale).await.unwrap();
        let available = readings.iter().map(|it| it.counters(&sale.items[0].sku).available);
        available.sum::<i64>() == 10
    })
    .await;
    world.settled(&sale).await;
}
