//! The statements that a run sends to Postgres itself: databases, plain inserts, and counts that do not depend on the
//! program under test.

use anyhow::{Context as _, Result};
use chrono::{DateTime, Utc};
use futures_util::future::try_join_all;
use sqlx::{AssertSqlSafe, Connection as _, FromRow, PgConnection, Row as _};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use uuid::Uuid;

async fn connect(url: &str) -> Result<PgConnection> {
    PgConnection::connect(url).await.context("Postgres cannot be reached")
}

/// Creates a database and gives its URL. The name is ours: letters, digits and underscores.
pub async fn create_database(server: &str, name: &str) -> Result<String> {
    let mut connection = connect(server).await?;
    let statement = AssertSqlSafe(format!("create database {name}"));
    sqlx::raw_sql(statement).execute(&mut connection).await?;
    connection.close().await?;
    let (_, options) = server.split_once('?').context("the URL of Postgres has no options")?;
    Ok(format!("postgres:///{name}?{options}"))
}

pub async fn version(url: &str) -> Result<String> {
    let mut connection = connect(url).await?;
    let version: String = sqlx::query_scalar("show server_version")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    Ok(version)
}

/// Orders that one statement inserts, as columns.
#[derive(Default)]
struct Batch {
    ids: Vec<Uuid>,
    shards: Vec<i16>,
    skus: Vec<String>,
    users: Vec<String>,
    keys: Vec<String>,
    quantities: Vec<i32>,
    amounts: Vec<i64>,
    currencies: Vec<String>,
    created: Vec<DateTime<Utc>>,
    expires: Vec<DateTime<Utc>>,
    epochs: Vec<i64>,
    seqs: Vec<i64>,
}

#[derive(FromRow)]
struct Stored {
    order_id: Uuid,
    shard: i16,
    sku: String,
    user_id: String,
    idempotency_key: String,
    quantity: i32,
    amount_minor: i64,
    currency: String,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
    epoch: i64,
    seq: i64,
}

impl Batch {
    fn add(&mut self, row: Stored) {
        self.ids.push(row.order_id);
        self.shards.push(row.shard);
        self.skus.push(row.sku);
        self.users.push(row.user_id);
        self.keys.push(row.idempotency_key);
        self.quantities.push(row.quantity);
        self.amounts.push(row.amount_minor);
        self.currencies.push(row.currency);
        self.created.push(row.created_at);
        self.expires.push(row.expires_at);
        self.epochs.push(row.epoch);
        self.seqs.push(row.seq);
    }
}

/// Inserts the orders of a sale again, into a table with the same columns, indexes and checks. That table has no
/// foreign keys, no arbiter and no events. Each shard has its own connection, and each statement inserts up to `batch`
/// orders and commits. Gives the number of rows and the seconds. It reads the orders before the clock starts.
pub async fn insert_again(url: &str, sale: Uuid, batch: usize) -> Result<(usize, f64)> {
    let mut connection = connect(url).await?;
    let statements = "drop table if exists orders_again; create table orders_again (like orders including all)";
    sqlx::raw_sql(statements).execute(&mut connection).await?;
    let stored: Vec<Stored> = sqlx::query_as(
        "select order_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, currency, created_at, \
         expires_at, epoch, seq from orders where sale_id = $1 order by shard, epoch, seq",
    )
    .bind(sale)
    .fetch_all(&mut connection)
    .await?;
    let count = stored.len();
    let mut shards: BTreeMap<i16, Vec<Batch>> = BTreeMap::new();
    for row in stored {
        let batches = shards.entry(row.shard).or_default();
        match batches.last_mut() {
            Some(last) if last.ids.len() < batch => last.add(row),
            _ => {
                let mut first = Batch::default();
                first.add(row);
                batches.push(first);
            }
        }
    }
    let connections = try_join_all(shards.keys().map(|_| connect(url))).await?;
    let began = Instant::now();
    let inserting = connections.into_iter().zip(shards.values());
    try_join_all(inserting.map(|(connection, batches)| insert_all(connection, sale, batches))).await?;
    let seconds = began.elapsed().as_secs_f64();
    sqlx::raw_sql("drop table orders_again")
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    Ok((count, seconds))
}

