//! Ready: can this instance work?

use super::App;
use crate::domain::fault::Fault;
use std::time::Duration;

/// The longest that the question may take.
const TIME_MAX: Duration = Duration::from_millis(1800);

/// Why this instance cannot work, if it cannot: a server does not answer, the schema is behind, or Redis would evict
/// stock.
pub async fn why_not_ready(app: &App) -> Option<String> {
    match tokio::time::timeout(TIME_MAX, check(app)).await {
        Ok(Ok(reason)) => reason,
        Ok(Err(fault)) => Some(fault.to_string()),
        Err(_) => Some("Redis or Postgres did not answer in time".to_owned()),
    }
}

async fn check(app: &App) -> Result<Option<String>, Fault> {
    let (unfit, missing) = tokio::try_join!(app.stock.unfit(), app.ledger.migrations_missing())?;
    Ok(unfit.or_else(|| (missing > 0).then(|| behind(missing))))
}

/// What is said of a schema that is behind.
#[must_use]
pub fn behind(missing: usize) -> String {
    format!("the schema is {missing} migrations behind; run `flashsale migrate`")
}
