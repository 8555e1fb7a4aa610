//! Where each shard was reconciled, and which shards have to be reconciled.

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::event::Position;
use crate::ledger::outbox::lock_servers;
use crate::ledger::{Ledger, Tx, acquire, begin, commit, small, unsigned};
use sqlx::PgConnection;
use std::collections::{BTreeMap, HashSet};
use uuid::Uuid;

/// A shard as the ledger has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStanding {
    pub epoch: i64,
    pub noted: NotedServer,
    /// The last event that was drained.
    pub position: Position,
}

/// The prefix of a server's name while a shard has to be reconciled there.
pub(in crate::ledger) const CLAIMED: char = '?';

/// The Redis server on which a shard was last reconciled, or for which a process has claimed it: the column
/// `shards.run_id`, exactly as stored, because updates compare it. Without a name, the shard was never reconciled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotedServer(Option<String>);

impl NotedServer {
    /// The shard has to be reconciled on this server.
    pub fn claimed_for(server: &Server) -> Self {
        Self(Some(format!("{CLAIMED}{server}")))
    }

    /// The server, whether the shard was reconciled there or is claimed for it.
    pub fn server(&self) -> Option<Server> {
        let name = self.0.as_ref()?;
        Some(name.trim_start_matches(CLAIMED).into())
    }

    /// Whether the shard was reconciled on this server, and not claimed since.
    pub fn is_reconciled_on(&self, server: &Server) -> bool {
        self.0.as_deref() == Some(server.as_str())
    }

    /// The stored text; empty for a shard that was never reconciled, because no server has an empty name.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<Option<String>> for NotedServer {
    fn from(column: Option<String>) -> Self {
        Self(column)
    }
}

/// Shards as the ledger has them.
pub type ShardStandings = BTreeMap<(SaleId, u16), ShardStanding>;

/// A row of `shards`.
pub(in crate::ledger) struct StandingRow {
    pub(in crate::ledger) sale_id: Uuid,
    pub(in crate::ledger) shard: i16,
    pub(in crate::ledger) epoch: i64,
    pub(in crate::ledger) run_id: Option<String>,
    pub(in crate::ledger) drained_epoch: i64,
    pub(in crate::ledger) drained_seq: i64,
}

pub(in crate::ledger) fn by_shard(rows: Vec<StandingRow>) -> Result<ShardStandings, Fault> {
    let standing = |row: StandingRow| {
        let position = Position {
            epoch: row.drained_epoch,
            seq: row.drained_seq,
        };
        let standing = ShardStanding {
            epoch: row.epoch,
            noted: row.run_id.into(),
            position,
        };
        Ok(((SaleId(row.sale_id), unsigned(i64::from(row.shard))?), standing))
    };
    rows.into_iter().map(standing).collect()
}

/// A shard that is on another server than the ledger has.
#[derive(Debug, Clone)]
pub struct MovedShard {
    pub shard: u16,
    /// The server that the ledger has for the shard.
    pub before: NotedServer,
    /// The server that has the shard now.
    pub server: Server,
}

/// A shard that a reconcile found complete.
#[derive(Debug, Clone)]
pub struct WholeShard {
    pub shard: u16,
    /// The Redis server that has it.
    pub server: Server,
    /// The server in the ledger when the reconcile began: a claim for this server, or this server.
    pub before: NotedServer,
    /// The last event that it wrote there.
    pub wrote: Position,
    /// How many orders it is known to have lost.
    pub lost: i64,
}

impl Ledger {
    /// Every shard of these sales.
    pub async fn standings(&self, sales: &[SaleId]) -> Result<ShardStandings, Fault> {
        standings(&mut *acquire(&self.jobs).await?, sales).await
    }

    /// These shards, by sale and number.
    pub async fn standings_of(&self, shards: &[(SaleId, u16)]) -> Result<ShardStandings, Fault> {
        let sales: Vec<Uuid> = shards.iter().map(|(sale, _)| sale.0).collect();
        let numbers: Vec<i16> = shards.iter().map(|(_, shard)| small(*shard)).collect();
        let rows = sqlx::query_as!(
            StandingRow,
            "select sh.sale_id, sh.shard, sh.epoch, sh.run_id, sh.drained_epoch, sh.drained_seq \
             from unnest($1::uuid[], $2::int2[]) as n (sale_id, shard) \
             join shards sh on sh.sale_id = n.sale_id and sh.shard = n.shard",
            &sales,
            &numbers
        );
        by_shard(rows.fetch_all(&self.jobs).await?)
    }

    /// Every shard of every sale that may have keys in Redis.
    pub async fn standings_in_stock(&self) -> Result<ShardStandings, Fault> {
        let rows = sqlx::query_as!(
            StandingRow,
            "select sh.sale_id, sh.shard, sh.epoch, sh.run_id, sh.drained_epoch, sh.drained_seq from shards sh \
             join sales s on s.sale_id = sh.sale_id where s.state <> 'draft' and s.retired_at is null"
        );
        by_shard(rows.fetch_all(&self.jobs).await?)
    }

