//! Calls `lua/move/transfer_out.lua`, `transfer_in.lua`, `transfer_done.lua` and `withdraw_done.lua`. Units move between two
//! shards, or leave the sale, in steps that may each be repeated. Between the first step and the last, the lender has a
//! record of the transfer. So after a crash any process can finish it.

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::Sku;
use crate::domain::time::Millis;
use crate::stock::keys::ShardKey;
use crate::stock::record::known;
use crate::stock::script::{TRANSFER_DONE, TRANSFER_IN, TRANSFER_OUT, WITHDRAW_DONE, admitted, number, outcome};
use crate::stock::{Stock, unreconciled};
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// To another shard of the sale.
    Shard(u16),
    /// Out of the sale: the ledger takes the units off its books.
    Ledger,
}

/// Units in transit, as the lender has recorded them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    pub id: Uuid,
    pub to: Destination,
    pub units: i64,
    /// When the units left, by the clock of the process that sent them.
    pub sent_at: Millis,
    /// The lender's epoch when the units left.
    pub epoch: i64,
    /// The receiving shard's epoch (the lender's own, if the units leave the sale), read before the transfer was; 0
    /// when it was not read.
    pub to_epoch: i64,
    pub sku: Sku,
    /// The lender's server, if the receiving shard is on it too. It is read before the units are sent, or before the
    /// transfer is read at the lender.
    pub server: Option<Server>,
}

impl Transfer {
    /// Decodes a field of the hash `transfers`: `<to> <units> <sent at> <epoch> <sku>`.
    pub(in crate::stock) fn decode(id: &str, value: &str) -> Result<Self, Fault> {
        known(value.as_bytes(), 1, "transfer")?;
        Self::read(id, value).ok_or_else(|| Fault::Bug(format!("transfer {id} is damaged")))
    }

    fn read(id: &str, value: &str) -> Option<Self> {
        let mut words = value.splitn(5, ' ');
        let to = match words.next()? {
            "ledger" => Destination::Ledger,
            shard => Destination::Shard(shard.parse().ok()?),
        };
        Some(Self {
            id: Uuid::try_parse(id).ok()?,
            to,
            units: words.next()?.parse().ok()?,
            sent_at: words.next()?.parse().ok()?,
            epoch: words.next()?.parse().ok()?,
            to_epoch: 0,
            sku: words.next()?.parse().ok()?,
            server: None,
        })
    }

    /// The shard of the sale that gets these units. Units that the ledger gives back go to their lender.
    pub const fn arrives_at(&self, lender: u16) -> u16 {
        match self.to {
            Destination::Shard(to) => to,
            Destination::Ledger => lender,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// So many units are in transit, from a lender with this epoch.
    Out {
        units: i64,
        epoch: i64,
    },
    /// The lender has no free unit.
    None,
    Done,
}

impl Stock {
    /// Takes up to `wanted` free units out of a shard. After a fault, the scheduler finishes a transfer that was begun.
    pub async fn transfer_out(
        &self,
        from: ShardKey,
        id: Uuid,
        sku: &Sku,
        to: Destination,
        wanted: i64,
        now: Millis,
    ) -> Result<Sent, Fault> {
        let to = match to {
            Destination::Shard(shard) => shard.to_string(),
            Destination::Ledger => "ledger".to_owned(),
        };
        let keys = [from.item(sku), from.shard(), from.transfers(), from.applied()];
        let mut call = admitted(&TRANSFER_OUT, &keys);
        call.arg(id.to_string()).arg(sku.as_str()).arg(to).arg(wanted).arg(now);
        let (status, mut fields) = outcome(self.run_admitted(&TRANSFER_OUT, &call).await?)?;
        match status.as_str() {
            "OUT" => Ok(Sent::Out {
                units: number(&mut fields)?,
                epoch: number(&mut fields)?,
            }),
            "HALTED" => Err(unreconciled(from)),
            "NONE" => Ok(Sent::None),
            "DONE" => Ok(Sent::Done),
            other => Err(TRANSFER_OUT.unknown(other)),
        }
    }

    /// Waits until a replica of the lender has what the lender knows about a transfer. Fails with `Unavailable` when no
    /// replica confirms in time: the scheduler then finishes the transfer.
    pub async fn replicate_transfer(&self, lender: ShardKey, id: Uuid) -> Result<(), Fault> {
        let mut reading = redis::cmd("HEXISTS");
        reading.arg(lender.transfers()).arg(id.to_string());
        self.replicated(lender, reading).await.map(drop)
    }

    /// The server that has both of these shards, if one has both. The caller asks before units are sent, or before a
    /// transfer is read.
    pub async fn server_of_both(&self, one: ShardKey, other: ShardKey) -> Result<Option<Server>, Fault> {
        let mut servers = self.servers(&[one, other]).await.into_iter();
        let (Some(one), Some(other)) = (servers.next(), servers.next()) else {
            return Ok(None);
        };
        let (one, other) = (one?, other?);
        Ok((one == other).then_some(one))
    }

    /// Adds units that were sent, once for each id.
    pub async fn transfer_in(&self, to: ShardKey, lender: u16, transfer: &Transfer) -> Result<(), Fault> {
        let mut call = TRANSFER_IN.prepare_invoke();
        call.key(to.item(&transfer.sku))
            .key(to.shard())
            .key(to.fences())
            .key(to.applied());
        if lender == to.shard {
            call.key(to.transfers());
        }
        call.arg(transfer.id.to_string())
            .arg(transfer.units)
            .arg(lender)
            .arg(transfer.epoch)
            .arg(transfer.to_epoch)
            .arg(transfer.server.as_ref().map_or("", Server::as_str));
        match self.status(&TRANSFER_IN, &call).await?.as_str() {
            // Fenced units are the lender's own: its rebuild has deleted the transfer.
            "IN" | "ALREADY" | "FENCED" => Ok(()),
            "STALE" => Err(Fault::Unavailable("the borrower was rebuilt meanwhile".to_owned())),
            "MOVED" => Err(Fault::Unavailable(
                "the units left another Redis server than this one".to_owned(),
            )),
            "HALTED" => Err(unreconciled(to)),
            other => Err(TRANSFER_IN.unknown(other)),
        }
    }

    /// Marks a transfer delivered: its units have arrived.
    pub async fn transfer_done(&self, from: ShardKey, id: Uuid) -> Result<(), Fault> {
        let mut call = TRANSFER_DONE.prepare_invoke();
        call.key(from.transfers()).key(from.applied()).arg(id.to_string());
        self.finish(&TRANSFER_DONE, &call, &["DONE"]).await
    }

    /// Marks a withdrawal delivered: the ledger has taken its units off the books.
    pub async fn withdraw_done(&self, from: ShardKey, id: Uuid) -> Result<(), Fault> {
        let id = id.to_string();
        let value: Option<String> = self.command(redis::cmd("HGET").arg(from.transfers()).arg(&id)).await?;
        let Some(value) = value else { return Ok(()) };
        let sku = Transfer::decode(&id, &value)?.sku;
        let mut call = WITHDRAW_DONE.prepare_invoke();
        call.key(from.item(&sku)).key(from.transfers()).key(from.applied());
        call.arg(id).arg(sku.as_str());
        self.finish(&WITHDRAW_DONE, &call, &["DONE"]).await
    }
}
