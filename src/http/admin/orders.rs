//! Orders of all shoppers.

use crate::domain::code::Code;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::payment::RecordedPayment;
use crate::domain::order::{OrderState, OrdersOf, OwnedOrder, WantedOrders, start_of};
use crate::domain::time;
use crate::flow::settle::order;
use crate::http::admin::bans::user;
use crate::http::admin::payments;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Operator, OrderPath, Query, accepts};
use crate::http::openapi::SALE_ID;
use crate::http::problem::Problem;
use crate::http::shop;
use crate::http::views::{Page, PageSize};
use crate::http::{Api, csv, found};
use actix_web::http::Method;
use actix_web::web::{Bytes, Data};
use actix_web::{HttpRequest, HttpResponse};
use chrono::{DateTime, Utc};
use futures_util::stream::{StreamExt as _, once, try_unfold};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

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

/// How many exports run at once on an instance. Each one occupies a connection for reports.
const EXPORTS_MAX: usize = 1;
/// How long an export may take. Meanwhile Postgres keeps the versions of rows that it reads.
const EXPORT_MAX: Duration = Duration::from_secs(600);
/// When a client may ask again if another export runs.
const EXPORT_RETRY: Duration = Duration::from_secs(10);
/// A column of an export: its head, and an order's cell.
type Column = (&'static str, fn(&OwnedOrder) -> String);

/// The columns of an export. A test compares them with the members of an order.
const COLUMNS: &[Column] = &[
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

/// The exports that run on an instance.
pub struct Exports(Arc<Semaphore>);

impl Default for Exports {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(EXPORTS_MAX)))
    }
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
    let account = query.user.as_deref().map(user).transpose()?;
    let of = match (account, query.sale_id) {
        (Some(user), sale) => OrdersOf::User(user, sale),
        (None, Some(sale)) => OrdersOf::Sale(sale),
        (None, None) => return Err(Problem::invalid("give sale_id, user, or both")),
    };
    if query.from.zip(query.to).is_some_and(|(from, to)| from > to) {
        return Err(Problem::invalid("from must not be later than to"));
    }
    // Postgres has no time long before the first order.
    let bound = |at: DateTime<Utc>| at.max(DateTime::<Utc>::UNIX_EPOCH);
    let wanted = WantedOrders {
        of,
        state: query.state,
        from: query.from.map(bound),
        before: query.to.map(bound).map(start_of),
    };
    let (limit, after) = (query.limit.get(), query.starting_after);
    if accepts(&request, csv::CSV) {
        return export(&api, wanted, after, request.method()).await;
    }
    let orders =
        api.for_operator(move |app| async move { order::list_for_operators(&app, wanted, after, limit + 1).await });
    Ok(HttpResponse::Ok().json(Page::of(found(orders.await?, "such sale")?, limit)))
}

/// Answers with all wanted orders as a table, part by part as the client reads it.
async fn export(
    api: &Api,
    wanted: WantedOrders,
    after: Option<OrderId>,
    method: &Method,
) -> Result<HttpResponse, Problem> {
    let place = Arc::clone(&api.exports.0)
        .try_acquire_owned()
        .map_err(|_full| Problem::wait(Code::Overloaded, "another export runs on this instance", EXPORT_RETRY))?;
    let end = Instant::now() + EXPORT_MAX;
    let export = api.for_operator(move |app| async move { order::begin_export(&app, wanted, after).await });
    let export = found(export.await?, "such sale")?;
    let mut answer = csv::answer("orders");
    // The server would read the whole body of an answer to HEAD, and send nothing of it.
    if method == Method::HEAD {
        return Ok(answer.finish());
    }
    let mut heads = String::new();
    csv::add_row(&mut heads, COLUMNS.iter().map(|(head, _)| head));
    let parts = try_unfold((export, place), move |(mut export, place)| async move {
        let read = timeout_at(end, export.read_on()).await;
        let read = read.unwrap_or_else(|_| Err(Fault::Unavailable("the export took too long".to_owned())));
        let orders = read.inspect_err(|fault| tracing::warn!(%fault, "an export of orders broke off"))?;
        let part = (!orders.is_empty()).then(|| table(&orders));
        Ok::<_, Fault>(part.map(|part| (Bytes::from(part), (export, place))))
    });
    Ok(answer.streaming(once(ready(Ok(Bytes::from(heads)))).chain(parts)))
}

/// The orders as rows of a table.
fn table(orders: &[OwnedOrder]) -> String {
    let mut table = String::new();
    for order in orders {
        csv::add_row(&mut table, COLUMNS.iter().map(|(_, cell)| cell(order)));
    }
    table
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
