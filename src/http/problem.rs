//! The problem that each refusal or fault becomes. [`Code`] has the table of codes. Answers are
//! `application/problem+json` (RFC 9457) with the extension member `code`.

use crate::domain::code::Code;
use crate::domain::fault::Fault;
use crate::domain::operator::keys::OperatorRole;
use crate::domain::order::OrderState;
use crate::domain::order::purchase::Refusal;
use crate::domain::sale::SaleState;
use crate::domain::time::{self, Millis, from_millis};
use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, HeaderValue, RETRY_AFTER};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The content type of problems.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// A refusal or an error as an answer.
#[derive(Debug, Clone)]
pub struct Problem {
    code: Code,
    detail: String,
    sale_state: Option<SaleState>,
    banned_until: Option<DateTime<Utc>>,
    is_key_free: bool,
    nothing_done: bool,
    retry_after_seconds: Option<i64>,
    /// The methods that the path answers, if another was used.
    allow: Option<Arc<str>>,
}

/// A refusal or an error (RFC 9457).
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(super) struct ProblemBody<'a> {
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
    /// When the account's ban ends, if that is the reason; absent if the ban has no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DateTime<Utc>")]
    banned_until: Option<String>,
    /// `false` on a refused purchase if its `Idempotency-Key` certainly has no order; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_has_order: Option<bool>,
    /// `true` if an operator's request certainly did nothing, although its code does not say so; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    nothing_done: Option<bool>,
}

impl Problem {
    /// A problem with this code, and a sentence about this request. Without a known wait, a code that allows another try
    /// asks for one second.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after_seconds = matches!(code, Code::Overloaded | Code::Unavailable | Code::RateLimited).then_some(1);
        Self {
            code,
            detail: detail.into(),
            sale_state: None,
            banned_until: None,
            is_key_free: false,
            nothing_done: false,
            retry_after_seconds,
            allow: None,
        }
    }

    /// The thing asked for does not exist.
    pub fn not_found(what: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {what}"))
    }

    /// The request is wrong; the detail names the place.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, detail)
    }

    /// The role of the operator's key lacks the action.
    pub fn forbidden(role: OperatorRole, action: &str) -> Self {
        let role = role.as_str();
        Self::new(
            Code::Forbidden,
            format!("the role {role} of your key does not include {action}"),
        )
    }

    pub fn challenge_required() -> Self {
        Self::new(
            Code::ChallengeRequired,
            "send challenge: one that POST /v1/challenges gave this shopper for this sale within five minutes, solved, \
             and not for another idempotency_key",
        )
    }

    pub fn challenge_failed() -> Self {
        Self::new(
            Code::ChallengeFailed,
            "the answer is wrong, and the challenge is used up; ask POST /v1/challenges for another",
        )
    }

    pub fn order_not_cancellable(state: OrderState) -> Self {
        Self::new(Code::OrderNotCancellable, format!("the order is {state}"))
    }

    /// An item has too few free units to take this many back.
    pub fn too_few_free(sku: &str, free: i64, wanted: i64) -> Self {
        Self::new(
            Code::InsufficientStock,
            format!("free units of {sku}: {free}; to be taken back: {wanted}"),
        )
    }

    /// The key belongs to this other request of an operator.
    pub fn key_reused(other: &str) -> Self {
        Self::new(Code::IdempotencyKeyReused, format!("this key belongs to {other}"))
    }

    /// A sign-out without a session.
    pub fn no_session() -> Self {
        Self::invalid("there is no session: the operators' key needs no sign-out")
    }

    /// The instance cannot work.
    pub fn not_ready(reason: &str) -> Self {
        Self::new(Code::Unavailable, format!("not ready: {reason}"))
    }

    /// An operator's action that did not begin, because the audit log could not be written first.
    pub fn not_begun(code: Code) -> Self {
        let detail = "the audit log cannot be written now, so nothing was done; try again";
        Self {
            nothing_done: true,
            ..Self::new(code, detail)
        }
    }

    /// A limit is reached; the same request may succeed after `wait`.
    pub fn wait(code: Code, detail: &str, wait: Duration) -> Self {
        // Rounded up, so that waiting it out succeeds.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1)).unwrap_or(i64::MAX);
        Self {
            retry_after_seconds: Some(seconds),
            ..Self::new(code, format!("{detail}; try again in {seconds} s"))
        }
    }

    /// The request does not fit the state of its thing; the detail says why.
    pub fn wrong_state(detail: impl Into<String>) -> Self {
        Self::new(Code::InvalidTransition, detail)
    }

    pub fn sale_not_open(state: SaleState) -> Self {
        Self::from(&Refusal::NotOpen { state }).of_key(false)
    }

    pub fn invalid_transition(state: SaleState) -> Self {
        let detail = match state {
            SaleState::Draft => "the sale is a draft: preload it first".to_owned(),
            other => format!("the sale is {other}"),
        };
        Self {
            sale_state: Some(state),
            ..Self::wrong_state(detail)
        }
    }

    /// The sale is no longer a draft, so it cannot be changed or deleted.
    pub fn not_a_draft(state: SaleState) -> Self {
        let detail = match state {
            SaleState::Draft => "the sale is being preloaded and is no longer a draft".to_owned(),
            other => format!("only a draft can be changed or deleted, and the sale is {other}"),
        };
        Self {
            sale_state: Some(state),
            ..Self::wrong_state(detail)
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
    pub fn method_not_allowed(allow: Arc<str>) -> Self {
        let detail = format!("this path answers {allow}");
        Self {
            allow: Some(allow),
            ..Self::new(Code::MethodNotAllowed, detail)
        }
    }

    pub const fn code(&self) -> Code {
        self.code
    }

    /// The body as it is sent.
    pub(super) fn body(&self) -> ProblemBody<'_> {
        ProblemBody {
            // Behind a proxy an instance does not know its own address, so the reference is relative.
            r#type: format!("/problems/{}", self.code.as_str()),
            title: self.code.title(),
            status: self.code.status(),
            detail: &self.detail,
            code: self.code,
            sale_state: self.sale_state,
            banned_until: self.banned_until.as_ref().map(time::format),
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

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let (code, detail) = (refusal.code(), refusal.detail());
        let banned_until = refusal.banned_until().map(from_millis);
        let problem = match (refusal.wait_ms(), &banned_until) {
            (Some(wait), _) => Self::wait(code, &detail, milliseconds(wait)),
            (None, Some(until)) => Self::new(code, format!("{detail} before {}", time::format(until))),
            (None, None) => Self::new(code, detail),
        };
        Self {
            sale_state: refusal.sale_state(),
            banned_until,
            is_key_free: refusal.is_key_free(),
            ..problem
        }
    }
}

fn milliseconds(wait: Millis) -> Duration {
    Duration::from_millis(u64::try_from(wait).unwrap_or_default())
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
        if let Some(allow) = &self.allow {
            response.insert_header((ALLOW, &**allow));
        }
        response
            .content_type(PROBLEM_JSON)
            .body(serde_json::to_vec(&self.body()).unwrap_or_default())
    }
}
