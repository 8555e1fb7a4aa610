//! The stock audit counts every unit, with any backlog, and the conservation check does so by itself.
//!
//! Two of these tests are long. The runner goes by name, and so begins them early: at the end, they would run alone.

use crate::support::app::{TestApp, Who, sale, sale_with};
use crate::support::backlog::{reserve_everywhere, reserve_many};
use crate::support::crowd::{SKU, Terms, World, answered, bought, drain_all, shopper_at};
use crate::support::poll::{PATIENCE, within};
use crate::support::raw::Raw;
use crate::support::servers::redis;
use chrono::{DateTime, Utc};
use flashsale::domain::operator::report::Audit;
use flashsale::domain::sale::{Sale, Transition};
use flashsale::flow;
use flashsale::flow::operate::transition::TransitionOutcome;
use flashsale::ledger::settle::order::Cancellation;
use flashsale::stock::keys::ShardKey;
use serde_json::{Value, json};
use std::time::Duration;

async fn audit(world: &World, sale: &Sale) -> Audit {
    let read = || flow::watch::audit::audit(&world.app, sale.id);
    answered("the audit is read", read).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_is_right_with_tens_of_thousands_of_events_that_the_ledger_lacks() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(80_000, 2)).await;
    reserve_everywhere(&world, &sale, 20_000);
    let before = audit(&world, &sale).await;
    assert!(before.balanced, "{:#?}", before.differences);
    let item = &before.items[0];
    assert_eq!((item.stock.held, item.stock.undrained), (40_000, 40_000));
    assert_eq!((item.ledger.held, item.ledger.free), (0, 80_000));

    // One event is missing in the middle, far behind the first page, and no process repairs the shard.
    world.end_keeper().await;
    let (raw, first) = (
        Raw::connect(&world.redis),
        ShardKey {
            sale: sale.id,
            shard: 0,
        },
    );
    let _deleted: i64 = raw.call(redis::cmd("XDEL").arg(first.events()).arg("1-17000"));
    let lost = audit(&world, &sale).await;
    assert_eq!(
        lost.differences,
        [
            "mug, shard 0: the stock has 20000 held and 0 sold, the ledger expects 19999 and 0".to_owned(),
            "shard 0: events 17000 to 17000 are missing".to_owned(),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_balances_while_a_backlog_is_drained_and_shoppers_buy() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(40_000, 2)).await;
    reserve_everywhere(&world, &sale, 6_000);
    let (app, buys) = (world.another().await, sale.clone());
    let drain = tokio::spawn(async move {
        for n in 0.. {
            bought(&app, &buys, &format!("u{n}"), "k", 1).await;
            let _passing = drain_all(&app).await;
            let shards = [0, 1].map(|shard| ShardKey { sale: buys.id, shard });
            if answered("the backlog is read", || app.stock.undrained(&shards)).await == [0, 0] {
                return n + 1;
            }
        }
        0
    });
    let mut audits = 0;
    while !drain.is_finished() || audits == 0 {
        let audit = audit(&world, &sale).await;
        assert!(audit.balanced, "{:#?}", audit.differences);
        audits += 1;
    }
    let bought = drain.await.unwrap();
    let item = audit(&world, &sale).await.items.remove(0);
    assert_eq!((item.ledger.held, item.stock.undrained), (12_000 + bought, 0));
}

/// A sale of ten items on eight shards.
fn wide() -> Value {
    let mut sale = sale_with(&json!({"shards": 8}));
    let items = (0..10).map(|n| {
        let mut item = sale["items"][0].clone();
        item["sku"] = json!(format!("item-{n}"));
        item
    });
    sale["items"] = items.collect();
    sale
}

