//! The audit log of operators' actions: names each action, and records it before it begins and after it has ended. A
//! crash leaves an action without an outcome.

use crate::domain::code::Code;
use crate::domain::ids::SaleId;
use crate::domain::operator::console::{Actor, NewAction, detail};
use crate::flow;
use crate::http::problem::Problem;
use crate::http::{Api, gateway, request_id};
use actix_web::dev::ServiceResponse;
use actix_web::http::Method;
use actix_web::http::header::LOCATION;
use actix_web::{Error, HttpRequest};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// The path of the cookie. Browsers do not send it to routes of shoppers.
pub const SESSION_PATH: &str = "/v1/admin";
/// Reads that the audit log always records, because they show shoppers' data.
const SHOPPERS_DATA: [&str; 8] = [
    "/v1/admin/orders",
    "/v1/admin/orders/{id}",
    "/v1/admin/bans",
    "/v1/admin/alerts",
    "/v1/admin/alerts/stream",
    "/v1/admin/guards/shadow",
    "/v1/admin/sales/{id}/dead-letters",
    "/v1/admin/sales/{id}/refused-messages",
];
/// A list that shows shoppers' data where it is of one account, or exported with the accounts. The console reads other
/// payments all the time, to count them.
const PAYMENTS: &str = "/v1/admin/payments";
/// The audit log itself: its export shows the accounts of all recorded actions at once. The console reads its pages all
/// the time.
const ACTIONS: &str = "/v1/admin/actions";
/// Actions that the limit on refused actions never blocks: they stop a sale, or a thief of a session.
pub(super) const STOPS: [&str; 3] = ["sales.pause", "sales.close", "sessions.end"];
/// The outcome of an action that was not refused.
pub(super) const DONE: &str = "done";
/// How long the answer to an action waits for its outcome to be recorded.
const NOTE_MAX: Duration = Duration::from_secs(2);

/// Whether a read shows shoppers' data, so that the audit log records it.
pub(super) fn shows_shoppers_data(pattern: &str, query: &str, is_export: bool) -> bool {
    let is_of_account = || form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "user");
    match pattern {
        PAYMENTS => is_export || is_of_account(),
        ACTIONS => is_export,
        _ => SHOPPERS_DATA.contains(&pattern),
    }
}

/// Records that an action begins; returns its number in the audit log.
pub(super) async fn begin_action(api: &Api, new: NewAction) -> Result<i64, Problem> {
    let begun = api.for_operator(move |app| async move { flow::operate::console::begin(&app, &new).await });
    begun.await.map_err(before_it_began)
}

/// The problem of an action that could not be recorded. 503 codes get `nothing_done`; other refusals say so by their
/// code.
pub(super) fn before_it_began(problem: Problem) -> Problem {
    match problem.code() {
        Code::Unavailable | Code::Overloaded => Problem::not_begun(problem.code()),
        _ => problem,
    }
}

/// Records an action's outcome, if Postgres answers in time; the action has happened either way. `unavailable` is not
/// recorded: the action may still take effect after that answer.
pub(super) async fn note(api: &Api, id: i64, outcome: &'static str, sale: Option<SaleId>) {
    if outcome == Code::Unavailable.as_str() {
        return;
    }
    let app = Arc::clone(&api.operators);
    // The record goes on after the time limit, for as long as Postgres may take.
    let noting = tokio::spawn(async move { flow::operate::console::end(&app, id, outcome, sale).await });
    match tokio::time::timeout(NOTE_MAX, noting).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(fault))) => tracing::warn!(%fault, action = id, outcome, "could not record the outcome of an action"),
        Ok(Err(_)) | Err(_) => {
            tracing::warn!(
                action = id,
                outcome,
                "could not record the outcome of an action in time"
            );
        }
    }
}

