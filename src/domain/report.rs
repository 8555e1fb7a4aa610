//! Reports: where every unit is, as operators read it.

use super::ids::{SaleId, Sku};
use super::sale::SaleState;
use super::time;
use super::waiting_room::RoomCount;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The units of one item on one shard, as the stock counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Free to sell.
    pub available: i64,
    /// Kept for reserved orders.
    pub held: i64,
    /// Paid for.
    pub sold: i64,
    /// Held once for orders that the ledger refused; withheld until the shard is rebuilt.
    pub revoked: i64,
    /// Sent to other shards or to the ledger, in total.
    pub out: i64,
    /// Received from other shards, in total.
    pub r#in: i64,
    /// Given to this shard by the ledger, in total.
    pub granted: i64,
    /// Of what was sent: taken off the sale's books, in total.
    pub withdrawn: i64,
    /// Goes up whenever units become free here, arrive or leave.
    #[serde(skip)]
    pub version: i64,
}

impl Counters {
    /// Whether this shard accounts for every unit that it was given.
    #[must_use]
    pub const fn balance(&self) -> bool {
        self.available >= 0 && self.held >= 0 && self.sold >= 0 && self.imbalance() == 0
    }

    /// Units that this shard accounts for, less those that it was given.
    #[must_use]
    pub const fn imbalance(&self) -> i64 {
        self.available + self.held + self.sold + self.revoked + self.out - self.granted - self.r#in
    }

    /// Both counts together.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            available: self.available + other.available,
            held: self.held + other.held,
            sold: self.sold + other.sold,
            revoked: self.revoked + other.revoked,
            out: self.out + other.out,
            r#in: self.r#in + other.r#in,
            granted: self.granted + other.granted,
            withdrawn: self.withdrawn + other.withdrawn,
            version: self.version + other.version,
        }
    }

    /// Units that have left one shard and reached neither another nor the ledger.
    #[must_use]
    pub const fn in_transit(&self) -> i64 {
        self.out - self.r#in - self.withdrawn
    }
}

/// Where an item's units are, over all shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ItemStats {
    /// The item.
    pub sku: Sku,
    /// Units that the sale owns.
    pub total: i64,
    /// Free to sell.
    pub available: i64,
    /// Kept for reserved orders.
    pub held: i64,
    /// Paid for.
    pub sold: i64,
    /// On their way between two shards.
    pub in_transit: i64,
}

/// One shard at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ShardStats {
    /// Its number.
    pub shard: u16,
    /// Its generation.
    pub epoch: i64,
    /// Free units by SKU.
    pub available: BTreeMap<Sku, i64>,
    /// Held units by SKU.
    pub held: BTreeMap<Sku, i64>,
    /// Sold units by SKU.
    pub sold: BTreeMap<Sku, i64>,
    /// Units that it sent to other shards or to the ledger, by SKU, in total.
    pub sent: BTreeMap<Sku, i64>,
    /// Units that it received from other shards, by SKU, in total.
    pub received: BTreeMap<Sku, i64>,
    /// Units that it has sent and not been told of yet that they arrived, by SKU. Those that have arrived in the meantime
    /// are counted where they are as well.
    pub in_transit: BTreeMap<Sku, i64>,
    /// Events that the ledger has not taken in.
    pub undrained_events: i64,
}

/// How many orders the ledger has in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OrderCounts {
    /// Held.
    pub reserved: i64,
    /// Paid.
    pub paid: i64,
    /// Given back by the shopper.
    pub cancelled: i64,
    /// Given back by the deadline.
    pub expired: i64,
    /// Refused by the ledger.
    pub revoked: i64,
}

/// What needs an operator's eye.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Alerts {
    /// Events that could not be taken in, until an operator says that they are dealt with; their orders are revoked, as far
    /// as it can be told which they are.
    pub dead_letters: i64,
    /// Decisions of the ledger that the stock refused.
    pub failed_releases: i64,
    /// Payments whose money is owed back, until an operator says that it was paid back.
    pub refunds_due: i64,
    /// Payments for orders that do not exist, until an operator says that they were paid back.
    pub unmatched_payments: i64,
    /// Orders that a lost Redis had accepted and nobody knows any more; at least so many.
    pub lost_orders: i64,
}

