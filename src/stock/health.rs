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

    /// How many replicas follow this Redis; on a cluster, that primary which has the fewest.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn replicas(&self) -> Result<usize, Fault> {
        let mut command = redis::cmd("INFO");
        command.arg("replication");
        let online = |info: &String| {
            let replicas = info.lines().filter(|line| line.starts_with("slave"));
            replicas.filter(|line| line.contains("state=online")).count()
        };
        let primaries: Vec<String> = self.link.ask_all(&command).await?;
        Ok(primaries.iter().map(online).min().unwrap_or(0))
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
