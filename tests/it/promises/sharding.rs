//! Sold out is the truth: units on other shards, or between two, are found.

use crate::support::crowd::{SKU, Terms, World, bought, buy, cancel, drain_all, shopper_at, try_buy};
use crate::support::poll::{PATIENCE, Patience};
use flashsale::domain::ids::{OrderId, Sku};
use flashsale::domain::order::CancelOutcome;
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use flashsale::domain::sale::Sale;
use flashsale::flow::{self, App};
use flashsale::stock::keys::ShardKey;
use flashsale::stock::sell::transfer::{Destination, Sent, Transfer};
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uuid::Uuid;

fn sku() -> Sku {
    SKU.parse().unwrap()
}

/// Two workers that rebalance and finish transfers until they are stopped, and move single units about, also the last
/// ones, which rebalancing leaves alone. Passing faults are ignored.
fn workers(apps: &[Arc<App>], sale: &Arc<Sale>, stop: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<()>> {
    let work = |app: &Arc<App>| {
        let (app, sale, stop) = (Arc::clone(app), Arc::clone(sale), Arc::clone(stop));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let (from, to) = (rand::random_range(0..sale.shards), rand::random_range(0..sale.shards));
                let done = async {
                    if from != to {
                        flow::sell::borrow::transfer(&app, &sale, &sku(), (from, to), 1).await?;
                    }
                    flow::recover::rebalance::rebalance(&app, &sale).await?;
                    flow::sell::borrow::finish_left(&app, &sale, 0).await?;
                    drain_all(&app).await?;
                    flow::settle::release::release_waiting(&app).await
                };
                if let Err(fault) = done.await {
                    assert!(fault.is_passing(), "{fault}");
                }
                tokio::task::yield_now().await;
            }
        })
    };
    apps.iter().take(2).map(work).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seven_of_ten_units_on_eight_shards_go_to_one_buyer_and_the_other_three_to_three() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 8)).await;
    bought(&world.app, &sale, "seven", "k", 7).await;
    let eight = buy(&world.app, &sale, "four", "k", 4).await;
    assert_eq!(eight, PurchaseOutcome::Refused(Refusal::SoldOut), "three are left");
    for user in ["one", "two", "three"] {
        bought(&world.app, &sale, user, "k", 1).await;
    }
    let late = buy(&world.app, &sale, "late", "k", 1).await;
    assert_eq!(late, PurchaseOutcome::Refused(Refusal::SoldOut));
    assert_eq!(world.settled(&sale).await.stock.held, 10);
}