/// Records an unauthorized request in the audit log, up to a limit for each minute.
pub(super) fn note_refusal(api: &Api, request: &HttpRequest, code: Code) {
    if !api.sign_ins.may_record() {
        return;
    }
    let pattern = request.resource_map().match_pattern(request.path()).unwrap_or_default();
    let new = NewAction {
        actor: Actor::Nobody,
        operator: None,
        address: gateway::address_of(api, request).map(|address| address.to_string()),
        action: action(request.method(), &pattern),
        sale: sale_of(request.path()),
        detail: Map::new(),
    };
    let app = Arc::clone(&api.operators);
    // The refusal must not wait for Postgres.
    tokio::spawn(request_id::within(async move {
        if let Err(fault) = flow::operate::console::refuse(&app, &new, code.as_str()).await {
            tracing::warn!(%fault, "could not record a refusal in the audit log");
        }
    }));
}

/// The name of an action: the words of its path without ids. A verb is added where the path has none: POST to a list
/// creates, PUT and PATCH change.
pub(super) fn action(method: &Method, pattern: &str) -> String {
    let way = pattern.strip_prefix(SESSION_PATH).unwrap_or(pattern);
    let mut words: Vec<&str> = way
        .split('/')
        .filter(|word| !word.is_empty() && !word.starts_with('{'))
        .collect();
    match *method {
        Method::POST if words.len() == 1 => words.push("create"),
        Method::POST => {}
        Method::PUT | Method::PATCH => words.push("change"),
        Method::DELETE => words.push("delete"),
        Method::GET | Method::HEAD => words.push("read"),
        _ => words.push("other"),
    }
    words.join(".").chars().take(64).collect()
}

/// The parts of a request outside of its body: the query's parameters and the id in the path.
pub(super) fn asked(path: &str, query: &str) -> Map<String, Value> {
    let parameters = form_urlencoded::parse(query.as_bytes()).map(|(name, value)| (name.into_owned(), value.into()));
    let id = path
        .strip_prefix("/v1/admin/orders/")
        .and_then(|rest| rest.split('/').next())
        .map(|id| ("id".to_owned(), id.into()));
    let asked: Map<String, Value> = parameters.chain(id).collect();
    detail(Value::Object(asked).to_string().as_bytes())
}

pub(super) fn sale_of(path: &str) -> Option<SaleId> {
    let rest = path.strip_prefix("/v1/admin/sales/")?;
    rest.split('/').next()?.parse().ok()
}

/// The sale that an answer names as created.
pub(super) fn created<B>(answer: &ServiceResponse<B>) -> Option<SaleId> {
    sale_of(answer.headers().get(LOCATION)?.to_str().ok()?)
}

pub(super) fn outcome<B>(answer: &ServiceResponse<B>) -> &'static str {
    match answer.response().error() {
        Some(error) => code(error),
        None if answer.status().is_success() => DONE,
        None => "refused",
    }
}

