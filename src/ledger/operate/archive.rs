//! Archives of sales that are over. A file has every row of a sale, table by table, as Postgres copies them out and in.
//!
//! One transaction copies the rows, waits until the file is on disk, and deletes them. A crash before its commit leaves
//! the sale and a file to delete; a crash after it leaves the file. Restoring is one transaction, too. Both lock the rows
//! of their sale alone, and counting leaves that sale out: all else goes on.
//!
//! The ids of the sale's payments stay: a payment that comes again is a duplicate for ever.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::ledger::news::notify_changed;
use crate::ledger::{ConnectError, Tx, begin_with, commit, pool, reach};
use futures_util::TryStreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write as _};

/// The tables of a sale, in the order in which their rows can be inserted, and the rows of the sale `$id`.
const TABLES: [(&str, &str); 12] = [
    ("sales", OF_SALE),
    ("items", OF_SALE),
    ("shards", OF_SALE),
    ("grants", OF_SALE),
    ("orders", OF_SALE),
    (
        "payments",
        "matched_order_id in (select order_id from orders where sale_id = '$id')",
    ),
    ("restocks", OF_SALE),
    ("dead_letters", OF_SALE),
    ("guard_stopped", OF_SALE),
    ("sale_messages", OF_SALE),
    ("sale_history", OF_SALE),
    ("sale_buyers", OF_SALE),
];
const OF_SALE: &str = "sale_id = '$id'";
/// The version of the file's format.
const FORMAT: u32 = 1;
/// Ends the rows of a table, as in Postgres's own dumps.
const END: &[u8] = b"\\.\n";
/// The longest line of a file, in bytes: longer than any row.
const LINE_MAX: u64 = 1024 * 1024;
/// How many bytes are sent to Postgres at once.
const CHUNK: usize = 64 * 1024;

/// The outcome of archiving a sale.
#[derive(Debug)]
pub enum ArchiveOutcome {
    /// The file has so many rows, and the ledger has none of them any more.
    Archived(u64),
    /// The sale has not ended, and nobody has closed it.
    NotOver,
    /// Redis still has the sale: a repeated key gets its first answer until a day after the end.
    InRedis,
    /// Money is owed back, or a dead letter is not settled.
    Unsettled,
    /// The file cannot be written.
    Unwritable(io::Error),
    /// There is no such sale.
    NotFound,
}

/// The outcome of restoring a sale.
#[derive(Debug)]
pub enum RestoreOutcome {
    /// The ledger has the sale again, with so many rows.
    Restored(SaleId, u64),
    /// The ledger has this sale.
    Exists(SaleId),
    /// The file is not a whole archive that this version can read, and why.
    Unreadable(String),
}

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct Head {
    flashsale_archive: u32,
    sale_id: SaleId,
}

/// The line before a table's rows.
#[derive(Serialize, Deserialize)]
struct TableHead {
    table: String,
    columns: Vec<String>,
}

/// The last line of a file.
#[derive(Serialize, Deserialize)]
struct Foot {
    rows: u64,
}

/// Writes every row of a sale that is over into a file, and deletes them. Fails with `WrongUrl`, or `Unavailable`
/// when Postgres does not answer. Then the rows may be gone, and the file is whole if it ends with their number.
pub async fn archive(url: &str, id: SaleId, file: File) -> Result<ArchiveOutcome, ConnectError> {
    reach(url).await?;
    let pool = pool(url, 1, "0", "0")?;
    let outcome = archive_by(&pool, id, file).await;
    pool.close().await;
    Ok(outcome?)
}

