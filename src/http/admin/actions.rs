//! The audit log of operators' actions.

use crate::domain::ids::SaleId;
use crate::flow;
use crate::http::Api;
use crate::http::extract::{Operator, Query};
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::Deserialize;

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

/// `GET /v1/admin/actions`: the audit log, newest first
pub async fn list_actions(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<ActionsQuery>,
) -> Result<HttpResponse, Problem> {
    let (sale, limit, before) = (query.sale_id, query.limit.get(), query.starting_after);
    let actions = api
        .for_others(move |app| async move { flow::operate::console::actions(&app, sale, before, limit + 1).await })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(actions, limit)))
}