/// Buyers whose demand adds up to the stock: a sold-out answer to any of them is wrong.
async fn everybody_is_served(shards: u16, quantities: Vec<u32>) {
    let world = World::new().await;
    let stock = quantities.iter().map(|it| i64::from(*it)).sum();
    let sale = world.sale(&Terms::of(stock, shards)).await;
    let apps = [world.another().await, world.another().await, Arc::clone(&world.app)];
    let stop = Arc::new(AtomicBool::new(false));
    let workers = workers(&apps, &sale, &stop);
    let buyers = quantities.into_iter().enumerate().map(|(n, quantity)| {
        let (app, sale) = (Arc::clone(&apps[n % apps.len()]), Arc::clone(&sale));
        tokio::spawn(async move {
            bought(&app, &sale, &format!("u{n}"), "k", quantity).await;
        })
    });
    for buyer in join_all(buyers).await {
        buyer.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let late = buy(&world.app, &sale, "late", "k", 1).await;
    assert_eq!(late, PurchaseOutcome::Refused(Refusal::SoldOut));
    assert_eq!(world.settled(&sale).await.stock.held, stock);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_buyers_as_units_all_get_one_over_8_shards() {
    everybody_is_served(8, vec![1; 120]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_buyers_as_units_all_get_one_over_32_shards() {
    everybody_is_served(32, vec![1; 96]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buyers_of_many_units_gather_them_from_many_shards_at_once() {
    everybody_is_served(8, vec![7; 12]).await;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    everybody_is_served(32, (0..40).map(|_| random.random_range(1..=9)).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_stands_still_keeps_the_others_from_nothing_but_calling_it_sold_out() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(40, 4)).await;
    let still = ShardKey {
        sale: sale.id,
        shard: 3,
    };
    world.app.stock.halt(still).await.unwrap();
    // Three shards have thirty units between them.
    let user = shopper_at(&sale, 0);
    bought(&world.app, &sale, &user, "all", 30).await;
    world.app.stock.halt(still).await.unwrap();
    let unknown = try_buy(&world.app, &sale, &shopper_at(&sale, 1), "k", 1).await;
    assert!(matches!(&unknown, Err(fault) if fault.is_passing()), "{unknown:?}");
    world.app.stock.resume(still).await.unwrap();
    bought(&world.app, &sale, &shopper_at(&sale, 1), "k", 10).await;
    world.sells_out(&sale).await;
}

/// Waits until the shard of a cancelled order has its units. A slow machine leaves them to a worker's job.
async fn until_released(pool: &sqlx::PgPool, order: OrderId) {
    let patience = Patience::of(PATIENCE);
    loop {
        let waiting = "select count(*) from outbox where (message ->> 'order')::uuid = $1";
        let waiting = sqlx::query_scalar::<_, i64>(waiting).bind(order.0);
        if waiting.fetch_one(pool).await.unwrap() == 0 {
            return;
        }
        patience.pause("the units are free again").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_come_back_are_found_wherever_they_lie() {
    let world = World::new().await;
    let shoppers = 24;
    let sale = world.sale(&Terms::of(shoppers, 8)).await;
    let apps = [world.another().await, world.another().await];
    let stop = Arc::new(AtomicBool::new(false));
    let workers = workers(&apps, &sale, &stop);
    // Each has at most one unit, so at every moment one is free for the one who asks.
    let shoppers_at_work = (0..shoppers).map(|n| {
        let (app, sale) = (Arc::clone(&apps[usize::try_from(n).unwrap() % 2]), Arc::clone(&sale));
        let pool = world.pool.clone();
        tokio::spawn(async move {
            let user = format!("u{n}");
            for round in 0..6 {
                let order = match buy(&app, &sale, &user, &format!("k{round}"), 1).await {
                    PurchaseOutcome::Reserved(order) | PurchaseOutcome::Replayed(order) => order,
                    other => panic!("{user}: {other:?}"),
                };
                if round < 5 {
                    let given_back = cancel(&app, order.id, &user).await;
                    assert!(matches!(given_back, CancelOutcome::Cancelled(_)), "{given_back:?}");
                    until_released(&pool, order.id).await;
                }
            }
        })
    });
    for shopper in join_all(shoppers_at_work).await {
        shopper.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(world.settled(&sale).await.stock.held, shoppers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_between_two_shards_is_sold_to_the_next_who_asks() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(1, 8)).await;
    for step in 0..2 {
        // The unit is in transit to another shard, and its sender is dead.
        let readings = world.app.stock.read_shards(&sale).await.unwrap();
        let from = readings
            .iter()
            .find(|it| it.counters(&sku()).available == 1)
            .unwrap()
            .shard;
        let (to, id, now) = ((from + 3) % 8, Uuid::now_v7(), chrono::Utc::now().timestamp_millis());
        let (lender, borrower) = (
            ShardKey {
                sale: sale.id,
                shard: from,
            },
            ShardKey {
                sale: sale.id,
                shard: to,
            },
        );
        let sent = world
            .app
            .stock
            .transfer_out(lender, id, &sku(), Destination::Shard(to), 1, now)
            .await;
        assert_eq!(sent.unwrap(), Sent::Out { units: 1, epoch: 1 });
        if step == 1 {
            let transfer = Transfer {
                id,
                to: Destination::Shard(to),
                units: 1,
                sent_at: now,
                epoch: 1,
                to_epoch: 1,
                sku: sku(),
                server: None,
            };
            world.app.stock.transfer_in(borrower, from, &transfer).await.unwrap();
        }
        // Many ask at once, through two instances, from every shard: one gets the unit, the others are correctly refused.
        let other = world.another().await;
        let asks = (0..16u16).map(|n| {
            let (app, sale) = (if n % 2 == 0 { &world.app } else { &other }, &sale);
            async move {
                let user = shopper_at(sale, n % 8);
                (user.clone(), buy(app, sale, &user, &format!("k{step}-{n}"), 1).await)
            }
        });
        let outcomes = join_all(asks).await;
        let mut winners = outcomes.iter().filter_map(|(user, outcome)| match outcome {
            // The first answer may have been lost.
            PurchaseOutcome::Reserved(order) | PurchaseOutcome::Replayed(order) => Some((user, order)),
            PurchaseOutcome::Refused(Refusal::SoldOut) => None,
            other => panic!("{other:?}"),
        });
        let (user, order) = winners.next().unwrap();
        assert!(winners.next().is_none());
        cancel(&world.app, order.id, user).await;
        world.settled(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_a_crash_left_between_two_shards_reach_the_next_shortage_or_a_workers_job() {
    for point in ["transfer.after_out", "transfer.after_in"] {
        for by_job in [false, true] {
            let world = World::new().await;
            let sale = world.sale(&Terms::of(1, 8)).await;
            // The first shard has the unit, so this shopper has to borrow it.
            let user = shopper_at(&sale, 5);
            let mut doomed = world.start_to_crash("api", point).await;
            assert!(doomed.client().buy(sale.id, &user, "k", 1).await.is_none());
            doomed.crashed().await;
            assert_eq!(
                world.app.stock.transfers(sale.id, sale.shards).await.unwrap().len(),
                1,
                "{point}"
            );
            if by_job {
                let _worker = world.start("worker").await;
                assert_eq!(world.rested(&sale).await.stock.available, 1);
            }
            let outcome = try_buy(&world.app, &sale, &user, "k", 1).await.unwrap();
            assert!(matches!(outcome, PurchaseOutcome::Reserved(_)), "{point}: {outcome:?}");
            assert_eq!(world.settled(&sale).await.stock.held, 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_rebalance_at_the_same_moment_leave_the_shards_settled() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(400, 4)).await;
    let apps = [world.another().await, world.another().await, world.another().await];
    let round = async || -> usize {
        let runs = apps.iter().map(|app| flow::recover::rebalance::rebalance(app, &sale));
        join_all(runs).await.into_iter().map(Result::unwrap).sum()
    };
    // Their connections are there, so that all of them read before one has moved anything.
    assert_eq!(round().await, 0, "the shards are even");
    for (from, to) in [(0, 2), (1, 3)] {
        flow::sell::borrow::transfer(&world.app, &sale, &sku(), (from, to), 100)
            .await
            .unwrap();
    }
    assert_eq!(round().await, 2, "two shards get their share, each once");
    for _ in 0..2 {
        assert_eq!(round().await, 0, "the shards are even");
    }
    for reading in world.app.stock.read_shards(&sale).await.unwrap() {
        assert_eq!(reading.counters(&sku()).available, 100);
    }
}
