//! Console: operators sign in and out, and the audit log has their actions.
//!
//! An action is written to the audit log before it begins; an action that cannot be written does not begin. Its
//! outcome is written afterwards. A crash in between leaves an action whose outcome is unknown. The audit log never
//! changes what an action does. The process's own log has the same lines, for collectors out of the operators' reach.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::operator::console::{
    Action, ListedSession, NewAction, OperatorName, Session, SessionSecret, WantedActions,
};
use crate::flow::{App, EXPORT_PART, Export, whole};
use futures_util::stream::{StreamExt as _, try_unfold};
use std::net::IpAddr;
use uuid::Uuid;

/// The target of the lines about operators' actions in the process's own log.
const AUDIT_LOG: &str = "flashsale::audit_log";

/// Begins a session of an operator, who may have given a name. Returns it with the secret for its cookie.
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

/// The session that a cookie belongs to, if it has not ended.
pub async fn session(app: &App, admin_key: &str, secret: &SessionSecret) -> Result<Option<Session>, Fault> {
    app.ledger.session(&secret.digest(admin_key)).await
}

/// Ends the session that a cookie belongs to, on every instance. Ending it twice is no error.
pub async fn sign_out(app: &App, admin_key: &str, secret: &SessionSecret) -> Result<(), Fault> {
    app.ledger.end_session(&secret.digest(admin_key)).await
}

/// Up to `max` sessions that have not ended, the newest first.
pub async fn sessions(app: &App, max: i64) -> Result<Vec<ListedSession>, Fault> {
    app.ledger.sessions(max).await
}

/// Ends the session of this id on every instance, and returns it as it was. None if there is none.
pub async fn end_session(app: &App, id: Uuid) -> Result<Option<ListedSession>, Fault> {
    app.ledger.end_listed_session(id).await
}

/// Writes to the audit log that an action begins, and then the same to the process's own log; returns the action's
/// number.
pub async fn begin(app: &App, new: &NewAction) -> Result<i64, Fault> {
    let id = app.ledger.begin_action(new).await?;
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

/// Up to `max` actions, newest first.
pub async fn actions(app: &App, wanted: &WantedActions, max: usize) -> Result<Vec<Action>, Fault> {
    app.ledger.actions(wanted, whole(max)).await
}

/// All actions of such a list, as an export.
pub async fn begin_export(app: &App, wanted: WantedActions) -> Result<Export<Action>, Fault> {
    let snapshot = app.ledger.snapshot().await?;
    let parts = try_unfold((snapshot, wanted), |(mut snapshot, mut wanted)| async move {
        let actions = snapshot.actions(&wanted, EXPORT_PART).await?;
        let Some(last) = actions.last() else { return Ok(None) };
        wanted.before = Some(last.id);
        Ok::<_, Fault>(Some((actions, (snapshot, wanted))))
    });
    Ok(parts.boxed())
}
