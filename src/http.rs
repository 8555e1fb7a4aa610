//! HTTP: requests are parsed into values, one flow is called, its outcome becomes an answer. No handler touches Redis
//! or Postgres.

pub mod admin;
pub mod alerts;
pub mod challenges;
pub mod development;
pub mod extract;
pub mod gateway;
pub mod health;
pub mod live;
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
use crate::guard::challenge::Easel;
use crate::guard::gate::Gate;
use crate::guard::sign_ins::SignIns;
use crate::metrics::Metrics;
use actix_web::Route;
use actix_web::middleware::from_fn;
use actix_web::web::{self, ServiceConfig};
use extract::Tokens;
use ipnet::IpNet;
use problem::Problem;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What the handlers of one worker use.
pub struct Api {
    /// The flows' world, over this worker's own connection to the stock.
    pub app: Arc<App>,
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
    /// Seats for shoppers who are told how they stand in a waiting room.
    pub followers: Arc<waiting_room::Followers>,
    /// How often who may still try to sign in at the console.
    pub sign_ins: SignIns,
    /// Sales that operators watch.
    pub live: live::Live,
    /// Ends with the server; whatever would go on for long looks at it.
    pub ending: CancellationToken,
    /// What development mode needs, where it is on.
    pub development: Option<development::Development>,
    /// Whether the last thing asked of Redis or Postgres failed.
    pub weather: Weather,
}

/// The longest that a shopper waits for an answer, whatever happens behind it.
const SHOPPER_WAIT: Duration = Duration::from_millis(1900);
/// The longest that an operator or the payment provider waits.
const OTHERS_WAIT: Duration = Duration::from_secs(15);

/// The longest that an operator waits for what goes over all of a sale.
const LONG_WAIT: Duration = Duration::from_secs(1800);

/// How much longer a flow may go on when nobody waits for it any more.
const FLOW_EXTRA: Duration = Duration::from_secs(5);

impl Api {
    /// Runs a flow for a shopper. The flow is a task of its own, so neither a client that hangs up nor the limit on
    /// the wait stops it half way; what it comes to, the same request finds.
    ///
    /// # Errors
    /// The fault as a problem, also when there is no answer in time.
    pub async fn for_shopper<T, F, R>(&self, flow: F) -> Result<T, Problem>
    where
        F: FnOnce(Arc<App>) -> R,
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(SHOPPER_WAIT, flow(Arc::clone(&self.app))).await
    }

    /// Runs a flow for an operator or the payment provider, as [`Api::for_shopper`] does.
    ///
    /// # Errors
    /// The fault as a problem, also when there is no answer in time.
    pub async fn for_others<T, F, R>(&self, flow: F) -> Result<T, Problem>
    where
        F: FnOnce(Arc<App>) -> R,
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(OTHERS_WAIT, flow(Arc::clone(&self.app))).await
    }

    /// Runs a flow that an operator has asked for and that takes as long as there is much to do, as [`Api::for_shopper`]
    /// does.
    ///
    /// # Errors
    /// The fault as a problem, also when there is no answer in time.
    pub async fn for_long<T, F, R>(&self, flow: F) -> Result<T, Problem>
    where
        F: FnOnce(Arc<App>) -> R,
        R: Future<Output = Result<T, Fault>> + Send + 'static,
        T: Send + 'static,
    {
        self.run(LONG_WAIT, flow(Arc::clone(&self.app))).await
    }

    async fn run<T: Send + 'static>(
        &self,
        wait: Duration,
        flow: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Problem> {
        // The flow goes on behind an answer that came too late, but not for ever.
        let flow = tokio::spawn(tokio::time::timeout(wait + FLOW_EXTRA, flow));
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
                    tracing::error!(%fault, "a request found what should not be");
                } else if self.0.swap(chrono::Utc::now().timestamp(), Ordering::Relaxed) == 0 {
                    tracing::warn!(%fault, "requests are answered 503");
                }
                Err(fault.into())
            }
        }
    }
}

