//! While Postgres is away, a new shopper sees the items, buys one, and finds the order.

use super::outage::{unless_permits_lapse, without};
use crate::support::app::{Client, Instance, Who, environment, sale, sale_with};
use crate::support::crowd::{Terms, World, answered, bought, shopper_at};
use crate::support::poll::{PATIENCE, within};
use crate::support::raw::Raw;
use crate::support::servers::{FreshPostgres, redis};
use flashsale::domain::fault::Fault;
use flashsale::domain::sale::shard::home_shard;
use flashsale::domain::sale::{SaleState, Transition};
use flashsale::flow;
use flashsale::flow::sell::glance::{glance, glances};
use flashsale::stock::keys::ShardKey;
use serde_json::{Value, json};
use std::time::Duration;

/// Whether this instance lets fewer shards sell, as it measures every two seconds.
async fn sells_less_than(instance: &Instance, shards: u16) -> bool {
    let selling = format!("flashsale_shards{{state=\"selling\"}} {shards}\n");
    let is_less = async || !instance.get(Who::Nobody, "/metrics").await.text.contains(&selling);
    let waiting = Box::pin(within(PATIENCE, "fewer shards sell", is_less));
    tokio::time::timeout(Duration::from_secs(6), waiting).await.is_ok()
}

/// Every sale on the list, by id and state, and the pages that it took.
async fn listed(client: &Client, limit: usize) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    loop {
        let after = all
            .last()
            .map_or_else(String::new, |(id, _)| format!("&starting_after={id}"));
        let page = client
            .get(Who::Nobody, &format!("/v1/sales?limit={limit}{after}"))
            .await
            .ok(200)
            .body;
        let text = |sale: &Value, name: &str| sale[name].as_str().unwrap().to_owned();
        let data = page["data"].as_array().unwrap();
        all.extend(data.iter().map(|sale| (text(sale, "id"), text(sale, "state"))));
        if page["has_more"] == false {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_a_new_shopper_sees_the_items_and_buys_one() {
    unless_permits_lapse(a_new_shopper_buys).await;
}

async fn a_new_shopper_buys() -> bool {
    let mut postgres = FreshPostgres::start().await;
    let environment = environment(&redis(), &postgres.url());
    let (one, other) = (
        Instance::start(&environment, "all").may_log_errors(),
        Instance::start(&environment, "api").may_log_errors(),
    );
    let id = one.load_sale(&sale_with(&json!({"name": "The first"}))).await;
    let paused = one.load_sale(&sale()).await;
    one.operate(&paused, "pause").await.ok(200);
    let last = one.load_sale(&sale()).await;
    let draft = one.create_sale(&sale()).await;
    let kept = one.buy("ada", &id, "kept", 2).await.ok(201).id();
    let given_back = one.buy("ada", &id, "given back", 1).await.ok(201).id();
    one.cancel("ada", &given_back).await.ok(200);
    let all = listed(&one, 2).await;
    // No client has asked the other instance for any of them; it lets their shards sell, like every instance.
    within(PATIENCE, "the other instance knows the sales", async || {
        let metrics = other.get(Who::Nobody, "/metrics").await.text;
        metrics.contains("flashsale_shards{state=\"selling\"} 6\n")
    })
    .await;
    let shopping = Box::pin(async {
        for instance in [&one, &other] {
            assert_eq!(listed(instance, 2).await, all);
            let ids: Vec<&String> = all.iter().map(|(id, _)| id).collect();
            assert_eq!(ids, [&last, &paused, &id], "no draft, the newest first");
            let seen = instance.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200).body;
            assert_eq!((&seen["name"], &seen["state"]), (&json!("The first"), &json!("open")));
            assert_eq!(seen["items"][0]["availability"], "available");
            let seen = instance.get(Who::Nobody, &format!("/v1/sales/{paused}")).await.ok(200);
            assert_eq!(seen.body["state"], "paused");
            // It does not deny orders that it cannot know.
            let unknown = instance.get(Who::Nobody, &format!("/v1/sales/{draft}")).await;
            unknown.no(503, "unavailable");
            let nothing = format!("/v1/sales/{}", uuid::Uuid::new_v4());
            instance.get(Who::Nobody, &nothing).await.no(404, "not_found");
            let had = instance.orders("ada", &id).await.ok(200).body;
            let had: Vec<(&Value, &Value)> = had["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|order| (&order["id"], &order["state"]))
                .collect();
            assert_eq!(
                had,
                [
                    (&json!(kept), &json!("reserved")),
                    (&json!(given_back), &json!("cancelled"))
                ]
            );
            assert_eq!(instance.orders("eve", &id).await.ok(200).body["data"], json!([]));
            assert_eq!(instance.order("ada", &kept).await.ok(200).body["state"], "reserved");
        }
        let new = other.buy("bob", &id, "k", 5).await.ok(201).id();
        for instance in [&one, &other] {
            let had = instance.orders("bob", &id).await.ok(200).body;
            assert_eq!(
                (&had["data"][0]["id"], &had["data"][0]["confirmed"]),
                (&json!(new), &json!(false))
            );
        }
        one.buy("cyd", &id, "k", 3).await.ok(201);
        for instance in [&one, &other] {
            within(PATIENCE, "it is seen to be sold out", async || {
                let seen = instance.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200).body;
                seen["items"][0]["availability"] == "sold_out"
            })
            .await;
        }
        new
    });
    let have_lapsed = async { sells_less_than(&one, 6).await || sells_less_than(&other, 6).await };
    let Some(new) = without(&mut postgres, have_lapsed, shopping).await else {
        return false;
    };

    postgres.restart();
    for instance in [&one, &other] {
        within(PATIENCE, "the order is confirmed", async || {
            let had = instance.orders("bob", &id).await.ok(200).body;
            had["data"][0]["id"] == new && had["data"][0]["confirmed"] == true
        })
        .await;
    }
    assert_eq!(listed(&other, 2).await, all);
    one.assert_balanced(&id).await;
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_no_list_claims_that_there_are_no_more_orders() {
    unless_permits_lapse(no_list_claims_that_it_is_whole).await;
}

async fn no_list_claims_that_it_is_whole() -> bool {
    let mut postgres = FreshPostgres::start().await;
    let world = World::with(redis(), postgres.url()).await;
    let sale = world.sale(&Terms::of(20, 2)).await;
    let raw = Raw::connect(&world.redis);
    let (long, short, stopped) = ("long", shopper_at(&sale, 0), shopper_at(&sale, 1));
    for user in [long, &short, &stopped] {
        bought(&world.app, &sale, user, "k", 1).await;
    }
    world.settled(&sale).await;
    // As of a shopper whose row has no room for some decided orders.
    let home = home_shard(&sale.secret.0, &long.parse().unwrap(), sale.shards);
    let row = ShardKey {
        sale: sale.id,
        shard: home,
    }
    .buyer(&long.parse().unwrap());
    let _length: i64 = raw.call(redis::cmd("SETRANGE").arg(row).arg(6).arg(&[1_u8][..]));
    let list = async |user: &str| flow::settle::order::list_orders(&world.app, sale.id, &user.parse().unwrap()).await;
    assert_eq!(
        list(long).await.unwrap().unwrap().orders.len(),
        1,
        "the ledger has them all"
    );
    let listing = Box::pin(async {
        let missing = list(long).await;
        assert!(matches!(missing, Err(Fault::Unavailable(_))), "{missing:?}");
        assert_eq!(list(&short).await.unwrap().unwrap().orders.len(), 1);
        assert_eq!(list(&stopped).await.unwrap().unwrap().orders.len(), 1);
        // On a shard that has lost its keys, nothing is known of any shopper.
        let lost = ShardKey {
            sale: sale.id,
            shard: 1,
        };
        let _gone: i64 = raw.call(
            redis::cmd("DEL")
                .arg(lost.shard())
                .arg(lost.buyer(&stopped.parse().unwrap())),
        );
        within(PATIENCE, "it is seen that the shard is not whole", async || {
            matches!(list(&stopped).await, Err(Fault::Unavailable(_)))
        })
        .await;
        assert_eq!(list(&short).await.unwrap().unwrap().orders.len(), 1);
    });
    let have_lapsed = async { world.app.permits.count_shards().halted > 0 };
    without(&mut postgres, have_lapsed, listing).await.is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_cannot_be_read_takes_neither_the_list_nor_its_own_other_shards_along() {
    let mut world = World::new().await;
    let (whole, torn) = (world.sale(&Terms::of(20, 2)).await, world.sale(&Terms::of(20, 2)).await);
    let (dark, seen) = (world.sale(&Terms::of(20, 1)).await, world.sale(&Terms::of(20, 1)).await);
    world.end_keeper().await;
    for sale in [&torn, &seen] {
        let seen = answered("the sale is seen", || glance(&world.app, sale.id)).await;
        seen.unwrap();
    }
    let raw = Raw::connect(&world.redis);
    for (sale, shard) in [(&torn, 1), (&dark, 0), (&seen, 0)] {
        let key = ShardKey { sale: sale.id, shard };
        let _gone: i64 = raw.call(redis::cmd("DEL").arg(key.shard()));
    }
    let other = world.another().await;
    for (app, expected) in [
        (&world.app, vec![&seen, &torn, &whole]),
        // An instance that starts later has never seen the items of the other sales.
        (&other, vec![&whole]),
    ] {
        within(PATIENCE, "the cached answer has expired", async || {
            glance(app, seen.id).await.is_err() && glance(app, dark.id).await.is_err()
        })
        .await;
        // A sale is left out for a moment if a slow ledger takes more than 400 ms.
        within(PATIENCE, "the list has what can be read", async || {
            let (found, has_more) = answered("there is a list", || glances(app, 100, None)).await;
            assert!(!has_more);
            assert!(found.iter().all(|glance| glance.free.values().eq([&20])));
            let ids = found.iter().map(|glance| glance.sale.id);
            ids.eq(expected.iter().map(|sale| sale.id))
        })
        .await;
    }
    // The next page begins after an omitted sale, and no omitted sale counts as missing.
    let (found, has_more) = answered("a page", || glances(&world.app, 2, None)).await;
    assert_eq!((found.len(), found[0].sale.id, has_more), (1, seen.id, true));
    let (found, has_more) = answered("a page", || glances(&other, 1, Some(torn.id))).await;
    assert_eq!((found[0].sale.id, has_more), (whole.id, false));
    within(PATIENCE, "none of three can be read", async || {
        matches!(glances(&other, 3, None).await, Err(Fault::Incomplete(_)))
    })
    .await;
    let torn = answered("the sale is seen", || glance(&world.app, torn.id)).await;
    torn.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_a_sale_keeps_the_state_that_its_shards_learned_last() {
    let mut postgres = FreshPostgres::start().await;
    let mut world = World::with(redis(), postgres.url()).await;
    let sale = world.sale(&Terms::of(20, 2)).await;
    world.end_keeper().await;
    let other = world.another().await;
    flow::recover::attend::reconcile_all(&other).await.unwrap();
    let state = async || {
        let seen = glance(&other, sale.id).await.unwrap().unwrap();
        seen.sale.state_at(seen.now())
    };
    assert_eq!(state().await, SaleState::Open);
    flow::operate::transition::transition(&world.app, sale.id, Transition::Pause)
        .await
        .unwrap();
    postgres.stop();
    within(PATIENCE, "it is seen that the sale is paused", async || {
        state().await == SaleState::Paused
    })
    .await;
    let (found, _) = glances(&other, 10, None).await.unwrap();
    assert_eq!(found[0].sale.state_at(found[0].now()), SaleState::Paused);
}
