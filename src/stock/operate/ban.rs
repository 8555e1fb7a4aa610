//! Calls `lua/operate/ban.lua`.

use crate::domain::fault::Fault;
use crate::domain::shopper::ban::Ban;
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::script::BAN;

impl Stock {
    /// Sets on a shopper's home shard until when the account may not buy, unless the shard has a newer decision.
    /// `epoch` is the one to which a shard is being rebuilt, and `None` for any other shard. Fails with `Incomplete`
    /// when the shard is missing, or is loading at another epoch.
    pub async fn ban(&self, shard: ShardKey, ban: &Ban, epoch: Option<i64>) -> Result<(), Fault> {
        let mut call = BAN.prepare_invoke();
        call.key(shard.shard()).key(shard.buyer(&ban.user));
        call.arg(ban.until_seconds()).arg(ban.revision).arg(epoch.unwrap_or(0));
        match self.status(&BAN, &call).await?.as_str() {
            "NOTED" | "STALE" => Ok(()),
            "LOADING" => Err(Fault::Incomplete(format!("{shard} is being rebuilt"))),
            other => Err(BAN.unknown(other)),
        }
    }
}
