//! One running process: its connections, HTTP, jobs, and their end.

use crate::config::tls::Tls;
use crate::config::{Config, ConnectionLimits};
use crate::domain::connection_pools::ConnectionPools;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::redis_certificates::RedisCertificates;
use crate::domain::sale::Sale;
use crate::domain::stage::StageKey;
use crate::flow::App;
use crate::flow::operate::inspect::Inspection;
use crate::guard::actions::{KnownReads, RefusedActions};
use crate::guard::challenge::ChallengeDrawer;
use crate::guard::follow::follow;
use crate::guard::gate::Gate;
use crate::guard::sign_ins::SignIns;
use crate::http::admin::audits::Audits;
use crate::http::admin::live::Live;
use crate::http::admin::orders::Exports;
use crate::http::extract::Tokens;
use crate::http::pages::Pages;
use crate::http::panic_guard::panic_guard;
use crate::http::request_id::request_id;
use crate::http::shop::development::Development;
use crate::http::{Api, FaultLog, Part, Shared, machine_routes, routes};
use crate::ledger::Ledger;
use crate::ledger::archive::{ArchiveOutcome, RestoreOutcome};
use crate::listener::{Terms, answering};
use crate::scheduler::{Keeper, Scheduler};
use crate::stock::Stock;
use crate::{flow, ledger, listener};
use actix_web::App as HttpApp;
use actix_web::dev::{Server, ServerHandle};
use actix_web::middleware::from_fn;
use actix_web::web::Data;
use anyhow::{Context as _, anyhow};
use futures_util::future::{join_all, try_join_all};
use prometheus_client::metrics::gauge::Gauge;
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long the start waits for the stock to be reconciled.
const RECONCILE_MAX: Duration = Duration::from_secs(2);
/// The limit on connections where only operators or machines connect.
const FEW_CONNECTIONS: usize = 1000;
/// Files that an instance opens besides its clients' connections.
const OTHER_FILES: usize = 512;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// What the kernel buffers of a response for a client that does not read it, in bytes.
const SEND_BUFFER: usize = 64 * 1024;
/// How long requests in flight may take at the end, in seconds.
const END_SECONDS: u64 = 10;

/// The addresses where a process serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// For shoppers.
    pub shop: SocketAddr,
    /// For operators; often the same.
    pub admin: SocketAddr,
}

/// Bound sockets.
pub struct Listeners {
    http: Option<HttpListeners>,
    machines: Option<TcpListener>,
}

struct HttpListeners {
    shop: TcpListener,
    admin: Option<TcpListener>,
}

impl Listeners {
    /// Binds what this role serves, so that a taken address is reported before anything is started. Clients that
    /// connect wait until it is served.
    ///
    /// # Errors
    /// When an address cannot be bound; the text names its setting.
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

/// The part of the work that a process does.
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

/// Writes a sale that is over into a file, and deletes it from the ledger.
///
/// # Errors
/// When Postgres cannot be reached.
pub fn archive(database_url: &str, sale: SaleId, file: File) -> anyhow::Result<ArchiveOutcome> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    Ok(runtime.block_on(ledger::archive::archive(database_url, sale, file))?)
}

/// Restores a sale from a file of [`archive`].
///
/// # Errors
/// When Postgres cannot be reached, or refuses a row.
pub fn restore(database_url: &str, file: File) -> anyhow::Result<RestoreOutcome> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    Ok(runtime.block_on(ledger::archive::restore(database_url, file))?)
}

/// Decodes what Redis holds of a sale; `None` when there is no such sale.
///
/// # Errors
/// When a server cannot be reached or a shard is incomplete.
pub fn inspect(
    redis_url: &str,
    redis_certificates: &RedisCertificates,
    database_url: &str,
    sale: SaleId,
    user: Option<&UserId>,
) -> anyhow::Result<Option<Inspection>> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(async {
        let ledger = Ledger::connect(database_url, ConnectionPools::default()).await?;
        let stock = Stock::connect_with(redis_url, redis_certificates).await?;
        Ok(flow::operate::inspect::inspect(&App::new(stock, ledger), sale, user).await?)
    })
}

