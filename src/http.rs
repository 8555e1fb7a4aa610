//! HTTP: requests are parsed into values, one flow is called, its outcome becomes an answer. No handler touches Redis
//! or Postgres.

pub mod admin;
pub mod alerts;
pub mod audits;
pub mod challenges;
pub mod development;
pub mod docs;
mod explain;
pub mod extract;
pub mod file;
pub mod gateway;
pub mod health;
pub mod letters;
pub mod live;
pub mod openapi;
pub mod operator;
pub mod orders;
pub mod pages;
pub mod problem;
pub mod request_id;
pub mod sales;
pub mod session;
pub mod survive;
pub mod views;
pub mod waiting_room;
pub mod webhooks;

use crate::config::Secret;
use crate::domain::fault::Fault;
use crate::domain::guard::GuardSettings;
use crate::domain::sale_guards::SaleGuards;
use crate::domain::token_keys::TokenKeys;
use crate::flow::App;
use crate::guard::actions::{KnownReads, RefusedActions};
use crate::guard::address::is_proxy;
use crate::guard::challenge::Easel;
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
    /// The flows' world, over this worker's own connection to the stock.
    pub app: Arc<App>,
    /// The same on the operators' connections to the ledger.
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

/// What all workers share.
pub struct Shared {
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Checks shoppers' tokens.
    pub tokens: Tokens,
    /// Signs and checks purchase tokens.
    pub token_keys: TokenKeys,
    /// The operators' key.
    pub admin_key: Secret<String>,
    /// Checks the payment provider's signatures.
    pub webhook_secret: Secret<Vec<u8>>,
    /// Draws challenges.
    pub easel: Easel,
    /// Who comes in.
    pub gate: Arc<Gate>,
    /// How the gate was configured.
    pub guards: GuardSettings,
    /// What sales ask of their shoppers if their operator says nothing of it.
    pub sale_guards: SaleGuards,
    /// Proxies that are believed when they say for whom they ask.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether the log has named a proxy that is not trusted.
    pub is_proxy_mentioned: AtomicBool,
    /// Seats for shoppers who are told how they stand in a waiting room.
    pub followers: Arc<waiting_room::Followers>,
    /// How often who may still try to sign in at the console.
    pub sign_ins: SignIns,
    /// Actions of operators that were refused a moment ago.
    pub refused_actions: RefusedActions,
    /// Reads of shoppers' data that are in the audit log.
    pub known_reads: KnownReads,
    /// Sales that operators watch.
    pub live: live::Live,
    /// Counts of all units that operators wait for.
    pub audits: audits::Audits,
    /// Whether this instance itself serves HTTPS.
    pub is_https: bool,
    /// What operators call this instance by.
    pub instance: String,
    /// Ends with the server; whatever would go on for long looks at it.
    pub ending: CancellationToken,
    /// The pages of shoppers.
    pub pages: pages::Pages,
    /// What development mode needs, where it is on.
    pub development: Option<development::Development>,
    /// Whether the last thing asked of Redis or Postgres failed.
    pub weather: Weather,
}

/// The longest that a shopper waits for an answer, whatever happens behind it.
const SHOPPER_WAIT: Duration = Duration::from_millis(1800);
/// The longest that an operator or the payment provider waits.
const OTHERS_WAIT: Duration = Duration::from_secs(15);

/// The longest that an operator waits until all of a sale has been counted.
const AUDIT_WAIT: Duration = Duration::from_secs(120);
/// The longest that an operator waits until all of a sale has been written anew.
const REBUILD_WAIT: Duration = Duration::from_secs(1800);

/// The head of a stream of events: nobody stores it, and proxies that collect answers do not keep events back.
fn event_stream() -> HttpResponseBuilder {
    let mut head = HttpResponse::Ok();
    head.insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header(("X-Accel-Buffering", "no"));
    head
}

/// How much longer a flow may go on when nobody waits for it any more.
const FLOW_EXTRA: Duration = Duration::from_secs(5);

