//! Orders of all shoppers.

use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::{OrderState, OrdersOf};
use crate::flow;
use crate::http::Api;
use crate::http::admin::bans::user;
use crate::http::extract::{Operator, OrderPath, Query};
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::Deserialize;

/// Which orders to list: those of a sale, of an account, or of both.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrdersQuery {
    /// Lists only the orders of this sale. This or `user` is required.
    sale_id: Option<SaleId>,
    /// Lists only the orders of this account.
    #[schemars(with = "Option<UserId>")]
    user: Option<String>,
    /// Lists only the orders in this state.
    #[schemars(extend("enum" = OrderState::ALL))]
    state: Option<String>,
    /// At most so many orders; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the orders after the one with this id.
    starting_after: Option<OrderId>,
}

/// `GET /v1/admin/orders`, by id, the last first
pub async fn list_orders(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<OrdersQuery>,
) -> Result<HttpResponse, Problem> {
    let account = query.user.as_deref().map(user).transpose()?;
    let of = match (account, query.sale_id) {
        (Some(user), sale) => OrdersOf::User(user, sale),
        (None, Some(sale)) => OrdersOf::Sale(sale),
        (None, None) => return Err(Problem::invalid("give sale_id, user, or both")),
    };
    let state = query.state.as_deref().map(str::parse::<OrderState>).transpose();
    let state = state.map_err(|wrong| Problem::invalid(format!("state: {wrong}")))?;
    let (limit, after) = (query.limit.get(), query.starting_after);
    let orders = api
        .for_others(move |app| async move {
            flow::settle::order::list_for_operators(&app, &of, state, after, limit + 1).await
        })
        .await?;
    let orders = orders.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(Page::of(orders, limit)))
}

/// `GET /v1/admin/orders/{id}`
pub async fn show_order(api: Data<Api>, _: Operator, OrderPath(id): OrderPath) -> Result<HttpResponse, Problem> {
    let order = api
        .for_others(move |app| async move { flow::settle::order::find_anywhere(&app, id).await })
        .await?;
    let order = order.ok_or_else(|| Problem::not_found("such order"))?;
    Ok(HttpResponse::Ok().json(order))
}
