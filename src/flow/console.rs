//! Console: operators sign in and out, and whatever they do is written down.
//!
//! An action is noted before it begins: while that cannot be done, nothing is. What came of it is noted afterwards; a
//! crash in between leaves an action without an outcome, which says that nobody knows. What is noted never changes what
//! an action comes to.

use super::App;
use crate::domain::console::{Action, NewAction, OperatorName, Session, SessionSecret};
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use std::net::IpAddr;

/// Begins a session of somebody who may have said what he calls himself; returns it with what its cookie says.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn sign_in(
    app: &App,
    admin_key: &str,
    operator: Option<&OperatorName>,
    address: IpAddr,
) -> Result<(Session, SessionSecret), Fault> {
    let secret = SessionSecret::new(rand::random());
    let digest = secret.digest(admin_key);
    let session = app.ledger.begin_session(&digest, operator, address).await?;
    Ok((session, secret))
}

/// The session that a cookie is of, if it has not ended.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn session(app: &App, admin_key: &str, secret: &SessionSecret) -> Result<Option<Session>, Fault> {
    app.ledger.session(&secret.digest(admin_key)).await
}

/// Ends the session that a cookie is of, on every instance. Ending it twice is no error.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn sign_out(app: &App, admin_key: &str, secret: &SessionSecret) -> Result<(), Fault> {
    app.ledger.end_session(&secret.digest(admin_key)).await
}

/// Notes that an action begins; returns its number.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn begin(app: &App, new: &NewAction) -> Result<i64, Fault> {
    app.ledger.begin_action(new).await
}

/// Notes what came of an action: `done`, or a problem's code.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn end(app: &App, id: i64, outcome: &str, sale: Option<SaleId>) -> Result<(), Fault> {
    app.ledger.end_action(id, outcome, sale).await
}

/// Up to `max` actions, newest first, older than the one with this number; of one sale, or all.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn actions(app: &App, sale: Option<SaleId>, before: Option<i64>, max: usize) -> Result<Vec<Action>, Fault> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    app.ledger.actions(sale, before, max).await
}
