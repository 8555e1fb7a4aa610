//! The audit log of operators' actions.

use crate::domain::ids::SaleId;
use crate::domain::operator::console::Action;
use crate::flow::operate::console;
use crate::http::Api;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Operator, Query};
use crate::http::openapi::SALE_ID;
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use actix_web::HttpResponse;
use actix_web::web::Data;
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
             until it is known. `operator` is the name that the operator gave (`X-Operator`). It is not verified.",
        )
        .query::<ActionsQuery>(&[("sale_id", SALE_ID.into()), ("limit", 10.into())])
        .answers_page::<Action>("A page of the audit log.", opened)
})];

/// Which actions to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionsQuery {
    /// Lists only the actions on this sale.
    sale_id: Option<SaleId>,
    /// At most so many actions; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the actions older than the one with this id.
    #[schemars(range(min = i64::MIN, max = i64::MAX))]
    starting_after: Option<i64>,
}

/// The audit log, newest first
async fn list_actions(api: Data<Api>, _: Operator, Query(query): Query<ActionsQuery>) -> Result<HttpResponse, Problem> {
    let (sale, limit, before) = (query.sale_id, query.limit.get(), query.starting_after);
    let actions = api.for_operator(move |app| async move { console::actions(&app, sale, before, limit + 1).await });
    Ok(HttpResponse::Ok().json(Page::of(actions.await?, limit)))
}
