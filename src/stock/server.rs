//! The connection to one Redis server, shared by all callers. It reconnects by itself.

use super::{CALL_MAX, CONNECT_MAX};
use parking_lot::RwLock;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest time between two connections that the server refuses.
const AGAIN: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub(super) struct ServerConnection(Arc<Shared>);

struct Shared {
    client: Client,
    now: RwLock<(ConnectionManager, Instant)>,
}

impl ServerConnection {
    /// Connects in the background, on the runtime of the caller.
    pub(super) fn new(client: Client) -> RedisResult<Self> {
        let connection = connect(&client)?;
        Ok(Self(Arc::new(Shared {
            client,
            now: RwLock::new((connection, Instant::now())),
        })))
    }

    fn connection(&self) -> ConnectionManager {
        // The value is replaced in one step, so it is consistent also after a panic.
        let now = self.0.now.read();
        now.0.clone()
    }

    /// Replaces a connection that the server refused when it was made. A manager of connections tries again by itself
    /// only after an error of the network: a password that was wrong for a moment would be wrong for ever.
    fn noted<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        let is_refusal = |error: &RedisError| {
            matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::Parse)
                || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
        };
        if answer.as_ref().is_err_and(is_refusal) {
            let mut now = self.0.now.write();
            if now.1.elapsed() > AGAIN {
                *now = (connect(&self.0.client)?, Instant::now());
            }
        }
        answer
    }

    /// Returns the server's answer. Fails also when the server answers with an error.
    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        self.noted(command.query_async(&mut self.connection()).await)
    }

    /// Returns the server's answer, which may be an error of the server.
    pub(super) async fn command(&self, command: &Cmd) -> RedisResult<Value> {
        self.noted(self.connection().send_packed_command(command).await)
    }

    /// Returns the server's answers in the order of the commands. Each may be an error of the server.
    pub(super) async fn pipeline(&self, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        debug_assert!(!pipeline.is_transaction(), "no caller runs transactions");
        let count = pipeline.len();
        self.noted(self.connection().send_packed_commands(pipeline, 0, count).await)
    }
}

fn connect(client: &Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(Some(CALL_MAX))
        .set_connection_timeout(Some(CONNECT_MAX))
        .set_number_of_retries(1)
        .set_pipeline_buffer_size(4096);
    let connection = ConnectionManager::new_lazy_with_config(client.clone(), config)?;
    let mut first = connection.clone();
    tokio::spawn(async move {
        // Calls that come meanwhile wait for the same connection, and get its fault.
        let _connected = redis::cmd("PING").query_async::<()>(&mut first).await;
    });
    Ok(connection)
}
