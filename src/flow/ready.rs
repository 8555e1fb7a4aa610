//! Ready: can this instance work?

use super::App;
use crate::domain::fault::Fault;
use crate::domain::report::{Health, ServerHealth};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The longest that the question may take.
const TIME_MAX: Duration = Duration::from_millis(1400);
/// The longest that Redis is asked for its settings on top of that.
const RISKS_MAX: Duration = Duration::from_millis(400);

/// What operators should know of the settings of Redis.
///
/// # Errors
/// Why this instance cannot work: a server does not answer, the schema is behind, or Redis would evict stock.
pub async fn readiness(app: &App) -> Result<BTreeSet<String>, String> {
    match tokio::time::timeout(TIME_MAX, check(app)).await {
        Ok(Ok(None)) => {}
        Ok(Ok(Some(reason))) => return Err(reason),
        Ok(Err(fault)) => return Err(fault.to_string()),
        Err(_) => return Err("Redis or Postgres did not answer in time".to_owned()),
    }
    // They are no reason not to work, so neither is that they cannot be told in time.
    Ok(tokio::time::timeout(RISKS_MAX, app.stock.risks())
        .await
        .unwrap_or_default())
}

async fn check(app: &App) -> Result<Option<String>, Fault> {
    let (unfit, missing) = tokio::try_join!(app.stock.unfit(), app.ledger.migrations_missing())?;
    Ok(unfit.or_else(|| (missing > 0).then(|| behind(missing))))
}

/// How fast both servers answer, side by side; Redis on a cluster with all of its primaries.
pub async fn health(app: &App) -> Health {
    let (redis, postgres) = tokio::join!(timed(Box::pin(app.stock.ping())), timed(app.ledger.ping()));
    Health { redis, postgres }
}

async fn timed(question: impl Future<Output = Result<(), Fault>>) -> ServerHealth {
    let asked = Instant::now();
    let fault = match tokio::time::timeout(TIME_MAX, question).await {
        Ok(Ok(())) => None,
        Ok(Err(fault)) => Some(fault.to_string()),
        Err(_) => Some("no answer in time".to_owned()),
    };
    ServerHealth {
        milliseconds: fault.is_none().then(|| asked.elapsed().as_secs_f64() * 1000.0),
        fault,
    }
}

/// What is said of a schema that is behind.
#[must_use]
pub fn behind(missing: usize) -> String {
    format!("the schema is {missing} migrations behind; run `flashsale migrate`")
}
