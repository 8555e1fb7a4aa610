//! The stock: Redis, which decides who gets a unit. This module alone names the `redis` crate. Each Lua script has
//! one caller here, in the file of its name.
//!
//! Every call has a time limit. A fault says that the outcome is unknown, never that nothing happened; each script
//! is idempotent, so the same call may be made again.

pub mod events;
pub mod health;
pub mod keys;
pub mod preload;
pub mod purchase;
pub mod read_shard;
pub mod record;
pub mod replicate;
pub mod resolve;
pub mod restock;
pub mod retire;
pub mod script;
pub mod set_state;
pub mod survey;
pub mod transfer;

use crate::domain::fault::Fault;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use replicate::Replicas;
use std::time::Duration;

/// The longest that one call may take. The API answers within two seconds, whatever happens below.
const CALL_MAX: Duration = Duration::from_millis(1500);
/// The longest that connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// A handle on the stock: one connection, which all callers share; each write carries what is waiting. Its driver
/// runs on the runtime that connected, so callers on another one wake a thread for each call: every HTTP worker
/// connects by itself. What has to wait for a replica has a second connection ([`replicate`]).
#[derive(Clone)]
pub struct Stock {
    connection: ConnectionManager,
    replicas: Replicas,
}

impl Stock {
    /// Connects, and fails if nobody answers.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached in time, or the URL is none.
    pub async fn connect(url: &str) -> Result<Self, Fault> {
        let info =
            redis::IntoConnectionInfo::into_connection_info(url).map_err(|error| unreachable("its URL", &error))?;
        // Without it, small writes wait for the acknowledgement of the ones before: a third of the throughput on a
        // real network.
        let info = info.set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(CALL_MAX))
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_number_of_retries(1)
            .set_pipeline_buffer_size(4096);
        let place = info.addr().to_string();
        let unreachable = |error| unreachable(&place, &error);
        let client = redis::Client::open(info).map_err(unreachable)?;
        let replicas = Replicas::of(client.clone());
        Ok(Self {
            connection: ConnectionManager::new_with_config(client, config)
                .await
                .map_err(unreachable)?,
            replicas,
        })
    }

    /// Runs one command within the time limit.
    async fn command<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Fault> {
        let mut connection = self.connection.clone();
        bounded(command.query_async(&mut connection)).await
    }

    /// Runs several commands in one round trip, within the time limit; they need not be one transaction.
    async fn pipeline<T: redis::FromRedisValue>(&self, pipeline: &redis::Pipeline) -> Result<T, Fault> {
        let mut connection = self.connection.clone();
        bounded(pipeline.query_async(&mut connection)).await
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

fn unreachable(place: &str, error: &redis::RedisError) -> Fault {
    Fault::Unavailable(format!(
        "Redis at {place} cannot be reached: {error}; check FLASHSALE_REDIS_URL"
    ))
}

/// What an error of the client or the server means.
fn fault(error: &redis::RedisError) -> Fault {
    use redis::ErrorKind;
    match error.code() {
        Some("MISSING") => return Fault::Incomplete(error.detail().unwrap_or("a key is missing").to_owned()),
        Some("OOM") => return Fault::Overloaded("Redis has no memory left".to_owned()),
        Some("MISCONF" | "BUSY") => return Fault::Unavailable(format!("Redis refuses writes: {error}")),
        Some("BADARG" | "INVARIANT" | "WRONGTYPE") => return Fault::Bug(format!("{error}")),
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
