//! Orders over HTTP: a shopper buys, and reads or cancels their own orders.

use crate::domain::code::Code;
use crate::domain::guard::{Layer, Sender};
use crate::domain::ids::{SaleId, Sku};
use crate::domain::order::purchase::{PurchaseOutcome, PurchaseRequest, QUANTITY_MAX, Refusal};
use crate::domain::order::{CancelOutcome, Order};
use crate::domain::sale::Sale;
use crate::domain::sale::fairness::AccountHash;
use crate::domain::shopper::purchase_token::Bound;
use crate::domain::shopper::token_keys::TokenKeys;
use crate::domain::stage::Applied;
use crate::flow;
use crate::flow::sell::refusal_counts;
use crate::guard::address::Client;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Key, OrderPath, PurchaseProofs, Query, REPLAYED, SalePath, Shopper, parsed};
use crate::http::gateway::client_of;
use crate::http::openapi::{Header, ORDER_ID, SALE_ID, Who};
use crate::http::problem::Problem;
use crate::http::views::Page;
use crate::http::{Api, counts, found};
use actix_web::http::header::LOCATION;
use actix_web::web::Data;
use actix_web::{Error, HttpRequest, HttpResponse};
use chrono::Utc;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Instant;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::post("/v1/sales/{id}/orders", handler!(purchase), |it| {
        let refusals: Vec<Code> = Refusal::each().iter().map(Refusal::code).collect();
        let order_of_checks: Vec<String> = Refusal::each().iter().map(in_order_of_checks).collect();
        it.of_shoppers(Who::Shopper, "buy", "Buy: reserve units of an item")
            .says(format!(
                "Holds the units until `expires_at`; the shopper must pay before that. The same key with the same \
                 body gets the same order again until a day after the sale's end, even if nothing is left. After a \
                 refusal, the same key may succeed later. `sold_out` is never answered while the requested units are \
                 free. The checks are made in this order: {}.",
                order_of_checks.join(", ")
            ))
            .with_key("cart-7f3a-1")
            .with_proofs()
            .reads::<PurchaseBody>(json!({"sku": "TSHIRT-M", "quantity": 1}))
            .answers::<Order>(201, "The units are held.", example("reserved"))
            .with_header(Header::LOCATION)
            .leads_to(&[("showOrder", "id", "/id"), ("cancelOrder", "id", "/id")])
            .answers::<Order>(200, "The order that this key made.", example("reserved"))
            .with_header(Header::LOCATION)
            .with_header(Header::IS_REPLAYED)
            .refuses(&refusals)
    }),
    Endpoint::get("/v1/orders", handler!(list), |it| {
        it.of_shoppers(Who::Shopper, "listOrders", "List one's own orders in a sale")
            .query::<ListQuery>(&[("sale_id", SALE_ID.into())])
            .answers_page::<Order>(
                "Oldest first: the newest 1,000, and whether there are older ones.",
                example("reserved"),
            )
            .refuses(&[Code::NotFound])
    }),
    Endpoint::get("/v1/orders/{id}", handler!(show), |it| {
        it.of_shoppers(Who::Shopper, "showOrder", "Show one's own order")
            .says("Works at once after the purchase. Another shopper's is 404.")
            .answers::<Order>(200, "The order.", example("reserved"))
    }),
    Endpoint::post("/v1/orders/{id}/cancel", handler!(cancel), |it| {
        it.of_shoppers(Who::Shopper, "cancelOrder", "Cancel one's own order")
            .says("The units are free again at once. Cancelling twice is no error.")
            .answers::<Order>(200, "The order is cancelled.", example("cancelled"))
            .refuses(&[Code::OrderNotCancellable])
    }),
];

/// The body of a purchase.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PurchaseBody {
    /// The item to buy.
    #[schemars(with = "Sku")]
    sku: String,
    /// How many units to buy.
    #[schemars(range(min = 1, max = QUANTITY_MAX))]
    quantity: i64,
}