    /// Notes that shards are about to be reconciled on other servers than before. From then on, a delivery to an
    /// earlier server does not count. Messages that were marked delivered before are no longer in the outbox. Fails
    /// with `Unavailable` when Postgres does not answer, or another process has noted another server.
    pub async fn claim_for(&self, sale: SaleId, moved: &[MovedShard]) -> Result<(), Fault> {
        if moved.is_empty() {
            return Ok(());
        }
        let shards: Vec<i16> = moved.iter().map(|it| small(it.shard)).collect();
        let before: Vec<String> = moved.iter().map(|it| it.before.as_str().to_owned()).collect();
        let claimed = moved.iter().map(|it| NotedServer::claimed_for(&it.server));
        let claimed: Vec<String> = claimed.map(|it| it.as_str().to_owned()).collect();
        let mut tx = begin(&self.jobs).await?;
        // This waits for drains and rebuilds of the shards first: while the servers are locked, no message is marked
        // delivered.
        sqlx::query!(
            "select shard from shards where sale_id = $1 and shard = any($2) order by shard for no key update",
            sale.0,
            &shards
        )
        .fetch_all(&mut *tx)
        .await?;
        lock_servers(&mut tx, sale).await?;
        for it in moved {
            supersede(&mut tx, it).await?;
        }
        let noted = sqlx::query!(
            "update shards s set run_id = n.claimed \
             from unnest($2::int2[], $3::text[], $4::text[]) as n (shard, before, claimed) \
             where s.sale_id = $1 and s.shard = n.shard and coalesce(s.run_id, '') = n.before",
            sale.0,
            &shards,
            &before,
            &claimed
        )
        .execute(&mut *tx)
        .await?;
        if usize::try_from(noted.rows_affected()) != Ok(moved.len()) {
            return Err(Fault::Unavailable("another process reconciles these shards".to_owned()));
        }
        commit(tx).await
    }

    /// The sales with shards that have to be reconciled, by the ledger.
    pub async fn claimed_sales(&self) -> Result<Vec<SaleId>, Fault> {
        let sales = sqlx::query_scalar!("select distinct sale_id from shards where run_id like '?%'");
        let sales = sales.fetch_all(&self.jobs).await?;
        Ok(sales.into_iter().map(SaleId).collect())
    }

    /// The Redis processes from which others have taken over, by run id.
    pub async fn superseded_servers(&self) -> Result<HashSet<String>, Fault> {
        let rows = sqlx::query_scalar!("select run_id from superseded_servers");
        let rows = rows.fetch_all(&self.jobs).await?;
        Ok(rows.into_iter().collect())
    }

    /// Waits until the running drains of these shards have committed what they have read. Fails with `Unavailable` when
    /// Postgres does not answer, or a drain takes too long.
    pub async fn wait_for_drains(&self, sale: SaleId, shards: &[u16]) -> Result<(), Fault> {
        let shards: Vec<i16> = shards.iter().map(|shard| small(*shard)).collect();
        sqlx::query!(
            "select shard from shards where sale_id = $1 and shard = any($2) order by shard for no key update",
            sale.0,
            &shards
        )
        .fetch_all(&self.jobs)
        .await?;
        Ok(())
    }

    /// Notes the servers on which reconciles found these shards complete. Adds the orders that each shard lost and the
    /// ledger never saw; only the first process that notes a server counts them. The undelivered messages of all these
    /// shards become due at once.
    ///
    /// A shard is left out in two cases, because then another server has it as well:
    /// * The ledger has drained more by now than the shard had written.
    /// * Another process has noted another server meanwhile.
    pub async fn note_reconciled(&self, sale: SaleId, found: &[WholeShard]) -> Result<(), Fault> {
        let shards: Vec<i16> = found.iter().map(|it| small(it.shard)).collect();
        let servers: Vec<String> = found.iter().map(|it| it.server.to_string()).collect();
        let before: Vec<String> = found.iter().map(|it| it.before.as_str().to_owned()).collect();
        let epochs: Vec<i64> = found.iter().map(|it| it.wrote.epoch).collect();
        let seqs: Vec<i64> = found.iter().map(|it| it.wrote.seq).collect();
        let lost: Vec<i64> = found.iter().map(|it| it.lost).collect();
        sqlx::query!(
            "update shards s set run_id = n.run_id, lost_orders = s.lost_orders + n.lost \
             from unnest($2::int2[], $3::text[], $4::int8[], $5::int8[], $6::int8[], $7::text[]) \
                 as n (shard, run_id, lost, epoch, seq, before) \
             where s.sale_id = $1 and s.shard = n.shard and s.run_id is distinct from n.run_id \
             and coalesce(s.run_id, '') = n.before \
             and (s.drained_epoch, s.drained_seq) <= (n.epoch, n.seq)",
            sale.0,
            &shards,
            &servers,
            &lost,
            &epochs,
            &seqs,
            &before
        )
        .execute(&self.jobs)
        .await?;
        self.make_due(sale, &found.iter().map(|it| it.shard).collect::<Vec<_>>())
            .await
    }

