//! Payments, and money that is owed back.

use crate::domain::code::Code;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::order::payment::{PaymentOutcome, REFERENCE_MAX, RecordedPayment, Refund, RefundReference};
use crate::domain::order::wanted::WantedPayments;
use crate::domain::order::{ListedPayment, Order};
use crate::domain::plain::PLAIN_PATTERN;
use crate::domain::time;
use crate::flow::settle::{pay, payments};
use crate::http::admin::lists::{Column, between, export, whose};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Operator, Query, accepts, parsed};
use crate::http::openapi::ORDER_ID;
use crate::http::problem::Problem;
use crate::http::shop;
use crate::http::shop::webhooks::{NAME_MAX, NO_NUL, check_text};
use crate::http::views::{Page, PageSize};
use crate::http::{Api, csv, found};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/v1/admin/payments", handler!(list_payments), |it| {
        let mut listed = example(false);
        listed["order"] = shop::orders::example("expired");
        it.of_operators("listPayments", "List payments by what became of them")
            .says(
                "Newest first, each with its order. `refund_due` is money to pay back, with the reason; \
                 `settled=false` leaves out payments that were paid back. `Accept: text/csv` exports, as for \
                 `/v1/admin/orders`.",
            )
            .query::<PaymentsQuery>(&[("outcome", "refund_due".into()), ("settled", false.into())])
            .answers_page::<ListedPayment>("A page of payments.", listed)
            .or_as(csv::CSV)
            .refuses(&[Code::NotFound, Code::Overloaded])
    }),
    Endpoint::post("/v1/admin/payments/settle", handler!(settle_payment), |it| {
        it.of_operators("settlePayment", "Say that money was paid back")
            .says(
                "For a payment that is `refund_due` or `unmatched`, once the provider has paid it back: it no longer \
                 counts as owed. The same reference again gets the same answer; another reference is refused.",
            )
            .reads::<SettleBody>(json!({"payment_id": "pay_2", "reference": "re_1"}))
            .answers::<RecordedPayment>(200, "The payment with its refund's reference.", example(true))
            .refuses(&[Code::NotFound, Code::InvalidTransition])
    })
    .by_run(),
];

/// The columns of an export. A test compares them with the members of a payment.
const COLUMNS: &[Column<ListedPayment>] = &[
    ("payment_id", |it| it.payment.payment_id.clone()),
    ("order_id", |it| it.payment.order_id.clone()),
    ("amount_minor", |it| it.payment.amount_minor.to_string()),
    ("currency", |it| it.payment.currency.clone()),
    ("outcome", |it| it.payment.outcome.as_str().to_owned()),
    ("reason", |it| it.payment.reason.clone().unwrap_or_default()),
    ("received_at", |it| time::format(&it.payment.received_at)),
    ("settled_at", |it| {
        it.payment.settled_at.as_ref().map_or_else(String::new, time::format)
    }),
    ("settled_reference", |it| {
        it.payment.settled_reference.clone().unwrap_or_default()
    }),
    ("order_state", |it| of_order(it, |order| order.state.to_string())),
    ("sale_id", |it| of_order(it, |order| order.sale_id.to_string())),
    ("user", |it| of_order(it, |order| order.user.as_str().to_owned())),
];

/// The cell of a payment about its order; empty if it has none.
fn of_order(payment: &ListedPayment, cell: fn(&Order) -> String) -> String {
    payment.order.as_ref().map_or_else(String::new, cell)
}

/// Which payments to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PaymentsQuery {
    /// Lists only the payments with this outcome; `refund_due` by default.
    #[schemars(extend("enum" = PaymentOutcome::RECORDED))]
    outcome: Option<String>,
    /// `true` lists only payments that an operator has marked as paid back, `false` only the others.
    settled: Option<bool>,
    /// Lists only the payments that were matched with an order of this sale. Those that are `unmatched` or `pending` were
    /// matched with none.
    sale_id: Option<SaleId>,
    /// Lists only the payments that were matched with an order of this account.
    #[schemars(with = "Option<UserId>")]
    user: Option<String>,
    /// Lists only the payments received at this moment or later.
    from: Option<DateTime<Utc>>,
    /// Lists only the payments received before this moment.
    to: Option<DateTime<Utc>>,
    /// At most so many payments; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the payments after the one with this `payment_id`.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NO_NUL))]
    starting_after: Option<String>,
}

async fn list_payments(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<PaymentsQuery>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let wanted = query.outcome.as_deref().unwrap_or("refund_due");
    let outcome = PaymentOutcome::from_name(wanted)
        .ok_or_else(|| Problem::invalid("outcome must be refund_due, unmatched, pending or applied".to_owned()))?;
    let wanted = WantedPayments {
        outcome,
        settled: query.settled,
        of: whose(query.user.as_deref(), query.sale_id)?,
        stretch: between(query.from, query.to)?,
    };
    let (limit, after) = (query.limit.get(), query.starting_after);
    let is_wrong = |id: &String| check_text("starting_after", id, NAME_MAX).is_err();
    if after.as_ref().is_some_and(is_wrong) {
        return Err(Problem::invalid("starting_after must be a payment_id"));
    }
    if accepts(&request, csv::CSV) {
        let begin = api.for_operator(move |app| async move { payments::begin_export(&app, wanted, after).await });
        return export(&api, request.method(), "payments", COLUMNS, begin).await;
    }
    let listed = api.for_operator(move |app| async move { payments::list(&app, wanted, after, limit + 1).await });
    Ok(HttpResponse::Ok().json(Page::of(found(listed.await?, "such sale")?, limit)))
}

/// Marks a payment as paid back. The body names the payment, not the path, because the provider's id may have any
/// characters.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleBody {
    /// The payment that was paid back.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NO_NUL))]
    payment_id: String,
    /// The provider's name for the refund: some words on one line.
    #[schemars(length(min = 1, max = REFERENCE_MAX), regex(pattern = PLAIN_PATTERN))]
    reference: String,
}

/// Records once that money was paid back
async fn settle_payment(api: Data<Api>, _: Operator, Json(body): Json<SettleBody>) -> Result<HttpResponse, Problem> {
    let SettleBody { payment_id, reference } = body;
    check_text("payment_id", &payment_id, NAME_MAX)?;
    let reference: RefundReference = parsed("reference", &reference)?;
    let refund = api.for_operator(move |app| async move { pay::settle_refund(&app, &payment_id, &reference).await });
    match refund.await? {
        Refund::Settled(payment) => Ok(HttpResponse::Ok().json(payment)),
        Refund::SettledAs(other) => Err(Problem::wrong_state(format!(
            "this payment was paid back already, as {other}"
        ))),
        Refund::NotDue(outcome) => Err(Problem::wrong_state(format!(
            "nothing of this payment is owed back: it is {}",
            outcome.as_str()
        ))),
        Refund::NoPayment => Err(Problem::not_found("such payment")),
    }
}

pub(super) fn example(is_settled: bool) -> Value {
    let settled_at = is_settled.then_some("2026-11-22T10:00:00.000Z");
    json!({"payment_id": "pay_2", "order_id": ORDER_ID, "amount_minor": 2500, "currency": "EUR", "outcome": "refund_due",
        "reason": "the order was expired already", "received_at": "2026-11-22T09:20:00.000Z", "settled_at": settled_at,
        "settled_reference": settled_at.map(|_| "re_1")})
}