impl PurchaseBody {
    fn check(self, Shopper(user): Shopper, Key(key): Key) -> Result<PurchaseRequest, Problem> {
        let sku = parsed("sku:", &self.sku)?;
        let quantity = u32::try_from(self.quantity)
            .ok()
            .filter(|quantity| (1..=QUANTITY_MAX).contains(quantity));
        let quantity = quantity.ok_or_else(|| Problem::invalid(format!("quantity must be 1 to {QUANTITY_MAX}")))?;
        Ok(PurchaseRequest::new(user, key, sku, quantity))
    }
}

/// The parts of a purchase, in the order in which they are checked.
type Asked = (Shopper, SalePath, Key, PurchaseProofs, Json<PurchaseBody>);

async fn purchase(
    api: Data<Api>,
    named: Option<SalePath>,
    http: HttpRequest,
    asked: Result<Asked, Error>,
) -> Result<HttpResponse, Error> {
    let began = Instant::now();
    let asked = asked.and_then(|(shopper, SalePath(sale), key, proofs, Json(body))| {
        let request = body.check(shopper, key)?;
        Ok((sale, request, proofs))
    });
    let (sale, request, proofs) = match asked {
        Ok(asked) => asked,
        Err(error) => {
            if let Some(problem) = error.as_error::<Problem>() {
                counts::unread(&api, named.map(|SalePath(sale)| sale), problem.code(), began.elapsed());
            }
            return Err(error);
        }
    };
    let _inside = api.gate.enter();
    // Counted by this worker alone. A clone of `shared` would write to a count that all workers share.
    let own = api.clone();
    let account = AccountHash::of(sale, &request.user);
    let outcome = api
        .for_shopper(|app| async move {
            let mut shadows = Vec::new();
            let refused_by = |sale: &Sale| {
                let refused = proofs.refused_by(sale, &own.token_keys, &request);
                shadows = refused.shadows;
                refused.refusal
            };
            let outcome = flow::sell::purchase::purchase(&app, sale, &request, refused_by).await?;
            // No guard refuses a key that has an order.
            if !matches!(outcome, PurchaseOutcome::Replayed(_)) {
                for layer in shadows {
                    let sender = Sender::Account(request.user.clone());
                    refusal_counts::would_stop(&app, Some(sale), layer, Some(sender));
                }
            }
            Ok(outcome)
        })
        .await;
    if let Ok(PurchaseOutcome::Refused(refusal) | PurchaseOutcome::Unprobed(refusal)) = &outcome
        && let Some(guard) = refusal.guard()
    {
        counts::refused_by_guard(&api, Some(sale), guard);
    }
    match &outcome {
        Ok(PurchaseOutcome::Reserved(order)) => {
            let addresses = client_of(&api, &http).map(Client::groups);
            api.app.fairness.bought(sale, account, order.quantity, addresses);
        }
        // A replay asks for no more units. Accounts of invented sales are not remembered.
        Ok(PurchaseOutcome::Replayed(_) | PurchaseOutcome::Refused(Refusal::SaleNotFound)) => {}
        _ => api.app.fairness.attempted(account),
    }
    let answer = outcome.and_then(answer);
    counts::answered(&api, sale, answer.as_ref().map(HttpResponse::status), began.elapsed());
    Ok(answer?)
}

/// What a request lacks.
#[derive(Default)]
struct Lacking {
    refusal: Option<Refusal>,
    /// The guards in shadow that would have refused it.
    shadows: Vec<Layer>,
}

impl Lacking {
    /// Notes a proof that a guard asks for and the request may lack.
    fn check(&mut self, asked: Applied<bool>, refusal: Refusal, has_proof: impl FnOnce() -> bool) {
        let is_shadow = asked.shadow == Some(true);
        if self.refusal.is_some() || !(asked.value || is_shadow) || has_proof() {
            return;
        }
        if is_shadow {
            self.shadows.extend(refusal.guard());
        }
        self.refusal = asked.value.then_some(refusal);
    }
}

