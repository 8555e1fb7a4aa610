//! The bulletin: all that an instance asks the ledger in each round of renewals, in one statement, so as of one moment.
//! Of most things it says only whether they have changed.
//!
//! The connection is the bulletin's own. A pool would test a connection before and after each question, for two more
//! answers.

use super::standing::{ShardStandings, StandingRow, by_shard};
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::ledger::{Ledger, limits, small};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;
use uuid::Uuid;

/// How long a question may take with its connection, also if the caller has given up. Then the connection is dropped.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long the question waits for a table that another transaction has locked. The caller asks for the standings alone
/// then, within the same round.
const LOCK_MAX: &str = "150ms";

/// What an instance asks.
#[derive(Debug)]
pub struct Question {
    /// The shards whose standings it needs.
    pub shards: Vec<(SaleId, u16)>,
    /// The Redis processes of its shards, by run id.
    pub servers: Vec<String>,
    /// How many watched sales it counts.
    pub watched_max: i64,
}

/// What the ledger answers.
#[derive(Debug)]
pub struct Bulletin {
    /// Those of the shards that the ledger has.
    pub standings: ShardStandings,
    /// Those of the servers from which others have taken over.
    pub superseded: HashSet<String>,
    /// Another text after each change of the sales whose keys are in Redis, except of an item's stock.
    pub sales: String,
    /// Another text after each change of the guards' settings, the bans and the list of sales.
    pub settings: String,
    /// The number of the newest guard warning; 0 when there is none.
    pub newest_alert: i64,
    /// Whether a guard warning waits for its delivery.
    pub has_undelivered: bool,
    /// Sales that are watched on any instance.
    pub watched: Vec<SaleId>,
    /// How long ago a worker stored the last heartbeat.
    pub since_beat: Duration,
}

/// The connection for bulletins; none before the first, and after one that broke.
pub(in crate::ledger) type Kept = Arc<Mutex<Option<PgConnection>>>;

struct BulletinRow {
    sale_ids: Vec<Uuid>,
    shards: Vec<i16>,
    epochs: Vec<i64>,
    run_ids: Vec<String>,
    drained_epochs: Vec<i64>,
    drained_seqs: Vec<i64>,
    superseded: Vec<String>,
    sales: String,
    settings: String,
    newest_alert: i64,
    has_undelivered: bool,
    watched: Vec<Uuid>,
    since_beat: f64,
}

impl BulletinRow {
    fn into_bulletin(self) -> Result<Bulletin, Fault> {
        let shards = self.sale_ids.into_iter().zip(self.shards);
        let epochs = self.epochs.into_iter().zip(self.run_ids);
        let positions = self.drained_epochs.into_iter().zip(self.drained_seqs);
        let rows = shards.zip(epochs).zip(positions).map(|((shard, epoch), position)| {
            let ((sale_id, shard), (epoch, run_id), (drained_epoch, drained_seq)) = (shard, epoch, position);
            StandingRow {
                sale_id,
                shard,
                epoch,
                run_id: Some(run_id).filter(|run_id| !run_id.is_empty()),
                drained_epoch,
                drained_seq,
            }
        });
        Ok(Bulletin {
            standings: by_shard(rows.collect())?,
            superseded: self.superseded.into_iter().collect(),
            sales: self.sales,
            settings: self.settings,
            newest_alert: self.newest_alert,
            has_undelivered: self.has_undelivered,
            watched: self.watched.into_iter().map(SaleId).collect(),
            // A heartbeat from before Postgres's clock was set back is none.
            since_beat: Duration::try_from_secs_f64(self.since_beat).unwrap_or(Duration::MAX),
        })
    }
}

impl Ledger {
    /// Answers this question. Fails with `Unavailable` also when Postgres has not answered the last question yet, or
    /// another transaction has locked one of the tables.
    pub async fn bulletin(&self, question: Question) -> Result<Bulletin, Fault> {
        let Ok(mut kept) = Arc::clone(&self.bulletins).try_lock_owned() else {
            return Err(Fault::Unavailable(
                "Postgres has not answered the last bulletin".to_owned(),
            ));
        };
        let options = self.upkeep.connect_options();
        // A task of its own, also when the caller gives up: its answer must not be taken for that of the next question.
        let asking = tokio::spawn(async move {
            let known = kept.take();
            let asked = timeout(ANSWER_MAX, async {
                let mut connection = match known {
                    Some(connection) => connection,
                    None => connect(&options).await?,
                };
                let answer = ask(&mut connection, &question).await;
                Ok::<_, sqlx::Error>((is_usable(&answer).then_some(connection), answer))
            });
            let late = |_elapsed| Fault::Unavailable("Postgres did not answer in time".to_owned());
            let (connection, answer) = asked.await.map_err(late)??;
            *kept = connection;
            answer?.into_bulletin()
        });
        asking
            .await
            .map_err(|error| Fault::Bug(format!("a bulletin broke off: {error}")))?
    }

