//! Orders over HTTP: a shopper buys, gets a purchase token, and reads or cancels their own orders.

use crate::domain::challenge::Solving;
use crate::domain::code::Code;
use crate::domain::guard::Layer;
use crate::domain::ids::{IdempotencyKey, SaleId, Sku};
use crate::domain::order::CancelOutcome;
use crate::domain::purchase::{PurchaseOutcome, PurchaseRequest, QUANTITY_MAX, Refusal};
use crate::domain::purchase_token::{Bound, LASTS_SECONDS};
use crate::domain::sale_guards::SaleGuards;
use crate::domain::time::{self, from_millis};
use crate::domain::token_keys::TokenKeys;
use crate::flow;
use crate::guard::challenge;
use crate::http::Api;
use crate::http::extract::{Json, Key, OrderPath, Query, SalePath, Shopper, Shown};
use crate::http::gateway;
use crate::http::problem::Problem;
use crate::http::views::Page;
use actix_web::http::header::LOCATION;
use actix_web::web::Data;
use actix_web::{Error, HttpResponse};
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;

/// The header of an answer that repeats an earlier request's order.
pub(in crate::http) const REPLAYED: &str = "Idempotency-Replayed";

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
        let sku = self
            .sku
            .parse()
            .map_err(|wrong| Problem::invalid(format!("sku: {wrong}")))?;
        let quantity = u32::try_from(self.quantity)
            .ok()
            .filter(|quantity| (1..=QUANTITY_MAX).contains(quantity));
        let quantity = quantity.ok_or_else(|| Problem::invalid(format!("quantity must be 1 to {QUANTITY_MAX}")))?;
        Ok(PurchaseRequest {
            user,
            key,
            sku,
            quantity,
        })
    }
}

/// The parts of a purchase, in the order in which they are checked.
type Asked = (Shopper, SalePath, Key, Shown, Json<PurchaseBody>);

/// `POST /v1/sales/{id}/orders`
pub async fn purchase(
    api: Data<Api>,
    named: Option<SalePath>,
    asked: Result<Asked, Error>,
) -> Result<HttpResponse, Error> {
    let began = Instant::now();
    let asked = asked.and_then(|(shopper, SalePath(sale), key, shown, Json(body))| {
        let request = body.check(shopper, key)?;
        Ok((sale, request, shown))
    });
    let (sale, request, shown) = match asked {
        Ok(asked) => asked,
        Err(error) => {
            unread(&api, named, &error, began);
            return Err(error);
        }
    };
    let _inside = api.gate.enter();
    let shared = Arc::clone(&api.shared);
    let outcome = api
        .for_shopper(|app| async move {
            let refused_by = |guards: &SaleGuards| shown.refused_by(guards, &shared.token_keys, sale, &request);
            flow::sell::purchase::purchase(&app, sale, &request, refused_by).await
        })
        .await;
    if let Ok(PurchaseOutcome::Refused(refusal) | PurchaseOutcome::Unprobed(refusal)) = &outcome
        && let Some(guard) = refusal.guard()
    {
        gateway::count(&api, Some(sale), guard);
    }
    let answer = outcome.and_then(answer);
    let code = match &answer {
        Ok(answer) if answer.status().as_u16() == 201 => "reserved",
        Ok(_) => "replayed",
        Err(problem) => problem.code().as_str(),
    };
    let took = began.elapsed();
    api.metrics.purchases.of([code]).inc();
    api.metrics.purchase_duration.observe(took);
    api.app.pulse.count(sale, code, Some(took));
    Ok(answer?)
}

/// Counts a purchase that was refused before its sale was read, because of its token, key or body. Many of them may
/// show a fault of ours, such as an instance with the wrong secret.
fn unread(api: &Api, named: Option<SalePath>, error: &Error, began: Instant) {
    let Some(code) = error.as_error::<Problem>().map(|problem| problem.code().as_str()) else {
        return;
    };
    api.metrics.purchases.of([code]).inc();
    api.metrics.purchase_duration.observe(began.elapsed());
    if let Some(SalePath(sale)) = named {
        // The name keeps it apart from `rate_limited` of the shopper's window, which is checked later.
        let code = if code == Code::RateLimited.as_str() {
            "account_limit"
        } else {
            code
        };
        api.app.pulse.count(sale, code, None);
    }
}

impl Shown {
    /// The refusal for a proof that the sale requires and the request lacks, if any.
    fn refused_by(
        &self,
        guards: &SaleGuards,
        keys: &TokenKeys,
        sale: SaleId,
        request: &PurchaseRequest,
    ) -> Option<Refusal> {
        let now = Utc::now().timestamp();
        let user = &request.user;
        let admission = self.admission.as_deref().unwrap_or_default();
        if guards.waiting_room && !keys.is_admitted(admission, sale, user, now) {
            return Some(Refusal::AdmissionRequired);
        }
        let key = &request.key;
        let token = self.purchase_token.as_deref().unwrap_or_default();
        let is_good = !guards.purchase_token || keys.is_good(token, &Bound { sale, user, key }, now);
        (!is_good).then_some(Refusal::TokenRequired)
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

/// The request for a purchase token.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBody {
    /// The `Idempotency-Key` of the purchase to come.
    #[schemars(with = "IdempotencyKey")]
    idempotency_key: String,
    /// The answer to a challenge, if the sale requires one.
    challenge: Option<AnswerBody>,
}

/// The answer to a challenge.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerBody {
    /// The challenge's id.
    id: String,
    /// The letters of the captcha, or the counter that solves the proof of work.
    answer: String,
}

