//! HTTP: a handler parses the request into values, calls one flow and turns its outcome into the answer. No handler
//! touches Redis or Postgres.

pub mod admin;
mod counts;
mod csv;
pub mod docs;
pub mod endpoint;
pub mod explain;
pub mod extract;
pub mod file;
pub mod gateway;
pub mod health;
pub mod openapi;
mod outliving;
pub mod pages;
pub mod problem;
pub mod request_id;
pub mod runbook;
pub mod shop;
pub mod views;

use crate::config::Secret;
use crate::domain::fault::Fault;
use crate::domain::guard::GuardSettings;
use crate::domain::operator::keys::OperatorKeys;
use crate::domain::sale::guards::SaleGuards;
use crate::domain::shopper::token_keys::TokenKeys;
use crate::flow::App;
use crate::guard::actions::{KnownReads, RefusedActions};
use crate::guard::address::is_proxy;
use crate::guard::challenge::ChallengeDrawer;
use crate::guard::gate::Gate;
use crate::guard::sign_ins::SignIns;
use crate::metrics::Metrics;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_FORWARDED_PROTO};
use actix_web::middleware::{DefaultHeaders, from_fn};
use actix_web::web::{self, Bytes, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, Route};
use endpoint::{Endpoint, Tables, serve};
use extract::Tokens;
use futures_util::{Stream, StreamExt as _};
use ipnet::IpNet;
use outliving::Outliving;
use problem::Problem;
use serde::Serialize;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// What the handlers of one worker use.
pub struct Api {
    /// The flows' state, with this worker's own connection to Redis.
    pub app: Arc<App>,
    /// The same state, over the operators' connections to Postgres.
    pub operators: Arc<App>,
    /// What all workers share.
    pub shared: Arc<Shared>,
}

impl std::ops::Deref for Api {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// What the handlers of all workers share.
pub struct Shared {
    pub metrics: Arc<Metrics>,
    pub tokens: Tokens,
    pub token_keys: TokenKeys,
    pub operator_keys: Secret<OperatorKeys>,
    pub webhook_secret: Secret<Vec<u8>>,
    pub challenge_drawer: ChallengeDrawer,
    /// The limits on requests, in front of the shoppers' routes.
    pub gate: Arc<Gate>,
    /// The gate's settings from the configuration. Operators may change them while the instance runs.
    pub guards: GuardSettings,
    /// The guards of a sale whose operator sets none.
    pub sale_guards: SaleGuards,
    /// Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` we believe.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether the log has already named a proxy that the configuration does not trust.
    pub is_proxy_mentioned: AtomicBool,
    /// Counts the open streams of the waiting rooms, which are limited.
    pub followers: Arc<shop::waiting_room::Followers>,
    /// Limits the attempts to sign in at the console.
    pub sign_ins: SignIns,
    /// The actions that operators were refused in the last minute.
    pub refused_actions: RefusedActions,
    /// The reads of shoppers' data that the audit log already has.
    pub known_reads: KnownReads,
    /// The sales that operators follow live.
    pub live: admin::live::Live,
    /// The stock audits that operators wait for.
    pub audits: admin::audits::Audits,
    /// The exports of lists that run.
    pub exports: admin::lists::Exports,
    /// Whether this instance itself serves HTTPS.
    pub is_https: bool,
    /// This instance's name for operators.
    pub instance: String,
    /// Cancelled when the server ends. Streams of events watch it.
    pub ending: CancellationToken,
    pub pages: pages::Pages,
    /// What development mode needs, if it is on.
    pub development: Option<shop::development::Development>,
    /// Whether Redis or Postgres failed lately; keeps the log short.
    pub faults: FaultLog,
}

/// The longest that a shopper waits for an answer, even while Redis or Postgres do not answer.
const SHOPPER_WAIT: Duration = Duration::from_millis(1800);
/// The longest that an operator or the payment provider waits for an answer.
const OPERATOR_WAIT: Duration = Duration::from_secs(15);

/// The longest that an operator waits for a stock audit.
const AUDIT_WAIT: Duration = Duration::from_secs(120);
/// The longest that an operator waits for a rebuild.
const REBUILD_WAIT: Duration = Duration::from_secs(1800);

/// How long a client waits after it lost its stream before it connects again, in milliseconds.
const RETRY_MS: u32 = 2000;

/// A stream of events. `no-store` keeps it out of caches; `X-Accel-Buffering` stops proxies from buffering.
fn event_stream(events: impl Stream<Item = Bytes> + 'static) -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(events.map(Ok::<_, Infallible>))
}

/// One event of a stream.
fn event(name: &str, data: &impl Serialize) -> String {
    // JSON escapes line breaks, so the data is one line.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}

/// Refuses with `not_found` if there is no such thing.
fn found<T>(it: Option<T>, what: &str) -> Result<T, Problem> {
    it.ok_or_else(|| Problem::not_found(what))
}

/// How much longer a flow may run after its request was answered with 503.
const FLOW_EXTRA: Duration = Duration::from_secs(5);

impl Shared {
    /// Whether the client uses HTTPS, to us or to a trusted proxy that says so in `X-Forwarded-Proto`.
    fn speaks_https(&self, request: &HttpRequest) -> bool {
        let is_proxy = |peer: SocketAddr| is_proxy(peer.ip(), &self.trusted_proxies);
        let says_https = || {
            let said = request.headers().get_all(X_FORWARDED_PROTO).last();
            let said = said.and_then(|list| list.to_str().ok()?.rsplit(',').next());
            said.is_some_and(|it| it.trim().eq_ignore_ascii_case("https"))
        };
        self.is_https || request.peer_addr().is_some_and(is_proxy) && says_https()
    }
}

impl Api {
    pub fn new(app: App, shared: Arc<Shared>) -> Self {
        Self {
            operators: Arc::new(app.for_operators()),
            app: Arc::new(app),
            shared,
        }
    }

    /// Runs a flow for a shopper. The flow goes on when the client hangs up or the wait is over. The same request, sent
    /// again, finds the flow's result.
    pub async fn for_shopper<T, R>(&self, flow: impl FnOnce(Arc<App>) -> R) -> Result<T, Problem>
    where
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(SHOPPER_WAIT, flow(Arc::clone(&self.app))).await
    }

    /// Runs a flow for an operator, as [`Api::for_shopper`] does, over the operators' connections to Postgres.
    pub async fn for_operator<T, R>(&self, flow: impl FnOnce(Arc<App>) -> R) -> Result<T, Problem>
    where
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(OPERATOR_WAIT, flow(Arc::clone(&self.operators))).await
    }

