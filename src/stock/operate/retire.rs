//! Removes a sale's keys, a day after it has ended. After a crash, the next run removes the rest.

use crate::domain::fault::Fault;
use crate::domain::ids::UserId;
use crate::domain::sale::Sale;
use crate::stock::Stock;
use crate::stock::keys::ShardKey;

impl Stock {
    /// Removes the rows of these shoppers.
    pub async fn retire_buyers(&self, shard: ShardKey, users: &[UserId]) -> Result<(), Fault> {
        let mut unlink = redis::cmd("UNLINK");
        for user in users {
            unlink.arg(shard.buyer(user));
        }
        self.command::<i64>(&unlink).await.map(drop)
    }

    /// Removes a shard's keys, except for shoppers' rows. The rows of shoppers who never bought have expired by then.
    pub async fn retire_shard(&self, sale: &Sale, shard: u16) -> Result<(), Fault> {
        let key = ShardKey::new(sale.id, shard);
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(&[key.shard(), key.events(), key.transfers(), key.applied(), key.fences()]);
        unlink.arg(&[key.barrier(), key.room(), key.admitted(), key.door(), key.returned()]);
        for item in &sale.items {
            unlink.arg(key.item(&item.sku));
        }
        self.command::<i64>(&unlink).await.map(drop)
    }
}
