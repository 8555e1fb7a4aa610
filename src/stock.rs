//! The stock: Redis, which decides who gets a unit. This module alone names the `redis` crate. Each Lua script has
//! one caller here, in the file of its name.
//!
//! Every call has a time limit. A fault says that the outcome is unknown, never that nothing happened; each script
//! is idempotent, so the same call may be made again. Every call fails with `Unavailable` when Redis does not answer, and with
//! `Incomplete` when its shard is not all there; doc comments name other faults.

pub mod ban;
pub mod challenge;
pub mod events;
pub mod health;
pub mod keys;
pub mod limit;
mod link;
pub mod permit;
pub mod preload;
pub mod purchase;
pub mod read_shard;
pub mod record;
pub mod replicate;
pub mod resolve;
pub mod restock;
pub mod restore;
pub mod retire;
pub mod room;
pub mod script;
pub mod set_state;
pub mod survey;
pub mod transfer;

use crate::domain::fault::Fault;
use crate::domain::redis_certificates::RedisCertificates;
use crate::metrics::StockMetrics;
use link::Link;
use replicate::Replicas;
use std::time::Duration;

/// The longest that one call may take. The API answers within two seconds, whatever happens below.
const CALL_MAX: Duration = Duration::from_millis(1500);
/// The longest that connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// A handle on the stock: one connection to each server, which all callers share; each write carries what is waiting.
/// Its driver runs on the runtime that connected, so callers on another one wake a thread for each call: every HTTP
/// worker connects by itself. What has to wait for a replica has a connection of its own ([`replicate`]).
#[derive(Clone)]
pub struct Stock {
    link: Link,
    replicas: Replicas,
    metrics: StockMetrics,
}

impl Stock {
    /// Connects, and fails if nobody answers. TLS trusts the public authorities.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached in time, or the URL is none.
    pub async fn connect(url: &str) -> Result<Self, Fault> {
        Self::connect_with(url, &RedisCertificates::default()).await
    }

    /// The same; TLS has these certificates.
    ///
    /// # Errors
    /// As `connect`, and when Redis and we do not accept each other's certificates.
    pub async fn connect_with(url: &str, certificates: &RedisCertificates) -> Result<Self, Fault> {
        let (link, way) = Link::connect(url, certificates).await?;
        Ok(Self {
            link,
            replicas: Replicas::by(way),
            metrics: StockMetrics::default(),
        })
    }

    /// The same, whose calls are counted there.
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

    /// Passes an answer on and counts it if it is none.
    fn noted<T>(&self, answer: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(fault) = &answer {
            self.metrics.faults.of([fault.kind()]).inc();
        }
        answer
    }

    /// Runs commands one after the other within the time limit, all on one server.
    async fn pipeline<T: redis::FromRedisValue>(&self, pipeline: &redis::Pipeline) -> Result<T, Fault> {
        let mut link = self.link.clone();
        bounded(pipeline.query_async(&mut link)).await
    }
}

/// Waits for an answer, no longer than the time limit.
async fn bounded<T>(answer: impl Future<Output = redis::RedisResult<T>>) -> Result<T, Fault> {
    match tokio::time::timeout(CALL_MAX, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(fault(&error)),
        Err(_) => Err(Fault::Unavailable("Redis did not answer in time".to_owned())),
    }
}

/// What Redis says of an event that would need an id above the highest, or not above the last one.
const NO_NEXT_ID: [&str; 3] = ["specified in XADD", "last possible ID", "Elements are too large"];

/// What an error of the client or the server means.
fn fault(error: &redis::RedisError) -> Fault {
    use redis::ErrorKind;
    match error.code() {
        Some("NOSCRIPT") => return Fault::Incomplete("Redis is another one than before, or was restarted".to_owned()),
        Some("MISSING") => return Fault::Incomplete(error.detail().unwrap_or("a key is missing").to_owned()),
        Some("NEWER") => return record::newer(error.detail().unwrap_or("record")),
        Some("OOM") => return Fault::Overloaded("Redis has no memory left".to_owned()),
        Some("MISCONF" | "BUSY") => return Fault::Unavailable(format!("Redis refuses writes: {error}")),
        Some("BADARG" | "INVARIANT" | "WRONGTYPE") => return Fault::Bug(format!("{error}")),
        // A stream has an entry that no script wrote, with a higher id: its shard is rebuilt.
        Some("ERR")
            if error
                .detail()
                .is_some_and(|detail| NO_NEXT_ID.iter().any(|it| detail.contains(it))) =>
        {
            return Fault::Incomplete("the stream has a foreign entry".to_owned());
        }
        // A script has stopped at something that it cannot work with.
        Some("ERR") if error.detail().is_some_and(|detail| detail.contains("user_script")) => {
            return Fault::Bug(format!("{error}"));
        }
        _ => {}
    }
    // Anything else may be over when it is tried again, also what this code does not know: a password that is being
    // changed, a replica that is missing.
    match error.kind() {
        ErrorKind::UnexpectedReturnType => Fault::Bug(format!("Redis answered: {error}")),
        _ => Fault::Unavailable(format!("Redis does not answer as it should: {error}")),
    }
}
