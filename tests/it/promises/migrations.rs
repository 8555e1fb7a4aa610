//! A migration runs while the ledger is used: sales, payments and cancellations go on.

use crate::support::crowd::{Terms, World, bought, drain_all, payment};
use crate::support::poll::{PATIENCE, within};
use flashsale::domain::order::CancelOutcome;
use flashsale::domain::order::payment::PaymentOutcome;
use flashsale::{flow, ledger};

/// Takes an index away, as a database has it that is one migration behind.
async fn go_back(world: &World) {
    for undo in [
        "drop index payments_pending_by_order",
        "delete from _sqlx_migrations where version = 20261124000020",
    ] {
        sqlx::query(undo).execute(&world.pool).await.unwrap();
    }
}

/// Whether the index is there and used.
async fn is_there(world: &World) -> bool {
    let valid = "select coalesce(bool_or(indisvalid), false) from pg_index \
         where indexrelid = to_regclass('payments_pending_by_order')";
    sqlx::query_scalar(valid).fetch_one(&world.pool).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_is_built_while_shoppers_buy_pay_and_cancel_however_many_migrate_at_once() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(5_000, 2)).await;
    go_back(&world).await;
    // The build waits for this transaction.
    let mut old = world.pool.begin().await.unwrap();
    let payments = "lock table payments in row exclusive mode";
    sqlx::query(payments).execute(&mut *old).await.unwrap();
    let meanwhile = async {
        let mut n = 0;
        within(PATIENCE, "the build waits for longer than others may", async || {
            n += 1;
            let user = format!("u{n}");
            let paid = bought(&world.app, &sale, &user, "pay", 1).await;
            let cancelled = bought(&world.app, &sale, &user, "cancel", 1).await;
            drain_all(&world.app).await.unwrap();
            let outcome = flow::settle::pay::pay(&world.app, &payment(&user, paid.id, 1)).await;
            assert!(matches!(outcome, Ok(PaymentOutcome::Applied)), "{outcome:?}");
            let outcome = flow::settle::cancel::cancel(&world.app, cancelled.id, &user.parse().unwrap()).await;
            assert!(matches!(outcome, Ok(CancelOutcome::Cancelled(_))), "{outcome:?}");
            let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                 and wait_event_type = 'Lock' and query ilike '%create index concurrently payments%' \
                 and query_start < now() - interval '6 seconds' and $1::uuid is not null";
            world.number(waits, sale.id).await == 1
        })
        .await;
        assert!(!is_there(&world).await);
        old.rollback().await.unwrap();
    };
    let migrate = || ledger::migrate(&world.database);
    let (first, second, third, ()) = tokio::join!(migrate(), migrate(), migrate(), meanwhile);
    for migrated in [first, second, third] {
        migrated.unwrap();
    }
    assert!(is_there(&world).await);
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_whose_build_broke_off_is_built_by_the_next_migration() {
    let world = World::new().await;
    go_back(&world).await;
    let mut old = world.pool.begin().await.unwrap();
    let payments = "lock table payments in row exclusive mode";
    sqlx::query(payments).execute(&mut *old).await.unwrap();
    let ended = within(PATIENCE, "the build waits and is ended", async || {
        let end = "select coalesce(bool_or(pg_terminate_backend(pid)), false) from pg_stat_activity \
             where datname = current_database() and wait_event_type = 'Lock' \
             and query ilike '%create index concurrently payments%'";
        sqlx::query_scalar(end).fetch_one(&world.pool).await.unwrap()
    });
    let (migrated, ()) = tokio::join!(ledger::migrate(&world.database), ended);
    migrated.unwrap_err();
    old.rollback().await.unwrap();
    assert!(!is_there(&world).await);
    ledger::migrate(&world.database).await.unwrap();
    assert!(is_there(&world).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_whose_drop_broke_off_is_dropped_by_the_next_migration() {
    let world = World::new().await;
    for undo in [
        "create index orders_decided on orders (sale_id, state) where state <> 'reserved'",
        "delete from _sqlx_migrations where version = 20261127000060",
    ] {
        sqlx::query(undo).execute(&world.pool).await.unwrap();
    }
    // The drop waits for this transaction.
    let mut old = world.pool.begin().await.unwrap();
    let orders = "lock table orders in row exclusive mode";
    sqlx::query(orders).execute(&mut *old).await.unwrap();
    let ended = within(PATIENCE, "the drop waits and is ended", async || {
        let end = "select coalesce(bool_or(pg_terminate_backend(pid)), false) from pg_stat_activity \
             where datname = current_database() and wait_event_type = 'Lock' \
             and query ilike '%drop index concurrently%orders_decided%' and pid <> pg_backend_pid()";
        sqlx::query_scalar(end).fetch_one(&world.pool).await.unwrap()
    });
    let (migrated, ()) = tokio::join!(ledger::migrate(&world.database), ended);
    migrated.unwrap_err();
    old.rollback().await.unwrap();
    let state = "select bool_or(indisvalid) from pg_index where indexrelid = to_regclass('orders_decided')";
    let is_valid: Option<bool> = sqlx::query_scalar(state).fetch_one(&world.pool).await.unwrap();
    assert_eq!(is_valid, Some(false), "it is there, and unfinished");
    ledger::migrate(&world.database).await.unwrap();
    let is_valid: Option<bool> = sqlx::query_scalar(state).fetch_one(&world.pool).await.unwrap();
    assert_eq!(is_valid, None);
}