pub(super) fn code(error: &Error) -> &'static str {
    error
        .as_error::<Problem>()
        .map_or("refused", |problem| problem.code().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::operator::keys::OperatorRole;
    use crate::http::ROUTES;
    use crate::http::openapi::{REFERENCE, SALE_ID};
    use std::collections::BTreeMap;

    #[test]
    fn every_read_that_shows_accounts_is_recorded() {
        let reads = REFERENCE
            .operations
            .iter()
            .filter(|it| it.path.starts_with("/v1/admin/") && it.method == "get");
        let shows_accounts = reads.filter(|it| it.describe(&[])["responses"].to_string().contains("\"user\":"));
        let mut shown: Vec<&str> = shows_accounts.map(|it| it.path).collect();
        // The document has the events of a stream as text.
        let mut recorded = SHOPPERS_DATA.to_vec();
        recorded.retain(|path| !path.ends_with("/stream"));
        shown.sort_unstable();
        recorded.sort_unstable();
        assert_eq!(shown, recorded);
    }

    #[test]
    fn every_read_of_one_account_is_recorded() {
        let reads = REFERENCE
            .operations
            .iter()
            .filter(|it| it.path.starts_with("/v1/admin/") && it.method == "get");
        let by_account = reads.filter(|it| it.parameters.iter().any(|it| it.place == "query" && it.name == "user"));
        let by_account: Vec<&str> = by_account.map(|it| it.path).collect();
        assert!(by_account.contains(&PAYMENTS), "{by_account:?}");
        for path in by_account {
            assert!(shows_shoppers_data(path, "limit=1&user=ada", false), "{path}");
        }
        assert!(shows_shoppers_data(PAYMENTS, "outcome=applied", true));
        assert!(!shows_shoppers_data(PAYMENTS, "outcome=applied", false));
        assert!(shows_shoppers_data(ACTIONS, "", true));
        assert!(!shows_shoppers_data(ACTIONS, "", false));
    }

    /// The audit log lists the actions on a sale by this.
    #[test]
    fn a_request_about_a_sale_names_it_in_its_path() {
        let operations = REFERENCE.operations.iter();
        for it in operations.filter(|it| it.path.starts_with("/v1/admin/")) {
            let mut in_path = it.parameters.iter().filter(|it| it.place == "path");
            let is_of_sale = in_path.any(|parameter| parameter.example == Some(SALE_ID.into()));
            let recorded = sale_of(&it.path.replace("{id}", SALE_ID));
            assert_eq!(recorded.is_some(), is_of_sale, "{}", it.path);
            let in_body = it.body.as_ref().and_then(|body| body.example.get("sale_id"));
            assert_eq!(in_body, None, "{}", it.path);
        }
    }

    #[test]
    fn actions_are_called_by_what_they_do() {
        for (method, pattern, expected) in [
            (Method::POST, "/v1/admin/sales", "sales.create"),
            (Method::PUT, "/v1/admin/sales/{id}", "sales.change"),
            (Method::POST, "/v1/admin/sales/{id}/open", "sales.open"),
            (
                Method::POST,
                "/v1/admin/sales/{id}/dead-letters/settle",
                "sales.dead-letters.settle",
            ),
            (Method::POST, "/v1/admin/bans", "bans.create"),
            (Method::POST, "/v1/admin/bans/lift", "bans.lift"),
            (Method::POST, "/v1/admin/payments/settle", "payments.settle"),
            (Method::PATCH, "/v1/admin/guards", "guards.change"),
            (Method::DELETE, "/v1/admin/session", "session.delete"),
            (Method::POST, "/v1/admin/sessions/end", "sessions.end"),
            (Method::GET, "/v1/admin/orders/{id}", "orders.read"),
        ] {
            assert_eq!(action(&method, pattern), expected);
        }
    }

    #[test]
    fn a_change_needs_the_role_of_its_route() {
        let changes = ROUTES.iter().filter(|it| it.path.starts_with("/v1/admin/"));
        let changes = changes.filter(|it| it.method != Method::GET);
        // Two routes may be one action in the audit log; the lesser role counts.
        let mut needed: BTreeMap<String, OperatorRole> = BTreeMap::new();
        for it in changes {
            let role = needed.entry(action(&it.method, it.path)).or_insert(it.needs);
            *role = it.needs.min(*role);
        }
        assert!(needed.values().all(|role| *role > OperatorRole::View), "{needed:?}");
        for (action, role) in [
            ("sales.pause", OperatorRole::Run),
            ("bans.create", OperatorRole::Run),
            ("sales.create", OperatorRole::All),
            ("sales.change", OperatorRole::All),
            ("sales.delete", OperatorRole::All),
            ("sales.preload", OperatorRole::All),
            ("guards.change", OperatorRole::All),
            ("sessions.end", OperatorRole::All),
        ] {
            assert_eq!(needed[action], role, "{action}");
        }
    }

    #[test]
    fn the_order_of_a_request_is_its_id_alone() {
        for path in ["/v1/admin/orders/7", "/v1/admin/orders/7/payments"] {
            assert_eq!(asked(path, "").get("id"), Some(&"7".into()), "{path}");
        }
    }

    #[test]
    fn the_console_has_words_for_every_action() {
        // The other languages have the same keys.
        let words = include_str!("../../../web/languages/en.json");
        let changes = ROUTES
            .iter()
            .filter(|it| it.path.starts_with("/v1/admin/") && it.method != Method::GET);
        let changes = changes.map(|it| action(&it.method, it.path));
        let reads = SHOPPERS_DATA.iter().chain([&PAYMENTS]);
        let reads = reads.map(|path| action(&Method::GET, path));
        for name in changes.chain(reads) {
            let word = format!("\"action_{}\": ", name.replace(['.', '-'], "_"));
            assert!(words.contains(&word), "there is no {word}");
        }
    }
}