/// The newest sales of Postgres, newest first.
///
/// # Errors
/// When Postgres does not answer.
pub fn newest_sales(database_url: &str, max: i64) -> anyhow::Result<Vec<Sale>> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(async {
        let ledger = Ledger::connect(database_url, ConnectionPools::default()).await?;
        Ok(ledger.sales(max, None, true).await?)
    })
}

/// Serves until SIGINT or SIGTERM, or until `stop` is cancelled. Once it answers, `on_ready` gets the addresses.
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
    let app = connect(config).await?;
    warn_of_servers(&app).await?;
    reconcile_first(&app).await;
    let keeper = Keeper::start(&app);
    let scheduler = match role {
        Role::All | Role::Worker => Some(start_scheduler(config, &app).await?),
        Role::Api => None,
    };
    let notifying = Arc::clone(&app);
    let notifying = tokio::spawn(async move { flow::sell::await_durability::notify(&notifying).await });
    let machines = listeners.machines.map(|listener| serve_machines(&app, listener));
    let machines = machines.transpose()?;
    let outcome = match listeners.http {
        Some(listeners) => serve_http(config, &app, listeners, stop, on_ready).await,
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
    // Last, so that an operator can watch a process to its end.
    if let Some(machines) = machines {
        machines.stop(false).await;
    }
    notifying.abort();
    app.ledger.close().await;
    tracing::info!("stopped");
    Ok(outcome?)
}

/// Connects to Postgres, whose schema must be up to date, and to Redis.
async fn connect(config: &Config) -> Result<Arc<App>, ServeError> {
    let ledger = Ledger::connect(config.database_url.expose(), config.database_pools)
        .await
        .map_err(anyhow::Error::from)?;
    let missing = ledger.migrations_missing().await.map_err(anyhow::Error::from)?;
    if missing > 0 {
        return Err(ServeError::SchemaBehind(flow::watch::readiness::behind(missing)));
    }
    let stock = Stock::connect_with(config.redis_url.expose(), config.redis_certificates.expose())
        .await
        .map_err(anyhow::Error::from)?;
    Ok(Arc::new(App {
        retention: config.retention,
        ..App::new(stock, ledger)
    }))
}

/// Logs why the servers of Redis cannot sell, and what their configuration risks.
async fn warn_of_servers(app: &App) -> anyhow::Result<()> {
    if let Some(unfit) = app.stock.unfit().await? {
        tracing::warn!("{unfit}; until then this instance is not ready");
    }
    for risk in app.stock.risks().await {
        tracing::warn!("{risk}");
    }
    Ok(())
}

/// Reconciles the stock. Waits, so that the first shopper is not turned away. After the limit, shoppers get a 503 and
/// try again.
async fn reconcile_first(app: &Arc<App>) {
    match tokio::time::timeout(RECONCILE_MAX, flow::recover::attend::reconcile_all(app)).await {
        Ok(Ok(_)) => {}
        Ok(Err(fault)) => tracing::warn!(%fault, "nothing is sold until the stock is reconciled"),
        Err(_) => tracing::warn!("the stock is still being reconciled; nothing is sold until then"),
    }
}

async fn start_scheduler(config: &Config, app: &Arc<App>) -> anyhow::Result<Scheduler> {
    let webhook = config.alert_webhook.as_ref().map(|hook| hook.expose().clone());
    let scheduler = Scheduler::start(Arc::clone(app), webhook).await;
    scheduler.context("cannot start the scheduler")
}

fn listen(address: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}; choose another address with {setting}"))?;
    // Accepted connections inherit the buffer of this socket.
    sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// The limit on shoppers' connections: as configured, or as many as this process may open files.
