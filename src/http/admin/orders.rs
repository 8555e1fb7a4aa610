//! Orders of all shoppers.

use crate::domain::code::Code;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::payment::RecordedPayment;
use crate::domain::order::wanted::WantedOrders;
use crate::domain::order::{OrderState, OwnedOrder};
use crate::domain::time;
use crate::flow::settle::order;
use crate::http::admin::lists::{Column, between, export, whose};
use crate::http::admin::payments;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Operator, OrderPath, Query, accepts};
use crate::http::openapi::SALE_ID;
use crate::http::problem::Problem;
use crate::http::shop;
use crate::http::views::{Page, PageSize};
use crate::http::{Api, csv, found};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use chrono::{DateTime, Utc};
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
                "The orders of a sale, of an account, or of both, newest first; one of the two is required. They are \
                 read from Postgres, which has an order milliseconds after its purchase. With `Accept: text/csv`, all \
                 of them as a table, as they were at one moment; `limit` does not count. One export runs at a time on \
                 an instance, for ten minutes at most. If it breaks off, so does the connection.",
            )
            .query::<OrdersQuery>(&[("sale_id", SALE_ID.into()), ("state", "expired".into())])
            .answers_page::<OwnedOrder>("A page of orders, each with its shopper and payments.", expired)
            .or_as(csv::CSV)
            .refuses(&[Code::NotFound, Code::Overloaded])
    }),
    Endpoint::get("/v1/admin/orders/{id}", handler!(show_order), |it| {
        it.of_operators("showOrderToOperator", "Show anybody's order")
            .answers::<OwnedOrder>(200, "The order, its shopper and payments.", example())
    }),
];

/// The columns of an export. A test compares them with the members of an order.
const COLUMNS: &[Column<OwnedOrder>] = &[
    ("id", |it| it.order.id.to_string()),
    ("sale_id", |it| it.order.sale_id.to_string()),
    ("sku", |it| it.order.sku.to_string()),
    ("quantity", |it| it.order.quantity.to_string()),
    ("amount_minor", |it| it.order.amount_minor.to_string()),
    ("currency", |it| it.order.currency.clone()),
    ("state", |it| it.order.state.to_string()),
    ("confirmed", |it| it.order.confirmed.to_string()),
    ("user", |it| it.user.as_str().to_owned()),
    ("created_at", |it| time::format(&it.order.created_at)),
    ("expires_at", |it| time::format(&it.order.expires_at)),
    ("paid_at", |it| {
        it.order.paid_at.as_ref().map_or_else(String::new, time::format)
    }),
    ("payments", |it| {
        it.payments.iter().map(payment_text).collect::<Vec<_>>().join("; ")
    }),
];

/// A payment in the cell of its order: its id, and its outcome or that it was paid back.
fn payment_text(payment: &RecordedPayment) -> String {
    let outcome = payment.settled_at.map_or(payment.outcome.as_str(), |_| "settled");
    format!("{} {outcome}", payment.payment_id)
}

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
    #[schemars(with = "Option<String>", extend("enum" = OrderState::ALL))]
    state: Option<OrderState>,
    /// Lists only the orders created at this moment or later.
    from: Option<DateTime<Utc>>,
    /// Lists only the orders created before this moment.
    to: Option<DateTime<Utc>>,
    /// At most so many orders; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the orders after the one with this id.
    starting_after: Option<OrderId>,
}

async fn list_orders(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<OrdersQuery>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let of = whose(query.user.as_deref(), query.sale_id)?;
    let wanted = WantedOrders {
        of: of.ok_or_else(|| Problem::invalid("give sale_id, user, or both"))?,
        state: query.state,
        stretch: between(query.from, query.to)?,
    };
    let (limit, after) = (query.limit.get(), query.starting_after);
    if accepts(&request, csv::CSV) {
        let begin = api.for_operator(move |app| async move { order::begin_export(&app, wanted, after).await });
        return export(&api, request.method(), "orders", COLUMNS, begin).await;
    }
    let orders =
        api.for_operator(move |app| async move { order::list_for_operators(&app, wanted, after, limit + 1).await });
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