    /// Runs a flow, as [`Api::for_shopper`] does. After `wait`, the answer is 503.
    async fn run<T: Send + 'static>(
        &self,
        wait: Duration,
        flow: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Problem> {
        let late = Instant::now() + wait;
        // The flow may finish after a late answer, but it must end.
        let answer = match timeout_at(late, Outliving::new(flow, late + FLOW_EXTRA)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_panic)) => Err(Fault::Bug("a flow panicked".to_owned())),
            Err(_) => Err(Fault::Unavailable("no answer in time".to_owned())),
        };
        self.faults.observe(answer)
    }
}

/// Logs one line when requests begin to fail and one when they succeed again: at ten thousand requests a second, a line
/// for each would bury the cause. Holds the time of the last failure in Unix seconds; 0 if nothing fails.
#[derive(Default)]
pub struct FaultLog(AtomicI64);

/// Failures are over after so many seconds without one. While one of many shards is away, requests fail and succeed in
/// turn.
const CALM_SECONDS: i64 = 2;

impl FaultLog {
    /// Passes an answer on, as a problem if it is a fault, and logs a change between failing and succeeding.
    pub fn observe<T>(&self, answer: Result<T, Fault>) -> Result<T, Problem> {
        match answer {
            Ok(value) => {
                let failed_at = self.0.load(Ordering::Relaxed);
                let calm = || chrono::Utc::now().timestamp() - failed_at > CALM_SECONDS;
                if failed_at != 0
                    && calm()
                    && self
                        .0
                        .compare_exchange(failed_at, 0, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok()
                {
                    tracing::info!("requests are answered again");
                }
                Ok(value)
            }
            Err(fault) => {
                if matches!(fault, Fault::Bug(_)) {
                    tracing::error!(%fault, request_id = request_id::current(), "a request hit an internal defect");
                } else if self.0.swap(chrono::Utc::now().timestamp(), Ordering::Relaxed) == 0 {
                    tracing::warn!(%fault, request_id = request_id::current(), "requests are answered 503");
                }
                Err(fault.into())
            }
        }
    }
}

const SHOPPERS: Tables = &[
    shop::sales::ROUTES,
    shop::orders::ROUTES,
    shop::waiting_room::ROUTES,
    shop::challenges::ROUTES,
    shop::tokens::ROUTES,
];
const OPERATORS: Tables = &[
    admin::sales::ROUTES,
    admin::messages::ROUTES,
    admin::stock::ROUTES,
    admin::reports::ROUTES,
    admin::live::ROUTES,
    admin::health::ROUTES,
    admin::audits::ROUTES,
    admin::dead_letters::ROUTES,
    admin::orders::ROUTES,
    admin::payments::ROUTES,
    admin::alerts::ROUTES,
    admin::bans::ROUTES,
    admin::guards::ROUTES,
    admin::actions::ROUTES,
    admin::sessions::ROUTES,
];

/// Every route, in the order of the API document, which describes all but pages and development mode.
pub static ROUTES: LazyLock<Vec<&Endpoint>> = LazyLock::new(|| {
    let others: Tables = &[
        admin::session::ROUTES,
        shop::webhooks::ROUTES,
        health::ROUTES,
        health::METRICS_ROUTES,
        openapi::ROUTES,
        docs::ROUTES,
        docs::PROBLEM_ROUTES,
        runbook::ROUTES,
        pages::PEOPLE_ROUTES,
        pages::ASSET_ROUTES,
        pages::CONSOLE_ROUTES,
        shop::development::ROUTES,
    ];
    let all = [SHOPPERS, OPERATORS, others];
    all.iter().copied().flatten().copied().flatten().collect()
});

/// The routes that one address serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    All,
    /// The shop: shoppers' pages and API, and development mode.
    Shop,
    /// The console and the operators' API.
    Operators,
}

