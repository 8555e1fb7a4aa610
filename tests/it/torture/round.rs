//! One round: a sale with terms of its own, a crowd, faults, and then the rest of the stock. All of it follows from a seed,
//! as far as the machine's own timing lets it.

use super::ending;
use super::history::{Final, History, Injection, ItemTerms, Op, Terms};
use super::nemesis::{PlannedFault, inject};
use super::shoppers::{Scene, now, operate, sell_out, shop};
use super::world::{Kind, World};
use crate::support::crowd::ADMIN_KEY;
use crate::support::poll::pass;
use chrono::{TimeDelta, Utc};
use flashsale::domain::ids::SaleId;
use flashsale::domain::time;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Instances in a world.
pub const INSTANCES: usize = 2;

/// The plan of a round.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub terms: Terms,
    pub shoppers: usize,
    /// Longest pause of a shopper between two requests, in milliseconds.
    pub think: u64,
    pub faults: Vec<PlannedFault>,
    /// How long the crowd goes on once everything is whole.
    pub calm: Duration,
    /// How long the world may take to sell again, and then each outcome to be known, before the round stops waiting. The
    /// checker has its own limits.
    pub known_within: Duration,
    /// How long everything may take to come to rest before that is a violation.
    pub rests_within: Duration,
    /// Whether newcomers buy what is left at rest. One rule alone needs that.
    pub sells_out: bool,
}

impl Plan {
    /// A random round for a world of this kind.
    pub fn any(seed: u64, kind: Kind, faults: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let durability = match (kind, random.random_range(0..4)) {
            (Kind::WithReplica | Kind::Cluster, 0..=1) => "replica",
            (_, 0..=2) => "redis",
            _ => "postgres",
        };
        let (rate, rate_window) = if random.random_bool(0.3) {
            (random.random_range(2..8), random.random_range(300..1_500))
        } else {
            (1_000, 1_000)
        };
        let items = 0..random.random_range(1..=3);
        let items = items.map(|number| ItemTerms {
            sku: format!("item-{number}"),
            stock: [20, 200, 1_000, 5_000][random.random_range(0..4)],
            limit: random.random_range(1..=20),
            price: random.random_range(100..10_000),
        });
        // Newcomers buy the remaining stock in pieces of the limit; that must not take minutes.
        let items = items.map(|item| ItemTerms {
            limit: item.limit.max(item.stock / 250),
            ..item
        });
        let terms = Terms {
            items: items.collect(),
            shards: random.random_range(1..=6),
            window_seconds: random.random_range(1..=4),
            rate,
            rate_window,
            durability,
        };
        Self {
            seed,
            shoppers: random.random_range(20..=100),
            think: [3, 10, 60][random.random_range(0..3)],
            faults: (0..faults)
                .map(|_| PlannedFault::any(&mut random, kind, durability, INSTANCES))
                .collect(),
            calm: Duration::from_millis(300),
            known_within: Duration::from_secs(20),
            rests_within: Duration::from_secs(45),
            sells_out: true,
            terms,
        }
    }
}

/// Plays a round on a world where everything is whole, and leaves it so.
pub async fn play(world: &mut World, plan: &Plan) -> History {
    let mut random = StdRng::seed_from_u64(plan.seed ^ 1);
    let sale = create(world, &plan.terms).await;
    let scene = Arc::new(scene(world, plan, sale));
    let mut crowd = JoinSet::new();
    for number in 0..plan.shoppers {
        crowd.spawn(shop(Arc::clone(&scene), number, random.random()));
    }
    crowd.spawn(operate(Arc::clone(&scene), random.random()));

    let mut injections: Vec<Injection> = Vec::new();
    for planned in &plan.faults {
        injections.extend(inject(world, planned, sale, &mut random).await);
    }
    world.make_whole().await;
    let healed = now();
    scene.healed.store(healed, Ordering::Relaxed);
    let patience = Instant::now() + plan.known_within;
    while scene.sold_again.load(Ordering::Relaxed) == 0 && Instant::now() < patience {
        pass(Duration::from_millis(5)).await;
    }
    pass(plan.calm).await;
    scene.over.store(true, Ordering::Relaxed);
    let mut troubles: Vec<String> = Vec::new();
    while let Some(left) = crowd.join_next().await {
        if let Err(panic) = left {
            troubles.push(format!("a shopper waited in vain: {panic}"));
        }
    }

    let sold_again = scene.sold_again.load(Ordering::Relaxed);
    let mut ops = std::mem::take(&mut *scene.ops.lock().unwrap());
    ops.sort_by_key(|op| op.returned);
    let mut end = rest(world, plan, sale, &ops).await;
    end.audit.extend(troubles);
    for item in plan.terms.items.iter().filter(|_| plan.sells_out) {
        let most = end.stock.get(&item.sku).copied().unwrap_or_default();
        let sold = sell_out(&scene, &item.sku, plan.seed, most).await;
        // Units that were paid too late, on a slow machine, came back and were sold once more.
        let sold = sold - ending::sold_twice(world, sale, &item.sku).await;
        end.sold_afterwards.insert(item.sku.clone(), sold);
    }
    for (number, instance) in world.instances.iter().enumerate() {
        if instance.log().contains("panicked at") {
            end.audit.push(format!("instance {number} panicked; see its log"));
        }
    }
    History {
        terms: plan.terms.clone(),
        ops,
        injections,
        end,
        healed,
        sold_again: (sold_again != 0).then_some(sold_again),
    }
}

