//! Whether this Redis is one that may hold stock.

use super::Stock;
use crate::domain::fault::Fault;
use crate::domain::time::Millis;
use std::collections::HashMap;

impl Stock {
    /// Redis's clock.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn now(&self) -> Result<Millis, Fault> {
        let (seconds, micros): (i64, i64) = self.command(&redis::cmd("TIME")).await?;
        Ok(seconds * 1000 + micros / 1000)
    }

    /// How many replicas follow this Redis.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn replicas(&self) -> Result<usize, Fault> {
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
        let info: String = self.command(&command).await?;
        let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
        let policy = fields.get("maxmemory_policy").copied().unwrap_or("unknown");
        Ok((policy != "noeviction").then(|| {
            format!("Redis would evict stock: maxmemory-policy is {policy}; run CONFIG SET maxmemory-policy noeviction")
        }))
    }
}
