//! Development mode: with the key that the program prints at its start, a client signs in as any shopper and pays with
//! no money. So the pages can be tried without a shop and a payment provider. Outside of development mode, these routes
//! do not exist.

use crate::config::Secret;
use crate::domain::code::Code;
use crate::domain::deployment::development;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, UserId};
use crate::domain::order::webhook;
use crate::domain::shopper::token;
use crate::domain::time::{self, from_millis};
use crate::flow;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Shopper, parsed};
use crate::http::problem::Problem;
use crate::http::shop::webhooks::{Delivery, take_in};
use crate::http::{Api, found};
use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::HeaderValue;
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpResponse, ResponseError};
use chrono::Utc;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use subtle::ConstantTimeEq as _;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::development("/dev/token", handler!(token)),
    Endpoint::development("/dev/pay", handler!(pay)),
];

/// The header with the development key.
const KEY: &str = "X-Development-Key";
/// How long a token from here lasts, in seconds.
const TOKEN_SECONDS: i64 = 3600;

/// What only development mode needs.
pub struct Development {
    jwt_secret: Secret<String>,
    /// See [`development::key`].
    key: String,
}

impl Development {
    /// Needs the secret that signs shoppers' tokens.
    pub fn new(jwt_secret: Secret<String>) -> Self {
        let key = development::key(jwt_secret.expose());
        Self { jwt_secret, key }
    }

    fn knows(&self, given: &[u8]) -> bool {
        let key = self.key.as_bytes();
        !key.is_empty() && bool::from(given.ct_eq(key))
    }
}

/// Refuses requests without the key, even from this machine: a proxy or another site's page may send those, too.
pub async fn only_with_key<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B, BoxBody>>, Error> {
    let given = request.headers().get(KEY).map(HeaderValue::as_bytes);
    let development = request.app_data::<Data<Api>>().and_then(|api| api.development.as_ref());
    if development.is_some_and(|development| development.knows(given.unwrap_or_default())) {
        return Ok(next.call(request).await?.map_into_left_body());
    }
    let problem = Problem::new(
        Code::NotFound,
        format!("send {KEY}: its value is in the link that the program printed at its start"),
    );
    Ok(request.into_response(problem.error_response()).map_into_right_body())
}

/// The shopper to sign in as.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    #[schemars(with = "UserId")]
    user: String,
}

async fn token(api: Data<Api>, Json(body): Json<TokenBody>) -> Result<HttpResponse, Problem> {
    let development = of(&api)?;
    let user: UserId = parsed("user:", &body.user)?;
    let now = Utc::now().timestamp();
    let expires_at = now + TOKEN_SECONDS;
    let token = token::issue(development.jwt_secret.expose(), user.as_str(), now, expires_at)
        .map_err(|error| Problem::from(Fault::Bug(format!("a token cannot be signed: {error}"))))?;
    let expires_at = time::format(&from_millis(expires_at * 1000));
    Ok(HttpResponse::Created().json(json!({"token": token, "expires_at": expires_at})))
}

fn of(api: &Api) -> Result<&Development, Problem> {
    found(api.development.as_ref(), "such path")
}

/// The order to pay for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PayBody {
    #[schemars(with = "OrderId")]
    order_id: String,
}

/// Plays the provider, which reports a payment by a signed webhook. Paying again is the same payment.
async fn pay(api: Data<Api>, Shopper(user): Shopper, Json(body): Json<PayBody>) -> Result<HttpResponse, Problem> {
    let id: OrderId = found(body.order_id.parse().ok(), "such order")?;
    let order = api.for_shopper(|app| async move { flow::settle::order::read_order(&app, id, &user).await });
    let order = found(order.await?, "such order")?;
    let payment = format!("dev_{id}");
    let event = json!({
        "type": "payment.succeeded",
        "timestamp": time::format(&Utc::now()),
        "data": {
            "payment_id": payment,
            "order_id": id.to_string(),
            "amount_minor": order.amount_minor,
            "currency": order.currency,
        },
    });
    let event = event.to_string();
    let now = Utc::now().timestamp();
    let signature = webhook::sign(api.webhook_secret.expose(), &payment, now, event.as_bytes());
    let delivery = Delivery {
        id: &payment,
        timestamp: &now.to_string(),
        signature: &signature,
    };
    take_in(&api, &delivery, event.as_bytes()).await
}