    /// Closes the connection for bulletins.
    pub(in crate::ledger) async fn end_bulletins(&self) -> Result<(), sqlx::Error> {
        match self.bulletins.lock().await.take() {
            Some(connection) => connection.close().await,
            None => Ok(()),
        }
    }
}

/// Opens a connection. Its one statement is planned once, and again after a change of a table or its statistics, but not
/// for each number of shards.
async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    let limits = limits("1500ms", LOCK_MAX, "5s");
    // Made of constants.
    let settings = AssertSqlSafe(format!("{limits}; set plan_cache_mode = force_generic_plan"));
    connection.execute(settings).await?;
    Ok(connection)
}

/// Whether a connection that gave this answer can be asked again: Postgres has answered, and does not end it.
fn is_usable<T>(answer: &Result<T, sqlx::Error>) -> bool {
    match answer {
        Ok(_) => true,
        Err(sqlx::Error::Database(error)) => error.code().is_none_or(|code| !code.starts_with("57P")),
        Err(_) => false,
    }
}

async fn ask(connection: &mut PgConnection, question: &Question) -> Result<BulletinRow, sqlx::Error> {
    let sales: Vec<Uuid> = question.shards.iter().map(|(sale, _)| sale.0).collect();
    let shards: Vec<i16> = question.shards.iter().map(|(_, shard)| small(*shard)).collect();
    // `xmin` is the transaction that wrote a row, so a change of the live sales, or of a message, changes their number or a sum. A
    // coincidence is all but impossible, and the list is read now and then all the same. A sale begins to leave by the
    // clock alone.
    let row = sqlx::query_as!(
        BulletinRow,
        "select own.sale_ids as \"sale_ids!\", own.shards as \"shards!\", own.epochs as \"epochs!\", \
             own.run_ids as \"run_ids!\", own.drained_epochs as \"drained_epochs!\", \
             own.drained_seqs as \"drained_seqs!\", \
             array(select run_id from superseded_servers where run_id = any($3)) as \"superseded!\", \
             (select concat_ws(' ', count(*), sum(xmin::text::int8), count(*) filter ( \
                 where over_at < now() - interval '5 minutes' \
                     and least(ends_at, closed_at) < now() - interval '24 hours 30 minutes'), \
                 (select sum(xmin::text::int8) from sale_messages)) \
              from sales where state <> 'draft' and retired_at is null) as \"sales!\", \
             concat_ws(' ', (select xmin from guard_settings), (select max(change) from bans), \
                 (select max(number) from sales)) as \"settings!\", \
             (select coalesce(max(alert_id), 0) from guard_alerts) as \"newest_alert!\", \
             exists (select from guard_alerts where delivered_at is null and given_up_at is null) \
                 as \"has_undelivered!\", \
             array(select sale_id from watched_sales where watched_until > now() order by sale_id limit $4) \
                 as \"watched!\", \
             (select extract(epoch from clock_timestamp() - beaten_at)::float8 from heartbeat) as \"since_beat!\" \
         from (select coalesce(array_agg(sh.sale_id), '{}') as sale_ids, coalesce(array_agg(sh.shard), '{}') as shards, \
                  coalesce(array_agg(sh.epoch), '{}') as epochs, \
                  coalesce(array_agg(coalesce(sh.run_id, '')), '{}') as run_ids, \
                  coalesce(array_agg(sh.drained_epoch), '{}') as drained_epochs, \
                  coalesce(array_agg(sh.drained_seq), '{}') as drained_seqs \
              from unnest($1::uuid[], $2::int2[]) as n (sale_id, shard) \
              join shards sh on sh.sale_id = n.sale_id and sh.shard = n.shard) own",
        &sales,
        &shards,
        &question.servers,
        question.watched_max
    );
    row.fetch_one(connection).await
}
