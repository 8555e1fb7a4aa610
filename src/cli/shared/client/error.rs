//! Why a request has no answer of 2xx: the API refused it, or there is no answer.

use crate::cli::Failure;
use crate::cli::shared::output::one_line;
use serde_json::Value;
use std::time::Duration;

/// An answer that is not 2xx: problem+json from the API, anything from another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    /// The reason, for machines.
    pub code: String,
    /// The reason, for people.
    pub detail: String,
    /// Seconds to wait before the next attempt.
    pub retry_after: Option<String>,
    /// Which setting may be wrong.
    pub advice: Option<String>,
    /// Whether it refuses a purchase whose key certainly has no order.
    pub is_key_free: bool,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", one_line(&self.code), one_line(&self.detail))?;
        if let Some(advice) = &self.advice {
            write!(f, "; {}", one_line(advice))?;
        }
        match &self.retry_after {
            Some(seconds) => write!(f, " (try again in {} s)", one_line(seconds)),
            None => Ok(()),
        }
    }
}

/// Why a request has no answer of 2xx.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server refused the request.
    #[error("{0}")]
    Refused(Refusal),
    /// There is no answer, or none that can be understood. The server may have carried out the request.
    #[error("{0}")]
    NoAnswer(String),
}

impl CallError {
    /// Whether the same request may succeed a little later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.status == 429 || refusal.status >= 500,
            Self::NoAnswer(_) => true,
        }
    }

    /// The code of a refusal; empty if there is no answer.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(refusal) => &refusal.code,
            Self::NoAnswer(_) => "",
        }
    }

    /// The wait that the server asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => Some(Duration::from_secs(refusal.retry_after.as_ref()?.parse().ok()?)),
            Self::NoAnswer(_) => None,
        }
    }

    /// This error, with `detail` in place of a refusal's own if that names `part` of HTTP. A person at a terminal sends
    /// no header and no method.
    #[must_use]
    pub fn in_words(self, part: &str, detail: &str) -> Self {
        match self {
            Self::Refused(refusal) if refusal.detail.contains(part) => Self::Refused(Refusal {
                detail: detail.to_owned(),
                ..refusal
            }),
            other => other,
        }
    }

    /// This error as a failure. If the same request may succeed later, the text ends with `advice`.
    pub fn with_advice(self, advice: &str) -> Failure {
        if !self.may_pass() {
            return self.into();
        }
        match self {
            Self::Refused(refusal) => Failure::No(format!("{refusal}; {advice}")),
            Self::NoAnswer(message) => Failure::Fault(anyhow::anyhow!("{message}; {advice}")),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) => Self::No(refusal.to_string()),
            CallError::NoAnswer(message) => Self::Fault(anyhow::Error::msg(message)),
        }
    }
}

/// The refusal in an answer. If the body has no detail, its first characters stand for it.
pub(super) fn refusal(status: u16, retry_after: Option<String>, advice: Option<String>, bytes: &[u8]) -> Refusal {
    let problem: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let text = |name: &str| problem.get(name).and_then(Value::as_str).map(str::to_owned);
    let detail = text("detail").or_else(|| text("title")).unwrap_or_else(|| {
        let start: String = String::from_utf8_lossy(bytes).chars().take(200).collect();
        Some(start)
            .filter(|it| !it.trim().is_empty())
            .unwrap_or_else(|| "no reason given".to_owned())
    });
    Refusal {
        status,
        code: text("code").unwrap_or_else(|| format!("HTTP {status}")),
        detail,
        retry_after,
        advice,
        is_key_free: problem["key_has_order"] == false,
    }
}
