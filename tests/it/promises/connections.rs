//! Shoppers hold every connection to Postgres of their pool. Operators and upkeep go on, on connections of their own.

use crate::support::crowd::{Terms, World, bought, drain_all};
use crate::support::poll::{PATIENCE, within};
use flashsale::flow;
use flashsale::flow::operate::restock::RestockOutcome;
use futures_util::poll;
use sqlx::{Connection as _, PgConnection};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::yield_now;
use uuid::Uuid;

/// Calls that hold the shoppers' connections: more than there are.
const HOLDERS: usize = 20;

/// Shoppers' calls wait for a locked table that no operator reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_and_upkeep_go_on_while_shoppers_hold_every_connection() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let order = bought(&world.app, &sale, "ada", "k", 1).await;
    drain_all(&world.app).await.unwrap();
    let mut database = PgConnection::connect(&world.database).await.unwrap();
    let mut lock = database.begin().await.unwrap();
    sqlx::raw_sql("lock table console_sessions in access exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    let holders: Vec<_> = (0..HOLDERS)
        .map(|_| {
            let app = Arc::clone(&world.app);
            tokio::spawn(async move {
                loop {
                    let _waited = app.ledger.session(&[0; 32]).await;
                }
            })
        })
        .collect();
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
                   and wait_event_type = 'Lock' and $1::uuid is not null";
    within(PATIENCE, "the shoppers hold their connections", async || {
        world.number(waiting, sale.id).await == 12
    })
    .await;
    let operators = world.app.for_operators();
    let ready = flow::watch::readiness::readiness(&world.app).await;
    assert!(ready.is_ok(), "{ready:?}");
    world.app.sales.learn().await.unwrap();
    assert!(world.app.sales.fresh(sale.id).await.unwrap().is_some());
    let audit = flow::watch::audit::audit(&operators, sale.id).await.unwrap().unwrap();
    assert!(audit.balanced, "{audit:?}");
    assert!(flow::watch::stats::stats(&operators, sale.id).await.unwrap().is_some());
    assert!(
        flow::recover::attend::rebuild_sale(&operators, sale.id)
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        flow::settle::order::find_anywhere(&operators, order.id)
            .await
            .unwrap()
            .is_some()
    );
    let key = Uuid::new_v4().to_string().parse().unwrap();
    let restocked = flow::operate::restock::restock(&operators, sale.id, &key, &sale.items[0].sku, 5)
        .await
        .unwrap();
    assert!(matches!(restocked, RestockOutcome::Applied(_)), "{restocked:?}");
    for holder in holders {
        holder.abort();
    }
    lock.rollback().await.unwrap();
}

/// sqlx returns a connection with an open transaction to the pool if the `begin` is dropped after it was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_gives_up_leaves_no_transaction_open() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let order = bought(&world.app, &sale, "ada", "k", 1).await;
    let other = "eve".parse().unwrap();
    let open = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() \
                and state like 'idle in transaction%' and $1::uuid is not null";
    // Each gives up a few polls later, so some do it between the statement and its answer.
    for polls in (1..2500).step_by(25) {
        let mut cancels = Box::pin(world.app.ledger.cancel(order.id, &other));
        for _ in 0..polls {
            if poll!(&mut cancels).is_ready() {
                break;
            }
            yield_now().await;
        }
        drop(cancels);
        // Its connection goes back to the pool a moment later. Postgres itself would end it after five seconds.
        let mut quiet = 0;
        within(Duration::from_secs(3), "no transaction stays open", async || {
            quiet = if world.number(open, sale.id).await == 0 {
                quiet + 1
            } else {
                0
            };
            quiet == 3
        })
        .await;
    }
}