#[tokio::test]
async fn all_differences_are_printed_and_the_api_pages_through_them() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&wide()).await;
    let wrong = "update grants set held = held + 1 where sale_id::text = $1";
    sqlx::query(wrong)
        .bind(&id)
        .execute(&mut app.database().await)
        .await
        .unwrap();
    // Each grant differs from its orders, and each shard from its grant.
    let all = app.admin(&id, "/audit").await.ok(200).body;
    assert_eq!(all["balanced"], false);
    let all = all["differences"].as_array().unwrap().clone();
    assert_eq!(all.len(), 160);
    for (args, mark) in [
        (vec!["audit", &id], "difference: "),
        (vec!["audit", "--json", &id], "shard "),
    ] {
        let ran = app.run(&args).ended(1);
        assert_eq!(ran.stdout.matches(mark).count(), 160, "{ran:?}");
        assert!(ran.stderr.contains("differences: 160"), "{ran:?}");
    }

    let (mut paged, mut pages): (Vec<Value>, usize) = (Vec::new(), 0);
    loop {
        let after = paged.last().map(|last| {
            let last: String = form_urlencoded::byte_serialize(last.as_str().unwrap().as_bytes()).collect();
            format!("&starting_after={last}")
        });
        let part = format!("/audit?limit=50{}", after.unwrap_or_default());
        let page = app.admin(&id, &part).await.ok(200).body;
        assert_eq!(
            (&page["balanced"], &page["differences_total"]),
            (&json!(false), &json!(160))
        );
        paged.extend(page["differences"].as_array().unwrap().clone());
        pages += 1;
        if page["has_more"] == false {
            break;
        }
    }
    assert_eq!((paged, pages), (all, 4));
    for limit in ["0", "1001", "many"] {
        let answer = app.admin(&id, &format!("/audit?limit={limit}")).await;
        answer.no(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conservation_check_counts_what_a_shard_has_too_much_and_where_the_stores_differ() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(20_000, 2)).await;
    bought(&world.app, &sale, &shopper_at(&sale, 1), "k", 3).await;
    let raw = Raw::connect(&world.redis);
    let item = ShardKey {
        sale: sale.id,
        shard: 1,
    }
    .item(&SKU.parse().unwrap());
    let check = async || {
        let found = flow::watch::conservation::check(&world.app, &sale).await.unwrap();
        (found.difference, found.drift)
    };
    assert_eq!(check().await, (0, 0), "with an event that the ledger lacks");
    raw.tamper(&item, 0, 2);
    assert_eq!(check().await, (2, 0), "two free units too many");
    raw.tamper(&item, 6, -1);
    raw.tamper(&item, 0, -1);
    assert!(
        matches!(check().await, (0, 1)),
        "a held unit was given back, the ledger knows nothing of it"
    );
    raw.tamper(&item, 6, 1);
    raw.tamper(&item, 0, -1);
    assert_eq!(check().await, (0, 0), "healed");
    // Its cost is bounded: of a shard with too many events, only the shard's own count is checked.
    reserve_many(&raw, &sale, 0, 0, 7_000, Utc::now().timestamp_millis());
    assert_eq!(check().await, (0, 0));
    world.settled(&sale).await;
    assert_eq!(check().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conservation_is_a_gauge_of_each_sale_until_it_is_over() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let gauge = |name: &str| format!("flashsale_{name}{{sale=\"{id}\"}}");
    let value = async |name: &str| -> Option<f64> {
        let metrics = app.get(Who::Nobody, "/metrics").await.text;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix(&gauge(name)).map(str::to_owned));
        line.map(|value| value.trim().parse().unwrap())
    };
    let becomes = async |name: &str, expected: Option<f64>| {
        within(PATIENCE, "the gauge follows", async || value(name).await == expected).await;
    };
    becomes("conservation_difference_units", Some(0.0)).await;
    becomes("ledger_drift_units", Some(0.0)).await;
    let raw = Raw::connect(&redis());
    let item = ShardKey {
        sale: id.parse().unwrap(),
        shard: 0,
    }
    .item(&"phone".parse().unwrap());
    raw.tamper(&item, 0, 1);
    becomes("conservation_difference_units", Some(1.0)).await;
    raw.tamper(&item, 0, -1);
    becomes("conservation_difference_units", Some(0.0)).await;
    app.operate(&id, "close").await.ok(200);
    becomes("conservation_difference_units", None).await;
    becomes("ledger_drift_units", None).await;
    becomes("conservation_check_age_seconds", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_says_what_a_rebuild_would_change_and_changes_nothing() {
    let app = TestApp::start_api_only().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 100, "per_user_limit": 50})))
        .await;
    app.buy("ada", &id, "k", 7).await.ok(201);
    let raw = Raw::connect(&redis());
    let item = |shard| {
        ShardKey {
            sale: id.parse().unwrap(),
            shard,
        }
        .item(&"phone".parse().unwrap())
    };
    let values = || [0, 1].map(|shard| raw.call::<Option<Vec<u8>>>(redis::cmd("GET").arg(item(shard))));
    let dry_run = || app.run(&["rebuild", "--dry-run", "--json", &id]).ended(0).json();
    let after = |preview: &Value, shard: usize| preview["shards"][shard]["items"][0]["after"].clone();
    // The shard of ada's order does not matter: each keeps its held units and half of its free ones.
    let before = values();
    let preview = dry_run();
    assert_eq!(preview["dry_run"], true);
    let held = [0, 1].map(|shard| after(&preview, shard)["held"].as_i64().unwrap());
    assert_eq!(held.iter().sum::<i64>(), 7, "{preview}");
    let free = [0, 1].map(|shard| after(&preview, shard)["available"].as_i64().unwrap());
    assert_eq!(free, [47, 46], "{preview}");
    assert_eq!(values(), before);

    // A shard with some units too many.
    raw.tamper(&item(1), 0, 5);
    let damaged = values();
    let preview = dry_run();
    let of = |when: &str| preview["shards"][1]["items"][0][when]["available"].as_i64().unwrap();
    assert!(of("before") > of("after"), "{preview}");
    let printed = app.run(&["rebuild", "--dry-run", &id]).ended(0).stdout;
    assert!(
        printed.contains(" 1  phone") && printed.contains("nothing was changed"),
        "{printed}"
    );
    let asked = format!("/v1/admin/sales/{id}/rebuild?dry_run=maybe");
    app.post(Who::Operator, &asked).await.no(400, "invalid_request");
    assert_eq!(values(), damaged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_of_a_shard_that_lost_units_writes_exactly_the_dry_runs_numbers() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(100, 2)).await;
    for n in 0..10 {
        bought(&world.app, &sale, &format!("u{n}"), "k", 1).await;
    }
    drain_all(&world.app).await.unwrap();
    bought(&world.app, &sale, "undrained", "k", 2).await;
    // Nobody repairs it by itself.
    world.end_keeper().await;
    let raw = Raw::connect(&world.redis);
    let item = ShardKey {
        sale: sale.id,
        shard: 0,
    }
    .item(&SKU.parse().unwrap());
    let _deleted: i64 = raw.call(redis::cmd("DEL").arg(&item));
    let preview = async || {
        flow::recover::rebuild::preview::preview(&world.app, sale.id)
            .await
            .unwrap()
            .unwrap()
    };
    let said = preview().await;
    assert_eq!(said.shards[0].items[0].before, None);
    let there: i64 = raw.call(redis::cmd("EXISTS").arg(&item));
    assert_eq!(there, 0, "nothing was changed");
    flow::recover::attend::rebuild_sale(&world.app, sale.id)
        .await
        .unwrap()
        .unwrap();
    let written = preview().await;
    for (said, written) in said.shards.iter().zip(&written.shards) {
        let (said, written) = (&said.items[0], &written.items[0]);
        assert_eq!(written.before.as_ref(), Some(&said.after));
        assert_eq!(written.before.as_ref(), Some(&written.after));
    }
}

