//! How the scripts behave when Redis runs short of memory.

use super::{NOW, PERMITTED, Shop, generous, on_its_way, sent, sku, user};
use crate::support::servers::{FreshRedis, fresh_redis};
use flashsale::domain::deployment::server::Server;
use flashsale::domain::fault::Fault;
use flashsale::domain::order::OrderState;
use flashsale::domain::sale::Lifecycle;
use flashsale::stock::recover::permit::{Permit, Permitted};
use flashsale::stock::sell::purchase::ShardAnswer;
use flashsale::stock::sell::transfer::Destination;
use flashsale::stock::settle::resolve::Resolved;
use std::time::Duration;
use uuid::Uuid;

/// A sale on a Redis of its own, with one order and one transfer on its way.
async fn alone() -> (FreshRedis, Shop, Uuid) {
    let redis = fresh_redis();
    let shop = Shop::unloaded(&redis.server.url(), |sale| sale.shards = 2).await;
    for shard in 0..2 {
        shop.stock.preload(&shop.sale, shard, 1).await.unwrap();
    }
    shop.follow().await;
    shop.permit().await;
    shop.reserve("ada", "k", 1).await;
    let id = Uuid::now_v7();
    let out = shop
        .stock
        .transfer_out(shop.key, id, &sku("A"), Destination::Shard(1), 1, NOW)
        .await;
    assert_eq!(out.unwrap(), sent(1));
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
    shop.stock
        .transfer_in(shop.shard(1), 0, &on_its_way(id, 1))
        .await
        .unwrap();
    shop.stock.transfer_done(shop.key, id).await.unwrap();
    shop.stock
        .restock(shop.key, Uuid::now_v7(), &sku("A"), 3, 1)
        .await
        .unwrap();
    // Both the brake and the fences have to hold just then.
    let server = shop.stock.server(shop.key).await.unwrap();
    for age_max in [Duration::ZERO, Duration::from_secs(86_400 * 100_000)] {
        let permit = Permit {
            age_max,
            ..generous(1, &server)
        };
        let permitted = shop
            .stock
            .permit(&shop.sale, 0, &permit, Some(PERMITTED))
            .await
            .unwrap();
        assert!(
            matches!(permitted, Permitted::Yes { brake, .. } if brake == age_max.is_zero()),
            "{permitted:?}"
        );
    }
    shop.stock.fence(shop.key, &[(1, 2)]).await.unwrap();
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
    assert!(matches!(
        shop.buy("bob", "k", 1, NOW).await,
        ShardAnswer::Reserved { .. }
    ));
}

#[tokio::test]
async fn a_withdrawal_ends_without_memory_too() {
    let (_redis, shop, _) = alone().await;
    let id = Uuid::now_v7();
    let out = shop
        .stock
        .transfer_out(shop.key, id, &sku("A"), Destination::Ledger, 2, NOW)
        .await;
    assert_eq!(out.unwrap(), sent(2));
    run_out_of_memory(&shop);
    shop.stock.withdraw_done(shop.key, id).await.unwrap();
    assert_eq!(shop.counters().await.withdrawn, 2);
}

#[tokio::test]
async fn scripts_that_redis_has_forgotten_are_loaded_again_but_for_those_that_sell_and_lend() {
    let (_redis, mut shop, id) = alone().await;
    let forget = |shop: &Shop| {
        let () = shop.raw.call(redis::cmd("SCRIPT").arg("FLUSH"));
    };
    let take = async |shop: &Shop, id| {
        let to = Destination::Ledger;
        shop.stock.transfer_out(shop.key, id, &sku("A"), to, 1, NOW).await
    };
    let withdrawal = Uuid::now_v7();
    forget(&shop);
    let before = shop.dump();
    // Not even a replay: the origin of the data is unknown.
    for (who, key) in [("ada", "k"), ("bob", "k")] {
        let answer = shop.try_buy(who, key, 1, NOW).await;
        assert!(matches!(answer, Err(Fault::Incomplete(_))), "{who}: {answer:?}");
    }
    let answer = take(&shop, withdrawal).await;
    assert!(matches!(answer, Err(Fault::Incomplete(_))), "{answer:?}");
    assert_eq!(shop.dump(), before);

    // All other scripts work, also to grant and revoke permits; none of them brings those two back.
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    forget(&shop);
    shop.sale.state_version += 1;
    shop.stock.set_state(&shop.sale, 0).await.unwrap();
    forget(&shop);
    shop.stock
        .transfer_in(shop.shard(1), 0, &on_its_way(id, 1))
        .await
        .unwrap();
    forget(&shop);
    shop.stock.transfer_done(shop.key, id).await.unwrap();
    forget(&shop);
    shop.stock
        .restock(shop.key, Uuid::now_v7(), &sku("A"), 1, 1)
        .await
        .unwrap();
    forget(&shop);
    assert_eq!(shop.resolve("ada", "k", OrderState::Paid).await, Resolved::Now);
    forget(&shop);
    shop.stock.fence(shop.key, &[(1, 1)]).await.unwrap();
    forget(&shop);
    shop.stock.stop(shop.key).await.unwrap();
    forget(&shop);
    let server = shop.stock.server(shop.key).await.unwrap();
    let permit = generous(1, &server);
    let permitted = shop.stock.permit(&shop.sale, 0, &permit, Some(PERMITTED)).await;
    assert!(matches!(permitted.unwrap(), Permitted::Yes { .. }));
    assert_eq!(shop.counters().await.sold, 1);
    let answer = shop.try_buy("bob", "k", 1, NOW).await;
    assert!(matches!(answer, Err(Fault::Incomplete(_))), "{answer:?}");

    shop.admit().await;
    assert!(matches!(
        shop.buy("ada", "k", 1, NOW).await,
        ShardAnswer::Replayed { .. }
    ));
    assert!(matches!(
        shop.buy("bob", "k", 1, NOW).await,
        ShardAnswer::Reserved { .. }
    ));
    assert_eq!(take(&shop, withdrawal).await.unwrap(), sent(1));
    forget(&shop);
    shop.stock.withdraw_done(shop.key, withdrawal).await.unwrap();
    forget(&shop);
    assert_eq!(shop.counters().await.withdrawn, 1);
}

/// A server may return with older data, in which the permits of a moment ago still last.
#[tokio::test]
async fn a_server_gets_no_scripts_that_are_meant_for_the_server_before_it() {
    let (_redis, shop, _) = alone().await;
    let () = shop.raw.call(redis::cmd("SCRIPT").arg("FLUSH"));
    let before = Server::new(&"a".repeat(40), &"b".repeat(40), &"0".repeat(40));
    let answer = shop.stock.admit(shop.key, &before).await;
    assert!(matches!(answer, Err(Fault::Unavailable(_))), "{answer:?}");
    let answer = shop.try_buy("bob", "k", 1, NOW).await;
    assert!(matches!(answer, Err(Fault::Incomplete(_))), "{answer:?}");
    shop.admit().await;
    assert!(matches!(
        shop.buy("bob", "k", 1, NOW).await,
        ShardAnswer::Reserved { .. }
    ));
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
