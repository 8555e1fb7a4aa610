//! HTTP: a handler parses the request into values, calls one flow and turns its outcome into the answer. No handler
//! touches Redis or Postgres.

pub mod admin;
pub mod docs;
mod explain;
pub mod extract;
pub mod file;
pub mod gateway;
pub mod health;
pub mod openapi;
pub mod pages;
pub mod panic_guard;
pub mod problem;
pub mod request_id;
pub mod shop;
pub mod views;

use crate::config::Secret;
use crate::domain::fault::Fault;
use crate::domain::guard::GuardSettings;
use crate::domain::sale_guards::SaleGuards;
use crate::domain::token_keys::TokenKeys;
use crate::flow::App;
use crate::guard::actions::{KnownReads, RefusedActions};
use crate::guard::address::is_proxy;
use crate::guard::challenge::ChallengeDrawer;
use crate::guard::gate::Gate;
use crate::guard::sign_ins::SignIns;
use crate::metrics::Metrics;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use actix_web::middleware::{DefaultHeaders, from_fn};
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, Route};
use extract::Tokens;
use ipnet::IpNet;
use problem::Problem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

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
    pub admin_key: Secret<String>,
    pub webhook_secret: Secret<Vec<u8>>,
    pub easel: ChallengeDrawer,
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
    pub weather: Weather,
}

/// The longest that a shopper waits for an answer, even while Redis or Postgres do not answer.
const SHOPPER_WAIT: Duration = Duration::from_millis(1800);
/// The longest that an operator or the payment provider waits for an answer.
const OTHERS_WAIT: Duration = Duration::from_secs(15);

/// The longest that an operator waits for a stock audit.
const AUDIT_WAIT: Duration = Duration::from_secs(120);
/// The longest that an operator waits for a rebuild.
const REBUILD_WAIT: Duration = Duration::from_secs(1800);

/// The head of a stream of events. `no-store` keeps it out of caches; `X-Accel-Buffering` stops proxies from buffering.
fn event_stream() -> HttpResponseBuilder {
    let mut head = HttpResponse::Ok();
    head.insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header(("X-Accel-Buffering", "no"));
    head
}

/// How much longer a flow may run after its request was answered with 503.
const FLOW_EXTRA: Duration = Duration::from_secs(5);

impl Shared {
    /// Whether the client uses HTTPS, to us or to a trusted proxy that says so in `X-Forwarded-Proto`.
    fn speaks_https(&self, request: &HttpRequest) -> bool {
        let said = request.headers().get_all("X-Forwarded-Proto").last();
        let said = said.and_then(|list| list.to_str().ok()?.rsplit(',').next());
        let is_proxy = |peer: SocketAddr| is_proxy(peer.ip(), &self.trusted_proxies);
        self.is_https
            || said.is_some_and(|it| it.trim().eq_ignore_ascii_case("https"))
                && request.peer_addr().is_some_and(is_proxy)
    }
}

impl Api {
    #[must_use]
    pub fn new(app: App, shared: Arc<Shared>) -> Self {
        Self {
            operators: Arc::new(app.for_operators()),
            app: Arc::new(app),
            shared,
        }
    }

    /// Runs a flow for a shopper. The flow is a task of its own: it goes on when the client hangs up or the wait is
    /// over. The same request, sent again, finds the flow's result.
    pub async fn for_shopper<T, F, R>(&self, flow: F) -> Result<T, Problem>
    where
        F: FnOnce(Arc<App>) -> R,
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(SHOPPER_WAIT, flow(Arc::clone(&self.app))).await
    }

    /// Runs a flow for the payment provider, as [`Api::for_shopper`] does.
    pub async fn for_provider<T, F, R>(&self, flow: F) -> Result<T, Problem>
    where
        F: FnOnce(Arc<App>) -> R,
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(OTHERS_WAIT, flow(Arc::clone(&self.app))).await
    }

    /// Runs a flow for an operator, as [`Api::for_shopper`] does, over the operators' connections to Postgres.
    pub async fn for_others<T, F, R>(&self, flow: F) -> Result<T, Problem>
    where
        F: FnOnce(Arc<App>) -> R,
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(OTHERS_WAIT, flow(Arc::clone(&self.operators))).await
    }

    /// Runs a flow for an operator, as [`Api::for_others`] does, for at most `longest`: audits and rebuilds take longer
    /// on a large sale.
    pub async fn for_long<T, F, R>(&self, longest: Duration, flow: F) -> Result<T, Problem>
    where
        F: FnOnce(Arc<App>) -> R,
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(longest, flow(Arc::clone(&self.operators))).await
    }

    async fn run<T: Send + 'static>(
        &self,
        wait: Duration,
        flow: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Problem> {
        // A spawned task has no span. With the request's span, its log lines belong to the request.
        let span = if tracing::enabled!(tracing::Level::DEBUG) {
            Span::current()
        } else {
            Span::none()
        };
        // The flow may finish after a late answer, but it must end.
        let flow = tokio::spawn(tokio::time::timeout(wait + FLOW_EXTRA, flow).instrument(span));
        let answer = match tokio::time::timeout(wait, flow).await {
            Ok(Ok(Ok(answer))) => answer,
            Ok(Ok(Err(_))) => Err(Fault::Unavailable("no answer in time".to_owned())),
            Ok(Err(_)) => Err(Fault::Bug("a flow panicked".to_owned())),
            Err(_) => Err(Fault::Unavailable("no answer in time".to_owned())),
        };
        self.weather.observe(answer)
    }
}

