//! Challenges: captchas and proofs of work that a shopper asks for.

use crate::domain::code::Code;
use crate::domain::guard::Layer;
use crate::domain::ids::SaleId;
use crate::domain::time::{self, from_millis};
use crate::guard::challenge::{self, PosedForm, Posing};
use crate::http::Api;
use crate::http::counts;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Shopper, parsed};
use crate::http::openapi::{SALE_ID, Who};
use crate::http::problem::Problem;
use actix_web::HttpResponse;
use actix_web::web::Data;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

pub const ROUTES: &[Endpoint] = &[Endpoint::post("/v1/challenges", handler!(pose), |it| {
    it.of_shoppers(Who::Shopper, "askChallenge", "Ask for a challenge")
        .says(
            "For sales whose `guards.challenge` is not `none`, and after a refusal with `challenge_required`. An account \
             may ask for a few within a minute. `not_found` means that the sale asks for none, or no longer.",
        )
        .reads::<ChallengeBody>(json!({"sale_id": SALE_ID}))
        .answers::<PosedChallenge>(
            201,
            "The challenge.",
            json!({"kind": "captcha", "id": "019ac1f2-8d51-7b2c-a4f0-6e1d3c5b7a98",
                    "image": "data:image/png;base64,iVBORw0KGgo=", "expires_at": "2026-11-22T09:05:00.000Z"}),
        )
        .refuses(&[Code::NotFound])
})];

/// The request for a challenge.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChallengeBody {
    /// The sale whose challenge is asked for.
    #[schemars(with = "SaleId")]
    sale_id: String,
    /// True for a shopper who cannot see a picture. A sale with a captcha may then pose a proof of work
    /// (`guards.captcha_proof`).
    #[serde(default)]
    without_picture: bool,
}

/// A challenge. It can be answered once, within five minutes.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schemars(rename = "Challenge")]
pub(in crate::http) enum PosedChallenge {
    /// A captcha: a picture of letters, which the shopper types.
    Captcha {
        /// The challenge's id: send it with the answer.
        id: Uuid,
        /// The picture: a PNG as a `data:` URL.
        image: String,
        /// The challenge cannot be answered after this time.
        #[schemars(with = "DateTime<Utc>")]
        expires_at: String,
    },
    /// A proof of work: some seconds of computing.
    ProofOfWork {
        /// The challenge's id: send it with the answer.
        id: Uuid,
        /// The challenge in the form that ALTCHA's widget takes.
        #[schemars(schema_with = "described")]
        altcha: Box<altcha::Challenge>,
        /// The challenge cannot be answered after this time.
        #[schemars(with = "DateTime<Utc>")]
        expires_at: String,
    },
}

/// The schema of a proof of work. ALTCHA's own type has further members, which this server never sends.
fn described(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "required": ["parameters"],
        "properties": {
            "parameters": {
                "type": "object",
                "required": ["algorithm", "cost", "keyLength", "keyPrefix", "nonce", "salt"],
                "properties": {
                    "algorithm": {"type": "string"},
                    "cost": {"type": "integer", "minimum": 1},
                    "expiresAt": {"type": "integer"},
                    "keyLength": {"type": "integer", "minimum": 1},
                    "keyPrefix": {"type": "string"},
                    "nonce": {"type": "string"},
                    "salt": {"type": "string"},
                },
            },
        },
    })
}

async fn pose(
    api: Data<Api>,
    Shopper(user): Shopper,
    Json(body): Json<ChallengeBody>,
) -> Result<HttpResponse, Problem> {
    let sale: SaleId = parsed("sale_id:", &body.sale_id)?;
    let (shared, without_picture) = (Arc::clone(&api.shared), body.without_picture);
    let posing = api.for_shopper(move |app| async move {
        challenge::pose(&app, &shared.challenge_drawer, sale, &user, without_picture).await
    });
    let (id, shown, expires_at) = match posing.await? {
        Posing::Posed { id, shown, expires_at } => (id, shown, expires_at),
        Posing::Limited { wait_ms } => {
            counts::refused_by_guard(&api, Some(sale), Layer::Challenge);
            let wait = Duration::from_millis(u64::try_from(wait_ms).unwrap_or_default());
            return Err(Problem::wait(
                Code::RateLimited,
                "this account has asked for too many challenges",
                wait,
            ));
        }
        Posing::NoneAsked => return Err(Problem::not_found("such challenge: the sale asks for none")),
        Posing::PictureOnly => {
            return Err(Problem::not_found(
                "such challenge: the sale accepts only the picture of its captcha",
            ));
        }
        Posing::SaleNotFound => return Err(Problem::not_found("such sale")),
    };
    let expires_at = time::format(&from_millis(expires_at * 1000));
    Ok(HttpResponse::Created().json(match shown {
        PosedForm::Captcha(png) => {
            let image = format!("data:image/png;base64,{}", STANDARD.encode(png));
            PosedChallenge::Captcha { id, image, expires_at }
        }
        PosedForm::ProofOfWork(altcha) => PosedChallenge::ProofOfWork { id, altcha, expires_at },
    }))
}
