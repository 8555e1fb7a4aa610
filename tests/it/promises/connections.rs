//! Shoppers hold every connection to Postgres of their pool, which has as many as it is allowed. Operators and upkeep go
//! on, on connections of their own.

use crate::support::app::{Client, TestApp, sale_with};
use crate::support::crowd::{Terms, World, answered, bought, drain_all};
use crate::support::poll::{PATIENCE, once_within, within};
use flashsale::flow::operate::restock::RestockOutcome;
use flashsale::flow::{self, App};
use futures_util::poll;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use uuid::Uuid;

/// Calls that hold the shoppers' connections, or wait for one: so many that nobody behind them gets one in a moment.
const HOLDERS: usize = 100;
/// Shorter than a call waits for a connection, so that the calls ahead are still there at its end.
const MOMENT: Duration = Duration::from_millis(800);
/// How long a transaction may seem to be open. Postgres itself would end it after five seconds.
const OPEN_MAX: Duration = Duration::from_secs(4);

/// Shoppers' calls wait for a locked table that no operator reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_and_upkeep_go_on_while_shoppers_hold_every_connection() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let order = bought(&world.app, &sale, "ada", "k", 1).await;
    answered("the order is stored", || drain_all(&world.app)).await;
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
    once_within(MOMENT, "the instance is ready", async || {
        // Otherwise the verdict of a moment ago would do.
        let app = App {
            readiness: Arc::default(),
            ..App::clone(&world.app)
        };
        flow::watch::readiness::readiness(&app).await.is_ok().then_some(())
    })
    .await;
    once_within(MOMENT, "the sales are learnt", async || {
        world.app.sales.learn().await.ok()
    })
    .await;
    once_within(MOMENT, "the sale is read", async || {
        world.app.sales.fresh(sale.id).await.ok().flatten()
    })
    .await;
    let audit = once_within(MOMENT, "the units are counted", async || {
        flow::watch::audit::audit(&operators, sale.id).await.ok().flatten()
    })
    .await;
    assert!(audit.balanced, "{audit:?}");
    once_within(MOMENT, "the figures are read", async || {
        flow::watch::stats::stats(&operators, sale.id).await.ok().flatten()
    })
    .await;
    once_within(MOMENT, "the sale is rebuilt", async || {
        let rebuilt = flow::recover::attend::rebuild_sale(&operators, sale.id).await;
        rebuilt.ok().flatten()
    })
    .await;
    once_within(MOMENT, "the order is found", async || {
        let found = flow::settle::order::find_anywhere(&operators, order.id).await;
        found.ok().flatten()
    })
    .await;
    let (key, sku) = (Uuid::new_v4().to_string().parse().unwrap(), &sale.items[0].sku);
    let restocked = once_within(MOMENT, "units are added", async || {
        let restocked = flow::operate::restock::restock(&operators, sale.id, &key, sku, 5).await;
        restocked.ok()
    })
    .await;
    assert!(matches!(restocked, RestockOutcome::Applied(_)), "{restocked:?}");
    for holder in holders {
        holder.abort();
    }
    lock.rollback().await.unwrap();
}

/// Cancellations wait for a locked table, each on a connection of the shoppers' pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shoppers_hold_no_more_connections_than_their_pool_is_allowed() {
    let pools = r#"{"shoppers": 3, "operators": 2, "payments": 2, "jobs": 7, "reports": 2, "upkeep": 2}"#;
    let app = TestApp::with("api", &[("FLASHSALE_DATABASE_POOLS", pools)]).await;
    let worker = app.another("worker");
    let sale = app.load_sale(&sale_with(&json!({"per_user_limit": 1}))).await;
    let order = app.buy("ada", &sale, "k", 1).await.ok(201).id();
    app.wait_for_order("ada", &order, "reserved").await;
    drop(worker);
    let mut database = app.database().await;
    let mut lock = database.begin().await.unwrap();
    sqlx::raw_sql("lock table orders in access exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    let cancels = (0..12).map(|_| {
        let (client, order) = (Client::clone(&app), order.clone());
        tokio::spawn(async move {
            loop {
                let _late = client.cancel("ada", &order).await;
            }
        })
    });
    let cancels: Vec<_> = cancels.collect();
    let mut watched = app.database().await;
    let mut waiting = async || {
        let waiting = "select count(*) from pg_stat_activity \
                       where datname = current_database() and wait_event_type = 'Lock'";
        sqlx::query_scalar::<_, i64>(waiting)
            .fetch_one(&mut watched)
            .await
            .unwrap()
    };
    within(PATIENCE, "they wait on all connections of their pool", async || {
        waiting().await == 3
    })
    .await;
    for _ in 0..100 {
        assert!(waiting().await <= 3);
    }
    cancels.iter().for_each(tokio::task::JoinHandle::abort);
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
        // Its connection goes back to the pool a moment later.
        let (began, mut quiet) = (Instant::now(), 0);
        within(PATIENCE, "three readings in a row find none", async || {
            let asked = began.elapsed();
            let is_open = world.number(open, sale.id).await > 0;
            assert!(!is_open || asked < OPEN_MAX, "a transaction stays open");
            quiet = if is_open { 0 } else { quiet + 1 };
            quiet == 3
        })
        .await;
    }
}
