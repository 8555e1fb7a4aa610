//! HTTP: requests are parsed into values, one flow is called, its outcome becomes an answer. No handler touches Redis
//! or Postgres.

pub mod admin;
pub mod extract;
pub mod gateway;
pub mod health;
pub mod orders;
pub mod problem;
pub mod request_id;
pub mod sales;
pub mod views;
pub mod webhooks;

use crate::config::Secret;
use crate::domain::fault::Fault;
use crate::flow::App;
use crate::metrics::Metrics;
use actix_web::middleware::from_fn;
use actix_web::web::{self, ServiceConfig};
use extract::Tokens;
use governor::DefaultDirectRateLimiter;
use problem::Problem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
    /// The operators' key.
    pub admin_key: Secret<String>,
    /// Checks the payment provider's signatures.
    pub webhook_secret: Secret<Vec<u8>>,
    /// The instance-wide token bucket, if there is one.
    pub bucket: Option<DefaultDirectRateLimiter>,
    /// Whether the last thing asked of Redis or Postgres failed.
    pub weather: Weather,
}

/// The longest that a shopper waits for an answer, whatever happens behind it.
const SHOPPER_WAIT: Duration = Duration::from_millis(1900);
/// The longest that an operator or the payment provider waits.
const OTHERS_WAIT: Duration = Duration::from_secs(15);

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

    async fn run<T: Send + 'static>(
        &self,
        wait: Duration,
        flow: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Problem> {
        let answer = match tokio::time::timeout(wait, tokio::spawn(flow)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::Bug("a flow panicked".to_owned())),
            Err(_) => Err(Fault::Unavailable("no answer in time".to_owned())),
        };
        self.weather.observe(answer)
    }
}

/// Says once that something is wrong, and once that it is over: at ten thousand requests a second, one line each
/// would bury the cause.
#[derive(Default)]
pub struct Weather(AtomicBool);

impl Weather {
    /// Passes an answer on and notes what it says of the weather.
    ///
    /// # Errors
    /// The fault as a problem.
    pub fn observe<T>(&self, answer: Result<T, Fault>) -> Result<T, Problem> {
        match answer {
            Ok(value) => {
                if self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed) {
                    tracing::info!("requests are answered again");
                }
                Ok(value)
            }
            Err(fault) => {
                if !fault.is_passing() {
                    tracing::error!(%fault, "a request found what should not be");
                } else if !self.0.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%fault, "requests are answered 503");
                }
                Err(fault.into())
            }
        }
    }
}

/// Every route.
pub fn configure(config: &mut ServiceConfig) {
    let missing = || web::to(|| async { Err::<&str, _>(Problem::method_not_allowed()) });
    let route = |path: &str| web::resource(path).default_service(missing());
    config
        .service(route("/healthz").route(web::get().to(health::healthz)))
        .service(route("/readyz").route(web::get().to(health::readyz)))
        .service(route("/metrics").route(web::get().to(health::metrics)))
        .service(route("/v1/webhooks/payments").route(web::post().to(webhooks::payments)))
        .service(
            web::scope("/v1/admin")
                .service(
                    route("/sales")
                        .route(web::get().to(admin::list_sales))
                        .route(web::post().to(admin::create_sale)),
                )
                .service(route("/sales/{id}").route(web::get().to(admin::show_sale)))
                .service(route("/sales/{id}/preload").route(web::post().to(admin::preload)))
                .service(route("/sales/{id}/open").route(web::post().to(admin::open)))
                .service(route("/sales/{id}/pause").route(web::post().to(admin::pause)))
                .service(route("/sales/{id}/resume").route(web::post().to(admin::resume)))
                .service(route("/sales/{id}/close").route(web::post().to(admin::close)))
                .service(route("/sales/{id}/restock").route(web::post().to(admin::restock)))
                .service(route("/sales/{id}/stats").route(web::get().to(admin::stats)))
                .service(route("/sales/{id}/audit").route(web::get().to(admin::audit)))
                .service(route("/orders/{id}").route(web::get().to(admin::show_order)))
                .service(route("/payments").route(web::get().to(admin::list_payments)))
                .default_service(web::to(|| async { Err::<&str, _>(Problem::not_found("such path")) })),
        )
        .service(
            web::scope("/v1")
                .wrap(from_fn(gateway::gateway))
                .service(route("/sales").route(web::get().to(sales::list)))
                .service(route("/sales/{id}").route(web::get().to(sales::show)))
                .service(route("/sales/{id}/orders").route(web::post().to(orders::purchase)))
                .service(route("/orders").route(web::get().to(orders::list)))
                .service(route("/orders/{id}").route(web::get().to(orders::show)))
                .service(route("/orders/{id}/cancel").route(web::post().to(orders::cancel)))
                .default_service(web::to(|| async { Err::<&str, _>(Problem::not_found("such path")) })),
        )
        .default_service(web::to(|| async { Err::<&str, _>(Problem::not_found("such path")) }));
}