fn connections_of(config: &Config) -> ConnectionLimits {
    let files = raise_file_limit();
    let total = config
        .connections
        .total
        .min(files.saturating_sub(OTHER_FILES).max(files / 2));
    if total < config.connections.total {
        tracing::info!(
            connections = total,
            files,
            "this process may open fewer files than its configured connections need; raise `ulimit -Hn`"
        );
    }
    ConnectionLimits {
        total,
        ..config.connections
    }
}

/// Raises the limit on open files as far as this process may, and returns it.
fn raise_file_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            limit = raised;
        }
    }
    limit
        .current
        .and_then(|files| usize::try_from(files).ok())
        .unwrap_or(usize::MAX)
}

/// Serves metrics and health at an address of their own.
fn serve_machines(app: &Arc<App>, listener: TcpListener) -> anyhow::Result<ServerHandle> {
    let address = listener.local_addr()?;
    let app = Arc::clone(app);
    let terms = Terms {
        workers: Some(1),
        end_seconds: END_SECONDS,
        tls: None,
        proxies: Vec::new(),
        limits: ConnectionLimits {
            total: FEW_CONNECTIONS,
            per_client: 0,
        },
        open: Gauge::default(),
        ended: app.metrics.http_connections_ended.clone(),
    };
    let server = listener::serve(listener, terms, move || {
        HttpApp::new()
            .app_data(Data::from(Arc::clone(&app)))
            .configure(machine_routes)
            .wrap(from_fn(panic_guard))
            .wrap(from_fn(request_id))
            .wrap(from_fn(answering))
    });
    let server = server.map_err(|error| anyhow!("cannot serve metrics on {address}: {error}"))?;
    let handle = server.handle();
    tokio::spawn(server);
    tracing::info!(%address, "serving metrics");
    Ok(handle)
}

/// What all workers share.
fn shared(config: &Config, app: &App, gate: &Arc<Gate>, instance: String, ending: CancellationToken) -> Shared {
    Shared {
        metrics: Arc::clone(&app.metrics),
        tokens: Tokens::new(config.jwt_secret.expose().as_bytes()),
        token_keys: config.token_keys.expose().clone(),
        operator_keys: config.operator_keys.clone(),
        webhook_secret: config.webhook_secret.clone(),
        challenge_drawer: ChallengeDrawer::default(),
        gate: Arc::clone(gate),
        guards: config.guards,
        sale_guards: config.sale_guards,
        trusted_proxies: config.trusted_proxies.clone(),
        is_proxy_mentioned: AtomicBool::default(),
        followers: Arc::default(),
        sign_ins: SignIns::default(),
        refused_actions: RefusedActions::default(),
        known_reads: KnownReads::default(),
        live: Live::default(),
        audits: Audits::default(),
        exports: Exports::default(),
        is_https: config.tls.is_some(),
        instance,
        ending,
        pages: Pages::new(config.development, &config.shop, &config.look),
        development: config.development.then(|| Development::new(config.jwt_secret.clone())),
        faults: FaultLog::default(),
    }
}

/// Serves a part of the routes at its address.
fn serve_part(
    config: &Config,
    app: &Arc<App>,
    shared: &Arc<Shared>,
    listener: TcpListener,
    part: Part,
) -> anyhow::Result<Server> {
    let (app, shared) = (Arc::clone(app), Arc::clone(shared));
    let redis = (config.redis_url.clone(), config.redis_certificates.clone());
    let is_development = config.development;
    let address = listener.local_addr()?;
    // Operators are few. One of them must not take a processor from shoppers, nor shoppers their connections.
    let (workers, limits) = match part {
        Part::Operators => (
            Some(1),
            ConnectionLimits {
                total: FEW_CONNECTIONS,
                ..config.connections
            },
        ),
        Part::All | Part::Shop => (None, connections_of(config)),
    };
    let terms = Terms {
        workers,
        end_seconds: END_SECONDS,
        tls: config.tls.as_ref().map(Tls::server),
        proxies: config.trusted_proxies.clone(),
        limits,
        open: app.metrics.http_connections.clone(),
        ended: app.metrics.http_connections_ended.clone(),
    };
    let server = listener::serve(listener, terms, move || {
        let (app, shared, redis) = (Arc::clone(&app), Arc::clone(&shared), redis.clone());
        HttpApp::new()
            .app_data(Data::from(Arc::clone(&app)))
            // Runs on the worker's own runtime: its purchases never wake another thread. Redis may be away for a
            // moment: it has answered this process before.
            .data_factory(move || {
                let (app, shared, redis) = (Arc::clone(&app), Arc::clone(&shared), redis.clone());
                async move {
                    let (url, certificates) = &redis;
                    let stock = Stock::open(url.expose(), certificates.expose())?;
                    Ok::<_, Fault>(Api::new(app.over(stock), shared))
                }
            })
            .configure(routes(is_development, part))
            .wrap(from_fn(panic_guard))
            .wrap(from_fn(request_id))
            .wrap(from_fn(answering))
    });
    server.map_err(|error| anyhow!("cannot serve on {address}: {error}"))
}

