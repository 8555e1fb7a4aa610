//! The statements that a run sends to Postgres itself: databases, plain inserts, and counts that do not depend on the
//! program under test.

use anyhow::{Context as _, Result};
use chrono::{DateTime, Utc};
use futures_util::future::try_join_all;
use sqlx::{AssertSqlSafe, Connection as _, Decode, FromRow, PgConnection, Postgres};
use std::time::{Duration, Instant};
use uuid::Uuid;

async fn connect(url: &str) -> Result<PgConnection> {
    PgConnection::connect(url).await.context("Postgres cannot be reached")
}

async fn run(url: &str, statements: &[&'static str]) -> Result<()> {
    let mut connection = connect(url).await?;
    for statement in statements {
        sqlx::raw_sql(*statement).execute(&mut connection).await?;
    }
    Ok(connection.close().await?)
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

/// The one value of a statement.
async fn value<T>(url: &str, statement: &'static str) -> Result<T>
where
    T: Send + Unpin + sqlx::Type<Postgres> + for<'r> Decode<'r, Postgres>,
{
    let mut connection = connect(url).await?;
    let value = sqlx::query_scalar(statement).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(value)
}

pub async fn version(url: &str) -> Result<String> {
    value(url, "show server_version").await
}

/// Orders that one statement inserts, as columns.
#[derive(FromRow)]
struct Batch {
    shard: i16,
    ids: Vec<Uuid>,
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

/// Inserts the orders of a sale again, into a table with the same columns, indexes and checks. That table has no
/// foreign keys, no arbiter and no events. Each shard has its own connection, and each statement inserts up to `batch`
/// orders and commits. Gives the number of rows and the seconds. It reads the orders before the clock starts.
pub async fn insert_again(url: &str, sale: Uuid, batch: usize) -> Result<(usize, f64)> {
    let mut connection = connect(url).await?;
    let statements = "drop table if exists orders_again; create table orders_again (like orders including all)";
    sqlx::raw_sql(statements).execute(&mut connection).await?;
    let batches: Vec<Batch> = sqlx::query_as(
        "select shard, array_agg(order_id order by n) as ids, array_agg(sku order by n) as skus, \
         array_agg(user_id order by n) as users, array_agg(idempotency_key order by n) as keys, \
         array_agg(quantity order by n) as quantities, array_agg(amount_minor order by n) as amounts, \
         array_agg(currency order by n) as currencies, array_agg(created_at order by n) as created, \
         array_agg(expires_at order by n) as expires, array_agg(epoch order by n) as epochs, array_agg(seq order by n) as seqs \
         from (select *, row_number() over (partition by shard order by epoch, seq) - 1 as n from orders \
         where sale_id = $1) o group by shard, n / $2 order by shard, n / $2",
    )
    .bind(sale)
    .bind(i64::try_from(batch)?)
    .fetch_all(&mut connection)
    .await?;
    let count = batches.iter().map(|it| it.ids.len()).sum();
    let shards: Vec<&[Batch]> = batches.chunk_by(|one, next| one.shard == next.shard).collect();
    let connections = try_join_all(shards.iter().map(|_| connect(url))).await?;
    let began = Instant::now();
    let inserting = connections.into_iter().zip(&shards);
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
        let shards = vec![it.shard; it.ids.len()];
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
        .bind(&shards)
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
#[derive(FromRow)]
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
    const ALL: &str = "select order_id::text as id, user_id as \"user\", idempotency_key as key, \
                       quantity::int8 as units, created_at from orders where sale_id = $1";
    let kept = if has_state {
        " and state in ('reserved', 'paid')"
    } else {
        ""
    };
    let mut connection = connect(url).await?;
    let rows = sqlx::query_as(AssertSqlSafe(format!("{ALL}{kept}"))).bind(sale);
    let rows = rows.fetch_all(&mut connection).await?;
    connection.close().await?;
    Ok(rows)
}

/// Writes a heartbeat, so that the next worker finds no outage. After an outage the worker extends every hold.
pub async fn beat(url: &str) -> Result<()> {
    run(url, &["update heartbeat set beaten_at = clock_timestamp()"]).await
}

/// Runs the work now that Postgres would do later: vacuum, analyze and checkpoint.
pub async fn settle(url: &str) -> Result<()> {
    run(url, &["vacuum (analyze)", "checkpoint"]).await
}

/// The outages in our ledger.
pub async fn outages(url: &str) -> Result<i64> {
    value(url, "select count(*) from outages").await
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
        // In the order of an index. Otherwise Postgres reads the table from its start to the first order that is still
        // reserved, and takes a processor from the purchases.
        let is_waiting: bool = sqlx::query_scalar(
            "select (select true from orders where sale_id = $1 and state = 'reserved' \
                 order by shard, expires_at limit 1) is not null \
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
