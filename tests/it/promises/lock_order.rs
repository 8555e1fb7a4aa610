//! All actions at once on one shard: none waits for a lock that its holder cannot release.

use crate::support::crowd::{Terms, World, payment};
use crate::support::poll::answer;
use flashsale::flow;
use futures_util::future::join_all;
use std::sync::Arc;

/// Transactions that Postgres ended because they waited for each other, in this test's database.
const DEADLOCKS: &str = "select deadlocks from pg_stat_database where datname = current_database() and $1 is not null";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buying_paying_cancelling_and_restocking_one_item_at_once_never_blocks_itself() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(400, 1)).await;
    let instance = world.start("all").await;
    let client = instance.client();
    let buyers = (0..12).map(|buyer| {
        let (client, sale) = (client.clone(), Arc::clone(&sale));
        tokio::spawn(async move {
            for turn in 0..10 {
                let (user, key) = (format!("u{buyer}-{turn}"), format!("k{turn}"));
                let bought = client.buy(sale.id, &user, &key, 1).await.unwrap();
                assert_eq!(bought.status, 201, "{}", bought.code());
                let order = bought.order();
                if turn % 3 == 2 {
                    answer("the order is cancelled", || async {
                        // 503: a slow machine kept the lock from it, and nothing is done.
                        let cancelled = client.cancel(&user, order).await.unwrap();
                        assert!(matches!(cancelled.status, 200 | 503), "{}", cancelled.code());
                        (cancelled.status == 200).then_some(())
                    })
                    .await;
                } else {
                    let paid = client
                        .pay(&payment(&format!("{buyer}-{turn}"), order, 1))
                        .await
                        .unwrap();
                    // Pending: the same, and a job applies it.
                    let outcome = paid.body["outcome"].as_str();
                    assert_eq!(paid.status, 200, "{}", paid.code());
                    assert!(matches!(outcome, Some("applied" | "pending")), "{outcome:?}");
                }
            }
        })
    });
    let operators = [5i64, -5, 3, -3].map(|units| {
        let (app, sale) = (Arc::clone(&world.app), Arc::clone(&sale));
        tokio::spawn(async move {
            for turn in 0..5 {
                let key = format!("{units}-{turn}").parse().unwrap();
                let outcome = flow::operate::restock::restock(&app, sale.id, &key, &sale.items[0].sku, units).await;
                assert!(outcome.is_ok(), "{outcome:?}");
            }
        })
    });
    let all = buyers.collect::<Vec<_>>().into_iter().chain(operators);
    for outcome in join_all(all).await {
        outcome.unwrap();
    }
    let item = world.rested(&sale).await;
    assert_eq!((item.total, item.ledger.sold), (400, 84));
    assert_eq!(world.number(DEADLOCKS, sale.id).await, 0);
    world.check(&sale).await;
}