async fn serve_http(
    config: &Config,
    app: &Arc<App>,
    listeners: HttpListeners,
    stop: &CancellationToken,
    on_ready: impl FnOnce(Served) + Send,
) -> anyhow::Result<()> {
    let address = listeners.shop.local_addr()?;
    let admin = listeners.admin.as_ref().map(TcpListener::local_addr).transpose()?;
    let stage_key = StageKey::derived(config.jwt_secret.expose().as_bytes());
    let gate = Arc::new(Gate::new(config.guards, stage_key));
    // The drop of the set ends its tasks.
    let mut followers = JoinSet::new();
    let watched = Arc::clone(app);
    followers.spawn(async move { flow::sell::await_durability::watch(&watched).await });
    learn(app).await;
    app.instances.note_serves();
    let instance = instance_name(address);
    start_followers(&mut followers, config, app, &gate, &instance);
    let shared = Arc::new(shared(config, app, &gate, instance, stop.clone()));
    if config.development {
        tracing::warn!(
            "development mode: anyone with the printed link can sign in as any shopper and pay without money"
        );
    }
    let servers = match listeners.admin {
        None => vec![serve_part(config, app, &shared, listeners.shop, Part::All)?],
        Some(admin) => vec![
            serve_part(config, app, &shared, listeners.shop, Part::Shop)?,
            serve_part(config, app, &shared, admin, Part::Operators)?,
        ],
    };
    let handles: Vec<_> = servers.iter().map(Server::handle).collect();
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
            // Streams have no end of their own, so end them first.
            app.alert_feed.end();
            join_all(handles.iter().map(|handle| handle.stop(true))).await;
            serving.await??;
        }
    }
    Ok(())
}

/// Reads the ended sessions and the sales before the first request.
async fn learn(app: &App) {
    let learned = tokio::time::timeout(RECONCILE_MAX, async {
        flow::operate::bans::learn(app).await?;
        app.sales.learn().await
    });
    if !matches!(learned.await, Ok(Ok(()))) {
        tracing::warn!("could not read yet which sessions have ended and which sales exist");
    }
}

/// Starts the tasks that keep a serving process up to date with the others.
fn start_followers(followers: &mut JoinSet<()>, config: &Config, app: &Arc<App>, gate: &Arc<Gate>, instance: &str) {
    // What each process follows must reach it however many shoppers and operators ask.
    let upkeep = app.for_upkeep();
    followers.spawn({
        let app = upkeep.clone();
        async move { flow::watch::alert_feed::keep(&app).await }
    });
    followers.spawn({
        let (app, instance) = (Arc::clone(app), instance.to_owned());
        async move { flow::watch::pulse::keep(&app, &instance).await }
    });
    followers.spawn({
        let (app, gate, configured) = (upkeep, Arc::clone(gate), config.guards);
        async move { follow(&app, &gate, &app.metrics, configured).await }
    });
}

/// The operators' name for this instance: its host, and the port where it serves shoppers.
fn instance_name(address: SocketAddr) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => address.to_string(),
        host => format!("{host}:{}", address.port()),
    }
}