    /// Makes the undelivered messages of these shards due at once: each failed attempt has postponed them for longer.
    /// Messages that the job `release` has locked are left out, because it is delivering them.
    pub async fn make_due(&self, sale: SaleId, shards: &[u16]) -> Result<(), Fault> {
        let shards: Vec<i16> = shards.iter().map(|shard| small(*shard)).collect();
        sqlx::query!(
            "update outbox set not_before = now() where outbox_id = any(array( \
                 select outbox_id from outbox where sale_id = $1 and shard = any($2) and failure is null \
                     and not_before > now() for update skip locked))",
            sale.0,
            &shards
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// Marks shards unverified: each is reconciled before it sells again. Returns the shards that were not marked
    /// before.
    pub async fn mark_unverified(&self, sale: SaleId, shards: &[u16]) -> Result<Vec<u16>, Fault> {
        let numbers: Vec<i16> = shards.iter().map(|shard| small(*shard)).collect();
        let marked = sqlx::query_scalar!(
            "with verified as materialized (select sale_id, shard from shards where sale_id = $1 \
                 and shard = any($2) and run_id not like $3 || '%' order by shard for no key update) \
             update shards s set run_id = $3::text || s.run_id from verified v \
             where s.sale_id = v.sale_id and s.shard = v.shard returning s.shard",
            sale.0,
            &numbers,
            CLAIMED.to_string()
        );
        let marked = marked.fetch_all(&self.jobs).await?;
        marked.into_iter().map(|shard| unsigned(i64::from(shard))).collect()
    }
}

/// [`Ledger::standings`] on a given connection.
pub(super) async fn standings(connection: &mut PgConnection, sales: &[SaleId]) -> Result<ShardStandings, Fault> {
    let ids: Vec<Uuid> = sales.iter().map(|sale| sale.0).collect();
    let rows = sqlx::query_as!(
        StandingRow,
        "select sale_id, shard, epoch, run_id, drained_epoch, drained_seq from shards where sale_id = any($1)",
        &ids
    );
    by_shard(rows.fetch_all(connection).await?)
}

/// Notes which process a server has taken over from, if any. Refuses a server from which another has taken over, unless
/// it takes over in its turn.
async fn supersede(tx: &mut Tx, moved: &MovedShard) -> Result<(), Fault> {
    let (server, before) = (&moved.server, moved.before.server().unwrap_or_default());
    let takes_over = server.has_taken_over_from(&before);
    let superseded = if takes_over {
        sqlx::query!(
            "insert into superseded_servers (run_id) values ($1) on conflict do nothing",
            before.run_id()
        )
        .execute(&mut **tx)
        .await?;
        sqlx::query!("delete from superseded_servers where run_id = $1", server.run_id())
            .execute(&mut **tx)
            .await?;
        false
    } else {
        sqlx::query_scalar!(
            "select count(*) > 0 as \"it!\" from superseded_servers where run_id = $1",
            server.run_id()
        )
        .fetch_one(&mut **tx)
        .await?
    };
    if superseded || before.has_taken_over_from(server) {
        return Err(Fault::Unavailable(
            "another server has taken over these shards from this one".to_owned(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noted_text_names_its_server_with_and_without_a_claim_and_stays_as_stored() {
        for (column, server, is_reconciled) in [
            (None, None, false),
            (Some("r1-aa-00"), Some("r1-aa-00"), true),
            (Some("?r1-aa-00"), Some("r1-aa-00"), false),
            // Texts that no version has written, or only an earlier one.
            (Some("r1"), Some("r1"), true),
            (Some("?r1"), Some("r1"), false),
            (Some("??r1-aa-00"), Some("r1-aa-00"), false),
            (Some("?"), Some(""), false),
            (Some(""), Some(""), true),
        ] {
            let noted = NotedServer::from(column.map(ToOwned::to_owned));
            assert_eq!(noted.server(), server.map(Server::from), "{column:?}");
            let is = noted.server().is_some_and(|server| noted.is_reconciled_on(&server));
            assert_eq!(is, is_reconciled, "{column:?}");
            assert_eq!(noted.as_str(), column.unwrap_or_default());
        }
        let claimed = NotedServer::claimed_for(&"r1-aa-00".into());
        assert_eq!(claimed, NotedServer::from(Some("?r1-aa-00".to_owned())));
    }
}