/// A purchase token.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PurchaseToken")]
pub(in crate::http) struct HandedOut {
    /// Send this as `X-Purchase-Token`, with the same `Idempotency-Key`.
    token: String,
    /// When the token expires.
    #[schemars(with = "DateTime<Utc>")]
    expires_at: String,
}

/// `POST /v1/sales/{id}/tokens`
pub async fn hand_out_token(
    api: Data<Api>,
    Shopper(user): Shopper,
    SalePath(id): SalePath,
    Json(body): Json<TokenBody>,
) -> Result<HttpResponse, Problem> {
    let key = body.idempotency_key.parse::<IdempotencyKey>();
    let key = key.map_err(|wrong| Problem::invalid(format!("idempotency_key: {wrong}")))?;
    let (asker, request, answer) = (user.clone(), key.clone(), body.challenge);
    let solving = api
        .for_shopper(move |app| async move {
            let Some(sale) = app.sales.fixed(id).await? else {
                return Ok(None);
            };
            // An id that does not parse was never issued.
            let given = answer
                .as_ref()
                .and_then(|it| Some((Uuid::try_parse(&it.id).ok()?, it.answer.as_str())));
            let solving = challenge::solve(&app, &sale, &asker, &request, given).await?;
            Ok(Some(solving))
        })
        .await?;
    let problem = match solving.ok_or_else(|| Problem::not_found("such sale"))? {
        Solving::Solved => None,
        Solving::Wrong => Some(Problem::new(
            Code::ChallengeFailed,
            "the answer is wrong, and the challenge is used up; ask POST /v1/challenges for another",
        )),
        Solving::Unknown | Solving::Used => Some(Problem::new(
            Code::ChallengeRequired,
            "send challenge: one that POST /v1/challenges gave this shopper for this sale within five minutes, solved, \
             and not for another idempotency_key",
        )),
    };
    if let Some(problem) = problem {
        gateway::count(&api, Some(id), Layer::Challenge);
        return Err(problem);
    }
    let expires_at = Utc::now().timestamp() + LASTS_SECONDS;
    let bound = Bound {
        sale: id,
        user: &user,
        key: &key,
    };
    let token = api.token_keys.sign(&bound, expires_at);
    let expires_at = time::format(&from_millis(expires_at * 1000));
    Ok(HttpResponse::Created().json(HandedOut { token, expires_at }))
}

/// `GET /v1/orders/{id}`
pub async fn show(api: Data<Api>, Shopper(user): Shopper, OrderPath(id): OrderPath) -> Result<HttpResponse, Problem> {
    let order = api
        .for_shopper(|app| async move { flow::settle::order::read_order(&app, id, &user).await })
        .await?;
    Ok(HttpResponse::Ok().json(order.ok_or_else(|| Problem::not_found("such order"))?))
}

/// Which orders to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// The sale whose orders are listed.
    #[schemars(with = "SaleId")]
    sale_id: String,
}

/// `GET /v1/orders?sale_id=…`
pub async fn list(
    api: Data<Api>,
    Shopper(user): Shopper,
    Query(query): Query<ListQuery>,
) -> Result<HttpResponse, Problem> {
    let sale = query.sale_id.parse::<SaleId>();
    let sale = sale.map_err(|wrong| Problem::invalid(format!("sale_id: {wrong}")))?;
    let orders = api
        .for_shopper(|app| async move { flow::settle::order::list_orders(&app, sale, &user).await })
        .await?;
    let orders = orders.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(Page {
        data: orders.orders,
        has_more: orders.are_more,
    }))
}

/// `POST /v1/orders/{id}/cancel`
pub async fn cancel(api: Data<Api>, Shopper(user): Shopper, OrderPath(id): OrderPath) -> Result<HttpResponse, Problem> {
    match api
        .for_shopper(|app| async move { flow::settle::cancel::cancel(&app, id, &user).await })
        .await?
    {
        CancelOutcome::Cancelled(order) => Ok(HttpResponse::Ok().json(order)),
        CancelOutcome::NotCancellable(state) => {
            Err(Problem::new(Code::OrderNotCancellable, format!("the order is {state}")))
        }
        CancelOutcome::NotFound => Err(Problem::not_found("such order")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fault::Fault;
    use crate::metrics::Metrics;

    #[test]
    fn every_refusal_and_fault_of_a_purchase_is_counted_under_its_code() {
        let metrics = Metrics::default();
        let faults = [
            Fault::Unavailable,
            Fault::Incomplete,
            Fault::Overloaded,
            Fault::Newer,
            Fault::Bug,
        ];
        let faults = faults.map(|fault| Problem::from(fault(String::new())).code());
        let refusals = Refusal::each();
        for code in refusals.iter().map(|it| Problem::from(it).code()).chain(faults) {
            assert!(metrics.purchases.knows([code.as_str()]), "{code:?}");
        }
    }
}
