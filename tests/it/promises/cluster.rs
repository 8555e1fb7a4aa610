//! On a Redis Cluster the promises are the same, while primaries die and slots move.

use crate::support::app::{Instance, environment, sale_with};
use crate::support::poll::{self, Patience};
use crate::support::servers::{self, Cluster};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::task::JoinSet;

/// One shopper's purchase, repeated with the same key until it is no longer unknown; `None` when all is sold.
async fn insist(client: crate::support::app::Client, user: String, sale: String) -> Option<(String, String)> {
    let patience = Patience::of(Duration::from_secs(30));
    loop {
        let answer = client.buy(&user, &sale, "k", 1).await;
        match answer.status {
            200 | 201 => return Some((user, answer.id())),
            409 => {
                answer.no(409, "sold_out");
                return None;
            }
            _ => drop(answer.no(503, "unavailable")),
        }
        patience.pause("a purchase is decided").await;
    }
}

/// Sells a sale out on a cluster to which something happens in the middle, and checks that every unit was sold once.
async fn sells_out_while(happens: impl FnOnce(&mut Cluster, &str)) {
    let mut cluster = Cluster::start();
    let environment = environment(&cluster.url(), &servers::database().await);
    let one = Instance::start(&environment, "all").may_log_errors();
    let other = Instance::start(&environment, "api").may_log_errors();
    let id = one.load_sale(&sale_with(&json!({"shards": 12, "stock": 400}))).await;
    let mut crowd = JoinSet::new();
    let (mut sold, mut refused) = (BTreeSet::new(), 0);
    let mut happens = Some(happens);
    for number in 0..440 {
        let client = if number % 2 == 0 { &one } else { &other };
        crowd.spawn(insist((**client).clone(), format!("shopper-{number}"), id.clone()));
        if crowd.len() == 16 {
            match crowd.join_next().await.unwrap().unwrap() {
                Some(order) => assert!(sold.insert(order)),
                None => refused += 1,
            }
        }
        if number == 150 {
            happens.take().unwrap()(&mut cluster, &id);
        }
    }
    while let Some(order) = crowd.join_next().await {
        match order.unwrap() {
            Some(order) => assert!(sold.insert(order)),
            None => refused += 1,
        }
    }
    one.wait_for_units(&id, [0, 400, 0]).await;
    one.assert_balanced(&id).await;
    // A replica that was behind may have lost what its primary had acknowledged: then more were told that they had one.
    assert!(
        sold.len() >= 400 && sold.len() + refused == 440,
        "{} sold, {refused} refused",
        sold.len()
    );
    let all = json!({"reserved": 400, "paid": 0, "cancelled": 0, "expired": 0, "revoked": 0});
    poll::answer("every order is in the ledger", || async {
        (one.stats(&id).await["orders"] == all).then_some(())
    })
    .await;
    one.assert_balanced(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_sells_every_unit_once_with_shards_on_all_nodes() {
    sells_out_while(|_, _| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_while_it_sells_costs_no_unit() {
    sells_out_while(|cluster, sale| {
        let slot = cluster.slot(&format!("{{{sale}:0}}:shard"));
        cluster.kill_primary_of(slot);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_while_its_shard_sells_costs_no_unit() {
    sells_out_while(|cluster, sale| {
        for shard in 0..4 {
            cluster.move_slot(cluster.slot(&format!("{{{sale}:{shard}}}:shard")));
        }
    })
    .await;
}
