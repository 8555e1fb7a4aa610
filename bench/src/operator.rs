//! The operator's requests: sales, guards, and the audit after a sale.

use super::wire::{Request, Wire};
use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time limit for draining the ledger's backlog.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// The most attempts of a request that gets 503 or no reply; the attempts are a second apart.
const TRIES_MAX: usize = 10;
/// The stats include the refusals of the guards after this time.
const COUNTED_AFTER: Duration = Duration::from_millis(2500);

/// An operator and their key.
pub struct Operator {
    wire: Wire,
    key: String,
}

impl Operator {
    /// An operator who sends requests to this server with this key.
    pub fn of(server: SocketAddr, key: String) -> Self {
        Self {
            wire: Wire::to(server),
            key,
        }
    }

    async fn ask(&mut self, is_post: bool, path: String, body: Option<Value>) -> Result<Value> {
        let request = Request {
            is_post,
            path: path.clone(),
            bearer: &self.key,
            body: body.map(|body| body.to_string()).unwrap_or_default(),
            ..Request::default()
        };
        let mut answer = self.wire.ask(&request).await;
        for _ in 1..TRIES_MAX {
            if !matches!(answer.status, 0 | 503) {
                break;
            }
            sleep(Duration::from_secs(1)).await;
            answer = self.wire.ask(&request).await;
        }
        if !(200..300).contains(&answer.status) {
            bail!("{path}: {}", answer.name());
        }
        serde_json::from_slice(&answer.body).context(path)
    }

    /// Creates and preloads a sale, and gives its id. Fails when the server refuses, or does not reply to any attempt.
    pub async fn load(&mut self, sale: Value) -> Result<String> {
        let created = self.ask(true, "/v1/admin/sales".to_owned(), Some(sale)).await?;
        let id = created["id"].as_str().context("a sale has an id")?.to_owned();
        self.operate(&id, "preload").await?;
        Ok(id)
    }

    /// Sends an operation on a sale: `preload`, `open` or `close`.
    pub async fn operate(&mut self, sale: &str, verb: &str) -> Result<Value> {
        self.ask(true, format!("/v1/admin/sales/{sale}/{verb}"), None).await
    }

    /// Sets the rate limit of each client address.
    pub async fn limit_addresses(&mut self, rate: u32) -> Result<()> {
        let body = json!({"address_rate": rate});
        let request = Request {
            path: "/v1/admin/guards".to_owned(),
            bearer: &self.key,
            body: body.to_string(),
            method: Some("PATCH"),
            is_post: true,
            ..Request::default()
        };
        let answer = self.wire.ask(&request).await;
        if answer.status != 200 {
            bail!("the guards cannot be changed: {}", answer.name());
        }
        Ok(())
    }

    pub async fn stats(&mut self, sale: &str) -> Result<Value> {
        self.ask(false, format!("/v1/admin/sales/{sale}/stats"), None).await
    }

    /// Waits until the ledger has drained all events, and gives the sale's stats and audit. Fails after [`DRAIN_MAX`].
    pub async fn count(&mut self, sale: &str) -> Result<(Value, Value)> {
        sleep(COUNTED_AFTER).await;
        let until = Instant::now() + DRAIN_MAX;
        loop {
            let stats = self.stats(sale).await?;
            if stats["undrained_events"] == 0 {
                let audit = self.ask(false, format!("/v1/admin/sales/{sale}/audit"), None).await?;
                return Ok((stats, audit));
            }
            if Instant::now() > until {
                bail!("the ledger does not catch up: {stats}");
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}
