//! `pause` is the kill switch: it holds on every shard that can be reached within a second, and a scheduled sale that is
//! paused does not open by itself.

use crate::support::app::{TestApp, Who, rfc3339, sale_with};
use crate::support::crowd::{Terms, World, try_buy};
use crate::support::poll::{PATIENCE, Stopwatch, within};
use crate::support::servers::Cluster;
use chrono::{DateTime, TimeDelta, Utc};
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use flashsale::domain::sale::shard::home_shard;
use flashsale::domain::sale::{Sale, SaleState, Transition};
use flashsale::flow::{self, App};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Shoppers of one shard who buy one after the other until they are stopped.
struct Crowd {
    is_over: Arc<AtomicBool>,
    bought: Arc<AtomicUsize>,
    /// Refused because the sale is paused.
    refused: Arc<AtomicUsize>,
    /// When Redis accepted the last purchase, and how long the machine had stood still by then.
    last: JoinHandle<Option<(DateTime<Utc>, Duration)>>,
}

impl Crowd {
    fn at(app: &Arc<App>, sale: &Arc<Sale>, shard: u16, watch: Stopwatch) -> Self {
        let (is_over, bought, refused) = (Arc::default(), Arc::default(), Arc::default());
        let last = tokio::spawn({
            let (app, sale) = (Arc::clone(app), Arc::clone(sale));
            let (is_over, bought, refused) = (Arc::clone(&is_over), Arc::clone(&bought), Arc::clone(&refused));
            async move { buy_on(&app, &sale, shard, watch, &is_over, &bought, &refused).await }
        });
        Self {
            is_over,
            bought,
            refused,
            last,
        }
    }
}

async fn buy_on(
    app: &App,
    sale: &Sale,
    shard: u16,
    watch: Stopwatch,
    is_over: &AtomicBool,
    bought: &AtomicUsize,
    refused: &AtomicUsize,
) -> Option<(DateTime<Utc>, Duration)> {
    let shoppers = (0..).map(|n| format!("{shard}-{n}"));
    let mut shoppers = shoppers.filter(|it| home_shard(&sale.secret.0, &it.parse().unwrap(), sale.shards) == shard);
    let mut last = None;
    while !is_over.load(Ordering::Relaxed) {
        match try_buy(app, sale, &shoppers.next().unwrap(), "k", 1).await {
            Ok(PurchaseOutcome::Reserved(order)) => {
                last = last.max(Some((order.created_at, watch.stood_still())));
                bought.fetch_add(1, Ordering::Relaxed);
            }
            Ok(PurchaseOutcome::Refused(Refusal::NotOpen {
                state: SaleState::Paused,
            })) => _ = refused.fetch_add(1, Ordering::Relaxed),
            Ok(other) => panic!("{other:?}"),
            // A silent node costs the shards of other nodes no answer.
            Err(fault) => panic!("{fault:?}"),
        }
    }
    last
}

/// Pauses a sale while crowds buy. Returns how long purchases still succeeded, by the servers' clock, which is the test's.
/// Time in which the machine stood still does not count.
async fn bought_after(world: &World, sale: &Arc<Sale>, shards: &[u16], is_whole: bool) -> TimeDelta {
    let watch = Stopwatch::start();
    let crowds: Vec<Crowd> = shards
        .iter()
        .map(|shard| Crowd::at(&world.app, sale, *shard, watch))
        .collect();
    within(PATIENCE, "everybody buys", async || {
        crowds.iter().all(|crowd| crowd.bought.load(Ordering::Relaxed) > 0)
    })
    .await;
    let (asked, stood_still) = (Utc::now(), watch.stood_still());
    let paused = flow::operate::transition::transition(&world.app, sale.id, Transition::Pause).await;
    assert_eq!(paused.is_ok(), is_whole, "{paused:?}");
    within(PATIENCE, "everybody is refused", async || {
        crowds.iter().all(|crowd| crowd.refused.load(Ordering::Relaxed) > 2)
    })
    .await;
    let mut after = TimeDelta::zero();
    for crowd in crowds {
        crowd.is_over.store(true, Ordering::Relaxed);
        let (last, stood_still_then) = crowd.last.await.unwrap().unwrap();
        assert!(last - asked < TimeDelta::seconds(3), "however slow the machine is");
        let stood_still = stood_still_then.saturating_sub(stood_still);
        after = after.max(last - asked - TimeDelta::from_std(stood_still).unwrap());
    }
    after
}