impl Shared {
    /// Whether the client speaks HTTPS, with us or with a trusted proxy that says so.
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
    /// What the handlers of one worker use.
    #[must_use]
    pub fn new(app: App, shared: Arc<Shared>) -> Self {
        Self {
            operators: Arc::new(app.for_operators()),
            app: Arc::new(app),
            shared,
        }
    }

    /// Runs a flow for a shopper. The flow is a task of its own, so neither a client that hangs up nor the limit on
    /// the wait stops it half way; what it comes to, the same request finds.
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

    /// Runs a flow for an operator, as [`Api::for_shopper`] does, on the operators' connections to the ledger.
    pub async fn for_others<T, F, R>(&self, flow: F) -> Result<T, Problem>
    where
        F: FnOnce(Arc<App>) -> R,
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(OTHERS_WAIT, flow(Arc::clone(&self.operators))).await
    }

    /// Runs a flow that an operator has asked for and that takes as long as there is much to do, as [`Api::for_shopper`]
    /// does.
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
        // A task of its own has no span of its own: what is logged in it belongs to the request.
        let span = if tracing::enabled!(tracing::Level::DEBUG) {
            Span::current()
        } else {
            Span::none()
        };
        // The flow goes on behind an answer that came too late, but not for ever.
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

/// Says once that something is wrong, and once that it is over: at ten thousand requests a second, one line each
/// would bury the cause. Holds when the last request failed, in seconds since the epoch; 0 in fair weather.
#[derive(Default)]
pub struct Weather(AtomicI64);

/// It is over when nothing has failed for so many seconds: while one of many shards is away, good answers and bad ones
/// alternate.
const CALM_SECONDS: i64 = 2;

impl Weather {
    /// Passes an answer on and notes what it says of the weather.
    ///
    /// # Errors
    /// The fault as a problem.
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
                    tracing::error!(%fault, request_id = request_id::current(), "a request found what should not be");
                } else if self.0.swap(chrono::Utc::now().timestamp(), Ordering::Relaxed) == 0 {
                    tracing::warn!(%fault, request_id = request_id::current(), "requests are answered 503");
                }
                Err(fault.into())
            }
        }
    }
}

/// A route's method, as the table says it, in the words of HTTP and of the framework.
macro_rules! method {
    (name get) => { "GET" };
    (name stream) => { "GET" };
    (name post) => { "POST" };
    (name patch) => { "PATCH" };
    (name put) => { "PUT" };
    (name delete) => { "DELETE" };
    // Whoever may ask for an answer may ask for its head.
    (allow get) => { "GET, HEAD" };
    // Not HEAD: an answer without an end has no length to tell of.
    (allow stream) => { "GET" };
    (allow $other:ident) => { method!(name $other) };
    (route $resource:expr, get $handler:path) => {
        $resource.route(web::get().to($handler)).route(web::head().to($handler))
    };
    (route $resource:expr, stream $handler:path) => { $resource.route(web::get().to($handler)) };
    (route $resource:expr, $other:ident $handler:path) => { $resource.route(web::$other().to($handler)) };
}

/// A path and what answers it; anything else that is asked of it is told what it answers.
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

/// Why a route is not in the document, if it is not.
macro_rules! left_out {
    (documented) => {
        None
    };
    ($reason:literal) => {
        Some($reason)
    };
}

/// A route as the table has it.
pub struct Served {
    /// Its path.
    pub path: &'static str,
    /// The method that it is asked by.
    pub method: &'static str,
    /// Why it is not in the document, if it is not.
    pub left_out: Option<&'static str>,
}