async fn archive_by(pool: &PgPool, id: SaleId, file: File) -> Result<ArchiveOutcome, Fault> {
    let mut tx = begin_with(pool, "begin isolation level repeatable read").await?;
    let found = sqlx::query!(
        "select retired_at is not null as \"is_retired!\", \
             state not in ('draft', 'loading') and least(ends_at, closed_at) <= now() as \"is_over!\", \
             exists (select from outbox o where o.sale_id = s.sale_id) \
             or exists (select from dead_letters d where d.sale_id = s.sale_id and d.settled_at is null) \
             or exists (select from payments p join orders o on o.order_id = p.matched_order_id \
                 where o.sale_id = s.sale_id and p.outcome = 'refund_due' and p.refunded_at is null) as \"is_owing!\" \
         from sales s where sale_id = $1 for update",
        id.0
    );
    match found.fetch_optional(&mut *tx).await? {
        None => return Ok(ArchiveOutcome::NotFound),
        Some(found) if !found.is_retired && found.is_over => return Ok(ArchiveOutcome::InRedis),
        Some(found) if !found.is_retired => return Ok(ArchiveOutcome::NotOver),
        Some(found) if found.is_owing => return Ok(ArchiveOutcome::Unsettled),
        Some(_) => {}
    }
    let rows = match copy_out(&mut tx, id, file).await? {
        Ok(rows) => rows,
        Err(error) => return Ok(ArchiveOutcome::Unwritable(error)),
    };
    sqlx::query!(
        "insert into archived_payments (payment_id) select payment_id from payments p \
             join orders o on o.order_id = p.matched_order_id where o.sale_id = $1 on conflict do nothing",
        id.0
    )
    .execute(&mut *tx)
    .await?;
    for (table, condition) in TABLES.iter().rev() {
        let delete = format!(
            "delete from {table} where {}",
            condition.replace("$id", &id.to_string())
        );
        // Made of constants and a UUID.
        sqlx::raw_sql(AssertSqlSafe(delete)).execute(&mut *tx).await?;
    }
    commit(tx).await?;
    Ok(ArchiveOutcome::Archived(rows))
}

/// Writes the rows, and returns how many once the disk has them.
async fn copy_out(tx: &mut Tx, id: SaleId, file: File) -> Result<io::Result<u64>, Fault> {
    let mut file = BufWriter::new(file);
    let mut rows = 0;
    let head = Head {
        flashsale_archive: FORMAT,
        sale_id: id,
    };
    if let Err(error) = writeln!(file, "{}", json!(head)) {
        return Ok(Err(error));
    }
    for (table, condition) in TABLES {
        let columns = columns(tx, table).await?;
        let head = TableHead {
            table: table.to_owned(),
            columns: columns.clone(),
        };
        let condition = condition.replace("$id", &id.to_string());
        let names = columns.join(", ");
        let copy = format!("copy (select {names} from {table} where {condition}) to stdout");
        let mut written = writeln!(file, "{}", json!(head));
        let mut copied = tx.copy_out_raw(&copy).await?;
        // Each chunk is a row. The stream is read to its end, so that the connection can go on.
        while let Some(row) = copied.try_next().await? {
            rows += 1;
            written = written.and_then(|()| file.write_all(&row));
        }
        drop(copied);
        if let Err(error) = written.and_then(|()| file.write_all(END)) {
            return Ok(Err(error));
        }
    }
    let safe = writeln!(file, "{}", json!(Foot { rows }))
        .and_then(|()| file.into_inner().map_err(io::IntoInnerError::into_error))
        .and_then(|file| file.sync_all());
    Ok(safe.map(|()| rows))
}

/// The columns of a table whose values are stored.
async fn columns(tx: &mut Tx, table: &str) -> Result<Vec<String>, Fault> {
    let names = sqlx::query_scalar!(
        "select column_name::text as \"name!\" from information_schema.columns \
         where table_schema = current_schema() and table_name = $1 and is_generated = 'NEVER' order by ordinal_position",
        table
    );
    Ok(names.fetch_all(&mut **tx).await?)
}

/// Inserts the rows of a file that [`archive`] wrote. Fails with `WrongUrl`, with `Unavailable` when Postgres
/// does not answer: the sale is restored or not, or with `Bug` when Postgres refuses a row: then nothing is restored.
pub async fn restore(url: &str, file: File) -> Result<RestoreOutcome, ConnectError> {
    reach(url).await?;
    let pool = pool(url, 1, "0", "0")?;
    let outcome = restore_by(&pool, file).await;
    pool.close().await;
    match outcome {
        Err(Unrestored::Fault(fault)) => Err(fault.into()),
        Err(Unrestored::File(why)) => Ok(RestoreOutcome::Unreadable(why)),
        Ok(outcome) => Ok(outcome),
    }
}

