//! Limiters: they decide by Redis's clock how many requests may pass. This file calls `lua/limit/fixed_window.lua`,
//! `lua/limit/sliding_window.lua` and `lua/limit/token_bucket.lua`, which know nothing of sales. A limiter whose key Redis has lost
//! counts from zero. A counter of a newer version stays as it is: the call ends with `Newer`, and the callers let the
//! request pass, as while Redis is away.

use crate::domain::fault::Fault;
use crate::domain::time::Millis;
use crate::stock::script::{FIXED_WINDOW, SLIDING_WINDOW, TOKEN_BUCKET, number};
use crate::stock::{Stock, millis};
use std::time::Duration;

/// How many requests may pass, and in what time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// So many requests in a window. A window begins with the first request after the previous window. Around the end
    /// of a window, twice as many may pass.
    FixedWindow {
        /// 1 to 1,000,000,000.
        limit: u32,
        /// 1 ms to a day.
        window: Duration,
    },
    /// At most so many requests in any span of this length, exactly. A sorted set holds them.
    SlidingWindow {
        /// 1 to 100,000.
        limit: u32,
        /// 1 ms to a day.
        window: Duration,
    },
    /// A steady rate, with a reserve for bursts.
    TokenBucket {
        /// Tokens that come in a second: above 0, at most 1,000,000.
        rate: f64,
        /// Tokens that the bucket holds: 1 to 1,000,000.
        burst: f64,
    },
}

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Passed {
        /// For a window, how much of the limit is used by now; for a bucket, how many whole tokens are left.
        count: i64,
    },
    /// The request may not pass, and was not counted.
    Limited {
        /// Milliseconds until it may pass, if no other request comes.
        wait_ms: i64,
    },
}

/// Tokens that were taken out of a bucket at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// In thousandths of a token.
    Some { taken: i64, left: i64 },
    Limited {
        /// Milliseconds until the bucket has the fewest tokens that the caller takes.
        wait_ms: i64,
    },
}

/// A request that asks whether it may pass.
#[derive(Debug, Clone, Copy)]
pub struct LimitedRequest<'a> {
    /// The limited address, account or instance. Each has one counter for each kind of limit.
    pub id: &'a str,
    /// Names the request among those of the same id: a sliding window counts a repeated request once.
    pub request: [u8; 16],
    /// Stands in for Redis's clock in tests.
    pub now: Option<Millis>,
}

impl LimitedRequest<'_> {
    fn key(&self, kind: &str) -> String {
        format!("{{limit:{}}}:{kind}", self.id)
    }
}

impl Stock {
    /// Asks whether a request may pass, and counts it if so. After a fault, it is unknown whether the request was
    /// counted. `Bug` when the limit is out of bounds.
    pub async fn pass(&self, limit: &Limit, limited: &LimitedRequest<'_>) -> Result<Verdict, Fault> {
        let (script, mut call);
        match limit {
            Limit::FixedWindow { limit, window } => {
                script = &FIXED_WINDOW;
                call = FIXED_WINDOW.prepare_invoke();
                call.key(limited.key("counter"));
                call.arg(limit).arg(millis(*window)).arg(1);
            }
            Limit::SlidingWindow { limit, window } => {
                script = &SLIDING_WINDOW;
                call = SLIDING_WINDOW.prepare_invoke();
                call.key(limited.key("window"));
                call.arg(limit).arg(millis(*window)).arg(&limited.request);
            }
            Limit::TokenBucket { rate, burst } => {
                let taken = self.take_tokens((*rate, *burst), 1.0, 1.0, limited).await?;
                return Ok(match taken {
                    Taken::Some { left, .. } => Verdict::Passed { count: left / 1000 },
                    Taken::Limited { wait_ms } => Verdict::Limited { wait_ms },
                });
            }
        }
        call.arg(limited.now);
        let (status, mut fields) = self.answer(script, &call).await?;
        match status.as_str() {
            "PASSED" => Ok(Verdict::Passed {
                count: number(&mut fields)?,
            }),
            "LIMITED" => Ok(Verdict::Limited {
                wait_ms: number(&mut fields)?,
            }),
            other => Err(Fault::Bug(format!("a limiter answered {other}"))),
        }
    }

    /// Takes up to `wanted` tokens out of a bucket with this rate and burst (as in [`Limit::TokenBucket`]), but none if
    /// it has fewer than `at_least`. A process that takes many at once and hands them out calls Redis less often. After
    /// a fault, it is unknown whether tokens were taken. `Bug` when a number is out of bounds.
    pub async fn take_tokens(
        &self,
        (rate, burst): (f64, f64),
        wanted: f64,
        at_least: f64,
        limited: &LimitedRequest<'_>,
    ) -> Result<Taken, Fault> {
        let mut call = TOKEN_BUCKET.prepare_invoke();
        call.key(limited.key("bucket"));
        call.arg(rate).arg(burst).arg(wanted).arg(at_least).arg(limited.now);
        let (status, mut fields) = self.answer(&TOKEN_BUCKET, &call).await?;
        match status.as_str() {
            "PASSED" => Ok(Taken::Some {
                taken: number(&mut fields)?,
                left: number(&mut fields)?,
            }),
            "LIMITED" => Ok(Taken::Limited {
                wait_ms: number(&mut fields)?,
            }),
            other => Err(TOKEN_BUCKET.unknown(other)),
        }
    }

    /// Removes a request from the sliding window that it passed, because it did not get what it asked for. After a
    /// fault, it is unknown whether the request still counts.
    pub async fn give_back(&self, limited: &LimitedRequest<'_>) -> Result<(), Fault> {
        let mut command = redis::cmd("ZREM");
        command.arg(limited.key("window")).arg(&limited.request);
        self.command::<i64>(&command).await.map(drop)
    }
}
