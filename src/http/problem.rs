//! The one table of errors: each code with its status, title and explanation, and the problem that each refusal or
//! fault becomes. Answers are `application/problem+json` (RFC 9457) with the extension member `code`.

use crate::domain::fault::Fault;
use crate::domain::sale::SaleState;
use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, HeaderValue, RETRY_AFTER};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// The content type of problems.
pub const PROBLEM_JSON: &str = "application/problem+json";

macro_rules! codes {
    ($($code:ident $name:literal $status:literal $title:literal $cause:literal $advice:literal)*) => {
        /// What went wrong, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $title] $code,)*
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// The code as it is sent.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => $name,)* }
            }

            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$code => $status,)* }
            }

            /// What the code means.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$code => $title,)* }
            }

            /// What happened, on the code's page. Words in backticks are code.
            #[must_use]
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$code => $cause,)* }
            }

            /// What a client does about it, on the code's page. Words in backticks are code.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$code => $advice,)* }
            }
        }
    };
}

codes! {
    InvalidRequest "invalid_request" 400 "The request is not valid"
        "The JSON, a field, a parameter or a header is wrong. `detail` names it."
        "Correct the request. The same request fails again."
    IdempotencyKeyMissing "idempotency_key_missing" 400 "The header Idempotency-Key is missing"
        "A purchase or a restock came without `Idempotency-Key`."
        "Send the header: one new key for each wish, and the same key on every retry."
    Unauthenticated "unauthenticated" 401 "Authentication is needed"
        "The token, key or signature is missing, wrong or expired."
        "Sign in again, then send the request with the same `Idempotency-Key`."
    Banned "banned" 403 "The account is banned"
        "An operator or a guard has banned the account. It cannot buy."
        "Do not retry. The account's orders can still be read, paid and cancelled."
    AdmissionRequired "admission_required" 403 "The sale has a waiting room"
        "The request has no valid `X-Admission`."
        "Take a place in the waiting room, then send the same key with the `X-Admission` that it gives."
    ChallengeRequired "challenge_required" 403 "A challenge has to be solved"
        "The sale asks for a solved challenge before it gives a purchase token."
        "Ask for a challenge, solve it, and send the answer with the request for the token."
    ChallengeFailed "challenge_failed" 403 "The challenge is not solved"
        "The answer is wrong, too late, or was used before."
        "Ask for a new challenge and solve that one."
    PurchaseTokenRequired "purchase_token_required" 403 "A purchase token is needed"
        "The request has no valid `X-Purchase-Token` for its `Idempotency-Key`."
        "Get a purchase token for this key, then send the same request with it."
    ConsoleTokenRequired "console_token_required" 403 "The console's token is needed"
        "A session of the console changes something only with its `X-Console-Token`."
        "Pages send the token of their session. Programs send the operators' key instead of a cookie."
    NotFound "not_found" 404 "There is no such thing"
        "The path, sale, item or order does not exist, or it belongs to another shopper."
        "Check the id. The same request fails again."
    MethodNotAllowed "method_not_allowed" 405 "The path does not answer this method"
        "The path exists and answers other methods."
        "Use one of the methods that the header `Allow` names."
    SaleNotOpen "sale_not_open" 409 "The sale does not sell now"
        "The sale is in the state that `sale_state` names: draft, scheduled, paused or closed."
        "Wait for `starts_at` of a scheduled sale or for the end of a pause. A closed sale stays closed."
    SoldOut "sold_out" 409 "Sold out"
        "No shard had enough free units at that moment."
        "Show it to the shopper. Units come back when orders expire or are cancelled; do not poll."
    PurchaseLimitReached "purchase_limit_reached" 409 "The limit for one shopper is reached"
        "The shopper's reserved and paid units and the new ones exceed the item's `per_user_limit`."
        "Ask for fewer units. Cancelled and expired orders no longer count."
    OrderNotCancellable "order_not_cancellable" 409 "The order cannot be cancelled"
        "The order is paid, expired or revoked."
        "Read the order and show its state."
    InvalidTransition "invalid_transition" 409 "Its state does not allow it"
        "The sale, payment or dead letter is in a state that does not allow the action, or it changed meanwhile."
        "Read it again. Repeat the action only where its state allows that."
    InsufficientStock "insufficient_stock" 409 "There are not that many free units"
        "A restock takes back more units than are free, or exceeds the most that an item can have."
        "Read the sale's stats and choose another quantity, with a new key."
    PayloadTooLarge "payload_too_large" 413 "The body is too large"
        "A body has at most 16 KiB. A sale that an operator creates or changes has at most 1 MiB."
        "Send a smaller body."
    IdempotencyKeyReused "idempotency_key_reused" 422 "The idempotency key belongs to another request"
        "An earlier request with this `Idempotency-Key` had another body."
        "Use a new key for a new wish."
    TooManyHolds "too_many_holds" 409 "There are too many unpaid orders"
        "The shopper has as many unpaid orders in this sale as it allows."
        "Let the shopper pay or cancel an order first."
    CoolingDown "cooling_down" 429 "Orders were not paid"
        "The shopper's last orders in this sale were not paid."
        "Show the shopper when `Retry-After` is over. It may be hours, so do not wait in a loop."
    RateLimited "rate_limited" 429 "Too many requests"
        "The shopper, the address or the operator has asked too often."
        "Wait `Retry-After` seconds, then send the request with the same key."
    Overloaded "overloaded" 503 "Too much at once"
        "The instance has too many requests, or too many orders wait for the ledger. Nothing was reserved."
        "Wait `Retry-After` seconds, then send the request with the same key."
    Unavailable "unavailable" 503 "Not available now"
        "Redis or Postgres did not answer, or the sale's stock is being rebuilt. The outcome is not known."
        "Wait `Retry-After` seconds, then send the request with the same key: it returns the order if there is one."
}

