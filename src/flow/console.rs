//! Console: operators sign in and out, and the audit log has what they do.
//!
//! An action is written there before it begins; an action that cannot be written does not begin. Its outcome is written
//! afterwards: a crash in between leaves an action without an outcome, which says that nobody knows. The audit log never
//! changes what an action does. The process's own log has the same, for collectors that nobody here can reach.

use super::App;
use crate::domain::console::{Action, NewAction, OperatorName, Session, SessionSecret};
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use std::net::IpAddr;

/// What the lines about operators' actions are called in the process's own log.
const AUDIT_LOG: &str = "flashsale::audit_log";

/// Begins a session of somebody who may have said what he calls himself; returns it with what its cookie says.
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
pub async fn session(app: &App, admin_key: &str, secret: &SessionSecret) -> Result<Option<Session>, Fault> {
    app.ledger.session(&secret.digest(admin_key)).await
}

/// Ends the session that a cookie is of, on every instance. Ending it twice is no error.
pub async fn sign_out(app: &App, admin_key: &str, secret: &SessionSecret) -> Result<(), Fault> {
    app.ledger.end_session(&secret.digest(admin_key)).await
}

/// Writes that an action begins into the audit log, and then a line with the same into the process's own log; returns its
/// number.
pub async fn begin(app: &App, new: &NewAction) -> Result<i64, Fault> {
    let id = app.ledger.begin_action(new).await?;
    log_beginning(id, new);
    Ok(id)
}

/// Writes the outcome of an action: `done`, or a problem's code.
pub async fn end(app: &App, id: i64, outcome: &str, sale: Option<SaleId>) -> Result<(), Fault> {
    let sale_id = sale.map(|sale| sale.to_string());
    tracing::info!(target: AUDIT_LOG, action_id = id, outcome, sale_id, "an action has ended");
    app.ledger.end_action(id, outcome, sale).await
}

/// Writes down a request that was refused before it could become an action.
pub async fn refuse(app: &App, new: &NewAction, outcome: &str) -> Result<(), Fault> {
    let id = begin(app, new).await?;
    end(app, id, outcome, None).await
}

fn log_beginning(id: i64, new: &NewAction) {
    tracing::info!(
        target: AUDIT_LOG,
        action_id = id,
        actor = new.actor.as_str(),
        session_id = new.actor.session().map(|session| session.to_string()),
        operator = new.operator.as_ref().map(OperatorName::as_str),
        address = new.address,
        action = new.action,
        sale_id = new.sale.map(|sale| sale.to_string()),
        detail = serde_json::to_string(&new.detail).unwrap_or_default(),
        "an action begins"
    );
}

/// Up to `max` actions, newest first, older than the one with this number; of one sale, or all.
pub async fn actions(app: &App, sale: Option<SaleId>, before: Option<i64>, max: usize) -> Result<Vec<Action>, Fault> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    app.ledger.actions(sale, before, max).await
}
