//! Orders of all shoppers.

use crate::domain::code::Code;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::{OrderState, OrdersOf, OwnedOrder};
use crate::flow::settle::order;
use crate::http::admin::bans::user;
use crate::http::admin::payments;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Operator, OrderPath, Query, parsed};
use crate::http::openapi::SALE_ID;
use crate::http::problem::Problem;
use crate::http::shop;
use crate::http::views::{Page, PageSize};
use crate::http::{Api, found};
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/v1/admin/orders", handler!(list_orders), |it| {
        let mut expired = example();
        expired["state"] = "expired".into();
        expired["payments"] = json!([payments::example(false)]);
        it.of_operators("listOrdersToOperator", "List anybody's orders")
            .says(
                "The orders of a sale, of an account, or of both; one of the two is required. Sorted by id: those of \
                 the newest sale come first. They are read from Postgres, which has an order milliseconds after its \
                 purchase.",
            )
            .query::<OrdersQuery>(&[("sale_id", SALE_ID.into()), ("state", "expired".into())])
            .answers_page::<OwnedOrder>("A page of orders, each with its shopper and payments.", expired)
            .refuses(&[Code::NotFound])
    }),
    Endpoint::get("/v1/admin/orders/{id}", handler!(show_order), |it| {
        it.of_operators("showOrderToOperator", "Show anybody's order")
            .answers::<OwnedOrder>(200, "The order, its shopper and payments.", example())
    }),
];

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

async fn list_orders(api: Data<Api>, _: Operator, Query(query): Query<OrdersQuery>) -> Result<HttpResponse, Problem> {
    let account = query.user.as_deref().map(user).transpose()?;
    let of = match (account, query.sale_id) {
        (Some(user), sale) => OrdersOf::User(user, sale),
        (None, Some(sale)) => OrdersOf::Sale(sale),
        (None, None) => return Err(Problem::invalid("give sale_id, user, or both")),
    };
    let state: Option<OrderState> = query.state.as_deref().map(|text| parsed("state:", text)).transpose()?;
    let (limit, after) = (query.limit.get(), query.starting_after);
    let orders =
        api.for_operator(move |app| async move { order::list_for_operators(&app, &of, state, after, limit + 1).await });
    Ok(HttpResponse::Ok().json(Page::of(found(orders.await?, "such sale")?, limit)))
}

async fn show_order(api: Data<Api>, _: Operator, OrderPath(id): OrderPath) -> Result<HttpResponse, Problem> {
    let order = api.for_operator(move |app| async move { order::find_anywhere(&app, id).await });
    Ok(HttpResponse::Ok().json(found(order.await?, "such order")?))
}

fn example() -> Value {
    let mut owned = shop::orders::example("reserved");
    owned["user"] = "ada".into();
    owned["confirmed"] = true.into();
    owned["payments"] = json!([]);
    owned
}
