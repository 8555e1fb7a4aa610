//! Migrations: one process at a time applies those that are missing, in their order. A crash leaves the rest to the
//! next call, which first drops an index whose build broke off.

use super::connect::{ConnectError, LOCK_MAX, pool, reach};
use super::{Ledger, acquire};
use crate::domain::fault::Fault;
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use std::sync::LazyLock;
use std::time::Duration;

/// Without the lock of sqlx: [`apply_missing`] takes one of its own.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrations = sqlx::migrate!();
    migrations.set_locking(false);
    migrations
});

/// How often a process asks whether another one has finished the migrations.
const MIGRATED_EVERY: Duration = Duration::from_millis(250);

impl Ledger {
    /// How many migrations of this binary have not been applied.
    pub async fn migrations_missing(&self) -> Result<usize, Fault> {
        let there = sqlx::query_scalar!("select to_regclass('_sqlx_migrations') is not null as \"there!\"");
        if !there.fetch_one(&self.upkeep).await? {
            return Ok(MIGRATIONS.iter().count());
        }
        // Not checked at compile time: sqlx creates this table, no migration of ours.
        let applied: Vec<i64> = sqlx::query_scalar("select version from _sqlx_migrations where success")
            .fetch_all(&self.upkeep)
            .await?;
        Ok(MIGRATIONS
            .iter()
            .filter(|migration| !applied.contains(&migration.version))
            .count())
    }
}

/// Applies the missing migrations, while other processes use the ledger. A migration that waits too long for another
/// transaction fails, and may be repeated. Fails with `WrongUrl`, `Unavailable` when the server cannot be
/// reached, or `Bug` when a migration fails.
pub async fn migrate(url: &str) -> Result<(), ConnectError> {
    reach(url).await?;
    let pool = pool(url, 1, "0", "0")?;
    let outcome = apply_missing(&pool).await;
    pool.close().await;
    Ok(outcome?)
}

async fn apply_missing(pool: &PgPool) -> Result<(), Fault> {
    let mut connection = acquire(pool).await?;
    // The lock is polled, not waited for. A concurrent index build waits for every statement that runs, also for one
    // that waits for the building process.
    let lock = async |connection: &mut PgConnection| {
        sqlx::query_scalar!("select pg_try_advisory_lock(hashtextextended('flashsale migrations', 0)) as \"it!\"")
            .fetch_one(connection)
            .await
            .map_err(Fault::from)
    };
    let mut is_announced = false;
    while !lock(&mut connection).await? {
        if !is_announced {
            tracing::info!("another process applies migrations; waiting for it");
            is_announced = true;
        }
        tokio::time::sleep(MIGRATED_EVERY).await;
    }
    drop_unfinished_indexes(&mut connection).await?;
    for migration in MIGRATIONS.iter() {
        // A concurrent index build waits for older transactions and blocks none. Other changes block all others, so
        // their wait for a lock has a limit.
        let lock_max = if migration.no_tx { "0" } else { LOCK_MAX };
        sqlx::query_scalar!("select set_config('lock_timeout', $1, false)", lock_max)
            .fetch_one(&mut *connection)
            .await?;
        MIGRATIONS
            .run_to(migration.version, &mut *connection)
            .await
            .map_err(|error| Fault::Bug(format!("a migration failed: {error}")))?;
    }
    Ok(())
}

/// Drops indexes whose concurrent build broke off. Postgres never uses them, and they have the name of the missing
/// index.
async fn drop_unfinished_indexes(connection: &mut PgConnection) -> Result<(), Fault> {
    let unfinished = sqlx::query_scalar!(
        "select format('%I', c.relname) as \"index!\" from pg_index i join pg_class c on c.oid = i.indexrelid \
         where not i.indisvalid and c.relnamespace = current_schema()::regnamespace \
             and not exists (select from pg_stat_progress_create_index p where p.index_relid = i.indexrelid)"
    )
    .fetch_all(&mut *connection)
    .await?;
    for index in unfinished {
        // The name is from the catalogue, and quoted.
        sqlx::raw_sql(AssertSqlSafe(format!("drop index concurrently {index}")))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}
