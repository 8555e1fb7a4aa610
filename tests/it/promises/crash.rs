//! A crash anywhere loses nothing, leaks nothing and doubles nothing: the next process finishes the interrupted work.

use super::crowd::{LoadBalancer, all_is_well, rush};
use crate::support::crowd::{Answer, Client, SKU, Terms, World, bought, drain_all, payment, shopper_at};
use crate::support::poll::{PATIENCE, Patience};
use flashsale::domain::ids::OrderId;
use flashsale::domain::order::purchase::Refusal;
use flashsale::domain::sale::Sale;
use flashsale::flow;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const STOCK: i64 = 12;
const QUANTITY: u32 = 5;

/// Every crash point that the source names.
fn points(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(points(&path));
        } else {
            let text = fs::read_to_string(&path).unwrap();
            let named = text.split("crash::point(\"").skip(1);
            found.extend(named.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_two_crashes_at_any_step_the_next_process_finishes_it() {
    let points = points(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(points.len() >= 23, "{points:?}");
    let runs = points.iter().map(|point| dies_at(point));
    futures_util::stream::iter(runs)
        .buffer_unordered(5)
        .collect::<()>()
        .await;
}

async fn dies_at(point: &str) {
    println!("{point}");
    let world = World::new().await;
    let terms = Terms::of(STOCK, 4);
    if point.starts_with("preload.") {
        return dies_while_loading(&world, &terms, point).await;
    }
    let sale = world.sale(&terms).await;
    if point.starts_with("drain.") || point == "release.before_settle" {
        return dies_at_work(&world, &sale, point).await;
    }
    // A quarter of the units lies on each shard, so this shopper's purchase has to borrow.
    let user = shopper_at(&sale, 2);
    let order = match point.split_once('.').unwrap().0 {
        "cancel" | "release" | "pay" | "rebuild" => Some(bought(&world.app, &sale, &user, "k", QUANTITY).await.id),
        _ => None,
    };
    if point.starts_with("pay.") {
        // A payment for an order that is still on its way would commit nothing at first.
        drain_all(&world.app).await.unwrap();
    }
    let mut request = Request {
        point,
        sale: &sale,
        user: &user,
        order,
    };
    let mut doomed = world.start_to_crash("api", point).await;
    let mut other_keys = ["k1", "k2", "k3"].into_iter();
    while request.send(&doomed.client()).await.is_some() {
        // On a slow machine the job delivers the decision, and does not come by this point.
        assert_eq!(point, "release.after_stock");
        world.settled(&sale).await;
        let key = other_keys.next().expect("one delivery of four is in time");
        request.order = Some(bought(&world.app, &sale, &user, key, QUANTITY).await.id);
    }
    doomed.crashed().await;
    // The second time it may get past the point, if its step was done the first time.
    let mut doomed = world.start_to_crash("api", point).await;
    request.send(&doomed.client()).await;
    doomed.kill();

    let healthy = world.start("all").await;
    let free = world.rested(&sale).await;
    let answer = request.send(&healthy.client()).await.unwrap();
    request.check(&world, &answer).await;
    assert!(free.stock.available >= 0);
    world.rested(&sale).await;
    if point.starts_with("transition.") {
        let resumed = healthy.client().operate(sale.id, "resume", "k", &json!({})).await;
        assert_eq!(resumed.unwrap().status, 200);
        world.rested(&sale).await;
    }
    world.sells_out(&sale).await;
    assert_eq!(healthy.errors(), Vec::<String>::new(), "{point}");
}

/// The request that reaches a crash point, and its correct result.
struct Request<'a> {
    point: &'a str,
    sale: &'a Sale,
    user: &'a str,
    order: Option<OrderId>,
}

impl Request<'_> {
    async fn send(&self, client: &Client) -> Option<Answer> {
        let id = self.sale.id;
        match self.point.split_once('.').unwrap() {
            ("purchase" | "transfer", _) => client.buy(id, self.user, "k", QUANTITY).await,
            ("cancel" | "release", _) => client.cancel(self.user, self.order.unwrap()).await,
            ("pay", _) => client.pay(&payment("p", self.order.unwrap(), QUANTITY)).await,
            ("restock", step) => {
                let quantity = if step == "after_take" { -7 } else { 7 };
                let body = json!({"sku": SKU, "quantity": quantity});
                client.operate(id, "restock", "k", &body).await
            }
            ("transition", _) => client.operate(id, "pause", "k", &json!({})).await,
            ("rebuild", _) => client.operate(id, "rebuild", "k", &json!({})).await,
            other => panic!("no request is known to reach {other:?}"),
        }
    }

    async fn check(&self, world: &World, answer: &Answer) {
        let (point, sale) = (self.point, self.sale);
        let orders = |state: &'static str| world.number(state, sale.id);
        let reserved = "select count(*) from orders where sale_id = $1 and state = 'reserved'";
        match point.split_once('.').unwrap() {
            ("purchase" | "transfer", _) => {
                assert!(matches!(answer.status, 200 | 201), "{point}: {answer:?}");
                assert_eq!(world.rested(sale).await.stock.held, i64::from(QUANTITY), "{point}");
                assert_eq!(orders(reserved).await, 1, "{point}");
            }
            ("cancel" | "release", _) => {
                assert_eq!(
                    (answer.status, &answer.body["state"]),
                    (200, &"cancelled".into()),
                    "{point}"
                );
                assert_eq!(world.rested(sale).await.stock.available, STOCK, "{point}");
            }
            ("pay", step) => {
                let outcome = if step == "before_commit" {
                    "applied"
                } else {
                    "duplicate"
                };
                assert_eq!(answer.body["outcome"], outcome, "{point}");
                assert_eq!(world.rested(sale).await.stock.sold, i64::from(QUANTITY), "{point}");
            }
            ("restock", step) => {
                assert_eq!(answer.status, 200, "{point}: {answer:?}");
                let total = if step == "after_take" { STOCK - 7 } else { STOCK + 7 };
                let item = world.rested(sale).await;
                assert_eq!((item.total, item.stock.available), (total, total), "{point}");
                let applied = "select count(*) from restocks where sale_id = $1 and state = 'applied'";
                assert_eq!(world.number(applied, sale.id).await, 1, "{point}");
            }
            ("transition", _) => {
                assert_eq!(
                    (answer.status, &answer.body["state"]),
                    (200, &"paused".into()),
                    "{point}"
                );
                let request = crate::support::crowd::try_buy(&world.app, sale, self.user, "new", 1).await;
                let paused = flashsale::domain::sale::SaleState::Paused;
                assert_eq!(
                    request.unwrap(),
                    flashsale::domain::order::purchase::PurchaseOutcome::Refused(Refusal::NotOpen { state: paused })
                );
            }
            ("rebuild", _) => {
                assert_eq!(
                    (answer.status, &answer.body["shards"]),
                    (200, &4.into()),
                    "{point}: {answer:?}"
                );
                assert_eq!(
                    (&answer.body["orders"], &answer.body["lost_orders"]),
                    (&1.into(), &0.into())
                );
                assert_eq!(world.rested(sale).await.stock.held, i64::from(QUANTITY), "{point}");
                assert_eq!(orders(reserved).await, 1, "{point}");
                let found = crate::support::crowd::buy(&world.app, sale, self.user, "k", QUANTITY).await;
                assert!(
                    matches!(&found, flashsale::domain::order::purchase::PurchaseOutcome::Replayed(it) if Some(it.id) == self.order),
                    "{point}: {found:?}"
                );
            }
            other => panic!("nothing is known to be right after {other:?}"),
        }
    }
}

async fn dies_while_loading(world: &World, terms: &Terms, point: &str) {
    let id = world.draft(terms).await;
    let mut doomed = world.start_to_crash("api", point).await;
    let answer = doomed.client().operate(id, "preload", "k", &json!({})).await;
    assert!(answer.is_none(), "{point}");
    doomed.crashed().await;
    let mut doomed = world.start_to_crash("api", point).await;
    doomed.client().operate(id, "preload", "k", &json!({})).await;
    doomed.kill();

    let healthy = world.start("all").await;
    let state = || async { world.app.ledger.sale(id).await.unwrap().unwrap() };
    if point == "preload.after_shard" {
        let early = healthy.client().buy(id, "early", "k", 1).await.unwrap();
        assert_eq!(early.body["sale_state"], "draft", "{early:?}");
        flow::recover::upkeep::finish_loading(&world.app).await.unwrap();
    } else if point == "preload.before_finish" {
        let answer = healthy.client().operate(id, "preload", "k", &json!({})).await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let sale = state().await;
    assert_eq!(world.rested(&sale).await.stock.available, STOCK, "{point}");
    world.sells_out(&sale).await;
    assert_eq!(healthy.errors(), Vec::<String>::new(), "{point}");
}

/// A worker that dies twice with orders to drain and messages to deliver.
async fn dies_at_work(world: &World, sale: &Sale, point: &str) {
    let order = bought(&world.app, sale, "u", "k", QUANTITY).await;
    for _ in 0..2 {
        let mut doomed = world.start_to_crash("worker", point).await;
        // After the commit nothing is left to commit.
        bought(&world.app, sale, &format!("u{}", uuid::Uuid::new_v4()), "k", 1).await;
        // And there is a message to deliver.
        let message = "insert into outbox (sale_id, shard, message) values ($1, 0, '{\"kind\": \"state\"}')";
        world.execute(message, sale.id).await.unwrap();
        doomed.crashed().await;
    }
    let healthy = world.start("all").await;
    let item = world.rested(sale).await;
    assert_eq!(item.ledger.held, i64::from(QUANTITY) + 2, "{point}");
    let found = healthy.client().order("u", order.id).await.unwrap();
    assert_eq!(found.body["confirmed"], Value::Bool(true), "{point}: {found:?}");
    world.sells_out(sale).await;
    assert_eq!(healthy.errors(), Vec::<String>::new(), "{point}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_killed_twice_in_the_middle_of_a_crowd_loses_nothing() {
    let world = World::new().await;
    let terms = Terms {
        limit: 2,
        ..Terms::of(100, 4)
    };
    let sale = world.sale(&terms).await;
    let balancer = Arc::new(LoadBalancer::default());
    let mut instance = world.start("all").await;
    balancer.set(vec![instance.client()]);
    let crowd = {
        let (balancer, sale) = (Arc::clone(&balancer), Arc::clone(&sale));
        tokio::spawn(async move { rush(&balancer, &sale, "survivors", 200, rand::random()).await })
    };
    for answers in [60, 200] {
        let patience = Patience::of(PATIENCE);
        while balancer.answers.load(Ordering::Relaxed) < answers {
            patience.pause("the crowd is buying").await;
        }
        instance.kill();
        instance = world.start("all").await;
        balancer.set(vec![instance.client()]);
    }
    // How many are served between two deaths depends on the machine.
    assert!(crowd.await.unwrap() > 0);
    all_is_well(&world, &sale).await;
    assert_eq!(instance.errors(), Vec::<String>::new());
}
