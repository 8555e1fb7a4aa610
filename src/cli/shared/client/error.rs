//! Why a request has no answer of 2xx: the API refused it, or there is no answer.

use crate::cli::Failure;
use crate::cli::shared::output::one_line;
use crate::cli::shared::{duration, human};
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
    /// The wait before the next attempt.
    pub retry_after: Option<Duration>,
    /// Which setting may be wrong, or what to do next.
    pub advice: Option<String>,
    /// The problem as the API sent it; null if another server answered something else.
    pub problem: Box<Value>,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The API's detail may end with the wait, too, in seconds alone.
        let wait = self.retry_after.map(|wait| wait.as_secs());
        let in_seconds = wait.map(|seconds| format!("; try again in {seconds} s"));
        let detail = self.detail.strip_suffix(in_seconds.unwrap_or_default().as_str());
        let detail = one_line(detail.unwrap_or(&self.detail));
        write!(f, "{}: {}", one_line(&self.code), human::with_times(&detail))?;
        if let Some(advice) = &self.advice {
            write!(f, "; {}", one_line(advice))?;
        }
        match self.retry_after {
            Some(wait) => write!(f, " (try again in {})", duration::text(wait)),
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
            Self::Refused(refusal) => refusal.retry_after,
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
        let text = if self.may_pass() {
            format!("{self}; {advice}")
        } else {
            self.to_string()
        };
        self.failure(text)
    }

    /// This error as a failure with this text.
    pub fn failure(self, text: String) -> Failure {
        match self {
            Self::Refused(Refusal { problem, .. }) => Failure::Refused { text, problem },
            Self::NoAnswer(_) => Failure::Fault(anyhow::Error::msg(text)),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let text = error.to_string();
        error.failure(text)
    }
}

/// The refusal in an answer. If the body has no detail, its first characters stand for it.
pub(super) fn refusal(status: u16, retry_after: Option<Duration>, bytes: &[u8]) -> Refusal {
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
        advice: None,
        problem: Box::new(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_wait_is_said_once_and_times_as_people_write_them() {
        let until = "2026-11-28T23:45:41.000Z";
        for (detail, wait, shown) in [
            (
                "the window is full; try again in 60 s".to_owned(),
                Some(60),
                "c: the window is full (try again in 1 min)".to_owned(),
            ),
            (
                "nothing was reserved".to_owned(),
                Some(1),
                "c: nothing was reserved (try again in 1 s)".to_owned(),
            ),
            (
                format!("you may not buy before {until}"),
                None,
                format!("c: you may not buy before {}", human::moment(until).unwrap()),
            ),
        ] {
            let body = json!({"code": "c", "detail": detail}).to_string();
            let refusal = refusal(429, wait.map(Duration::from_secs), body.as_bytes());
            assert_eq!(refusal.to_string(), shown);
        }
    }

    #[test]
    fn a_request_that_is_wrong_is_bad_usage_and_its_problem_is_kept() {
        for (code, exit_code) in [("invalid_request", 2), ("not_found", 1)] {
            let problem = json!({"code": code, "detail": "d"});
            let error = CallError::Refused(refusal(400, None, problem.to_string().as_bytes()));
            let failure = Failure::from(error);
            assert_eq!(failure.exit_code(), exit_code);
            assert!(matches!(failure, Failure::Refused { problem: kept, .. } if *kept == problem));
        }
    }
}
