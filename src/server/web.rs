//! Serves HTTP: to shoppers, to operators, and to machines.

use super::sockets::{HttpListeners, connections_of};
use super::{RECONCILE_MAX, ServedAddresses};
use crate::config::tls::Tls;
use crate::config::{Config, ConnectionLimits};
use crate::domain::fault::Fault;
use crate::domain::stage::StageKey;
use crate::flow::App;
use crate::guard::actions::{KnownReads, RefusedActions};
use crate::guard::challenge::ChallengeDrawer;
use crate::guard::follow::follow;
use crate::guard::gate::Gate;
use crate::guard::sign_ins::SignIns;
use crate::http::admin::audits::Audits;
use crate::http::admin::lists::Exports;
use crate::http::admin::live::Live;
use crate::http::extract::Tokens;
use crate::http::pages::Pages;
use crate::http::request_id::request_id;
use crate::http::shop::development::Development;
use crate::http::{Api, FaultLog, Part, Shared, machine_routes, routes};
use crate::listener::{Terms, answering};
use crate::stock::Stock;
use crate::{flow, listener};
use actix_web::App as HttpApp;
use actix_web::dev::{Server, ServerHandle};
use actix_web::middleware::from_fn;
use actix_web::web::Data;
use anyhow::anyhow;
use futures_util::future::{join_all, try_join_all};
use prometheus_client::metrics::gauge::Gauge;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The limit on connections where only operators or machines connect.
const FEW_CONNECTIONS: usize = 1000;
/// How long requests in flight may take at the end, in seconds.
const END_SECONDS: u64 = 10;

/// Serves metrics and health at an address of their own.
pub(super) fn serve_machines(app: &Arc<App>, listener: TcpListener) -> anyhow::Result<ServerHandle> {
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
            .wrap(from_fn(request_id))
            .wrap(from_fn(answering))
    });
    server.map_err(|error| anyhow!("cannot serve on {address}: {error}"))
}

pub(super) async fn serve_http(
    config: &Config,
    app: &Arc<App>,
    listeners: HttpListeners,
    stop: &CancellationToken,
    on_ready: impl FnOnce(ServedAddresses) + Send,
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
    on_ready(ServedAddresses {
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
        async move { Box::pin(follow(&app, &gate, &app.metrics, configured)).await }
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
