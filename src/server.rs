//! One running process: its connections, HTTP, jobs, and their end.

mod commands;
mod sockets;
mod web;

use crate::config::Config;
use crate::flow::{self, App};
use crate::ledger::{self, Ledger};
use crate::scheduler::{Keeper, Scheduler};
use crate::stock::Stock;
use anyhow::Context as _;
pub use commands::{archive, inspect, migrate, newest_sales, restore};
pub use sockets::Listeners;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use web::{serve_http, serve_machines};

/// How long the start waits for the stock to be reconciled.
const RECONCILE_MAX: Duration = Duration::from_secs(2);

/// The addresses where a process serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedAddresses {
    /// For shoppers.
    pub shop: SocketAddr,
    /// For operators; often the same.
    pub admin: SocketAddr,
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

fn runtime() -> anyhow::Result<Runtime> {
    Runtime::new().context("cannot start the runtime")
}

/// Serves until SIGINT or SIGTERM, or until `stop` is cancelled. Once it answers, `on_ready` gets the addresses.
pub fn run_until_signal(
    config: &Config,
    role: Role,
    listeners: Listeners,
    migrate_first: bool,
    stop: &CancellationToken,
    on_ready: impl FnOnce(ServedAddresses) + Send,
) -> Result<(), ServeError> {
    runtime()?.block_on(async {
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
    on_ready: impl FnOnce(ServedAddresses) + Send,
) -> Result<(), ServeError> {
    if migrate_first {
        let migrated = ledger::migrate(config.database_url.expose()).await;
        migrated.map_err(anyhow::Error::from)?;
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