async fn insert_all(mut connection: PgConnection, sale: Uuid, batches: &[Batch]) -> Result<()> {
    for it in batches {
        sqlx::query(
            "insert into orders_again (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, \
             amount_minor, currency, created_at, expires_at, epoch, seq) \
             select o.id, $1, o.shard, o.sku, o.user_id, o.key, o.quantity, o.amount, o.currency, o.created, o.expires, \
             o.epoch, o.seq from unnest($2::uuid[], $3::int2[], $4::text[], $5::text[], $6::text[], $7::int4[], \
             $8::int8[], $9::text[], $10::timestamptz[], $11::timestamptz[], $12::int8[], $13::int8[]) \
             as o (id, shard, sku, user_id, key, quantity, amount, currency, created, expires, epoch, seq)",
        )
        .bind(sale)
        .bind(&it.ids)
        .bind(&it.shards)
        .bind(&it.skus)
        .bind(&it.users)
        .bind(&it.keys)
        .bind(&it.quantities)
        .bind(&it.amounts)
        .bind(&it.currencies)
        .bind(&it.created)
        .bind(&it.expires)
        .bind(&it.epochs)
        .bind(&it.seqs)
        .execute(&mut connection)
        .await?;
    }
    connection.close().await?;
    Ok(())
}

/// An order in the ledger of our program or of a rival.
pub struct Booked {
    pub id: String,
    pub user: String,
    pub key: String,
    pub units: i64,
    /// Our orders have the time of Redis; those of rivals have the time of the application.
    pub created_at: DateTime<Utc>,
}

/// The orders of a sale that hold or have sold units. The table has the same name in all programs. `has_state` says
/// that an order may have released its units.
pub async fn booked(url: &str, sale: Uuid, has_state: bool) -> Result<Vec<Booked>> {
    let mut connection = connect(url).await?;
    let all = "select order_id::text, user_id, idempotency_key, quantity::int8, created_at from orders \
               where sale_id = $1";
    let kept = "select order_id::text, user_id, idempotency_key, quantity::int8, created_at from orders \
                where sale_id = $1 and state in ('reserved', 'paid')";
    let rows = sqlx::query(if has_state { kept } else { all })
        .bind(sale)
        .fetch_all(&mut connection)
        .await?;
    connection.close().await?;
    let read = |row: sqlx::postgres::PgRow| {
        Ok(Booked {
            id: row.try_get(0)?,
            user: row.try_get(1)?,
            key: row.try_get(2)?,
            units: row.try_get(3)?,
            created_at: row.try_get(4)?,
        })
    };
    rows.into_iter().map(read).collect()
}

/// Writes a heartbeat, so that the next worker finds no outage. After an outage the worker extends every hold.
pub async fn beat(url: &str) -> Result<()> {
    let mut connection = connect(url).await?;
    sqlx::query("update heartbeat set beaten_at = clock_timestamp()")
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    Ok(())
}

/// Runs the work now that Postgres would do later: vacuum, analyze and checkpoint.
pub async fn settle(url: &str) -> Result<()> {
    let mut connection = connect(url).await?;
    for statement in ["vacuum (analyze)", "checkpoint"] {
        sqlx::raw_sql(statement).execute(&mut connection).await?;
    }
    connection.close().await?;
    Ok(())
}

/// The outages in our ledger.
pub async fn outages(url: &str) -> Result<i64> {
    let mut connection = connect(url).await?;
    let count = sqlx::query_scalar("select count(*) from outages")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    Ok(count)
}

/// Sets one deadline on all reserved orders of a sale.
pub async fn expire_at(url: &str, sale: Uuid, at: DateTime<Utc>) -> Result<()> {
    let mut connection = connect(url).await?;
    sqlx::query("update orders set expires_at = $2 where sale_id = $1 and state = 'reserved'")
        .bind(sale)
        .bind(at)
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    Ok(())
}

/// Polls until no order of a sale is reserved and its outbox is empty. Gives that time, or `None` after `limit`.
pub async fn wait_expired(url: &str, sale: Uuid, limit: Duration) -> Result<Option<Instant>> {
    let mut connection = connect(url).await?;
    let began = Instant::now();
    while began.elapsed() < limit {
        let is_waiting: bool = sqlx::query_scalar(
            "select exists (select from orders where sale_id = $1 and state = 'reserved') \
             or exists (select from outbox where sale_id = $1)",
        )
        .bind(sale)
        .fetch_one(&mut connection)
        .await?;
        if !is_waiting {
            return Ok(Some(Instant::now()));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(None)
}
