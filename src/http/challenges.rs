//! Challenges, as shoppers ask for them.

use super::Api;
use super::extract::{Json, Shopper};
use super::gateway;
use super::problem::{Code, Problem};
use crate::domain::guard::Layer;
use crate::domain::ids::SaleId;
use crate::domain::time::{self, from_millis};
use crate::guard::challenge::{self, Posing, Shown};
use actix_web::HttpResponse;
use actix_web::web::Data;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// What a challenge is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeBody {
    sale_id: String,
}

/// `POST /v1/challenges`
///
/// # Errors
/// The problem that is answered.
pub async fn pose(
    api: Data<Api>,
    Shopper(user): Shopper,
    Json(body): Json<ChallengeBody>,
) -> Result<HttpResponse, Problem> {
    let sale = body.sale_id.parse::<SaleId>();
    let sale = sale.map_err(|wrong| Problem::invalid(format!("sale_id: {wrong}")))?;
    let shared = Arc::clone(&api.shared);
    let posing = api
        .for_shopper(move |app| async move { challenge::pose(&app, &shared.easel, sale, &user).await })
        .await?;
    let (id, shown, expires_at) = match posing {
        Posing::Posed { id, shown, expires_at } => (id, shown, expires_at),
        Posing::Limited { wait_ms } => {
            gateway::count(&api, Some(sale), Layer::Challenge);
            let wait = Duration::from_millis(u64::try_from(wait_ms).unwrap_or_default());
            return Err(Problem::wait(
                Code::RateLimited,
                "this account has asked for too many challenges",
                wait,
            ));
        }
        Posing::NoneAsked => return Err(Problem::not_found("such challenge: the sale asks for none")),
        Posing::SaleNotFound => return Err(Problem::not_found("such sale")),
    };
    let expires_at = time::format(&from_millis(expires_at * 1000));
    Ok(HttpResponse::Created().json(match shown {
        Shown::Captcha(png) => {
            let image = format!("data:image/png;base64,{}", STANDARD.encode(png));
            json!({"id": id, "kind": "captcha", "image": image, "expires_at": expires_at})
        }
        Shown::ProofOfWork(altcha) => {
            json!({"id": id, "kind": "proof_of_work", "altcha": altcha, "expires_at": expires_at})
        }
    }))
}