/// Why a file was not restored.
enum Unrestored {
    File(String),
    Fault(Fault),
}

impl From<Fault> for Unrestored {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<sqlx::Error> for Unrestored {
    fn from(error: sqlx::Error) -> Self {
        Self::Fault(error.into())
    }
}

async fn restore_by(pool: &PgPool, file: File) -> Result<RestoreOutcome, Unrestored> {
    let mut lines = Lines(BufReader::new(file));
    let head: Head = lines.json("this is not an archive of a sale, or a damaged one")?;
    if head.flashsale_archive != FORMAT {
        return Err(Unrestored::File(format!(
            "the archive has format {}, and this version reads format {FORMAT}",
            head.flashsale_archive
        )));
    }
    let id = head.sale_id;
    let mut tx = begin_with(pool, "begin").await?;
    let exists = sqlx::query_scalar!("select 1 as one from sales where sale_id = $1", id.0);
    if exists.fetch_optional(&mut *tx).await?.is_some() {
        return Ok(RestoreOutcome::Exists(id));
    }
    let mut rows = 0;
    for (table, _) in TABLES {
        let head: TableHead = lines.json("the archive is damaged: a table has no name")?;
        let known = columns(&mut tx, table).await?;
        if head.table != table || head.columns.iter().any(|column| !known.contains(column)) {
            return Err(Unrestored::File(format!(
                "this version does not know all of the archive's table {:?}: restore it with the version that wrote it, or \
                 a later one",
                head.table
            )));
        }
        let copy = format!("copy {table} ({}) from stdin", head.columns.join(", "));
        let mut copied = tx.copy_in_raw(&copy).await?;
        let (mut chunk, mut is_whole) = (Vec::with_capacity(CHUNK), Ok(()));
        loop {
            match lines.next() {
                Ok(line) if line == END => break,
                Ok(line) => chunk.extend(line),
                Err(why) => {
                    is_whole = Err(why);
                    break;
                }
            }
            if chunk.len() >= CHUNK {
                copied.send(chunk.as_slice()).await?;
                chunk.clear();
            }
        }
        if let Err(why) = is_whole {
            copied.abort("the archive is not whole").await?;
            return Err(Unrestored::File(why));
        }
        copied.send(chunk.as_slice()).await?;
        rows += copied.finish().await?;
    }
    let foot: Foot = lines.json("the archive is damaged: it has no number of rows at its end")?;
    if foot.rows != rows {
        return Err(Unrestored::File(format!(
            "the archive should have {} rows and has {rows}",
            foot.rows
        )));
    }
    sqlx::query!(
        "delete from archived_payments where payment_id in (select payment_id from payments p \
             join orders o on o.order_id = p.matched_order_id where o.sale_id = $1)",
        id.0
    )
    .execute(&mut *tx)
    .await?;
    // The number of an old sale is not the newest, so no bulletin reports it.
    notify_changed(&mut tx).await?;
    commit(tx).await?;
    Ok(RestoreOutcome::Restored(id, rows))
}

/// The lines of a file.
struct Lines(BufReader<File>);

impl Lines {
    /// The next line, with its end.
    fn next(&mut self) -> Result<Vec<u8>, String> {
        let mut line = Vec::new();
        let read = (&mut self.0).take(LINE_MAX).read_until(b'\n', &mut line);
        match read {
            Ok(_) if line.ends_with(b"\n") => Ok(line),
            Ok(_) => Err("the archive is not whole: its end is missing".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The JSON of the next line, or `wrong`.
    fn json<T: for<'a> Deserialize<'a>>(&mut self, wrong: &str) -> Result<T, Unrestored> {
        let line = self.next().map_err(Unrestored::File)?;
        serde_json::from_slice(&line).map_err(|_no_json| Unrestored::File(wrong.to_owned()))
    }
}
