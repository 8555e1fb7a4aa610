//! Removing a sale's keys, a day after it has ended.

use super::Stock;
use super::keys::ShardKey;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;

/// Keys that one step looks at.
const STEP: usize = 1000;

impl Stock {
    /// Looks at the next keys of Redis and removes those of this sale; returns the cursor for the next step, 0 at
    /// the end. A step is small, so nobody waits for it.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer; the step may be repeated.
    pub async fn retire_step(&self, sale: SaleId, cursor: u64) -> Result<u64, Fault> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(ShardKey::pattern(sale))
            .arg("COUNT")
            .arg(STEP);
        let (next, keys): (u64, Vec<Vec<u8>>) = self.command(&scan).await?;
        if !keys.is_empty() {
            let mut unlink = redis::cmd("UNLINK");
            for key in keys {
                unlink.arg(key);
            }
            let _removed: i64 = self.command(&unlink).await?;
        }
        Ok(next)
    }
}
