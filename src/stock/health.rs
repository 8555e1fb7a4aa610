//! Checks whether this Redis may hold stock, and reads its clocks, replicas and memory.

use super::{Stock, clock};
use crate::domain::fault::Fault;
use crate::domain::time::Millis;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// How long each of several servers may take to answer with its time.
const CLOCK_MAX: Duration = Duration::from_millis(500);

/// Settings without which Redis still works: the name, the wanted value, and the risk of another value.
const SHOULD: [(&str, &str, &str); 4] = [
    (
        "appendonly",
        "yes",
        "a restart loses the orders that nobody else has yet",
    ),
    (
        "appendfsync",
        "always",
        "a power cut loses orders that were acknowledged at the durability `redis`",
    ),
    (
        "no-appendfsync-on-rewrite",
        "no",
        "while the append-only file is rewritten, a power cut loses acknowledged orders",
    ),
    (
        "aof-load-truncated",
        "no",
        "Redis 7.0 loads a file that was torn inside a script in a way that loses later writes at the next restart",
    ),
];

impl Stock {
    /// Redis's clock; on a cluster, the clock of any primary.
    pub async fn now(&self) -> Result<Millis, Fault> {
        self.link.ask_any(&redis::cmd("TIME")).await.map(clock)
    }

    /// Returns once Redis has answered; on a cluster, once each primary has.
    pub async fn ping(&self) -> Result<(), Fault> {
        let _pongs: Vec<String> = self.link.ask_all(&redis::cmd("PING")).await?;
        Ok(())
    }

    /// The slowest clock of the servers that answer: a moment that is past by this clock is past by each of theirs.
    pub async fn slowest_clock(&self) -> Result<Millis, Fault> {
        self.slowest_clock_within(CLOCK_MAX).await
    }

    /// The same, of the servers that answer so soon.
    pub async fn slowest_clock_within(&self, each_max: Duration) -> Result<Millis, Fault> {
        let clocks: Vec<Result<(i64, i64), Fault>> = self.link.ask_each(&redis::cmd("TIME"), each_max).await;
        if let Some(slowest) = clocks.iter().flatten().copied().map(clock).min() {
            return Ok(slowest);
        }
        match clocks.into_iter().filter_map(Result::err).next_back() {
            Some(fault) => Err(fault),
            // The cluster does not list the addresses of its servers.
            None => self.now().await,
        }
    }

    /// How many replicas are online; on a cluster, those of the primary that has the fewest.
    pub async fn replicas(&self) -> Result<usize, Fault> {
        let online = |info: &String| {
            let replicas = info.lines().filter(|line| line.starts_with("slave"));
            replicas.filter(|line| line.contains("state=online")).count()
        };
        let primaries: Vec<String> = self.link.ask_all(redis::cmd("INFO").arg("replication")).await?;
        Ok(primaries.iter().map(online).min().unwrap_or(0))
    }

    /// For each primary, the bytes of memory that it uses, and its `maxmemory`, where 0 is no limit. Fails with
    /// `Unavailable` when Redis does not answer, or does not report its memory.
    pub async fn memory(&self) -> Result<Vec<(i64, i64)>, Fault> {
        let servers: Vec<String> = self.link.ask_all(redis::cmd("INFO").arg("memory")).await?;
        let bytes = |info: &String, name: &str| -> Option<i64> {
            let bytes = info.lines().find_map(|line| line.strip_prefix(name));
            bytes.and_then(|bytes| bytes.trim().parse().ok())
        };
        let both = |info: &String| {
            let used = bytes(info, "used_memory:");
            let used = used.ok_or_else(|| Fault::Unavailable("Redis does not report its memory".to_owned()))?;
            Ok((used, bytes(info, "maxmemory:").unwrap_or_default()))
        };
        servers.iter().map(both).collect()
    }

    /// Why this Redis must not hold stock, if that is so: it must never evict a key.
    pub async fn unfit(&self) -> Result<Option<String>, Fault> {
        let servers: Vec<String> = self.link.ask_all(redis::cmd("INFO").arg("memory")).await?;
        for info in servers {
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

    /// The settings of this Redis that may cost orders, in words. If a managed Redis hides its settings, the only entry
    /// says so.
    pub async fn risks(&self) -> BTreeSet<String> {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg("maxmemory").arg("min-replicas-to-write");
        for (name, ..) in SHOULD {
            command.arg(name);
        }
        let servers: Vec<HashMap<String, String>> = match self.link.ask_all(&command).await {
            Ok(servers) => servers,
            Err(fault) => {
                let wanted: Vec<String> = SHOULD
                    .iter()
                    .map(|(name, value, _)| format!("{name} {value}"))
                    .collect();
                let wanted = wanted.join(", ");
                return BTreeSet::from([format!(
                    "the settings of Redis cannot be read; it should have {wanted}, and a maxmemory: {fault}"
                )]);
            }
        };
        // A single replica is lost sooner or later. Whether sales then halt is for operators to choose.
        let has_replicas = self.replicas().await.is_ok_and(|replicas| replicas > 1);
        let mut risks = BTreeSet::new();
        for settings in servers {
            let is = |name: &str| settings.get(name).map_or("unknown", String::as_str);
            for (name, value, risk) in SHOULD.into_iter().filter(|(name, value, _)| is(name) != *value) {
                let found = is(name);
                risks.insert(format!(
                    "Redis has {name} {found}, and should have {value}: otherwise {risk}"
                ));
            }
            if is("maxmemory") == "0" {
                risks.insert(
                    "Redis has no maxmemory: short of memory, the machine ends it instead of refusing purchases"
                        .to_owned(),
                );
            }
            if has_replicas && is("min-replicas-to-write") == "0" {
                risks.insert(
                    "Redis has min-replicas-to-write 0, and several replicas: cut off from all of them, it accepts \
                     orders that a failover loses"
                        .to_owned(),
                );
            }
        }
        risks
    }
}
