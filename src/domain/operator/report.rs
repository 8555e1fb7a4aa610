//! Reports for operators: where every unit is.

use crate::domain::ids::{SaleId, Sku};
use crate::domain::sale::SaleState;
use crate::domain::shopper::waiting_room::RoomCount;
use crate::domain::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The counters of one item on one shard in Redis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Free units.
    pub available: i64,
    /// Units of reserved orders.
    pub held: i64,
    /// Units of paid orders.
    pub sold: i64,
    /// Units of orders that Postgres refused. They are withheld until the shard is rebuilt.
    pub revoked: i64,
    /// Units sent to other shards or to Postgres, in total.
    pub out: i64,
    /// Units received from other shards, in total.
    pub r#in: i64,
    /// Units granted to this shard by Postgres, in total.
    pub granted: i64,
    /// Units among those sent that were withdrawn from the sale, in total.
    pub withdrawn: i64,
    /// Goes up whenever units become free here, arrive or leave.
    #[serde(skip)]
    pub version: i64,
}

impl Counters {
    /// Whether this shard accounts for every unit that it got.
    pub const fn balance(&self) -> bool {
        self.available >= 0 && self.held >= 0 && self.sold >= 0 && self.imbalance() == 0
    }

    /// The units that this shard accounts for, minus the units that it got.
    pub const fn imbalance(&self) -> i64 {
        self.available + self.held + self.sold + self.revoked + self.out - self.granted - self.r#in
    }

    /// The sum of two sets of counters.
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

    /// Units in transit: they have left a shard and not arrived at another or in Postgres.
    pub const fn in_transit(&self) -> i64 {
        self.out - self.r#in - self.withdrawn
    }
}

/// Where an item's units are, over all shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ItemStats {
    /// The item.
    pub sku: Sku,
    /// Units that the sale owns.
    pub total: i64,
    /// Free units.
    pub available: i64,
    /// Units of reserved orders.
    pub held: i64,
    /// Units of paid orders.
    pub sold: i64,
    /// Units in transit between two shards, or to Postgres.
    pub in_transit: i64,
}

/// One shard in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardStats {
    /// The shard's number.
    pub shard: u16,
    /// The shard's generation.
    pub epoch: i64,
    /// Free units by SKU.
    pub available: BTreeMap<Sku, i64>,
    /// Held units by SKU.
    pub held: BTreeMap<Sku, i64>,
    /// Sold units by SKU.
    pub sold: BTreeMap<Sku, i64>,
    /// Units sent to other shards or to Postgres, by SKU, in total.
    pub sent: BTreeMap<Sku, i64>,
    /// Units received from other shards, by SKU, in total.
    pub received: BTreeMap<Sku, i64>,
    /// Units that this shard has sent and whose arrival it does not know of yet, by SKU. Units that have arrived
    /// meanwhile also count at their new place.
    pub in_transit: BTreeMap<Sku, i64>,
    /// Events that are not in Postgres yet.
    pub undrained_events: i64,
}

/// How many orders Postgres has in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OrderCounts {
    /// Held orders.
    pub reserved: i64,
    /// Paid orders.
    pub paid: i64,
    /// Orders cancelled by their shoppers.
    pub cancelled: i64,
    /// Orders that expired at their deadline.
    pub expired: i64,
    /// Orders that Postgres refused.
    pub revoked: i64,
}

/// Findings that need an operator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Alerts {
    /// Dead letters that no operator has settled. Their orders are revoked, if the events name them.
    pub dead_letters: i64,
    /// Decisions of Postgres that a shard refused.
    pub failed_releases: i64,
    /// Payments to pay back, until an operator records the refund.
    pub refunds_due: i64,
    /// Payments for unknown orders, until an operator records the refund.
    pub unmatched_payments: i64,
    /// Orders that Redis accepted and then lost without a trace; at least so many.
    pub lost_orders: i64,
}

/// Whether a server answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerHealth {
    /// The milliseconds until it answered; null if it did not.
    pub milliseconds: Option<f64>,
    /// Why it did not answer.
    pub fault: Option<String>,
    /// When it last answered this instance; null if it never did.
    #[serde(serialize_with = "time::serialize_option")]
    pub answered_at: Option<DateTime<Utc>>,
}

