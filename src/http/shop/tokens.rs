//! Purchase tokens: a shopper gets one for a sale that requires it, and solves the sale's challenge for it.

use crate::domain::code::Code;
use crate::domain::guard::Layer;
use crate::domain::ids::IdempotencyKey;
use crate::domain::shopper::challenge::Solving;
use crate::domain::shopper::purchase_token::{Bound, LASTS_SECONDS};
use crate::domain::time::{self, from_millis};
use crate::guard::challenge;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, SalePath, Shopper, parsed};
use crate::http::openapi::Who;
use crate::http::problem::Problem;
use crate::http::{Api, counts, found};
use actix_web::HttpResponse;
use actix_web::web::Data;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

pub const ROUTES: &[Endpoint] = &[Endpoint::post("/v1/sales/{id}/tokens", handler!(issue_token), |it| {
    it.of_shoppers(Who::Shopper, "getPurchaseToken", "Get a purchase token")
        .says(
            "For sales whose `guards.purchase_token` or `guards.staged.purchase_token` is true. The token lasts five \
                 minutes, for this shopper, sale and key.",
        )
        .reads::<TokenBody>(json!({"idempotency_key": "cart-7f3a-1"}))
        .answers::<IssuedToken>(
            201,
            "The token.",
            json!({"token": "p1.MTc2MzgwMjMwMA.9fK2", "expires_at": "2026-11-22T09:05:00.000Z"}),
        )
        .refuses(&[Code::ChallengeRequired, Code::ChallengeFailed])
})];

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
pub(in crate::http) struct IssuedToken {
    /// Send this as `X-Purchase-Token`, with the same `Idempotency-Key`.
    token: String,
    /// When the token expires.
    #[schemars(with = "DateTime<Utc>")]
    expires_at: String,
}

async fn issue_token(
    api: Data<Api>,
    Shopper(user): Shopper,
    SalePath(id): SalePath,
    Json(body): Json<TokenBody>,
) -> Result<HttpResponse, Problem> {
    let key: IdempotencyKey = parsed("idempotency_key:", &body.idempotency_key)?;
    let (asker, request, answer) = (user.clone(), key.clone(), body.challenge);
    let solving = api.for_shopper(move |app| async move {
        let Some(sale) = app.sales.fixed(id).await? else {
            return Ok(None);
        };
        // An id that does not parse was never issued.
        let given = answer
            .as_ref()
            .and_then(|it| Some((Uuid::try_parse(&it.id).ok()?, it.answer.as_str())));
        let solving = challenge::solve(&app, &sale, &asker, &request, given).await?;
        Ok(Some(solving))
    });
    let problem = match found(solving.await?, "such sale")? {
        Solving::Solved => None,
        Solving::Wrong => Some(Problem::challenge_failed()),
        Solving::Unknown | Solving::Used => Some(Problem::challenge_required()),
    };
    if let Some(problem) = problem {
        counts::refused_by_guard(&api, Some(id), Layer::Challenge);
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
    Ok(HttpResponse::Created().json(IssuedToken { token, expires_at }))
}