/// A refusal or an error as an answer.
#[derive(Debug, Clone)]
pub struct Problem {
    code: Code,
    detail: String,
    sale_state: Option<SaleState>,
    is_key_free: bool,
    nothing_done: bool,
    retry_after_seconds: Option<i64>,
    /// The methods that the path answers, if another was used.
    allow: Option<&'static str>,
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl JsonSchema for Code {
    fn schema_name() -> Cow<'static, str> {
        "Code".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "What went wrong, for programs.",
            "enum": Self::ALL,
        })
    }
}

/// A refusal or an error (RFC 9457).
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(super) struct Body<'a> {
    /// The address of the code's explanation, an HTML page. It is relative to the address of the request.
    #[schemars(with = "String", extend("format" = "uri-reference"))]
    r#type: String,
    /// The meaning of the code, the same in every answer with it.
    title: &'a str,
    /// The status of the answer.
    status: u16,
    /// What is wrong with this request.
    detail: &'a str,
    code: Code,
    /// The sale's state, if that is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    sale_state: Option<SaleState>,
    /// `false` on a refused purchase if its `Idempotency-Key` certainly has no order; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_has_order: Option<bool>,
    /// `true` if an operator's request certainly did nothing, although its code does not say so; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    nothing_done: Option<bool>,
}

