//! Bursts at the boundary of the rate window. The sale has a short window, so that a run crosses many boundaries.

use super::crowd::Crowd;
use super::scene::{are_too_many, path, purchase};
use crate::operator::Operator;
use crate::wire::{Request, Wire};
use anyhow::Result;
use chrono::{TimeDelta, Utc};
use flashsale::domain::time;
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const ACCOUNTS: usize = 16;
const BURST: usize = 8;
const LIMIT: usize = 5;
const WINDOW: Duration = Duration::from_millis(1500);
const LASTS: Duration = Duration::from_secs(6);

/// The result of the probe.
#[derive(Serialize)]
pub struct Probe {
    pub accounts: usize,
    pub limit: usize,
    pub window_ms: u64,
    pub asked: usize,
    /// Accepted purchases; the next field is the most that the limit allows.
    pub let_through: usize,
    pub most: usize,
    /// Accounts that certainly had more accepted purchases in one window than the limit.
    pub broken: usize,
}

/// Sends bursts without a pause.
pub async fn run(server: SocketAddr, operator: &mut Operator, crowd: &Arc<Crowd>) -> Result<Probe> {
    operator.limit_addresses(0).await?;
    let now = Utc::now();
    let sale = json!({
        "name": "bots probe",
        "starts_at": time::format(&(now - TimeDelta::minutes(1))),
        "ends_at": time::format(&(now + TimeDelta::hours(1))),
        "shards": 4, "purchase_rate": {"limit": LIMIT, "window_ms": WINDOW.as_millis()},
        "items": [{"sku": "thing", "name": "The thing", "price_minor": 100, "currency": "EUR", "stock": 100_000,
            "per_user_limit": 100_000}],
    });
    let sale = operator.load(sale).await?;
    let accounts = crowd.accounts.iter().take(ACCOUNTS).enumerate();
    let bursts = join_all(accounts.map(|(number, account)| burst(server, &sale, number, &account.jwt))).await;
    operator.operate(&sale, "close").await?;
    let windows = LASTS.as_millis().div_ceil(WINDOW.as_millis()) + 1;
    Ok(Probe {
        accounts: bursts.len(),
        limit: LIMIT,
        window_ms: u64::try_from(WINDOW.as_millis())?,
        asked: bursts.iter().map(|(asked, _)| asked).sum(),
        let_through: bursts.iter().map(|(_, passed)| passed.len()).sum(),
        most: usize::try_from(windows)? * LIMIT * bursts.len(),
        broken: bursts
            .iter()
            .filter(|(_, passed)| are_too_many(passed, LIMIT, WINDOW))
            .count(),
    })
}

async fn burst(server: SocketAddr, sale: &str, account: usize, jwt: &str) -> (usize, Vec<(Instant, Instant)>) {
    let began = Instant::now();
    let lanes = (0..BURST).map(|lane| async move {
        let mut wire = Wire::to(server);
        let (mut asked, mut passed) = (0, Vec::new());
        while began.elapsed() < LASTS {
            asked += 1;
            let key = format!("probe-{account}-{lane}-{asked}");
            let request = Request {
                is_post: true,
                path: path(sale, "orders"),
                bearer: jwt,
                key: Some(&key),
                body: purchase("thing"),
                ..Request::default()
            };
            let at = Instant::now();
            if wire.ask(&request).await.status == 201 {
                passed.push((at, Instant::now()));
            }
        }
        (asked, passed)
    });
    let lanes = join_all(lanes).await;
    let asked = lanes.iter().map(|(asked, _)| asked).sum();
    let mut passed: Vec<_> = lanes.into_iter().flat_map(|(_, passed)| passed).collect();
    passed.sort();
    (asked, passed)
}