/// Waits until everything is at rest, and reads it.
async fn rest(world: &World, plan: &Plan, id: SaleId, ops: &[Op]) -> Final {
    let sale = world.app.sales.fresh(id).await.unwrap().unwrap();
    let patience = Instant::now() + plan.rests_within;
    let mut pending_work = ending::pending_work(world, &sale).await;
    while !pending_work.is_empty() && Instant::now() < patience {
        pass(Duration::from_millis(50)).await;
        pending_work = ending::pending_work(world, &sale).await;
    }
    let mut end = ending::read(world, &sale, &plan.terms, ops).await;
    if !pending_work.is_empty() {
        end.audit.push(format!("it does not come to rest: {pending_work}"));
    }
    end
}

fn scene(world: &World, plan: &Plan, sale: SaleId) -> Scene {
    Scene {
        http: reqwest::Client::builder().no_proxy().build().unwrap(),
        ports: world.instances.iter().map(|instance| instance.port).collect(),
        sale: sale.to_string(),
        terms: plan.terms.clone(),
        think: plan.think,
        known_within: plan.known_within,
        over: false.into(),
        healed: 0.into(),
        sold_again: 0.into(),
        answered: 0.into(),
        ops: Vec::new().into(),
    }
}

/// Creates and loads the sale; it sells from now on.
async fn create(world: &World, terms: &Terms) -> SaleId {
    let at = |offset: TimeDelta| time::format(&(Utc::now() + offset));
    let items: Vec<Value> = terms
        .items
        .iter()
        .map(|item| {
            json!({
                "sku": item.sku, "name": item.sku, "price_minor": item.price, "currency": "EUR",
                "stock": item.stock, "per_user_limit": item.limit,
            })
        })
        .collect();
    let sale = json!({
        "name": "a sale under torture",
        "starts_at": at(TimeDelta::minutes(-1)),
        "ends_at": at(TimeDelta::hours(2)),
        "shards": terms.shards,
        "payment_window_seconds": terms.window_seconds,
        "purchase_rate": {"limit": terms.rate, "window_ms": terms.rate_window},
        "durability": terms.durability,
        "items": items,
    });
    let base = format!("http://127.0.0.1:{}/v1/admin/sales", world.instances[0].port);
    let ask = async |url: String, body: &Value| -> (bool, String) {
        let asked = world.http.post(url).bearer_auth(ADMIN_KEY).json(body);
        let answer = asked.send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        (status.is_success(), text)
    };
    // A replica that has just begun to follow, or a shard that is being reconciled, is asked again.
    for _ in 0..100 {
        let (created, text) = ask(base.clone(), &sale).await;
        if !created {
            pass(Duration::from_millis(100)).await;
            continue;
        }
        let id: Value = serde_json::from_str(&text).unwrap();
        let id: SaleId = id["id"].as_str().unwrap().parse().unwrap();
        for _ in 0..100 {
            if ask(format!("{base}/{id}/preload"), &json!({})).await.0 {
                return id;
            }
            pass(Duration::from_millis(100)).await;
        }
    }
    panic!("a sale could not be created and loaded within twenty seconds");
}
