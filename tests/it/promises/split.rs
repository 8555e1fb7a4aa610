//! Two primaries, each with its clients: a network that came apart, and a replica that was promoted on its side of it.

use crate::support::app::{Instance, TestApp, environment, sale_with};
use crate::support::poll;
use crate::support::raw::Raw;
use crate::support::servers::ReplicatedRedis;
use flashsale::stock::record::ShardRecord;
use serde_json::json;
use std::time::Duration;

const STOCK: i64 = 80;
const SHARDS: u16 = 4;
/// Two permits, since the old side may renew once more while the ledger is silent, and the new side's claim.
const PERMITS_END: Duration = Duration::from_secs(8);

/// Whether any shard has a permit.
fn may_sell(redis: &Raw, sale: &str) -> bool {
    let (seconds, _): (i64, i64) = redis.call(&mut redis::cmd("TIME"));
    (0..SHARDS).any(|shard| {
        let record: Vec<u8> = redis.call(redis::cmd("GET").arg(format!("{{{sale}:{shard}}}:shard")));
        ShardRecord::decode(&record).unwrap().permit_until > seconds * 1000
    })
}

async fn comes_apart(durability: &str) {
    let mut redis = ReplicatedRedis::start(1);
    let url = redis.primary.server.url();
    let old = TestApp::with("all", &[("FLASHSALE_REDIS_URL", &url)]).await;
    let old_side = TestApp {
        instance: old.instance.may_log_errors(),
        environment: old.environment,
    };
    let terms = json!({"shards": SHARDS, "stock": STOCK, "durability": durability});
    let sale = old_side.load_sale(&sale_with(&terms)).await;
    let mut before = old_side.buy_at_once(&sale, "before", 12).await;
    redis.in_step();

    let mut new = redis.promote();
    if durability == "replica" {
        new.add_replica();
    }
    // Purchases on the old side now stay there: the new side never learns of them.
    let cut_off = old_side.buy_at_once(&sale, "cut-off", 12).await;
    let database = &old_side.environment["FLASHSALE_DATABASE_URL"];
    let new_side = Instance::start(&environment(&new.primary.server.url(), database), "all").may_log_errors();
    let (old_raw, new_raw) = (
        Raw::connect(&redis.primary.server.url()),
        Raw::connect(&new.primary.server.url()),
    );
    let (late, mut after) = tokio::join!(
        old_side.buy_at_once(&sale, "late", 12),
        new_side.buy_at_once(&sale, "after", 12)
    );
    poll::within(PERMITS_END, "the old side has no permit", async || {
        !may_sell(&old_raw, &sale)
    })
    .await;
    for (user, answer) in old_side.buy_at_once(&sale, "too-late", 4).await {
        assert_eq!(answer.status, 503, "{user}: {answer:?}");
    }
    poll::answer("the new side sells", || async {
        let answers = new_side.buy_at_once(&sale, "after", 12).await;
        answers.iter().all(|(_, answer)| answer.status < 300).then_some(())
    })
    .await;
    assert!(may_sell(&new_raw, &sale) && !may_sell(&old_raw, &sale));

    // The decisions of either side are delivered to the side with the newer epoch.
    let cancelled = before.pop().unwrap();
    let order = cancelled.1.ok(201).id();
    new_side.wait_for_order(&cancelled.0, &order, "reserved").await;
    old_side.cancel(&cancelled.0, &order).await.ok(200);
    poll::answer("its unit is back", || async {
        let audit = new_side.admin(&sale, "/audit").await.ok(200).body;
        let counts = &audit["items"][0];
        (counts["ledger"]["unreleased"] == 0 && new_side.stats(&sale).await["orders"]["cancelled"] == 1).then_some(())
    })
    .await;

    after.retain(|(_, answer)| answer.status == 201);
    let mut kept = before;
    kept.append(&mut after);
    let acknowledged: Vec<_> = cut_off
        .into_iter()
        .chain(late)
        .filter(|(_, it)| it.status == 201)
        .collect();
    if durability == "replica" {
        assert!(acknowledged.is_empty(), "{acknowledged:?}");
    }
    for (user, answer) in kept {
        let order = answer.ok(201).id();
        new_side.wait_for_order(&user, &order, "reserved").await;
    }
    poll::answer("everything is sold", || async {
        let answers = new_side.buy_at_once(&sale, &uuid::Uuid::new_v4().to_string(), 20).await;
        let sold_out = answers.iter().all(|(_, answer)| answer.code() == "sold_out");
        sold_out.then_some(())
    })
    .await;
    poll::answer("every unit has one order", || async {
        let orders = &new_side.stats(&sale).await["orders"];
        (orders["reserved"] == STOCK && orders["cancelled"] == 1).then_some(())
    })
    .await;
    new_side.assert_balanced(&sale).await;
    for (user, answer) in acknowledged {
        // Drained before the promotion, or never.
        let found = new_side.order(&user, &answer.id()).await;
        assert!([200, 404].contains(&found.status), "{found:?}");
    }
    assert_eq!(new_side.stats(&sale).await["orders"]["revoked"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_primaries_with_clients_on_both_sides_sell_no_unit_twice() {
    comes_apart("redis").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_a_replica_acknowledged_survive_on_its_side() {
    comes_apart("replica").await;
}

/// Why a name in a script's text would not refuse a server that is promoted for the second time (docs/decisions.md): that
/// server still has the scripts of its first promotion.
#[test]
fn a_server_that_was_a_replica_in_between_still_has_its_scripts() {
    let mut redis = ReplicatedRedis::start(1);
    let first = Raw::connect(&redis.primary.server.url());
    let hash: String = first.call(redis::cmd("SCRIPT").arg("LOAD").arg("return 'the first reign'"));
    let second = redis.promote();
    let follow = |port: u16| -> String { first.call(redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port)) };
    follow(second.primary.port);
    poll::eventually("it follows the other one", || {
        let info: String = first.call(redis::cmd("INFO").arg("replication"));
        info.contains("master_link_status:up")
    });
    let _ok: String = first.call(redis::cmd("REPLICAOF").arg("NO").arg("ONE"));
    let answer: String = first.call(redis::cmd("EVALSHA").arg(hash).arg(0));
    assert_eq!(answer, "the first reign");
}

/// Until the next renewal, a server that is promoted again may sell what the other server did not know to be sold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_promoted_again_acknowledges_no_unit_twice_at_postgres() {
    const STOCK: i64 = 20;
    let mut redis = ReplicatedRedis::start(1);
    let first = Raw::connect(&redis.primary.server.url());
    let app = TestApp::with("all", &[("FLASHSALE_REDIS_URL", &redis.primary.server.url())]).await;
    let app = TestApp {
        instance: app.instance.may_log_errors(),
        environment: app.environment,
    };
    let sale = app
        .load_sale(&sale_with(
            &json!({"shards": 1, "stock": STOCK, "durability": "postgres"}),
        ))
        .await;
    let mut answers = app.buy_at_once(&sale, "before", 8).await;
    redis.in_step();
    let other = redis.promote();
    answers.extend(app.buy_at_once(&sale, "unseen", 8).await);
    assert!(answers.iter().all(|(_, answer)| answer.status == 201), "{answers:?}");

    let _ok: String = first.call(redis::cmd("REPLICAOF").arg("127.0.0.1").arg(other.primary.port));
    poll::eventually("it follows the other one", || {
        let info: String = first.call(redis::cmd("INFO").arg("replication"));
        info.contains("master_link_status:up")
    });
    let _ok: String = first.call(redis::cmd("REPLICAOF").arg("NO").arg("ONE"));
    let mut round = 0;
    poll::within(Duration::from_secs(20), "everything is sold", async || {
        round += 1;
        let more = app.buy_at_once(&sale, &format!("after-{round}"), 8).await;
        let sold_out = more.iter().all(|(_, answer)| answer.code() == "sold_out");
        answers.extend(more);
        sold_out
    })
    .await;
    for (user, answer) in answers.iter().filter(|(_, answer)| answer.status == 201) {
        app.wait_for_order(user, &answer.id(), "reserved").await;
    }
    poll::answer("every unit has one order", || async {
        (app.stats(&sale).await["orders"]["reserved"] == STOCK).then_some(())
    })
    .await;
    app.assert_balanced(&sale).await;
}
