//! Whether this Redis is one that may hold stock.

use super::Stock;
use crate::domain::fault::Fault;
use crate::domain::time::Millis;

impl Stock {
    /// Redis's clock.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn now(&self) -> Result<Millis, Fault> {
        let (seconds, micros): (i64, i64) = self.link.ask_any(&redis::cmd("TIME")).await?;
        Ok(seconds * 1000 + micros / 1000)
    }

    /// How many replicas follow this Redis; none that a purchase could wait for on a cluster.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn replicas(&self) -> Result<usize, Fault> {
        if self.link.is_cluster() {
            return Ok(0);
        }
        let mut command = redis::cmd("INFO");
        command.arg("replication");
        let info: String = self.command(&command).await?;
        let replicas = info.lines().filter(|line| line.starts_with("slave"));
        Ok(replicas.filter(|line| line.contains("state=online")).count())
    }

    /// What forbids this Redis to hold stock, if anything: it must never evict a key.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn unfit(&self) -> Result<Option<String>, Fault> {
        let mut command = redis::cmd("INFO");
        command.arg("memory");
        for info in self.link.ask_all::<String>(&command).await? {
            let policy = info.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"));
            let policy = policy.map_or("unknown", str::trim);
            if policy != "noeviction" {
                return Ok(Some(format!(
                    "Redis would evict stock: maxmemory-policy is {policy}; run CONFIG SET maxmemory-policy noeviction"
                )));
            }
        }
        Ok(None)
    }
}
