//! One running process: its connections, HTTP, jobs, and their end.

use crate::config::Config;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::flow::App;
use crate::flow::inspect::Inspection;
use crate::guard::challenge::Easel;
use crate::guard::follow::follow;
use crate::guard::gate::Gate;
use crate::guard::sign_ins::SignIns;
use crate::http::audits::Audits;
use crate::http::development::Development;
use crate::http::extract::Tokens;
use crate::http::live::Live;
use crate::http::pages::Pages;
use crate::http::request_id::request_id;
use crate::http::survive::survive;
use crate::http::{Api, Part, Shared, Weather, machine_routes, routes};
use crate::ledger::Ledger;
use crate::scheduler::{Keeper, Scheduler};
use crate::stock::Stock;
use crate::{flow, ledger};
use actix_web::dev::{Extensions, ServerHandle};
use actix_web::middleware::from_fn;
use actix_web::web::Data;
use actix_web::{App as HttpApp, HttpServer};
use anyhow::{Context as _, anyhow};
use futures_util::future::{join_all, try_join_all};
use prometheus_client::metrics::gauge::Gauge;
use std::any::Any;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The longest that a client may take to send the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// The longest that a client may take to agree on TLS.
const HANDSHAKE_TIME: Duration = Duration::from_secs(3);
/// How long an idle connection is kept.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long the start waits for the stock to be reconciled.
const RECONCILE_MAX: Duration = Duration::from_secs(2);
/// How long requests in flight may take at the end, in seconds.
const END_SECONDS: u64 = 10;

/// Where a process serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// What shoppers ask for.
    pub shop: SocketAddr,
    /// What operators ask for; often the same.
    pub admin: SocketAddr,
}

/// Sockets that are bound.
pub struct Listeners {
    http: Option<HttpListeners>,
    machines: Option<TcpListener>,
}

struct HttpListeners {
    shop: TcpListener,
    admin: Option<TcpListener>,
}

impl Listeners {
    /// Binds what this role serves, so that an address that is taken is told before anything is started. Whoever connects
    /// waits until it is served.
    ///
    /// # Errors
    /// When an address cannot be bound; the text says which setting names it.
    pub fn bind(config: &Config, role: Role) -> anyhow::Result<Self> {
        let http = match role {
            Role::All | Role::Api => Some(HttpListeners {
                shop: listen(config.listen, "--listen or FLASHSALE_LISTEN")?,
                admin: match config.admin_listen {
                    Some(address) => Some(listen(address, "FLASHSALE_ADMIN_LISTEN")?),
                    None => None,
                },
            }),
            Role::Worker => None,
        };
        let machines = config
            .metrics_listen
            .map(|address| listen(address, "FLASHSALE_METRICS_LISTEN"));
        Ok(Self {
            http,
            machines: machines.transpose()?,
        })
    }
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// HTTP and jobs.
    All,
    /// HTTP only.
    Api,
    /// Jobs only.
    Worker,
}

/// Why a process does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The schema is behind; the text says what to run.
    #[error("{0}")]
    SchemaBehind(String),
    /// Anything else.
    #[error("{0:#}")]
    Fault(#[from] anyhow::Error),
}

/// Applies the migrations that are missing.
///
/// # Errors
/// When Postgres cannot be reached or a migration fails.
pub async fn migrate(database_url: &str) -> anyhow::Result<()> {
    Ok(ledger::migrate(database_url).await?)
}

/// Decodes what Redis holds of a sale; `None` when there is no such sale.
///
/// # Errors
/// When a server cannot be reached or a shard is not all there.
pub fn inspect(
    redis_url: &str,
    database_url: &str,
    sale: SaleId,
    user: Option<&UserId>,
) -> anyhow::Result<Option<Inspection>> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(async {
        let ledger = Ledger::connect(database_url).await?;
        let stock = Stock::connect(redis_url).await?;
        Ok(flow::inspect::inspect(&App::new(stock, ledger), sale, user).await?)
    })
}

/// Serves until SIGINT or SIGTERM, or until `stop` is cancelled. `on_ready` is told where once it answers.
///
/// # Errors
/// When a server cannot be reached, or the schema is behind.
pub fn run_until_signal(
    config: &Config,
    role: Role,
    listeners: Listeners,
    migrate_first: bool,
    stop: &CancellationToken,
    on_ready: impl FnOnce(Served) + Send,
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let serving = run(config, role, listeners, migrate_first, stop, on_ready);
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            outcome = &mut serving => return outcome,
            _ = interrupt.recv() => tracing::info!("stopping: SIGINT"),
            _ = terminate.recv() => tracing::info!("stopping: SIGTERM"),
        }
        stop.cancel();
        serving.await
    })
}