impl PurchaseProofs {
    /// The refusal for a proof that the sale requires of this shopper and the request lacks, if any. The first counts, so
    /// they are checked in the order of `refusals!`.
    fn refused_by(&self, sale: &Sale, keys: &TokenKeys, request: &PurchaseRequest) -> Lacking {
        let (now, user, key) = (Utc::now().timestamp(), &request.user, &request.key);
        let mut lacking = Lacking::default();
        let admission = self.admission.as_deref().unwrap_or_default();
        lacking.check(sale.waiting_room_for(user), Refusal::AdmissionRequired, || {
            keys.is_admitted(admission, sale.id, user, now)
        });
        let token = self.purchase_token.as_deref().unwrap_or_default();
        lacking.check(sale.purchase_token_for(user), Refusal::TokenRequired, || {
            let sale = sale.id;
            let bound = Bound { sale, user, key };
            keys.is_good(token, &bound, now)
        });
        lacking
    }
}

/// The code of a check, with its sentence if several checks have that code.
fn in_order_of_checks(refusal: &Refusal) -> String {
    let code = refusal.code();
    let is_shared = Refusal::each().iter().filter(|it| it.code() == code).count() > 1;
    let code = code.as_str();
    if is_shared {
        format!("`{code}` ({})", refusal.detail())
    } else {
        format!("`{code}`")
    }
}

fn answer(outcome: PurchaseOutcome) -> Result<HttpResponse, Problem> {
    let (order, mut response) = match outcome {
        PurchaseOutcome::Reserved(order) => (order, HttpResponse::Created()),
        PurchaseOutcome::Replayed(order) => {
            let mut response = HttpResponse::Ok();
            response.insert_header((REPLAYED, "true"));
            (order, response)
        }
        PurchaseOutcome::Refused(refusal) => return Err(Problem::from(&refusal)),
        PurchaseOutcome::Unprobed(refusal) => return Err(Problem::from(&refusal).of_key(false)),
    };
    response.insert_header((LOCATION, format!("/v1/orders/{}", order.id)));
    Ok(response.json(order))
}

async fn show(api: Data<Api>, Shopper(user): Shopper, OrderPath(id): OrderPath) -> Result<HttpResponse, Problem> {
    let order = api.for_shopper(|app| async move { flow::settle::order::read_order(&app, id, &user).await });
    Ok(HttpResponse::Ok().json(found(order.await?, "such order")?))
}

/// Which orders to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// The sale whose orders are listed.
    #[schemars(with = "SaleId")]
    sale_id: String,
}

async fn list(api: Data<Api>, Shopper(user): Shopper, Query(query): Query<ListQuery>) -> Result<HttpResponse, Problem> {
    let sale: SaleId = parsed("sale_id:", &query.sale_id)?;
    let orders = api.for_shopper(|app| async move { flow::settle::order::list_orders(&app, sale, &user).await });
    let orders = found(orders.await?, "such sale")?;
    Ok(HttpResponse::Ok().json(Page {
        data: orders.orders,
        has_more: orders.are_more,
    }))
}

async fn cancel(api: Data<Api>, Shopper(user): Shopper, OrderPath(id): OrderPath) -> Result<HttpResponse, Problem> {
    let outcome = api.for_shopper(|app| async move { flow::settle::cancel::cancel(&app, id, &user).await });
    match outcome.await? {
        CancelOutcome::Cancelled(order) => Ok(HttpResponse::Ok().json(order)),
        CancelOutcome::NotCancellable(state) => Err(Problem::order_not_cancellable(state)),
        CancelOutcome::NotFound => Err(Problem::not_found("such order")),
    }
}

/// An order in examples.
pub(in crate::http) fn example(state: &str) -> Value {
    json!({
        "id": ORDER_ID, "sale_id": SALE_ID, "sku": "TSHIRT-M", "quantity": 1, "amount_minor": 2500, "currency": "EUR",
        "state": state, "confirmed": false, "created_at": "2026-11-22T09:00:00.120Z",
        "expires_at": "2026-11-22T09:15:00.120Z", "paid_at": null,
    })
}
