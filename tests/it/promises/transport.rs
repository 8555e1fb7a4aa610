//! An eavesdropper between an instance and Redis reads nothing and changes nothing: every connection has TLS, and both
//! sides are checked.

use crate::support::app::{Instance, Ran, environment, program, sale_with};
use crate::support::authority::Authority;
use crate::support::poll::{self, PATIENCE, within};
use crate::support::raw::Raw;
use crate::support::servers::{self, Cluster, TcpRedis, fresh_redis};
use flashsale::stock::Stock;
use serde_json::json;
use std::collections::BTreeMap;

/// The variables of an instance that asks the Redis of this authority.
async fn trusting(authority: &Authority, redis: &str) -> BTreeMap<String, String> {
    let mut environment = environment(redis, &servers::database().await);
    environment.extend(authority.of_client());
    environment
}

/// The message with which `serve` ends if it cannot reach Redis.
#[track_caller]
fn refusal(environment: &BTreeMap<String, String>) -> String {
    let ran = Ran::of(program(environment, &["serve"]).output().unwrap()).ended(1);
    assert!(ran.stderr.contains("cannot be reached"), "{ran:?}");
    ran.stderr
}

/// Without the right certificates on either side nothing starts, and the message names the variable.
fn refuses_untrusted_certificates(trusting: &BTreeMap<String, String>) {
    let (cacert, cert, key) = ("FLASHSALE_REDIS_CACERT", "FLASHSALE_REDIS_CERT", "FLASHSALE_REDIS_KEY");
    let stranger = Authority::new();
    let mut without = trusting.clone();
    without.remove(cacert);
    let mut wrong = trusting.clone();
    wrong.insert(cacert.to_owned(), stranger.path("ca.pem"));
    for environment in [without, wrong] {
        let message = refusal(&environment);
        assert!(
            message.contains(cacert) && message.contains("invalid peer certificate"),
            "{message}"
        );
    }
    let mut nobody = trusting.clone();
    nobody.retain(|name, _| ![cert, key].contains(&name.as_str()));
    let mut other = trusting.clone();
    other.insert(cert.to_owned(), stranger.path("client.pem"));
    other.insert(key.to_owned(), stranger.path("client-key.pem"));
    for environment in [nobody, other] {
        let message = refusal(&environment);
        assert!(message.contains(cert), "{message}");
    }
    // The certificate is for the address alone.
    let mut named = trusting.clone();
    let url = named["FLASHSALE_REDIS_URL"].replace("127.0.0.1", "localhost");
    named.insert("FLASHSALE_REDIS_URL".to_owned(), url);
    let message = refusal(&named);
    assert!(
        message.contains("not valid for name") && message.contains("FLASHSALE_REDIS_URL"),
        "{message}"
    );
}

/// Loads a sale, sells so many units of it, waits until they are in the ledger, and counts them.
async fn sells_and_drains(instance: &Instance, sale: &str, units: usize) {
    for number in 0..units {
        let shopper = format!("shopper-{number}");
        instance.buy(&shopper, sale, "k", 1).await.ok(201);
    }
    let all = json!({"reserved": units, "paid": 0, "cancelled": 0, "expired": 0, "revoked": 0});
    poll::answer("every order is in the ledger", || async {
        (instance.stats(sale).await["orders"] == all).then_some(())
    })
    .await;
    instance.assert_balanced(sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_is_sold_over_tls_with_your_own_authority_and_client_certificate() {
    let authority = Authority::new();
    let redis = TcpRedis::with_tls(&authority);
    let environment = trusting(&authority, &format!("rediss://127.0.0.1:{}", redis.port)).await;
    let instance = Instance::start(&environment, "all");
    let sale = instance.load_sale(&sale_with(&json!({}))).await;
    sells_and_drains(&instance, &sale, 8).await;
    let inspected = Ran::of(program(&environment, &["inspect", &sale]).output().unwrap()).ended(0);
    assert!(inspected.stdout.contains("\"shards\""), "{inspected:?}");
    refuses_untrusted_certificates(&environment);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_primary_of_a_cluster_sells_over_tls_and_is_asked_what_its_replica_has() {
    let authority = Authority::new();
    let cluster = Cluster::with_tls(&authority);
    let url = cluster.url().replace("redis+cluster", "rediss+cluster");
    let environment = trusting(&authority, &url).await;
    let instance = Instance::start(&environment, "all");
    // So many shards that no primary is without one, and so many units that no shard lends any.
    let terms = json!({"shards": 48, "stock": 960, "durability": "replica"});
    let sale = instance.load_sale(&sale_with(&terms)).await;
    let before = cluster.commands_of_primaries();
    sells_and_drains(&instance, &sale, 96).await;
    for (before, after) in before.iter().zip(cluster.commands_of_primaries()) {
        for command in ["xadd", "wait"] {
            let count = |counts: &BTreeMap<String, i64>| counts.get(command).copied().unwrap_or_default();
            assert!(
                count(&after) > count(before),
                "{command} on each primary: {before:?} {after:?}"
            );
        }
    }
    refuses_untrusted_certificates(&environment);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_was_wrong_for_a_moment_is_tried_again() {
    let redis = fresh_redis();
    let operator = Raw::connect(&redis.server.url());
    let set_password = |password: &str| {
        let mut set = redis::cmd("CONFIG");
        let _ok: String = operator.call(set.arg("SET").arg("requirepass").arg(password));
        let mut kill = redis::cmd("CLIENT");
        let _killed: i64 = operator.call(kill.arg("KILL").arg("TYPE").arg("normal"));
    };
    set_password("right");
    let stock = Stock::connect(&format!("{}?pass=right", redis.server.url()))
        .await
        .unwrap();
    set_password("wrong");
    within(PATIENCE, "the password is refused", async || {
        let refused = stock.ping().await;
        refused.is_err_and(|fault| fault.to_string().contains("assword"))
    })
    .await;
    set_password("right");
    within(PATIENCE, "the password is taken again", async || {
        stock.ping().await.is_ok()
    })
    .await;
}