async fn run(
    config: &Config,
    role: Role,
    listeners: Listeners,
    migrate_first: bool,
    stop: &CancellationToken,
    on_ready: impl FnOnce(Served) + Send,
) -> Result<(), ServeError> {
    if migrate_first {
        migrate(config.database_url.expose()).await?;
    }
    let ledger = Ledger::connect(config.database_url.expose())
        .await
        .map_err(anyhow::Error::from)?;
    let missing = ledger.migrations_missing().await.map_err(anyhow::Error::from)?;
    if missing > 0 {
        return Err(ServeError::SchemaBehind(flow::ready::behind(missing)));
    }
    let stock = Stock::connect(config.redis_url.expose())
        .await
        .map_err(anyhow::Error::from)?;
    let app = Arc::new(App::new(stock, ledger.clone()));
    if let Some(unfit) = app.stock.unfit().await.map_err(anyhow::Error::from)? {
        tracing::warn!("{unfit}; until then this instance is not ready");
    }
    for risk in app.stock.risks().await {
        tracing::warn!("{risk}");
    }

    // So that the first shopper is not turned away; whoever cannot wait is told to try again.
    match tokio::time::timeout(RECONCILE_MAX, flow::permit::reconcile_all(&app)).await {
        Ok(Ok(_)) => {}
        Ok(Err(fault)) => tracing::warn!(%fault, "nothing is sold until the stock is reconciled"),
        Err(_) => tracing::warn!("the stock is still being reconciled; nothing is sold until then"),
    }
    let keeper = Keeper::start(&app);
    let scheduler = match role {
        Role::All | Role::Worker => {
            let scheduler = Scheduler::start(
                Arc::clone(&app),
                config.alert_webhook.as_ref().map(|hook| hook.expose().clone()),
            )
            .await;
            Some(scheduler.context("cannot start the scheduler")?)
        }
        Role::Api => None,
    };
    let telling = Arc::clone(&app);
    let tell = tokio::spawn(async move { flow::durable::tell(&telling).await });
    let machines = listeners.machines.map(|listener| serve_machines(&app, listener));
    let machines = machines.transpose()?;
    let outcome = match listeners.http {
        Some(listeners) => {
            let watched = Arc::clone(&app);
            let watch = tokio::spawn(async move { flow::durable::watch(&watched).await });
            let outcome = serve_http(config, app, listeners, stop, on_ready).await;
            watch.abort();
            outcome
        }
        None => {
            tracing::info!("working");
            stop.cancelled().await;
            Ok(())
        }
    };
    if let Some(scheduler) = scheduler {
        scheduler.end().await;
    }
    keeper.end().await;
    // Last: how a process ends can be watched to its end.
    if let Some(machines) = machines {
        machines.stop(false).await;
    }
    tell.abort();
    ledger.close().await;
    tracing::info!("stopped");
    Ok(outcome?)
}

fn listen(address: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}; choose another address with {setting}"))
}

/// Serves metrics and health at an address of their own.
fn serve_machines(app: &Arc<App>, listener: TcpListener) -> anyhow::Result<ServerHandle> {
    let address = listener.local_addr()?;
    let app = Arc::clone(app);
    let server = HttpServer::new(move || {
        HttpApp::new()
            .app_data(Data::from(Arc::clone(&app)))
            .configure(machine_routes)
            .wrap(from_fn(survive))
            .wrap(from_fn(request_id))
    })
    .workers(1)
    .client_request_timeout(HEAD_TIME)
    .keep_alive(KEEP_ALIVE)
    .disable_signals()
    .listen(listener)
    .map_err(|error| anyhow!("cannot serve metrics on {address}: {error}"))?
    .run();
    let handle = server.handle();
    tokio::spawn(server);
    tracing::info!(%address, "serving metrics");
    Ok(handle)
}

/// A connection of a client: it is counted until this is dropped, with what belongs to it.
struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn count_connection(open: &Gauge) -> impl Fn(&dyn Any, &mut Extensions) + Send + Sync + 'static {
    let open = open.clone();
    move |_, belongings| {
        open.inc();
        belongings.insert(Connected(open.clone()));
    }
}