fn hold_within_a_second(bought_after: &[TimeDelta]) {
    let are_in_time = bought_after.iter().all(|after| *after < TimeDelta::seconds(1));
    assert!(are_in_time, "bought after the pause for {bought_after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_within_a_second() {
    let world = World::new().await;
    let mut after = Vec::new();
    for _ in 0..3 {
        let sale = world.sale(&Terms::of(100_000, 4)).await;
        after.push(bought_after(&world, &sale, &[0, 1, 2, 3], true).await);
    }
    hold_within_a_second(&after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_within_a_second_on_the_other_shards_while_a_node_is_silent() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let mut sales = Vec::new();
    for _ in 0..4 {
        sales.push(world.sale(&Terms::of(100_000, 12)).await);
    }
    let slot = |sale: &Sale, shard: u16| cluster.slot(&format!("{{{}:{shard}}}:shard", sale.id));
    let silent = Cluster::first_primary_of(slot(&sales[0], 0));
    let answering = |sale: &Sale| -> Vec<u16> {
        let shards = 0..sale.shards;
        shards
            .filter(|shard| Cluster::first_primary_of(slot(sale, *shard)) != silent)
            .take(4)
            .collect()
    };
    let answering: Vec<Vec<u16>> = sales.iter().map(|sale| answering(sale)).collect();
    let first = slot(&sales[0], 0);
    // No replica is promoted.
    cluster.kill_replica_of(first);
    cluster.hang_primary_of(first);
    // At once, and once the other nodes know that one is silent.
    let mut after = Vec::new();
    for (sale, shards) in sales.iter().zip(&answering) {
        after.push(bought_after(&world, sale, shards, false).await);
    }
    hold_within_a_second(&after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_goes_by_the_clocks_of_the_nodes_that_answer_while_one_is_silent() {
    let (mut cluster, clocks) = Cluster::with_clocks();
    for clock in &clocks {
        clock.set(TimeDelta::minutes(-40).num_milliseconds());
    }
    let world = World::on(cluster.url()).await;
    let id = world.draft(&Terms::of(48, 12)).await;
    // By this host's clock the sale is over, and by those of Redis it goes on for twenty minutes.
    let ends = "update sales set starts_at = now() - interval '1 hour', ends_at = now() - interval '20 minutes' \
                where sale_id = $1";
    assert_eq!(world.execute(ends, id).await.unwrap(), 1);
    let (sale, _) = flow::operate::preload::load(&world.app, id).await.unwrap().unwrap();
    let silent = cluster.slot(&format!("{{{id}:0}}:shard"));
    cluster.kill_replica_of(silent);
    cluster.hang_primary_of(silent);
    let paused = flow::operate::transition::transition(&world.app, sale.id, Transition::Pause).await;
    // The silent node has not heard of it yet.
    assert!(matches!(&paused, Err(fault) if fault.is_passing()), "{paused:?}");
    let is_paused = "select count(*) from sales where sale_id = $1 and state = 'paused'";
    assert_eq!(world.number(is_paused, sale.id).await, 1);
}

#[tokio::test]
async fn a_scheduled_sale_that_is_paused_does_not_open_by_itself() {
    let app = TestApp::start().await;
    let starts_at = Utc::now() + TimeDelta::seconds(3);
    let id = app
        .load_sale(&sale_with(&json!({"starts_at": rfc3339(starts_at)})))
        .await;
    assert_eq!(app.operate(&id, "pause").await.ok(200).body["state"], "paused");
    assert_eq!(
        app.run(&["sale", "pause", "--json", &id]).ended(0).json()["state"],
        "paused"
    );
    app.operate(&id, "open").await.no(409, "invalid_transition");
    within(PATIENCE, "the start has passed", async || {
        let seen = app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200).body;
        assert_eq!(seen["state"], "paused");
        let now: DateTime<Utc> = seen["server_time"].as_str().unwrap().parse().unwrap();
        now > starts_at
    })
    .await;
    let refused = app.buy("ada", &id, "k", 1).await.no(409, "sale_not_open");
    assert_eq!(refused.body["sale_state"], "paused");
    assert_eq!(app.operate(&id, "resume").await.ok(200).body["state"], "open");
    app.buy("ada", &id, "k", 1).await.ok(201);
}

#[tokio::test]
async fn a_scheduled_sale_that_is_resumed_is_scheduled_again_and_opens_at_its_start() {
    let app = TestApp::start().await;
    let starts_at = Utc::now() + TimeDelta::seconds(8);
    let id = app
        .load_sale(&sale_with(&json!({"starts_at": rfc3339(starts_at)})))
        .await;
    app.operate(&id, "pause").await.ok(200);
    let resumed = app.operate(&id, "resume").await.ok(200).body;
    assert_eq!(
        (&resumed["state"], &resumed["starts_at"]),
        (&json!("scheduled"), &json!(rfc3339(starts_at)))
    );
    let refused = app.buy("ada", &id, "k", 1).await.no(409, "sale_not_open");
    assert_eq!(refused.body["sale_state"], "scheduled");
    within(PATIENCE, "it opens", async || {
        app.buy("ada", &id, "k", 1).await.status == 201
    })
    .await;
}
