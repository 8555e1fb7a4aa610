//! The cost of a purchase over HTTP for Redis, in commands, which no machine changes: a change that adds one anywhere before
//! the script fails here.

use crate::support::app::{Answer, TestApp, sale_with};
use crate::support::raw::Raw;
use crate::support::servers::fresh_redis;
use serde_json::json;
use std::collections::BTreeMap;

/// Requests of which the one with the fewest commands counts: the instance's own occasional work adds to some of them, and
/// the commands of every request are in all of them.
const TRIES: usize = 20;

/// The commands that Redis runs for a request, each as often as it runs.
async fn commands_of(redis: &Raw, mut ask: impl AsyncFnMut(usize) -> Answer) -> String {
    let mut fewest: Option<Vec<String>> = None;
    for n in 0..TRIES {
        let before: BTreeMap<String, i64> = redis.command_counts();
        ask(n).await;
        let mut used = Vec::new();
        for (name, count) in redis.command_counts() {
            let more = count - before.get(&name).copied().unwrap_or(0);
            used.extend((0..more).map(|_| name.clone()));
        }
        if fewest.as_ref().is_none_or(|it| used.len() < it.len()) {
            fewest = Some(used);
        }
    }
    fewest.unwrap().join(" ")
}

#[tokio::test]
async fn a_request_to_buy_runs_the_script_and_once_the_item_is_sold_out_two_readings_alone() {
    let redis = fresh_redis();
    let url = redis.server.url();
    let app = TestApp::with("api", &[("FLASHSALE_REDIS_URL", url.as_str())]).await;
    let raw = Raw::connect(&url);
    let id = app
        .load_sale(&sale_with(&json!({"shards": 1, "stock": TRIES + 1})))
        .await;
    let shopper = |n: usize| format!("shopper-{n}");
    // It has read every cached value once.
    app.buy("ada", &id, "k", 1).await.ok(201);

    let used = commands_of(&raw, async |n| app.buy(&shopper(n), &id, "k", 1).await.ok(201)).await;
    assert_eq!(used, "evalsha mget mset time xadd", "a purchase");
    let used = commands_of(&raw, async |n| app.buy(&shopper(n), &id, "k", 1).await.ok(200)).await;
    assert_eq!(used, "evalsha exists mget time xrange", "a replay");
    let stranger = |n: usize| format!("stranger-{n}");
    let used = commands_of(&raw, async |n| {
        app.buy(&stranger(n), &id, "k", 1).await.no(409, "sold_out")
    })
    .await;
    // A survey of all shards, then the rows of all shoppers who wait. There is no script and no write.
    assert_eq!(used, "mget mget script|exists script|exists time time", "a refusal");
}
