//! A process that stands still and goes on later, with outdated knowledge, does no harm; nor does one that is asked to end.

use super::crowd::{LoadBalancer, all_is_well, rush};
use crate::support::crowd::{Instance, Terms, World};
use crate::support::poll::{PATIENCE, Patience, pass, within};
use crate::support::servers::{Frozen, fresh_redis, signal};
use flashsale::domain::sale::Sale;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longer than any permit.
const STILL: Duration = Duration::from_secs(4);

/// Long enough to finish the running work.
const AWAKE: Duration = Duration::from_millis(500);

async fn has_answered(balancer: &LoadBalancer, more: usize) {
    let (patience, before) = (Patience::of(PATIENCE), balancer.answers.load(Ordering::Relaxed));
    while balancer.answers.load(Ordering::Relaxed) < before + more {
        patience.pause("the crowd is buying").await;
    }
}

/// Suspends a process at a moment when it blocks nobody for long, and lets another rebuild the sale if asked to.
async fn suspend(sleeps: &Instance, other: &Instance, sale: &Sale, rebuilt: bool) -> Frozen {
    let patience = Patience::of(PATIENCE * 2);
    loop {
        let frozen = Frozen::one(sleeps.pid());
        if !rebuilt {
            return frozen;
        }
        let answer = other.client().operate(sale.id, "rebuild", "k", &json!({})).await;
        if answer.is_some_and(|answer| answer.status == 200) {
            return frozen;
        }
        // It has a lock of the ledger, which it gives back at once if it can, or loses some seconds later.
        drop(frozen);
        pass(AWAKE).await;
        patience.pause("the sale is rebuilt while a process sleeps").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_sleeps_for_longer_than_a_permit_wakes_up_harmless() {
    for rebuilt in [false, true] {
        let world = World::new().await;
        let sale = world.sale(&Terms::of(150, 4)).await;
        let (sleeps, other) = (world.start("all").await, world.start("all").await);
        let balancer = Arc::new(LoadBalancer::default());
        balancer.set(vec![sleeps.client(), other.client()]);
        let crowd = {
            let (balancer, sale) = (Arc::clone(&balancer), Arc::clone(&sale));
            tokio::spawn(async move { rush(&balancer, &sale, "meanwhile", 120, rand::random()).await })
        };
        has_answered(&balancer, 30).await;

        // If the shards were rebuilt, the process knows their earlier epoch when it goes on.
        balancer.set(vec![other.client()]);
        let frozen = suspend(&sleeps, &other, &sale, rebuilt).await;
        pass(STILL).await;
        drop(frozen);
        balancer.set(vec![sleeps.client(), other.client()]);

        assert!(crowd.await.unwrap() > 0);
        all_is_well(&world, &sale).await;
        let revoked = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
        assert_eq!(world.number(revoked, sale.id).await, 0, "rebuilt: {rebuilt}");
        for instance in [&sleeps, &other] {
            assert_eq!(instance.errors(), Vec::<String>::new(), "rebuilt: {rebuilt}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_asked_to_end_amid_a_crowd_finishes_what_it_began() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(300, 4)).await;
    let (mut ends, other) = (world.start("all").await, world.start("all").await);
    let balancer = Arc::new(LoadBalancer::default());
    balancer.set(vec![ends.client(), other.client()]);
    let crowd = {
        let (balancer, sale) = (Arc::clone(&balancer), Arc::clone(&sale));
        tokio::spawn(async move { rush(&balancer, &sale, "meanwhile", 200, rand::random()).await })
    };
    has_answered(&balancer, 50).await;
    assert!(!crowd.is_finished(), "the crowd had gone");
    ends.terminate().await;
    // As a proxy does that no longer finds it ready.
    balancer.set(vec![other.client()]);
    assert!(crowd.await.unwrap() > 0);
    all_is_well(&world, &sale).await;
    let refused = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
    assert_eq!(world.number(refused, sale.id).await, 0);
    for instance in [&ends, &other] {
        assert_eq!(instance.errors(), Vec::<String>::new());
    }
}

/// Purchases that wait for Redis when the process is asked to end.
const WAITING: usize = 40;

/// A process that drops its connections loses answers, and shoppers who repeat their requests would hide that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_asked_to_end_answers_each_request_in_flight_first() {
    for _ in 0..5 {
        // Boxed, since the attempt is large.
        if Box::pin(answers_requests_in_flight()).await {
            return;
        }
    }
    panic!("not all requests waited when the process was asked to end");
}

/// Returns `false` if the machine is so slow that a request had its answer before the process was asked to end.
async fn answers_requests_in_flight() -> bool {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(100, 4)).await;
    let mut ends = world.start("api").await;
    let frozen = Frozen::one(redis.server.pid());
    let requests: Vec<_> = (0..WAITING)
        .map(|n| {
            let (client, sale) = (ends.client(), sale.id);
            tokio::spawn(async move { client.buy(sale, &format!("u{n}"), "k", 1).await })
        })
        .collect();
    let in_flight = format!("flashsale_purchases_in_flight {WAITING}\n");
    within(PATIENCE, "all requests wait for Redis", async || {
        let metrics = ends.client().metrics().await;
        let is_late = requests.iter().any(|request| request.is_finished());
        is_late || metrics.is_some_and(|metrics| metrics.contains(&in_flight))
    })
    .await;
    let asked = Instant::now();
    signal("TERM", &[ends.pid()]);
    within(PATIENCE, "it lets nobody connect any more", async || {
        tokio::net::TcpStream::connect(&ends.address).await.is_err()
    })
    .await;
    // Redis stood still for less than a request may take.
    if requests.iter().any(|request| request.is_finished()) {
        return false;
    }
    drop(frozen);
    let mut statuses = Vec::new();
    for request in requests {
        let answer = request.await.unwrap();
        statuses.push(answer.map(|answer| answer.status));
    }
    ends.ended().await;
    let took = asked.elapsed();
    assert!(
        statuses.iter().all(|status| matches!(status, Some(201 | 503))),
        "{statuses:?}"
    );
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(ends.errors(), Vec::<String>::new());
    world.settled(&sale).await;
    true
}