/// Logs one line when requests begin to fail and one when they succeed again: at ten thousand requests a second, a line
/// for each would bury the cause. Holds the time of the last failure in Unix seconds; 0 if nothing fails.
#[derive(Default)]
pub struct Weather(AtomicI64);

/// Failures are over after so many seconds without one. While one of many shards is away, requests fail and succeed in
/// turn.
const CALM_SECONDS: i64 = 2;

impl Weather {
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

/// A method of the table of routes: its HTTP name, its `Allow` header, and its route in actix.
macro_rules! method {
    (name get) => { "GET" };
    (name stream) => { "GET" };
    (name post) => { "POST" };
    (name patch) => { "PATCH" };
    (name put) => { "PUT" };
    (name delete) => { "DELETE" };
    // A path that answers GET also answers HEAD.
    (allow get) => { "GET, HEAD" };
    // An endless stream does not answer HEAD.
    (allow stream) => { "GET" };
    (allow $other:ident) => { method!(name $other) };
    (route $resource:expr, get $handler:path) => {
        $resource.route(web::get().to($handler)).route(web::head().to($handler))
    };
    (route $resource:expr, stream $handler:path) => { $resource.route(web::get().to($handler)) };
    (route $resource:expr, $other:ident $handler:path) => { $resource.route(web::$other().to($handler)) };
}

/// A path with its handlers. Other methods get 405 with `Allow`.
macro_rules! resource {
    ($path:literal, $first:ident $handler:path $(, $other:ident $other_handler:path)*) => {{
        let allow = concat!(method!(allow $first) $(, ", ", method!(allow $other))*);
        let resource = web::resource($path)
            .default_service(web::to(move || async move { Err::<&str, _>(Problem::method_not_allowed(allow)) }));
        let resource = method!(route resource, $first $handler);
        $(let resource = method!(route resource, $other $other_handler);)*
        resource
    }};
}

/// The reason why the OpenAPI document leaves a route out, if it does.
macro_rules! left_out {
    (documented) => {
        None
    };
    ($reason:literal) => {
        Some($reason)
    };
}

/// A route of the table.
pub struct Served {
    pub path: &'static str,
    pub method: &'static str,
    /// The reason why the OpenAPI document leaves it out, if it does.
    pub left_out: Option<&'static str>,
}

/// The table of routes. Each scope says that it is documented, or why it is not; each path lists its methods and
/// handlers. HEAD is answered with GET, except for a stream.
macro_rules! routes {
    ($($scope:ident $prefix:literal $documented:tt { $($path:literal: $($method:ident $handler:path),+;)+ })+) => {
        pub const ROUTES: &[Served] = &[$($($(
            Served {
                path: concat!($prefix, $path),
                method: method!(name $method),
                left_out: left_out!($documented),
            },
        )+)+)+];

        $(fn $scope(config: &mut ServiceConfig) {
            config$(.service(resource!($path, $($method $handler),+)))+;
        })+
    };
}

routes! {
    for_people "" "pages, and what they are made of: no API" {
        "/": get pages::sales;
        "/sales/{id}": get pages::sale;
    }
    for_browsers "" "pages, and what they are made of: no API" {
        "/assets/{name}": get pages::asset;
    }
    for_console "" "the operators' pages: no API" {
        "/console": get pages::console;
        "/console/{view}": get pages::console;
        "/console/sales/{id}": get pages::console_sale;
        "/console/sales/{id}/edit": get pages::console_sale;
        "/console/sales/{id}/attention": get pages::console_sale;
    }
    for_sessions "" documented {
        "/v1/admin/session": get admin::session::show, post admin::session::sign_in, delete admin::session::sign_out;
    }
    for_development "/dev" "only in development mode: the shop's login and its payment provider, played" {
        "/token": post shop::development::token;
        "/pay": post shop::development::pay;
    }
    for_machines "" documented {
        "/healthz": get health::healthz;
        "/readyz": get health::readyz;
        "/problems/{code}": get docs::problem;
    }
    for_prometheus "" documented {
        "/metrics": get health::metrics;
    }
    for_everybody "" documented {
        "/openapi.json": get openapi::document;
        "/docs": get docs::page;
        "/docs/reference.css": get docs::style;
        "/v1/webhooks/payments": post shop::webhooks::payments;
    }
    for_operators "/v1/admin" documented {
        "/sales": get admin::sales::list_sales, post admin::sales::create_sale;
        "/sales/{id}": get admin::sales::show_sale, put admin::sales::change_sale, delete admin::sales::delete_sale;
        "/sales/{id}/preload": post admin::stock::preload;
        "/sales/{id}/open": post admin::sales::open;
        "/sales/{id}/pause": post admin::sales::pause;
        "/sales/{id}/resume": post admin::sales::resume;
        "/sales/{id}/close": post admin::sales::close;
        "/sales/{id}/restock": post admin::stock::restock;
        "/sales/{id}/stats": get admin::stock::stats;
        "/sales/{id}/live": stream admin::live::follow;
        "/sales/{id}/audit": get admin::stock::audit;
        "/sales/{id}/rebuild": post admin::stock::rebuild;
        "/sales/{id}/dead-letters": get admin::dead_letters::list_dead_letters;
        "/sales/{id}/dead-letters/settle": post admin::dead_letters::settle_dead_letter;
        "/sales/{id}/refused-messages": get admin::dead_letters::list_refused_messages;
        "/orders": get admin::orders::list_orders;
        "/orders/{id}": get admin::orders::show_order;
        "/payments": get admin::payments::list_payments;
        "/payments/settle": post admin::payments::settle_payment;
        "/actions": get admin::actions::list_actions;
        "/alerts": get admin::alerts::list_alerts;
        "/alerts/stream": stream admin::alerts::stream;
        "/bans": get admin::bans::list_bans, post admin::bans::ban;
        "/bans/lift": post admin::bans::lift_ban;
        "/guards": get admin::guards::show_guards, patch admin::guards::change_guards;
    }
    for_shoppers "/v1" documented {
        "/sales": get shop::sales::list;
        "/sales/{id}": get shop::sales::show;
        "/sales/{id}/orders": post shop::orders::purchase;
        "/sales/{id}/tokens": post shop::orders::hand_out_token;
        "/sales/{id}/waiting-room": post shop::waiting_room::ask;
        "/sales/{id}/waiting-room/events": get shop::waiting_room::follow;
        "/challenges": post shop::challenges::pose;
        "/orders": get shop::orders::list;
        "/orders/{id}": get shop::orders::show;
        "/orders/{id}/cancel": post shop::orders::cancel;
    }
}

/// The routes that one address serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    All,
    /// The shop: shoppers' pages and API, and development mode.
    Shop,
    /// The console and the operators' API.
    Operators,
}