/// The routes of a part. Those of development mode exist only if it is on. A request is compared with one path after
/// the other, so the APIs come before the pages.
pub fn routes(is_development: bool, part: Part) -> impl FnOnce(&mut ServiceConfig) {
    move |config| {
        // The payments webhook is in every part: `flashsale pay`, which plays the provider, sends to the operators'
        // address.
        config.configure(serve("", &[health::ROUTES, shop::webhooks::ROUTES]));
        if part != Part::Shop {
            operators(config);
        }
        if part != Part::Operators {
            shop(config);
        }
        config
            .configure(serve("", &[pages::ASSET_ROUTES]))
            .configure(serve("", &[docs::PROBLEM_ROUTES]))
            .configure(serve(
                "",
                &[openapi::ROUTES, docs::ROUTES, docs::ADDRESS_ROUTES, runbook::ROUTES],
            ))
            .default_service(web::to(pages::nowhere));
        if part != Part::Shop {
            config
                .configure(serve("", &[pages::CONSOLE_ROUTES]))
                .configure(serve("", &[health::METRICS_ROUTES]));
        }
        if part == Part::Operators {
            config.app_data(health::Trusted);
            config.configure(serve("", &[pages::CONSOLE_ADDRESS_ROUTES]));
            return;
        }
        config.configure(serve("", &[pages::PEOPLE_ROUTES]));
        if is_development {
            let scope = web::scope("/dev").wrap(from_fn(shop::development::only_with_key));
            let scope = scope.configure(serve("/dev", &[shop::development::ROUTES]));
            config.service(scope.default_service(nowhere()));
        }
    }
}

/// The routes of the address for machines (`FLASHSALE_METRICS_LISTEN`).
pub fn machine_routes(config: &mut ServiceConfig) {
    config
        .app_data(health::Trusted)
        .configure(serve("", &[health::ROUTES]))
        .configure(serve("", &[docs::PROBLEM_ROUTES]))
        .configure(serve("", &[health::METRICS_ROUTES]))
        .default_service(nowhere());
}

fn operators(config: &mut ServiceConfig) {
    let scope = web::scope("/v1/admin")
        .wrap(from_fn(admin::operator::only_operators))
        // Answers to operators must not be cached.
        .wrap(DefaultHeaders::new().add((CACHE_CONTROL, "no-store")))
        .configure(serve("/v1/admin", OPERATORS));
    config
        // Before the scope `/v1/admin`: a client that signs in has no session yet.
        .configure(serve("", &[admin::session::ROUTES]))
        .service(scope.default_service(nowhere()));
}

/// After the webhook and the scope `/v1/admin`, whose paths this scope has, too.
fn shop(config: &mut ServiceConfig) {
    let scope = web::scope("/v1")
        .wrap(from_fn(gateway::gateway))
        // Stock changes at every moment, and orders are private.
        .wrap(DefaultHeaders::new().add((CACHE_CONTROL, "no-store")))
        .configure(serve("/v1", SHOPPERS));
    config.service(scope.default_service(nowhere()));
}

fn nowhere() -> Route {
    web::to(|| async { Err::<&str, _>(Problem::not_found("such path")) })
}
