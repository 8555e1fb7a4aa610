//! One outcome a key: a repeated request gets the first one's order, after any later change.

use super::crowd::{LoadBalancer, all_is_well, rush};
use crate::support::crowd::{Client, SKU, Terms, World, answered, payment, try_buy};
use crate::support::poll::{PATIENCE, within};
use crate::support::raw::Raw;
use crate::support::servers::fresh_redis;
use flashsale::domain::ids::OrderId;
use flashsale::domain::order::purchase::PurchaseOutcome;
use flashsale::domain::sale::Sale;
use flashsale::flow::App;
use futures_util::future::join_all;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Every key still has its order, through each of these instances, and no other request may use it.
async fn every_key_finds_its_order(
    when: &str,
    clients: &[&Client],
    sale: &Sale,
    orders: &BTreeMap<&str, (OrderId, &str)>,
) {
    for client in clients {
        for (user, (order, state)) in orders {
            let answer = client.buy(sale.id, user, "k", 1).await.unwrap();
            assert_eq!((answer.status, answer.replayed), (200, true), "{when}: {answer:?}");
            assert_eq!(answer.order(), *order, "{when}");
            assert_eq!(answer.body["state"], **state, "{when}: {user}");
            let other = client.buy(sale.id, user, "k", 2).await.unwrap();
            assert_eq!(other.code(), "idempotency_key_reused", "{when}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_finds_its_order_after_any_later_change() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(3, 2)).await;
    let (mut one, other) = (world.start("all").await, world.start("api").await);
    let (a, b) = (one.client(), other.client());
    let mut orders = BTreeMap::new();
    for user in ["holds", "pays", "cancels"] {
        let answer = a.buy(sale.id, user, "k", 1).await.unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
        orders.insert(user, (answer.order(), "reserved"));
    }
    let late = b.buy(sale.id, "late", "k", 1).await.unwrap();
    assert_eq!(late.code(), "sold_out");
    every_key_finds_its_order("sold out", &[&a, &b], &sale, &orders).await;

    let paid = b.pay(&payment("p", orders["pays"].0, 1)).await.unwrap();
    assert_eq!(paid.body["outcome"], "applied");
    let cancelled = b.cancel("cancels", orders["cancels"].0).await.unwrap();
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    orders.get_mut("pays").unwrap().1 = "paid";
    orders.get_mut("cancels").unwrap().1 = "cancelled";
    every_key_finds_its_order("paid and cancelled", &[&a, &b], &sale, &orders).await;

    let late = b.buy(sale.id, "late", "k", 1).await.unwrap();
    assert_eq!(late.status, 201, "a refused key is free: {late:?}");
    orders.insert("late", (late.order(), "reserved"));

    let raw = Raw::connect(&world.redis);
    let _done: String = raw.call(redis::cmd("SCRIPT").arg("FLUSH").arg("SYNC"));
    // The shard is reconciled before it sells; that takes a moment.
    within(PATIENCE, "the scripts are there again", async || {
        let answer = a.buy(sale.id, "holds", "k", 1).await.unwrap();
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        answer.status == 200
    })
    .await;
    every_key_finds_its_order("script flush", &[&a, &b], &sale, &orders).await;

    for (verb, state) in [("pause", "paused"), ("close", "closed")] {
        assert_eq!(b.operate(sale.id, verb, "k", &json!({})).await.unwrap().status, 200);
        let fresh = a.buy(sale.id, "new", "k", 1).await.unwrap();
        assert_eq!(fresh.code(), "sale_not_open", "{fresh:?}");
        assert_eq!(fresh.body["sale_state"], state);
        every_key_finds_its_order(state, &[&a, &b], &sale, &orders).await;
    }

    one.kill();
    let again = world.start("all").await;
    every_key_finds_its_order("restart", &[&again.client(), &b], &sale, &orders).await;
    let item = world.rested(&sale).await;
    assert_eq!((item.stock.held, item.stock.sold), (2, 1), "{item:?}");
}

/// Buys, and asks again while the answer is 503. Returns whether it had to: the lost answer may have been the first.
async fn patient_buy(app: &App, sale: &Sale, user: &str) -> (PurchaseOutcome, bool) {
    let mut tries = 0;
    let ask = || {
        tries += 1;
        try_buy(app, sale, user, "k", 1)
    };
    let outcome = answered("a purchase has an outcome", ask).await;
    (outcome, tries > 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_request_through_three_instances_at_once_is_one_order() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(60, 8)).await;
    let apps = [Arc::clone(&world.app), world.another().await, world.another().await];
    let shoppers = (0..40).map(|n| {
        let (apps, sale) = (apps.clone(), Arc::clone(&sale));
        tokio::spawn(async move {
            let user = format!("u{n}");
            let outcomes = join_all((0..6).map(|at| patient_buy(&apps[at % 3], &sale, &user))).await;
            let (mut first, mut lost, mut ids) = (0, false, Vec::new());
            for (outcome, again) in outcomes {
                lost |= again;
                match outcome {
                    PurchaseOutcome::Reserved(order) => {
                        first += 1;
                        ids.push(order.id);
                    }
                    PurchaseOutcome::Replayed(order) => ids.push(order.id),
                    other => panic!("{other:?}"),
                }
            }
            ids.dedup();
            assert_eq!(ids.len(), 1, "{ids:?}");
            assert!(first == 1 || lost && first == 0, "{first} have the first answer");
        })
    });
    for shopper in join_all(shoppers).await {
        shopper.unwrap();
    }
    let item = world.settled(&sale).await;
    assert_eq!(item.sku.as_str(), SKU);
    assert_eq!(item.stock.held, 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_workers_and_three_apis_are_as_good_as_one() {
    let world = World::new().await;
    let terms = Terms {
        limit: 2,
        ..Terms::of(80, 4)
    };
    let sale = world.sale(&terms).await;
    let workers = [
        world.start("worker").await,
        world.start("worker").await,
        world.start("worker").await,
    ];
    let apis = [
        world.start("api").await,
        world.start("api").await,
        world.start("api").await,
    ];
    let balancer = Arc::new(LoadBalancer::default());
    balancer.set(apis.iter().map(|it| it.client()).collect());
    let served = rush(&balancer, &sale, "threefold", 160, rand::random()).await;
    assert!(served >= 25, "{served} were served");
    all_is_well(&world, &sale).await;
    for instance in workers.iter().chain(&apis) {
        assert_eq!(instance.errors(), Vec::<String>::new());
    }
}