/// How a server answers.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ServerHealth {
    /// Within how many milliseconds it answered; none when it did not.
    pub milliseconds: Option<f64>,
    /// Why it did not.
    pub fault: Option<String>,
}

/// How both servers answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Health {
    /// The stock's.
    pub redis: ServerHealth,
    /// The ledger's.
    pub postgres: ServerHealth,
}

/// What a rebuilding came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Rebuilt {
    /// The sale.
    pub sale_id: SaleId,
    /// Shards that were written anew.
    pub shards: u16,
    /// Orders that they have now.
    pub orders: usize,
    /// Orders that Redis had accepted and nobody knows any more; at least so many.
    pub lost_orders: i64,
}

/// Units of one item on one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Units {
    /// Free to sell.
    pub available: i64,
    /// Kept for reserved orders.
    pub held: i64,
    /// Paid for.
    pub sold: i64,
}

/// One item of a shard before and after a rebuild.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ItemPreview {
    /// The item.
    pub sku: Sku,
    /// As Redis has it; none where Redis has lost some of the shard.
    pub before: Option<Units>,
    /// As a rebuild would write it.
    pub after: Units,
}

/// One shard before and after a rebuild.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ShardPreview {
    /// Its number.
    pub shard: u16,
    /// Events that a rebuild would take into the ledger first.
    pub undrained_events: i64,
    /// Each item.
    pub items: Vec<ItemPreview>,
}

/// What a rebuild would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RebuildPreview {
    /// The sale.
    pub sale_id: SaleId,
    /// Always true: nothing was changed.
    pub dry_run: bool,
    /// Each shard.
    pub shards: Vec<ShardPreview>,
}

/// A sale in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Stats {
    /// The sale.
    pub sale_id: SaleId,
    /// Its state by Redis's clock.
    pub state: SaleState,
    /// Redis's clock.
    #[serde(serialize_with = "time::serialize")]
    pub server_time: DateTime<Utc>,
    /// Each item over all shards.
    pub items: Vec<ItemStats>,
    /// Each shard.
    pub shards: Vec<ShardStats>,
    /// Events that the ledger has not taken in, over all shards.
    pub undrained_events: i64,
    /// Orders in the ledger.
    pub orders: OrderCounts,
    /// Who is in its waiting room, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_room: Option<RoomCount>,
    /// What needs an operator's eye.
    pub alerts: Alerts,
    /// Requests that each layer of the guards has stopped, as of a second ago.
    pub stopped: BTreeMap<String, i64>,
}

/// One item's units on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ItemAudit {
    /// The item.
    pub sku: Sku,
    /// Units that the sale owns, by the ledger.
    pub total: i64,
    /// The stock's count, over all shards.
    pub stock: StockSide,
    /// The ledger's count.
    pub ledger: LedgerSide,
}

/// What Redis counts of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StockSide {
    /// Free to sell.
    pub available: i64,
    /// Kept for reserved orders.
    pub held: i64,
    /// Paid for.
    pub sold: i64,
    /// Withheld for orders that the ledger refused.
    pub revoked: i64,
    /// On their way between two shards, or to the ledger.
    pub in_transit: i64,
    /// Of the held: in events that the ledger has not taken in.
    pub undrained: i64,
}

/// What Postgres counts of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LedgerSide {
    /// Kept for reserved orders.
    pub held: i64,
    /// Paid for.
    pub sold: i64,
    /// Neither.
    pub free: i64,
    /// Units whose move the stock has yet to be told of: decided, in the outbox.
    pub unreleased: i64,
}

/// Every unit of a sale on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Audit {
    /// The sale.
    pub sale_id: SaleId,
    /// Whether every unit is accounted for.
    pub balanced: bool,
    /// Whether only the ledger was counted, because Redis has nothing of the sale: it is not loaded, or was put away after its
    /// end.
    pub ledger_only: bool,
    /// Each item.
    pub items: Vec<ItemAudit>,
    /// What does not add up, in sentences.
    pub differences: Vec<String>,
}
