//! Calls `lua/restock.lua`.

use super::Stock;
use super::keys::ShardKey;
use super::script::{RESTOCK, outcome, unknown};
use crate::domain::fault::Fault;
use crate::domain::ids::Sku;
use uuid::Uuid;

impl Stock {
    /// Adds units that the ledger has granted to a shard, once for each id.
    ///
    /// # Errors
    /// A fault says that the outcome is unknown; the same call may be made again.
    pub async fn restock(&self, shard: ShardKey, id: Uuid, sku: &Sku, units: i64) -> Result<(), Fault> {
        let mut call = RESTOCK.prepare_invoke();
        call.key(shard.item(sku)).key(shard.applied());
        call.arg(id.to_string()).arg(units);
        match outcome(self.run(&call).await?)?.0.as_str() {
            "ADDED" | "ALREADY" => Ok(()),
            other => Err(unknown("restock", other)),
        }
    }
}
