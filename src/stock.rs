//! The stock: Redis, which decides who gets a unit. Only this module names the `redis` crate. The first lines of each
//! file here name the Lua scripts that it calls.
//!
//! Every call has a time limit. After a fault the outcome is unknown: the call may have taken effect. Each script is
//! idempotent, so the caller may repeat the call; only the limiters that count each run ([`door::limit`]) are not. Every
//! call fails with `Unavailable` when Redis does not answer, and with `Incomplete` when the shard's data is incomplete.
//! Doc comments name other faults.

mod cluster;
pub mod door;
pub mod health;
pub mod keys;
mod link;
pub mod operate;
mod read_together;
pub mod record;
pub mod recover;
pub mod script;
pub mod sell;
mod server;
pub mod settle;

use crate::domain::deployment::redis_certificates::RedisCertificates;
use crate::domain::fault::Fault;
use crate::domain::time::Millis;
use crate::metrics::StockMetrics;
use keys::ShardKey;
use link::{Link, Way};
use settle::replicate::Replicas;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// The time limit of one call. The API answers within two seconds, whatever happens below.
const CALL_MAX: Duration = Duration::from_millis(1500);
/// The time limit for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// A handle on the stock: one connection to each server, shared by all callers. One write carries all waiting calls.
/// The connection's driver runs on the runtime that connected. A caller on another runtime wakes a thread for each
/// call, so every HTTP worker connects by itself. Calls that wait for a replica have a connection of their own
/// ([`settle::replicate`]).
#[derive(Clone)]
pub struct Stock {
    link: Link,
    way: Way,
    replicas: Replicas,
    metrics: StockMetrics,
}

impl Stock {
    /// Connects, and fails if no server answers. TLS trusts the public authorities. Fails with `Unavailable` when the
    /// server cannot be reached in time, or the URL is invalid.
    pub async fn connect(url: &str) -> Result<Self, Fault> {
        Self::connect_with(url, &RedisCertificates::default()).await
    }

    /// Like [`Stock::connect`], with these certificates for TLS. Fails also when one side rejects the other's
    /// certificate.
    pub async fn connect_with(url: &str, certificates: &RedisCertificates) -> Result<Self, Fault> {
        Ok(Self::over(Link::connect(url, certificates).await?))
    }

    /// Connects in the background: calls wait for the connection. Fails with `Unavailable` when the URL is invalid.
    pub fn open(url: &str, certificates: &RedisCertificates) -> Result<Self, Fault> {
        Ok(Self::over(Link::open(url, certificates)?))
    }

    fn over((link, way): (Link, Way)) -> Self {
        Self {
            link,
            replicas: Replicas::by(way.clone()),
            way,
            metrics: StockMetrics::default(),
        }
    }

    /// The same handle, which counts its calls in `metrics`.
    #[must_use]
    pub fn counted(self, metrics: &StockMetrics) -> Self {
        Self {
            metrics: metrics.clone(),
            ..self
        }
    }

    /// Runs one command within the time limit.
    async fn command<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Fault> {
        let mut link = self.link.clone();
        self.noted(bounded(command.query_async(&mut link)).await)
    }

    /// Waits for an answer; on a cluster no longer than `until`, so that a silent node does not delay the caller.
    async fn soon<T>(&self, until: Instant, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        if !self.link.is_cluster() {
            return answer.await;
        }
        let silent = |_elapsed| Err(Fault::Unavailable("a node of Redis does not answer soon".to_owned()));
        timeout_at(until, answer).await.unwrap_or_else(silent)
    }

    /// Passes an answer on, and counts it if it is a fault.
    fn noted<T>(&self, answer: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(fault) = &answer {
            self.metrics.faults.of([fault.kind()]).inc();
        }
        answer
    }
}

/// Waits for an answer, no longer than the time limit.
async fn bounded<T>(answer: impl Future<Output = redis::RedisResult<T>>) -> Result<T, Fault> {
    match timeout(CALL_MAX, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(fault(&error)),
        Err(_) => Err(Fault::Unavailable("Redis did not answer in time".to_owned())),
    }
}

/// A duration as Redis takes it, in whole milliseconds.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Redis's answer to `TIME`.
const fn clock((seconds, micros): (i64, i64)) -> Millis {
    seconds * 1000 + micros / 1000
}

/// The fault for a shard that may not sell, lend or borrow until it is reconciled.
fn unreconciled(shard: ShardKey) -> Fault {
    Fault::Incomplete(format!("{shard} is being reconciled"))
}

/// Redis's errors for an event whose id would be above the highest, or not above the last one.
const NO_NEXT_ID: [&str; 3] = ["specified in XADD", "last possible ID", "Elements are too large"];

/// Maps an error of the client or the server to a fault.
fn fault(error: &redis::RedisError) -> Fault {
    use redis::ErrorKind;
    match error.code() {
        Some("NOSCRIPT") => return Fault::Incomplete("the Redis server changed or restarted".to_owned()),
        Some("MISSING") => return Fault::Incomplete(error.detail().unwrap_or("a key is missing").to_owned()),
        Some("NEWER") => return record::newer(error.detail().unwrap_or("record")),
        Some("OOM") => return Fault::Overloaded("Redis has no memory left".to_owned()),
        Some("MISCONF" | "BUSY") => return Fault::Unavailable(format!("Redis refuses writes: {error}")),
        Some("BADARG" | "INVARIANT" | "WRONGTYPE") => return Fault::Bug(format!("{error}")),
        // The stream has an entry with a higher id that no script wrote. Its shard is rebuilt.
        Some("ERR")
            if error
                .detail()
                .is_some_and(|detail| NO_NEXT_ID.iter().any(|it| detail.contains(it))) =>
        {
            return Fault::Incomplete("the stream has a foreign entry".to_owned());
        }
        // A script has failed on data that it cannot work with.
        Some("ERR") if error.detail().is_some_and(|detail| detail.contains("user_script")) => {
            return Fault::Bug(format!("{error}"));
        }
        _ => {}
    }
    // Other errors may pass, also those that this code does not know: a password that is being changed, a missing
    // replica.
    match error.kind() {
        ErrorKind::UnexpectedReturnType => Fault::Bug(format!("Redis answered: {error}")),
        _ => Fault::Unavailable(format!("Redis does not answer as it should: {error}")),
    }
}
