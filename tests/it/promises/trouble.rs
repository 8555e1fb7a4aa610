//! A Redis in trouble of its own: its clock jumps, a script keeps it busy, its file is damaged in the middle.

use crate::support::crowd::{Terms, World, bought, buy, drain_all, try_buy};
use crate::support::poll::{PATIENCE, pass, within};
use crate::support::raw::Raw;
use crate::support::servers::{DurableRedis, fresh_redis, redis_with_clock};
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use futures_util::future::join_all;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MINUTE: i64 = 60_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_while_a_crowd_buys_costs_no_unit_and_keeps_nobody_out() {
    let (redis, clock) = redis_with_clock();
    let world = World::on(redis.server.url()).await;
    let terms = Terms {
        limit: 4_000,
        ..Terms::of(4_000, 4)
    };
    let sale = world.sale(&terms).await;
    let done = Arc::new(AtomicBool::new(false));
    let crowd = (0..8).map(|shopper| {
        let (app, sale, done) = (Arc::clone(&world.app), Arc::clone(&sale), Arc::clone(&done));
        tokio::spawn(async move {
            let mut bought = 0;
            for n in 0.. {
                match buy(&app, &sale, &format!("shopper-{shopper}"), &format!("k-{n}"), 1).await {
                    PurchaseOutcome::Reserved(_) | PurchaseOutcome::Replayed(_) => bought += 1,
                    PurchaseOutcome::Refused(Refusal::SoldOut) => break,
                    other => panic!("{other:?}"),
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
                // A shopper thinks.
                pass(Duration::from_millis(5)).await;
            }
            bought
        })
    });
    let crowd: Vec<_> = crowd.collect();
    let sold = "select count(*) from orders where sale_id = $1";
    // Ahead, which ends every permit at once; back, behind the right time; and right again.
    for millis in [10 * MINUTE, -MINUTE / 2, 0, 0] {
        let before = world.number(sold, sale.id).await;
        within(PATIENCE, "the crowd goes on", async || {
            let _passing = drain_all(&world.app).await;
            world.number(sold, sale.id).await >= before + 40
        })
        .await;
        clock.set(millis);
    }
    done.store(true, Ordering::Relaxed);
    let bought: i64 = join_all(crowd).await.into_iter().map(Result::unwrap).sum();
    let item = world.settled(&sale).await;
    assert_eq!(item.stock.held, bought, "{item:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_a_script_keeps_busy_answers_503_and_sells_again_when_it_is_ended() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    let before = bought(&world.app, &sale, "ada", "before", 1).await;
    let raw = Raw::connect(&world.redis);
    let _ok: String = raw.call(redis::cmd("CONFIG").arg("SET").arg("busy-reply-threshold").arg(50));
    let url = world.redis.clone();
    let busy = std::thread::spawn(move || {
        let endless: Result<(), _> = Raw::connect(&url).try_call(redis::cmd("EVAL").arg("while true do end").arg(0));
        assert!(endless.is_err());
    });
    within(PATIENCE, "Redis says that it is busy", async || {
        let answer: Result<String, _> = raw.try_call(&mut redis::cmd("PING"));
        answer.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    let during = try_buy(&world.app, &sale, "ada", "during", 1).await;
    assert!(matches!(&during, Err(fault) if fault.is_passing()), "{during:?}");
    let _ok: String = raw.call(redis::cmd("SCRIPT").arg("KILL"));
    busy.join().unwrap();
    bought(&world.app, &sale, "ada", "during", 1).await;
    let again = buy(&world.app, &sale, "ada", "before", 1).await;
    assert!(
        matches!(&again, PurchaseOutcome::Replayed(it) if it.id == before.id),
        "{again:?}"
    );
    world.settled(&sale).await;
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_damaged_in_its_middle_is_read_up_to_there_and_the_ledger_knows_the_rest() {
    let mut redis = DurableRedis::start();
    let world = World::on(redis.url()).await;
    let sale = world.sale(&Terms::of(24, 2)).await;
    let mut orders = Vec::new();
    for n in 0..12 {
        let user = format!("shopper-{n}");
        orders.push((bought(&world.app, &sale, &user, "k", 1).await.id, user));
    }
    world.settled(&sale).await;
    redis.kill();
    let file = redis.newest_file();
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 64] {
        *byte = b'!';
    }
    fs::write(&file, bytes).unwrap();
    redis.restart();
    for (order, user) in &orders {
        let found = buy(&world.app, &sale, user, "k", 1).await;
        assert!(
            matches!(&found, PurchaseOutcome::Replayed(it) if it.id == *order),
            "{user}: {found:?}"
        );
    }
    world.settled(&sale).await;
    world.sells_out(&sale).await;
}
