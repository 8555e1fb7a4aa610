//! Calls `lua/operate/restock.lua`.

use crate::domain::fault::Fault;
use crate::domain::ids::Sku;
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::script::RESTOCK;
use uuid::Uuid;

impl Stock {
    /// Adds units that the ledger has granted to a shard, once for each id. `epoch` is the shard's epoch before the
    /// caller saw that the units are due.
    pub async fn restock(&self, shard: ShardKey, id: Uuid, sku: &Sku, units: i64, epoch: i64) -> Result<(), Fault> {
        let mut call = RESTOCK.prepare_invoke();
        call.key(shard.item(sku)).key(shard.shard()).key(shard.applied());
        call.arg(id.to_string()).arg(units).arg(epoch);
        match self.status(&RESTOCK, &call).await?.as_str() {
            "ADDED" | "ALREADY" => Ok(()),
            "STALE" => Err(Fault::Unavailable("the shard was rebuilt meanwhile".to_owned())),
            other => Err(RESTOCK.unknown(other)),
        }
    }
}