/// A path and what answers it; anything else that is asked of it is told what it answers.
macro_rules! resource {
    ($path:literal, get $get:path) => {
        resource!(@ $path, "GET, HEAD").route(web::get().to($get)).route(web::head().to($get))
    };
    ($path:literal, post $post:path) => {
        resource!(@ $path, "POST").route(web::post().to($post))
    };
    ($path:literal, get $get:path, post $post:path) => {
        resource!(@ $path, "GET, HEAD, POST")
            .route(web::get().to($get))
            .route(web::head().to($get))
            .route(web::post().to($post))
    };
    (@ $path:literal, $allow:literal) => {
        web::resource($path)
            .default_service(web::to(|| async { Err::<&str, _>(Problem::method_not_allowed($allow)) }))
    };
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
            .service(resource!("/assets/{name}", get pages::asset))
            .service(resource!("/healthz", get health::healthz))
            .service(resource!("/readyz", get health::readyz))
            // Whoever signs it is neither: `flashsale pay`, which plays the provider, asks where operators do.
            .service(resource!("/v1/webhooks/payments", post webhooks::payments));
        if part != Part::Shop {
            operators(config);
        }
        if part == Part::Operators {
            config.default_service(nowhere());
            return;
        }
        if is_development {
            config.service(
                web::scope("/dev")
                    .wrap(from_fn(development::only_with_key))
                    .service(resource!("/token", post development::token))
                    .service(resource!("/pay", post development::pay))
                    .default_service(nowhere()),
            );
        }
        shop(config);
    }
}

fn nowhere() -> Route {
    web::to(|| async { Err::<&str, _>(Problem::not_found("such path")) })
}

fn operators(config: &mut ServiceConfig) {
    config
        .service(resource!("/console", get pages::console))
        .service(resource!("/console/{view}", get pages::console))
        .service(resource!("/console/sales/{id}", get pages::console_sale))
        .service(resource!("/console/sales/{id}/edit", get pages::console_sale))
        .service(resource!("/metrics", get health::metrics))
        // Before the scope: whoever asks for it has no session yet.
        .service(
            resource!(@ "/v1/admin/session", "GET, HEAD, POST, DELETE")
                .route(web::get().to(session::show))
                .route(web::head().to(session::show))
                .route(web::post().to(session::sign_in))
                .route(web::delete().to(session::sign_out)),
        )
        .service(
            web::scope("/v1/admin")
                .wrap(from_fn(operator::trail))
                .service(resource!("/sales", get admin::list_sales, post admin::create_sale))
                .service(
                    resource!(@ "/sales/{id}", "GET, HEAD, PUT")
                        .route(web::get().to(admin::show_sale))
                        .route(web::head().to(admin::show_sale))
                        .route(web::put().to(admin::change_sale)),
                )
                // Not HEAD: an answer without an end has no length to tell of.
                .service(resource!(@ "/sales/{id}/live", "GET").route(web::get().to(live::follow)))
                .service(resource!("/sales/{id}/preload", post admin::preload))
                .service(resource!("/sales/{id}/open", post admin::open))
                .service(resource!("/sales/{id}/pause", post admin::pause))
                .service(resource!("/sales/{id}/resume", post admin::resume))
                .service(resource!("/sales/{id}/close", post admin::close))
                .service(resource!("/sales/{id}/restock", post admin::restock))
                .service(resource!("/sales/{id}/stats", get admin::stats))
                .service(resource!("/sales/{id}/audit", get admin::audit))
                .service(resource!("/sales/{id}/rebuild", post admin::rebuild))
                .service(resource!("/orders/{id}", get admin::show_order))
                .service(resource!("/payments", get admin::list_payments))
                .service(resource!("/actions", get admin::list_actions))
                .service(resource!("/alerts", get admin::list_alerts))
                // Not HEAD: an answer without an end has no length to tell of.
                .service(resource!(@ "/alerts/stream", "GET").route(web::get().to(alerts::stream)))
                .service(resource!("/bans", get admin::list_bans, post admin::ban))
                .service(resource!("/bans/lift", post admin::lift_ban))
                .service(
                    resource!(@ "/guards", "GET, HEAD, PATCH")
                        .route(web::get().to(admin::show_guards))
                        .route(web::head().to(admin::show_guards))
                        .route(web::patch().to(admin::change_guards)),
                )
                .default_service(nowhere()),
        );
}

fn shop(config: &mut ServiceConfig) {
    config
        .service(resource!("/", get pages::sales))
        .service(resource!("/sales/{id}", get pages::sale))
        .service(
            web::scope("/v1")
                .wrap(from_fn(gateway::gateway))
                .service(resource!("/sales", get sales::list))
                .service(resource!("/sales/{id}", get sales::show))
                .service(resource!("/sales/{id}/orders", post orders::purchase))
                .service(resource!("/sales/{id}/tokens", post orders::hand_out_token))
                .service(resource!("/sales/{id}/waiting-room", post waiting_room::ask))
                .service(resource!("/sales/{id}/waiting-room/events", get waiting_room::follow))
                .service(resource!("/challenges", post challenges::pose))
                .service(resource!("/orders", get orders::list))
                .service(resource!("/orders/{id}", get orders::show))
                .service(resource!("/orders/{id}/cancel", post orders::cancel))
                .default_service(nowhere()),
        )
        .default_service(nowhere());
}