/// The table of routes: under a scope, whether they are documented or why they are not, and each path with its methods and
/// what answers them. HEAD goes with GET, but not with a stream.
macro_rules! routes {
    ($($scope:ident $prefix:literal $documented:tt { $($path:literal: $($method:ident $handler:path),+;)+ })+) => {
        /// Every route.
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
        "/v1/admin/session": get session::show, post session::sign_in, delete session::sign_out;
    }
    for_development "/dev" "only in development mode: the shop's login and its payment provider, played" {
        "/token": post development::token;
        "/pay": post development::pay;
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
        "/v1/webhooks/payments": post webhooks::payments;
    }
    for_operators "/v1/admin" documented {
        "/sales": get admin::list_sales, post admin::create_sale;
        "/sales/{id}": get admin::show_sale, put admin::change_sale, delete admin::delete_sale;
        "/sales/{id}/preload": post admin::preload;
        "/sales/{id}/open": post admin::open;
        "/sales/{id}/pause": post admin::pause;
        "/sales/{id}/resume": post admin::resume;
        "/sales/{id}/close": post admin::close;
        "/sales/{id}/restock": post admin::restock;
        "/sales/{id}/stats": get admin::stats;
        "/sales/{id}/live": stream live::follow;
        "/sales/{id}/audit": get admin::audit;
        "/sales/{id}/rebuild": post admin::rebuild;
        "/sales/{id}/dead-letters": get letters::list_dead_letters;
        "/sales/{id}/dead-letters/settle": post letters::settle_dead_letter;
        "/sales/{id}/refused-messages": get letters::list_refused_messages;
        "/orders": get admin::list_orders;
        "/orders/{id}": get admin::show_order;
        "/payments": get admin::list_payments;
        "/payments/settle": post admin::settle_payment;
        "/actions": get admin::list_actions;
        "/alerts": get admin::list_alerts;
        "/alerts/stream": stream alerts::stream;
        "/bans": get admin::list_bans, post admin::ban;
        "/bans/lift": post admin::lift_ban;
        "/guards": get admin::show_guards, patch admin::change_guards;
    }
    for_shoppers "/v1" documented {
        "/sales": get sales::list;
        "/sales/{id}": get sales::show;
        "/sales/{id}/orders": post orders::purchase;
        "/sales/{id}/tokens": post orders::hand_out_token;
        "/sales/{id}/waiting-room": post waiting_room::ask;
        "/sales/{id}/waiting-room/events": get waiting_room::follow;
        "/challenges": post challenges::pose;
        "/orders": get orders::list;
        "/orders/{id}": get orders::show;
        "/orders/{id}/cancel": post orders::cancel;
    }
}

/// Which routes one address serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of them.
    All,
    /// Those of shoppers.
    Shop,
    /// Those of operators.
    Operators,
}

/// The routes of a part; those of development mode only where that is on.
pub fn routes(is_development: bool, part: Part) -> impl FnOnce(&mut ServiceConfig) {
    move |config| {
        config
            .configure(for_browsers)
            .configure(for_machines)
            // Whoever signs payments is neither: `flashsale pay`, which plays the provider, asks where operators do.
            .configure(for_everybody);
        if part != Part::Shop {
            operators(config);
        }
        if part == Part::Operators {
            config.app_data(health::Trusted);
            // Whoever types no more than the address means the console.
            config
                .service(resource!("/", get pages::to_console))
                .default_service(nowhere());
            return;
        }
        if is_development {
            let scope = web::scope("/dev").wrap(from_fn(development::only_with_key));
            config.service(scope.configure(for_development).default_service(nowhere()));
        }
        shop(config);
    }
}

/// The routes for machines.
pub fn machine_routes(config: &mut ServiceConfig) {
    config
        .app_data(health::Trusted)
        .configure(for_machines)
        .configure(for_prometheus)
        .default_service(nowhere());
}

fn operators(config: &mut ServiceConfig) {
    let scope = web::scope("/v1/admin")
        .wrap(from_fn(operator::only_operators))
        // What operators are told, nobody keeps.
        .wrap(DefaultHeaders::new().add((CACHE_CONTROL, "no-store")))
        .configure(for_operators);
    config
        .configure(for_console)
        .configure(for_prometheus)
        // Before the scope: whoever asks for it has no session yet.
        .configure(for_sessions)
        .service(scope.default_service(nowhere()));
}

fn shop(config: &mut ServiceConfig) {
    let scope = web::scope("/v1")
        .wrap(from_fn(gateway::gateway))
        // Stock and orders are of this moment, and orders of one shopper.
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