/// Whether Redis and Postgres answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Redis.
    pub redis: ServerHealth,
    /// Postgres.
    pub postgres: ServerHealth,
}

/// The result of a rebuild.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rebuilt {
    /// The rebuilt sale.
    pub sale_id: SaleId,
    /// How many shards were rebuilt.
    pub shards: u16,
    /// How many orders the rebuilt shards have.
    pub orders: usize,
    /// Orders that Redis accepted and then lost without a trace; at least so many.
    pub lost_orders: i64,
}

/// Units of one item on one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Units {
    /// Free units.
    pub available: i64,
    /// Units of reserved orders.
    pub held: i64,
    /// Units of paid orders.
    pub sold: i64,
}

/// One item of a shard before and after a rebuild.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ItemPreview {
    /// The item.
    pub sku: Sku,
    /// The units in Redis; null if Redis has lost a part of the shard.
    pub before: Option<Units>,
    /// The units after a rebuild.
    pub after: Units,
}

/// One shard before and after a rebuild.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardPreview {
    /// The shard's number.
    pub shard: u16,
    /// Events that a rebuild would first drain into Postgres.
    pub undrained_events: i64,
    /// The items of the shard.
    pub items: Vec<ItemPreview>,
}

/// What a rebuild would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RebuildPreview {
    /// The sale.
    pub sale_id: SaleId,
    /// Always `true`: nothing was changed.
    pub dry_run: bool,
    /// The shards.
    pub shards: Vec<ShardPreview>,
}

/// A sale in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// The sale.
    pub sale_id: SaleId,
    /// The sale's state by the clock of Redis.
    pub state: SaleState,
    /// The clock of Redis.
    #[serde(serialize_with = "time::serialize")]
    pub server_time: DateTime<Utc>,
    /// The items, over all shards.
    pub items: Vec<ItemStats>,
    /// The shards.
    pub shards: Vec<ShardStats>,
    /// Events that are not in Postgres yet, over all shards.
    pub undrained_events: i64,
    /// Orders in Postgres, by state.
    pub orders: OrderCounts,
    /// How many shoppers are in the waiting room, if the sale has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_room: Option<RoomCount>,
    /// Findings that need an operator.
    pub alerts: Alerts,
    /// Requests that each guard has refused, up to a second ago.
    #[serde(rename = "stopped")]
    pub refusal_counts: BTreeMap<String, i64>,
    /// Requests that each guard in shadow would have refused, up to a second ago.
    #[serde(default)]
    pub would_stop: BTreeMap<String, i64>,
}

/// One item's units in Redis and in Postgres.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ItemAudit {
    /// The item.
    pub sku: Sku,
    /// Units that the sale owns, by Postgres.
    pub total: i64,
    /// The count in Redis, over all shards.
    pub stock: StockSide,
    /// The count in Postgres.
    pub ledger: LedgerSide,
}

/// What Redis counts of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StockSide {
    /// Free units.
    pub available: i64,
    /// Units of reserved orders.
    pub held: i64,
    /// Units of paid orders.
    pub sold: i64,
    /// Units withheld for orders that Postgres refused.
    pub revoked: i64,
    /// Units in transit between two shards, or to Postgres.
    pub in_transit: i64,
    /// Held units whose events are not in Postgres yet.
    pub undrained: i64,
}

/// What Postgres counts of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LedgerSide {
    /// Units of reserved orders.
    pub held: i64,
    /// Units of paid orders.
    pub sold: i64,
    /// All other units.
    pub free: i64,
    /// Units that Postgres has decided to move, whose messages to Redis are not delivered yet.
    pub unreleased: i64,
}

/// A stock audit: every unit of a sale in Redis and in Postgres.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Audit {
    /// The sale.
    pub sale_id: SaleId,
    /// Whether every unit is accounted for.
    pub balanced: bool,
    /// Whether only Postgres was counted, because Redis has nothing of the sale: it is not preloaded, or was removed
    /// after its end.
    pub ledger_only: bool,
    /// The items.
    pub items: Vec<ItemAudit>,
    /// What does not balance, in sentences.
    pub differences: Vec<String>,
}
