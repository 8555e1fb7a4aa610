//! Readiness: whether this instance can work. Reads only.

use crate::cache::Cache;
use crate::domain::fault::Fault;
use crate::domain::operator::report::{Health, ServerHealth};
use crate::domain::time::{Millis, from_millis};
use crate::flow::App;
use chrono::{DateTime, Utc};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// How long each server may take to answer.
const TIME_MAX: Duration = Duration::from_millis(1400);
/// How long Redis may take to return its settings on top of that.
const RISKS_MAX: Duration = Duration::from_millis(400);

/// How long a verdict is served from memory: the servers are asked twice a second at most.
const FRESH: Duration = Duration::from_millis(500);

/// The cause that keeps an instance from working.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Redis,
    Postgres,
    Schema,
    Eviction,
}

impl Cause {
    /// The public text: no address and none of a server's own words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis does not answer",
            Self::Postgres => "postgres does not answer",
            Self::Schema => "the schema is behind",
            Self::Eviction => "redis may evict stock",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    pub cause: Cause,
    /// The whole reason, for operators.
    pub reason: String,
}

/// Warnings about the settings of Redis and unverified shards, or why this instance cannot work.
pub type Verdict = Arc<Result<BTreeSet<String>, NotReady>>;

/// The readiness of one process, as of a moment ago. Many concurrent callers share one check.
pub struct Readiness {
    verdict: Cache<(), Verdict>,
    was_ready: AtomicBool,
    redis: LastAnswer,
    postgres: LastAnswer,
}

/// When a server last answered this process, so that all pages say the same time of an outage.
#[derive(Default)]
struct LastAnswer(AtomicI64);

impl LastAnswer {
    /// Before the first answer.
    const NEVER: Millis = 0;

    fn note(&self) {
        self.0.store(Utc::now().timestamp_millis(), Ordering::Relaxed);
    }

    fn at(&self) -> Option<DateTime<Utc>> {
        let at = self.0.load(Ordering::Relaxed);
        (at != Self::NEVER).then(|| from_millis(at))
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            verdict: Cache::fresh_for(FRESH, 1),
            was_ready: AtomicBool::new(true),
            redis: LastAnswer::default(),
            postgres: LastAnswer::default(),
        }
    }
}

impl Readiness {
    /// Logs once that the instance cannot work, and once that it can again.
    fn note(&self, verdict: &Verdict) {
        let was_ready = self.was_ready.swap(verdict.is_ok(), Ordering::Relaxed);
        match &**verdict {
            Err(NotReady { reason, .. }) if was_ready => tracing::warn!(reason, "this instance is not ready"),
            Ok(_) if !was_ready => tracing::info!("this instance is ready again"),
            _ => {}
        }
    }
}

/// Whether this instance can work, as of half a second ago at most.
pub async fn readiness(app: &App) -> Verdict {
    let read = async {
        let verdict = Arc::new(check(app).await);
        app.readiness.note(&verdict);
        verdict
    };
    app.readiness.verdict.get_or_read(&(), Box::pin(read)).await
}

async fn check(app: &App) -> Result<BTreeSet<String>, NotReady> {
    let not_ready = |cause: Cause| move |reason: String| NotReady { cause, reason };
    let redis = in_time(TIME_MAX, app.stock.unfit());
    let postgres = in_time(TIME_MAX, app.ledger.migrations_missing());
    let (redis, postgres) = tokio::join!(Box::pin(redis), Box::pin(postgres));
    let unfit = redis.map_err(|fault| not_ready(Cause::Redis)(fault.to_string()))?;
    unfit.map_or(Ok(()), |reason| Err(not_ready(Cause::Eviction)(reason)))?;
    let missing = postgres.map_err(|fault| not_ready(Cause::Postgres)(fault.to_string()))?;
    if missing > 0 {
        return Err(not_ready(Cause::Schema)(behind(missing)));
    }
    // An instance works despite warnings, and despite a Redis that does not return its settings in time.
    let risks = tokio::time::timeout(RISKS_MAX, app.stock.risks()).await;
    let mut warnings = risks.unwrap_or_default();
    warnings.extend(app.permits.unverified());
    Ok(warnings)
}

/// How fast both servers answer, side by side; on a cluster, all primaries of Redis. Postgres need not be asked if it has
/// answered the last bulletin, and Redis if it `took` so long for an answer of a moment ago.
pub async fn health(app: &App, took: Option<Duration>) -> Health {
    let last = &app.readiness;
    let redis = timed(&last.redis, took, Box::pin(app.stock.ping()));
    let postgres = timed(&last.postgres, app.bulletins.took(), app.ledger.ping());
    let (redis, postgres) = tokio::join!(redis, postgres);
    Health { redis, postgres }
}

async fn in_time<T>(limit: Duration, question: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let answer = tokio::time::timeout(limit, question).await;
    answer.unwrap_or_else(|_| Err(Fault::Unavailable("no answer in time".to_owned())))
}

/// How long a server took for its last answer, or takes for this question. Notes the answer.
async fn timed(
    last: &LastAnswer,
    took: Option<Duration>,
    question: impl Future<Output = Result<(), Fault>>,
) -> ServerHealth {
    let asked = Instant::now();
    let answer = match took {
        Some(took) => Ok(took),
        None => in_time(TIME_MAX, question).await.map(|()| asked.elapsed()),
    };
    if answer.is_ok() {
        last.note();
    }
    ServerHealth {
        milliseconds: answer.as_ref().ok().map(|took| took.as_secs_f64() * 1000.0),
        fault: answer.err().map(|fault| fault.to_string()),
        answered_at: last.at(),
    }
}

/// The reason given for a schema that is behind.
pub fn behind(missing: usize) -> String {
    format!("the schema is {missing} migrations behind; run `flashsale migrate`")
}
