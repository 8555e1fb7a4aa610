//! The cost of a purchase in figures that no machine changes: commands, bytes and memory. A change that makes it dearer
//! fails here; times are measured elsewhere.

use super::{END, Shop, asking, generous, sku};
use crate::support::raw::Raw;
use crate::support::servers::{fresh_redis, fresh_redis_with};
use flashsale::domain::order::purchase::Refusal;
use flashsale::domain::time::from_millis;
use flashsale::stock::recover::permit::{Permit, Permitted};
use flashsale::stock::sell::purchase::{PurchaseArguments, ShardAnswer};
use futures_util::future::join_all;

/// Purchases over which bytes are averaged.
const MANY: usize = 20_000;

/// A number out of `INFO`.
fn info(raw: &Raw, section: &str, field: &str) -> i64 {
    let text: String = raw.call(redis::cmd("INFO").arg(section));
    let value = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    value.unwrap().trim().parse().unwrap()
}

/// How often `INFO` has run on the server, before this call.
fn infos(raw: &Raw) -> i64 {
    let text: String = raw.call(redis::cmd("INFO").arg("commandstats"));
    let calls = text.lines().find_map(|line| line.strip_prefix("cmdstat_info:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

/// A sale of so many units on one shard, which goes by Redis's clock as outside of tests.
async fn open_now(url: &str, stock: i64) -> Shop {
    let shop = Shop::unloaded(url, |sale| {
        sale.starts_at = from_millis(1_000_000_000_000);
        sale.ends_at = from_millis(END);
        sale.purchase_rate.limit = 5;
        sale.items[0].stock = stock;
    })
    .await;
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    shop.follow().await;
    shop.permit().await;
    shop
}

/// A request of the program without any options.
async fn buy(shop: &Shop, who: &str, key: &str) -> ShardAnswer {
    ask(shop, who, key, PurchaseArguments::default()).await
}

async fn ask(shop: &Shop, who: &str, key: &str, arguments: PurchaseArguments) -> ShardAnswer {
    let (order, request) = (shop.order(who, key), asking(who, key, 1));
    shop.stock.purchase(shop.key, order, &request, arguments).await.unwrap()
}

/// The commands of one purchase, and its outcome.
async fn commands_of(shop: &Shop, who: &str, key: &str) -> (ShardAnswer, String) {
    commands(shop, buy(shop, who, key)).await
}

async fn commands(shop: &Shop, asked: impl Future<Output = ShardAnswer>) -> (ShardAnswer, String) {
    let before = shop.raw.command_counts();
    let answer = asked.await;
    let mut used = Vec::new();
    for (name, count) in shop.raw.command_counts() {
        let more = count - before.get(&name).copied().unwrap_or(0);
        used.extend((0..more).map(|_| name.clone()));
    }
    (answer, used.join(" "))
}

/// The answers to `MANY` shoppers who buy one unit each.
async fn sell_many(shop: &Shop) {
    let all: Vec<usize> = (0..MANY).collect();
    for some in all.chunks(100) {
        let buying = some.iter().map(|n| async move {
            // As long as UUIDs, which most ids are.
            let (who, key) = (format!("shopper-{n:028}"), format!("click-{n:030}"));
            assert!(matches!(buy(shop, &who, &key).await, ShardAnswer::Reserved { .. }));
        });
        join_all(buying).await;
    }
}

fn a_purchase(bytes: i64) -> i64 {
    bytes / i64::try_from(MANY).unwrap()
}

#[tokio::test]
async fn no_outcome_of_a_purchase_takes_more_commands_than_it_must() {
    let redis = fresh_redis();
    let shop = open_now(&redis.server.url(), 3).await;
    let (bought, used) = commands_of(&shop, "ada", "k").await;
    assert!(matches!(bought, ShardAnswer::Reserved { .. }), "{bought:?}");
    assert_eq!(used, "evalsha mget mset time xadd", "a purchase");
    let arguments = PurchaseArguments {
        named: true,
        ..PurchaseArguments::default()
    };
    let before = infos(&shop.raw);
    let (named, used) = commands(&shop, ask(&shop, "eve", "k", arguments)).await;
    assert!(matches!(named, ShardAnswer::Reserved { .. }), "{named:?}");
    assert_eq!(used, "evalsha mget mset time xadd", "a purchase that names its server");
    // This test has asked three times: here before, and twice in between.
    assert_eq!(infos(&shop.raw) - before - 3, 1, "it asks INFO once");
    let (replayed, used) = commands_of(&shop, "ada", "k").await;
    assert!(matches!(replayed, ShardAnswer::Replayed { .. }), "{replayed:?}");
    assert_eq!(used, "evalsha exists mget time xrange", "a replay");
    buy(&shop, "ada", "k2").await;
    let (short, used) = commands_of(&shop, "bob", "k").await;
    assert!(matches!(short, ShardAnswer::Short { available: 0 }), "{short:?}");
    assert_eq!(used, "evalsha mget set time", "a shard that is sold out");
    let (again, used) = commands_of(&shop, "bob", "k").await;
    assert!(matches!(again, ShardAnswer::Short { available: 0 }), "{again:?}");
    assert_eq!(used, "evalsha mget time", "the same request again");
    for n in 0..4 {
        buy(&shop, "bob", &format!("another-{n}")).await;
    }
    let (limited, used) = commands_of(&shop, "bob", "k3").await;
    assert!(
        matches!(limited, ShardAnswer::Refused(Refusal::RateLimited { .. })),
        "{limited:?}"
    );
    assert_eq!(used, "evalsha mget time", "a window that is full");
}

#[tokio::test]
async fn a_renewal_asks_for_the_memory_only_while_an_event_waits() {
    let redis = fresh_redis();
    let shop = open_now(&redis.server.url(), 3).await;
    let server = shop.stock.server(shop.key).await.unwrap();
    let infos_of_renewal = async || {
        let before = infos(&shop.raw);
        let permit = Permit {
            renewal: true,
            ..generous(1, &server)
        };
        let permitted = shop.stock.permit(&shop.sale, 0, &permit, None).await.unwrap();
        assert!(matches!(permitted, Permitted::Yes { .. }), "{permitted:?}");
        // Without the count before.
        infos(&shop.raw) - before - 1
    };
    assert_eq!(infos_of_renewal().await, 1, "which server it is");
    buy(&shop, "ada", "k").await;
    assert_eq!(infos_of_renewal().await, 2, "and how much memory it uses");
}

#[tokio::test]
async fn a_purchase_stays_small_on_the_wire_on_disk_and_in_memory() {
    let redis = fresh_redis_with(&[
        ("appendonly", "yes"),
        ("appendfsync", "no"),
        ("auto-aof-rewrite-percentage", "0"),
    ]);
    let shop = open_now(&redis.server.url(), 1_000_000).await;
    let sizes = || {
        [
            info(&shop.raw, "stats", "total_net_input_bytes"),
            info(&shop.raw, "stats", "total_net_output_bytes"),
            info(&shop.raw, "persistence", "aof_current_size"),
            info(&shop.raw, "memory", "used_memory"),
        ]
    };
    let before = sizes();
    sell_many(&shop).await;
    // As the drain does after its commit.
    let trimmed: i64 = shop
        .raw
        .call(redis::cmd("XTRIM").arg(shop.key.events()).arg("MAXLEN").arg(0));
    assert_eq!(trimmed, i64::try_from(MANY).unwrap());
    let after = sizes();
    let [sent, received, written, kept] = [0, 1, 2, 3].map(|at: usize| a_purchase(after[at] - before[at]));
    println!("a purchase: {sent} bytes to Redis, {received} back, {written} in its append-only file, {kept} in memory");
    assert!(sent <= SENT_MAX, "{sent} bytes to Redis");
    assert!(received <= RECEIVED_MAX, "{received} bytes back");
    assert!(written <= WRITTEN_MAX, "{written} bytes in the append-only file");
    assert!(kept <= KEPT_MAX, "{kept} bytes in memory");
    let item = shop.counters().await;
    assert_eq!(item.held, i64::try_from(MANY).unwrap(), "{}", sku("A"));
}

/// The measured value, and a twentieth more.
const SENT_MAX: i64 = 455;
const RECEIVED_MAX: i64 = 34;
const WRITTEN_MAX: i64 = 588;
const KEPT_MAX: i64 = 252;
