//! What happens to the scripts when Redis itself is short of something.

use super::{NOW, Shop, sku, user};
use crate::support::servers::{FreshRedis, fresh_redis};
use flashsale::domain::fault::Fault;
use flashsale::domain::order::OrderState;
use flashsale::domain::sale::Lifecycle;
use flashsale::stock::purchase::ShardAnswer;
use flashsale::stock::resolve::Resolved;
use flashsale::stock::transfer::{Destination, Sent};
use uuid::Uuid;

/// A sale on a Redis of its own, with one order and one transfer on its way.
async fn alone() -> (FreshRedis, Shop, Uuid) {
    let redis = fresh_redis();
    let shop = Shop::unloaded(&redis.server.url(), |sale| sale.shards = 2).await;
    for shard in 0..2 {
        shop.stock.preload(&shop.sale, shard, 1).await.unwrap();
    }
    shop.follow().await;
    shop.reserve("ada", "k", 1).await;
    let id = Uuid::now_v7();
    let sent = shop
        .stock
        .transfer_out(shop.key, id, &sku("A"), Destination::Shard(1), 1, NOW)
        .await;
    assert_eq!(sent.unwrap(), Sent::Out(1));
    (redis, shop, id)
}

/// Lowers the memory that Redis may use to nearly what it uses.
fn run_out_of_memory(shop: &Shop) {
    let info: String = shop.raw.call(redis::cmd("INFO").arg("memory"));
    let used: u64 = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok())
        .unwrap();
    let () = shop
        .raw
        .call(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(used * 9 / 10));
}

#[tokio::test]
async fn without_memory_nothing_is_taken_and_everything_is_given_back() {
    let (_redis, mut shop, id) = alone().await;
    run_out_of_memory(&shop);

    let before = shop.dump();
    let overloaded = |answer: &Fault| matches!(answer, Fault::Overloaded(_));
    for (who, key) in [("bob", "k"), ("ada", "other"), ("ada", "k")] {
        let refused = shop.try_buy(who, key, 1, NOW).await.unwrap_err();
        assert!(overloaded(&refused), "{refused:?}");
    }
    let to = Destination::Shard(1);
    let refused = shop
        .stock
        .transfer_out(shop.key, Uuid::now_v7(), &sku("A"), to, 1, NOW)
        .await;
    assert!(overloaded(refused.as_ref().unwrap_err()), "{refused:?}");
    let refused = shop.stock.preload(&shop.sale, 2, 1).await.unwrap_err();
    assert!(overloaded(&refused), "{refused:?}");
    assert_eq!(shop.dump(), before);

    assert_eq!(shop.read().await.undrained, 1);
    assert_eq!(shop.resolve("ada", "k", OrderState::Cancelled).await, Resolved::Now);
    shop.stock.transfer_in(shop.shard(1), id, &sku("A"), 1).await.unwrap();
    shop.stock.transfer_done(shop.key, id).await.unwrap();
    shop.stock
        .restock(shop.key, Uuid::now_v7(), &sku("A"), 3)
        .await
        .unwrap();
    shop.change(Lifecycle::Paused).await;
    let readings = shop.stock.read_shards(&shop.sale).await.unwrap();
    let free: Vec<i64> = readings
        .iter()
        .map(|reading| reading.counters(&sku("A")).available)
        .collect();
    assert_eq!(free, [7, 6]);
    assert!(
        readings
            .iter()
            .all(|reading| reading.record.lifecycle == Lifecycle::Paused)
    );

    let () = shop.raw.call(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0));
    shop.change(Lifecycle::Active).await;
    assert!(matches!(shop.buy("bob", "k", 1, NOW).await, ShardAnswer::Reserved(_)));
}

#[tokio::test]
async fn a_withdrawal_ends_without_memory_too() {
    let (_redis, shop, _) = alone().await;
    let id = Uuid::now_v7();
    let sent = shop
        .stock
        .transfer_out(shop.key, id, &sku("A"), Destination::Ledger, 2, NOW)
        .await;
    assert_eq!(sent.unwrap(), Sent::Out(2));
    run_out_of_memory(&shop);
    shop.stock.withdraw_done(shop.key, id).await.unwrap();
    assert_eq!(shop.counters().await.withdrawn, 2);
}

#[tokio::test]
async fn scripts_that_redis_has_forgotten_are_loaded_again() {
    let (_redis, shop, id) = alone().await;
    let forget = || {
        let () = shop.raw.call(redis::cmd("SCRIPT").arg("FLUSH"));
    };
    forget();
    assert!(matches!(
        shop.buy("ada", "k", 1, NOW).await,
        ShardAnswer::Replayed { .. }
    ));
    forget();
    assert!(matches!(shop.buy("bob", "k", 1, NOW).await, ShardAnswer::Reserved(_)));
    forget();
    assert_eq!(shop.resolve("bob", "k", OrderState::Paid).await, Resolved::Now);
    forget();
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    forget();
    shop.stock.set_state(&shop.sale, 0).await.unwrap();
    forget();
    shop.stock.transfer_in(shop.shard(1), id, &sku("A"), 1).await.unwrap();
    forget();
    shop.stock.transfer_done(shop.key, id).await.unwrap();
    forget();
    shop.stock
        .restock(shop.key, Uuid::now_v7(), &sku("A"), 1)
        .await
        .unwrap();
    forget();
    let withdrawal = Uuid::now_v7();
    let sent = shop
        .stock
        .transfer_out(shop.key, withdrawal, &sku("A"), Destination::Ledger, 1, NOW)
        .await;
    assert_eq!(sent.unwrap(), Sent::Out(1));
    forget();
    shop.stock.withdraw_done(shop.key, withdrawal).await.unwrap();
    forget();
    assert_eq!(shop.counters().await.sold, 1);
}

#[tokio::test]
async fn a_redis_that_is_gone_is_unavailable_and_not_a_defect() {
    let (redis, shop, _) = alone().await;
    redis.server.stop();
    let answer = shop.try_buy("bob", "k", 1, NOW).await;
    assert!(matches!(answer, Err(Fault::Unavailable(_))), "{answer:?}");
    let answer = shop.stock.read_buyer(shop.key, &user("ada")).await;
    assert!(matches!(answer, Err(Fault::Unavailable(_))), "{answer:?}");
}
