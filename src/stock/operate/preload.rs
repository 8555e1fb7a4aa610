//! Calls `lua/operate/preload.lua`.

use crate::domain::fault::Fault;
use crate::domain::sale::Sale;
use crate::domain::sale::shard::part;
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::script::PRELOAD;

impl Stock {
    /// Creates one shard with its part of the stock, not selling yet. An existing shard stays as it is. Fails with
    /// `Incomplete` when only some of the shard's keys exist.
    pub async fn preload(&self, sale: &Sale, shard: u16, epoch: i64) -> Result<(), Fault> {
        let key = ShardKey::new(sale.id, shard);
        let mut call = PRELOAD.prepare_invoke();
        call.key(key.shard()).key(key.events());
        call.arg(epoch)
            .arg(sale.starts_at.timestamp_millis())
            .arg(sale.ends_at.timestamp_millis());
        call.arg(sale.purchase_rate.limit).arg(sale.purchase_rate.window_ms);
        for item in &sale.items {
            call.key(key.item(&item.sku));
            call.arg(part(item.stock, sale.shards, shard)).arg(item.per_user_limit);
        }
        self.finish(&PRELOAD, &call, &["LOADED", "ALREADY"]).await
    }
}