impl Problem {
    /// A problem with this code, and a sentence about this request.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after_seconds = matches!(code, Code::Overloaded | Code::Unavailable | Code::RateLimited).then_some(1);
        Self {
            code,
            detail: detail.into(),
            sale_state: None,
            is_key_free: false,
            nothing_done: false,
            retry_after_seconds,
            allow: None,
        }
    }

    /// The thing asked for does not exist.
    #[must_use]
    pub fn not_found(what: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {what}"))
    }

    /// The request is wrong; the detail names the place.
    #[must_use]
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, detail)
    }

    /// An operator's action that did not begin, because the audit log could not be written first.
    #[must_use]
    pub fn not_begun(code: Code) -> Self {
        let detail = "the audit log cannot be written now, so nothing was done; try again";
        Self {
            nothing_done: true,
            ..Self::new(code, detail)
        }
    }

    /// A limit is reached; the same request may succeed after `wait`.
    #[must_use]
    pub fn wait(code: Code, detail: &str, wait: Duration) -> Self {
        // Rounded up, so that waiting it out succeeds.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1)).unwrap_or(i64::MAX);
        Self {
            retry_after_seconds: Some(seconds),
            ..Self::new(code, format!("{detail}; try again in {seconds} s"))
        }
    }

    #[must_use]
    pub fn sale_not_open(state: SaleState) -> Self {
        Self {
            sale_state: Some(state),
            ..Self::new(Code::SaleNotOpen, format!("the sale is {state}"))
        }
    }

    #[must_use]
    pub fn invalid_transition(state: SaleState) -> Self {
        let detail = match state {
            SaleState::Draft => "the sale is draft; preload it first".to_owned(),
            other => format!("the sale is {other}"),
        };
        Self {
            sale_state: Some(state),
            ..Self::new(Code::InvalidTransition, detail)
        }
    }

    /// The sale is no longer a draft, so it cannot be changed or deleted.
    #[must_use]
    pub fn not_a_draft(state: SaleState) -> Self {
        let detail = match state {
            SaleState::Draft => "the sale is being preloaded and is no longer a draft".to_owned(),
            other => format!("only a draft can be changed or deleted, and the sale is {other}"),
        };
        Self {
            sale_state: Some(state),
            ..Self::new(Code::InvalidTransition, detail)
        }
    }

    /// The same problem of a purchase, with whether its key certainly has no order.
    #[must_use]
    pub fn of_key(self, is_free: bool) -> Self {
        Self {
            is_key_free: is_free,
            ..self
        }
    }

    /// The path does not answer this method, but others.
    #[must_use]
    pub fn method_not_allowed(allow: &'static str) -> Self {
        Self {
            allow: Some(allow),
            ..Self::new(Code::MethodNotAllowed, format!("this path answers {allow}"))
        }
    }

    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The body as it is sent.
    pub(super) fn body(&self) -> Body<'_> {
        Body {
            // Behind a proxy an instance does not know its own address, so the reference is relative.
            r#type: format!("/problems/{}", self.code.as_str()),
            title: self.code.title(),
            status: self.code.status(),
            detail: &self.detail,
            code: self.code,
            sale_state: self.sale_state,
            key_has_order: self.is_key_free.then_some(false),
            nothing_done: self.nothing_done.then_some(true),
        }
    }
}

impl From<Fault> for Problem {
    /// The problem of a fault. The fault's text is for the log; the client learns only what it can act on.
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unavailable(_) => Self::new(
                Code::Unavailable,
                "the outcome is not known; repeat the request with the same Idempotency-Key to find out",
            ),
            Fault::Incomplete(_) => Self::new(
                Code::Unavailable,
                "the sale's stock is being rebuilt; repeat the request with the same key",
            ),
            Fault::Overloaded(_) => Self::new(
                Code::Overloaded,
                "nothing was reserved; repeat the request with the same key",
            ),
            Fault::Newer(_) => Self::new(
                Code::Unavailable,
                "this instance is older than the sale's data; repeat the request with the same key",
            ),
            Fault::Bug(_) => Self::new(
                Code::Unavailable,
                "something unexpected happened and was logged; repeat the request with the same key",
            ),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.detail)
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
    }

    fn error_response(&self) -> HttpResponse {
        let status = self.status_code();
        let mut response = HttpResponseBuilder::new(status);
        if let Some(seconds) = self.retry_after_seconds {
            response.insert_header((RETRY_AFTER, HeaderValue::from(seconds)));
        }
        if self.code == Code::Unauthenticated {
            response.insert_header(("WWW-Authenticate", "Bearer"));
        }
        if let Some(allow) = self.allow {
            response.insert_header((ALLOW, allow));
        }
        response
            .content_type(PROBLEM_JSON)
            .body(serde_json::to_vec(&self.body()).unwrap_or_default())
    }
}