/// The difference and the drift that are stored for a sale, and since when it has not been counted completely. `None` for
/// a sale that is not checked.
async fn stored(world: &World, sale: &Sale) -> Option<(Option<i64>, Option<i64>, DateTime<Utc>)> {
    let stored = "select difference, drift, uncounted_since from conservation_checks where sale_id = $1";
    let stored = sqlx::query_as(stored).bind(sale.id.0);
    stored.fetch_optional(&world.pool).await.unwrap()
}

/// Waits until the check has stored this difference and this drift.
async fn becomes(world: &World, sale: &Sale, difference: Option<i64>, drift: Option<i64>) {
    let what = format!("{difference:?} and {drift:?} are stored");
    within(PATIENCE, &what, async || {
        // The next claim need not wait for the last one to end.
        let ended = "update conservation_checks set began_at = began_at - interval '1 minute' where sale_id = $1";
        world.execute(ended, sale.id).await.unwrap();
        flow::watch::conservation::check_sales(&world.app).await.unwrap();
        let stored = stored(world, sale).await;
        stored.is_some_and(|it| (it.0, it.1) == (difference, drift))
    })
    .await;
}

/// A gauge of a sale, as a worker in this process measures it.
async fn measured(world: &World, sale: &Sale, name: &str) -> Option<i64> {
    flow::watch::gauges::measure_sales(&world.app).await.unwrap();
    let series = format!("flashsale_{name}{{sale=\"{}\"}} ", sale.id);
    let metrics = world.app.metrics.encode(false);
    let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
    value.map(|value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_nobody_has_counted_has_an_age_and_no_result() {
    let world = World::new().await;
    let (counted, uncounted) = (
        world.sale(&Terms::of(100, 2)).await,
        world.sale(&Terms::of(100, 2)).await,
    );
    flow::watch::conservation::check_sales(&world.app).await.unwrap();
    for (name, value) in [("conservation_difference_units", 0), ("ledger_drift_units", 0)] {
        assert_eq!(measured(&world, &counted, name).await, Some(value), "{name}");
    }
    // The process that has claimed the check dies before it counts.
    let forgotten = "delete from conservation_checks where sale_id = $1";
    assert_eq!(world.execute(forgotten, uncounted.id).await.unwrap(), 1);
    let claimed = world
        .app
        .ledger
        .claim_conservation(uncounted.id, Duration::from_secs(4));
    assert!(claimed.await.unwrap());
    for name in ["conservation_difference_units", "ledger_drift_units"] {
        assert_eq!(measured(&world, &uncounted, name).await, None, "{name}");
    }
    let hour =
        "update conservation_checks set uncounted_since = uncounted_since - interval '1 hour' where sale_id = $1";
    assert_eq!(world.execute(hour, uncounted.id).await.unwrap(), 1);
    let age = measured(&world, &uncounted, "conservation_check_age_seconds").await;
    assert!(age.is_some_and(|age| (3600..3660).contains(&age)), "{age:?}");
    let age = measured(&world, &counted, "conservation_check_age_seconds").await;
    assert!(age.is_some_and(|age| (0..60).contains(&age)), "{age:?}");
    // Where not every sale gets a series, the sale that nobody has counted gets one.
    let shown = world.app.ledger.conservation(1).await.unwrap();
    assert_eq!(shown[0].sale, uncounted.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_whose_ledger_is_far_behind_is_counted_as_far_as_redis_alone_shows() {
    let mut world = World::new().await;
    world.end_keeper().await;
    let (far, near) = (
        world.sale(&Terms::of(5_000, 1)).await,
        world.sale(&Terms::of(5_000, 1)).await,
    );
    reserve_everywhere(&world, &far, 1_001);
    reserve_everywhere(&world, &near, 1_000);
    let completely = flow::watch::conservation::check_sales(&world.app).await.unwrap();
    assert_eq!(completely, 1, "only the sale that is near is counted completely");
    becomes(&world, &near, Some(0), Some(0)).await;
    becomes(&world, &far, Some(0), None).await;
    assert_eq!(measured(&world, &far, "ledger_drift_units").await, None);
    let (_, _, uncounted_since) = stored(&world, &far).await.unwrap();

    // The shard's own counters show a free unit too many.
    let raw = Raw::connect(&world.redis);
    let item = ShardKey { sale: far.id, shard: 0 }.item(&SKU.parse().unwrap());
    raw.tamper(&item, 0, 1);
    becomes(&world, &far, Some(1), None).await;
    assert_eq!(measured(&world, &far, "conservation_difference_units").await, Some(1));
    // They do not show a held unit that became free. The age shows that no process has compared the two stores.
    raw.tamper(&item, 6, -1);
    becomes(&world, &far, Some(0), None).await;
    assert_eq!(stored(&world, &far).await.unwrap().2, uncounted_since);

    while drain_all(&world.app).await.unwrap() > 0 {}
    becomes(&world, &far, Some(0), Some(1)).await;
    assert!(stored(&world, &far).await.unwrap().2 > uncounted_since);
    raw.tamper(&item, 6, 1);
    raw.tamper(&item, 0, -1);
    becomes(&world, &far, Some(0), Some(0)).await;
    assert_eq!(measured(&world, &far, "ledger_drift_units").await, Some(0));
}

/// Delivers the messages of a sale until none is left.
async fn deliver_all(world: &World, sale: &Sale, what: &str) {
    within(PATIENCE, what, async || {
        flow::settle::release::release_waiting(&world.app).await.unwrap();
        let waiting = "select count(*) from outbox where sale_id = $1";
        world.number(waiting, sale.id).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_sale_is_checked_until_its_last_hold_is_decided_and_given_back() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(100, 2)).await;
    let order = bought(&world.app, &sale, "ada", "k", 3).await;
    let closed = flow::operate::transition::transition(&world.app, sale.id, Transition::Close).await;
    assert!(matches!(closed, Ok(TransitionOutcome::Done(_))), "{closed:?}");
    deliver_all(&world, &sale, "the shards know that the sale is closed").await;
    // Only Redis has the order.
    becomes(&world, &sale, Some(0), Some(0)).await;
    // The ledger has it.
    drain_all(&world.app).await.unwrap();
    let raw = Raw::connect(&world.redis);
    let item = ShardKey {
        sale: sale.id,
        shard: 0,
    }
    .item(&SKU.parse().unwrap());
    raw.tamper(&item, 0, 1);
    becomes(&world, &sale, Some(1), Some(0)).await;
    raw.tamper(&item, 0, -1);
    becomes(&world, &sale, Some(0), Some(0)).await;
    // The ledger has cancelled it, and the shard has not got the message.
    let cancelled = world.app.ledger.cancel(order.id, &"ada".parse().unwrap()).await;
    assert!(matches!(cancelled, Ok(Cancellation::Now(_))));
    raw.tamper(&item, 0, 2);
    becomes(&world, &sale, Some(2), Some(0)).await;
    deliver_all(&world, &sale, "the shard knows of the cancellation").await;
    // Nothing moves any more, and the finding stays until a count finds nothing.
    becomes(&world, &sale, Some(2), Some(0)).await;
    becomes(&world, &sale, Some(2), Some(0)).await;
    raw.tamper(&item, 0, -2);
    within(PATIENCE, "the last count finds nothing", async || {
        let due = "update conservation_checks set began_at = began_at - interval '1 minute' where sale_id = $1";
        world.execute(due, sale.id).await.unwrap();
        flow::watch::conservation::check_sales(&world.app).await.unwrap();
        stored(&world, &sale).await.is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_sale_is_counted_once_more_after_its_last_decision() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(100, 2)).await;
    becomes(&world, &sale, Some(0), Some(0)).await;
    let closed = flow::operate::transition::transition(&world.app, sale.id, Transition::Close).await;
    assert!(matches!(closed, Ok(TransitionOutcome::Done(_))), "{closed:?}");
    // The last message is delivered, and what it did is wrong.
    world.settled(&sale).await;
    let item = ShardKey {
        sale: sale.id,
        shard: 0,
    }
    .item(&SKU.parse().unwrap());
    Raw::connect(&world.redis).tamper(&item, 0, 2);
    becomes(&world, &sale, Some(2), Some(0)).await;
}
