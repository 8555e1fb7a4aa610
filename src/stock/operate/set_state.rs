//! Calls `lua/operate/set_state.lua`.

use crate::domain::fault::Fault;
use crate::domain::sale::Sale;
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::script::SET_STATE;

impl Stock {
    /// Makes one shard follow the sale's state and times, unless it follows newer ones. Fails with `Incomplete` when
    /// the shard is being rebuilt, or is missing: this call never creates it.
    pub async fn set_state(&self, sale: &Sale, shard: u16) -> Result<(), Fault> {
        let mut call = SET_STATE.prepare_invoke();
        call.key(ShardKey::new(sale.id, shard).shard());
        call.arg(sale.state_version).arg(sale.lifecycle.code());
        call.arg(sale.starts_at.timestamp_millis())
            .arg(sale.ends_at.timestamp_millis());
        match self.status(&SET_STATE, &call).await?.as_str() {
            "SET" | "STALE" => Ok(()),
            "LOADING" => Err(Fault::Incomplete(format!("shard {shard} is being rebuilt"))),
            other => Err(SET_STATE.unknown(other)),
        }
    }
}