async fn serve_http(
    config: &Config,
    app: Arc<App>,
    listeners: HttpListeners,
    stop: &CancellationToken,
    on_ready: impl FnOnce(Served) + Send,
) -> anyhow::Result<()> {
    let address = listeners.shop.local_addr()?;
    let admin = listeners.admin.as_ref().map(TcpListener::local_addr).transpose()?;
    let gate = Arc::new(Gate::new(config.guards));
    // Who may not come in any more, before anybody does.
    let learned = tokio::time::timeout(RECONCILE_MAX, async {
        flow::bans::learn(&app).await?;
        app.sales.learn().await
    });
    if !matches!(learned.await, Ok(Ok(()))) {
        tracing::warn!("it is not known yet which sessions have ended and which sales there are");
    }
    let feeding = Arc::clone(&app);
    let feed = tokio::spawn(async move { flow::alert_feed::keep(&feeding).await });
    let instance = instance_name(address);
    let telling = {
        let (app, instance) = (Arc::clone(&app), instance.clone());
        tokio::spawn(async move { flow::pulse::keep(&app, &instance).await })
    };
    let ending = Arc::clone(&app);
    let following = {
        let (app, gate, configured) = (Arc::clone(&app), Arc::clone(&gate), config.guards);
        tokio::spawn(async move { follow(&app, &gate, &app.metrics, configured).await })
    };
    let shared = Arc::new(Shared {
        metrics: Arc::clone(&app.metrics),
        tokens: Tokens::new(config.jwt_secret.expose().as_bytes()),
        token_keys: config.token_keys.expose().clone(),
        admin_key: config.admin_key.clone(),
        webhook_secret: config.webhook_secret.clone(),
        easel: Easel::default(),
        gate: Arc::clone(&gate),
        guards: config.guards,
        sale_guards: config.sale_guards,
        trusted_proxies: config.trusted_proxies.clone(),
        followers: Arc::default(),
        sign_ins: SignIns::default(),
        live: Live::default(),
        audits: Audits::default(),
        instance,
        ending: stop.clone(),
        pages: Pages::new(config.development, &config.shop),
        development: config.development.then(|| Development::new(config.jwt_secret.clone())),
        weather: Weather::default(),
    });
    let is_development = config.development;
    if is_development {
        tracing::warn!(
            "development mode: whoever has the link that was printed signs in as anybody and pays with nothing"
        );
    }
    let redis_url = config.redis_url.clone();
    let serve = |listener: TcpListener, part: Part| {
        let (app, shared, redis_url) = (Arc::clone(&app), Arc::clone(&shared), redis_url.clone());
        let address = listener.local_addr()?;
        let count = count_connection(&app.metrics.http_connections);
        let server = HttpServer::new(move || {
            let (app, shared, redis_url) = (Arc::clone(&app), Arc::clone(&shared), redis_url.clone());
            HttpApp::new()
                .app_data(Data::from(Arc::clone(&app)))
                // Runs on the worker's own runtime: its purchases never wake another thread.
                .data_factory(move || {
                    let (app, shared, redis_url) = (Arc::clone(&app), Arc::clone(&shared), redis_url.clone());
                    async move {
                        let stock = Stock::connect(redis_url.expose()).await?;
                        Ok::<_, Fault>(Api {
                            app: Arc::new(app.over(stock)),
                            shared,
                        })
                    }
                })
                .configure(routes(is_development, part))
                .wrap(from_fn(survive))
                .wrap(from_fn(request_id))
        })
        .on_connect(count)
        .client_request_timeout(HEAD_TIME)
        .tls_handshake_timeout(HANDSHAKE_TIME)
        .keep_alive(KEEP_ALIVE)
        .shutdown_timeout(END_SECONDS)
        .disable_signals();
        // Few operate, and one of them must not take a processor from those who buy.
        let server = if part == Part::Operators {
            server.workers(1)
        } else {
            server
        };
        let listening = match &config.tls {
            Some(tls) => server.listen_rustls_0_23(listener, tls.server()),
            None => server.listen(listener),
        };
        let listening = listening.map_err(|error| anyhow!("cannot serve on {address}: {error}"))?;
        Ok::<_, anyhow::Error>(listening.run())
    };
    let servers = match listeners.admin {
        None => vec![serve(listeners.shop, Part::All)?],
        Some(admin) => vec![serve(listeners.shop, Part::Shop)?, serve(admin, Part::Operators)?],
    };
    let handles: Vec<_> = servers.iter().map(actix_web::dev::Server::handle).collect();
    let mut serving = tokio::spawn(try_join_all(servers));
    if let Some(admin) = admin {
        tracing::info!(address = %admin, tls = config.tls.is_some(), "serving operators");
    }
    tracing::info!(%address, tls = config.tls.is_some(), "serving");
    on_ready(Served {
        shop: address,
        admin: admin.unwrap_or(address),
    });
    tokio::select! {
        outcome = &mut serving => drop(outcome??),
        () = stop.cancelled() => {
            // Streams have no end of their own that could be waited for.
            ending.alert_feed.end();
            join_all(handles.iter().map(|handle| handle.stop(true))).await;
            serving.await??;
        }
    }
    following.abort();
    feed.abort();
    telling.abort();
    Ok(())
}

/// What operators call this instance by: its host, and the port where it serves shoppers.
fn instance_name(address: SocketAddr) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => address.to_string(),
        host => format!("{host}:{}", address.port()),
    }
}