/// The routes of a part. Those of development mode exist only if it is on.
pub fn routes(is_development: bool, part: Part) -> impl FnOnce(&mut ServiceConfig) {
    move |config| {
        config
            .configure(for_browsers)
            .configure(for_machines)
            // The payments webhook is in every part: `flashsale pay`, which plays the provider, sends to the operators'
            // address.
            .configure(for_everybody);
        if part != Part::Shop {
            operators(config);
        }
        if part == Part::Operators {
            config.app_data(health::Trusted);
            // On the operators' address, `/` leads to the console.
            config
                .service(resource!("/", get pages::to_console))
                .default_service(nowhere());
            return;
        }
        if is_development {
            let scope = web::scope("/dev").wrap(from_fn(shop::development::only_with_key));
            config.service(scope.configure(for_development).default_service(nowhere()));
        }
        shop(config);
    }
}

/// The routes of the address for machines (`FLASHSALE_METRICS_LISTEN`).
pub fn machine_routes(config: &mut ServiceConfig) {
    config
        .app_data(health::Trusted)
        .configure(for_machines)
        .configure(for_prometheus)
        .default_service(nowhere());
}

fn operators(config: &mut ServiceConfig) {
    let scope = web::scope("/v1/admin")
        .wrap(from_fn(admin::operator::only_operators))
        // Answers to operators must not be cached.
        .wrap(DefaultHeaders::new().add((CACHE_CONTROL, "no-store")))
        .configure(for_operators);
    config
        .configure(for_console)
        .configure(for_prometheus)
        // Before the scope `/v1/admin`: a client that signs in has no session yet.
        .configure(for_sessions)
        .service(scope.default_service(nowhere()));
}

fn shop(config: &mut ServiceConfig) {
    let scope = web::scope("/v1")
        .wrap(from_fn(gateway::gateway))
        // Stock changes at every moment, and orders are private.
        .wrap(DefaultHeaders::new().add((CACHE_CONTROL, "no-store")))
        .configure(for_shoppers);
    config
        .configure(for_people)
        .service(scope.default_service(nowhere()))
        .default_service(nowhere());
}

fn nowhere() -> Route {
    web::to(|| async { Err::<&str, _>(Problem::not_found("such path")) })
}
