//! The audit log of operators' actions.

use crate::domain::code::Code;
use crate::domain::ids::SaleId;
use crate::domain::operator::console::{Action, WantedActions};
use crate::domain::time;
use crate::flow::operate::console;
use crate::http::admin::lists::{Column, export, times};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Operator, Query, accepts};
use crate::http::openapi::SALE_ID;
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use crate::http::{Api, csv};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

pub const ROUTES: &[Endpoint] = &[Endpoint::get("/v1/admin/actions", handler!(list_actions), |it| {
    let opened = json!({"id": 12, "begun_at": "2026-11-22T09:00:00.000Z", "ended_at": "2026-11-22T09:00:00.020Z",
        "actor": "api_key", "session_id": null, "operator": "ada", "address": "203.0.113.7", "action": "sales.open",
        "sale_id": SALE_ID, "detail": {}, "outcome": "done"});
    it.of_operators("listActions", "List what operators did")
        .says(
            "The audit log, newest first: each action with its operator, address, times and outcome, which is null \
             until it is known. `operator` is the name that the operator gave (`X-Operator`). It is not verified. \
             `Accept: text/csv` exports, as for `/v1/admin/orders`; `detail` is then JSON in a cell.",
        )
        .query::<ActionsQuery>(&[("sale_id", SALE_ID.into()), ("limit", 10.into())])
        .answers_page::<Action>("A page of the audit log.", opened)
        .or_as(csv::CSV)
        .refuses(&[Code::Overloaded])
})];

/// The columns of an export. A test compares them with the members of an action.
const COLUMNS: &[Column<Action>] = &[
    ("id", |it| it.id.to_string()),
    ("begun_at", |it| time::format(&it.begun_at)),
    ("ended_at", |it| {
        it.ended_at.as_ref().map_or_else(String::new, time::format)
    }),
    ("actor", |it| it.actor.clone()),
    ("session_id", |it| {
        it.session_id.map_or_else(String::new, |id| id.to_string())
    }),
    ("operator", |it| it.operator.clone().unwrap_or_default()),
    ("address", |it| it.address.clone().unwrap_or_default()),
    ("action", |it| it.action.clone()),
    ("sale_id", |it| it.sale_id.map_or_else(String::new, |id| id.to_string())),
    ("detail", |it| it.detail.to_string()),
    ("outcome", |it| it.outcome.clone().unwrap_or_default()),
];

/// Which actions to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionsQuery {
    /// Lists only the actions on this sale.
    sale_id: Option<SaleId>,
    /// Lists only the actions that began at this moment or later.
    from: Option<DateTime<Utc>>,
    /// Lists only the actions that began before this moment.
    to: Option<DateTime<Utc>>,
    /// At most so many actions; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the actions older than the one with this id.
    #[schemars(range(min = i64::MIN, max = i64::MAX))]
    starting_after: Option<i64>,
}

/// The audit log, newest first
async fn list_actions(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<ActionsQuery>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let [from, to] = times(query.from, query.to)?;
    let wanted = WantedActions {
        sale: query.sale_id,
        from,
        to,
        before: query.starting_after,
    };
    if accepts(&request, csv::CSV) {
        let begin = api.for_operator(move |app| async move { console::begin_export(&app, wanted).await.map(Some) });
        return export(&api, request.method(), "audit-log", COLUMNS, begin).await;
    }
    let limit = query.limit.get();
    let actions = api.for_operator(move |app| async move { console::actions(&app, &wanted, limit + 1).await });
    Ok(HttpResponse::Ok().json(Page::of(actions.await?, limit)))
}
