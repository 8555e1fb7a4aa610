//! The listener: accepts clients' connections, with or without TLS, and serves HTTP/1.1 over them.
//!
//! actix-http limits only the time for a connection's first head, and the time that a connection is idle. Here every
//! later head, every blocked write and every TLS handshake has a deadline. Open connections are limited, for each
//! client and for the instance. A connection that misses a deadline is closed without an answer. A crash closes all
//! connections and leaves nothing.

mod connection;
mod places;

pub use connection::answering;

use crate::config::ConnectionLimits;
use crate::guard::address::{Client, is_proxy};
use crate::metrics::By;
use actix_http::error::DispatchError;
use actix_http::{HttpService, Protocol, Request, Response};
use actix_service::{IntoServiceFactory, ServiceFactory, ServiceFactoryExt as _, fn_service, map_config};
use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{AppConfig, Server, Service};
use connection::{Connection, Socket};
use ipnet::IpNet;
use places::Places;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use rustls::ServerConfig;
use std::fmt::Debug;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// The longest that a client may take to send the head of a request, from its first byte.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// The longest that a TLS handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(3);
/// How long an idle connection stays open.
const IDLE_TIME: Duration = Duration::from_secs(15);
/// How long an idle connection stays open while most connections of the instance are taken.
const IDLE_TIME_CROWDED: Duration = Duration::from_secs(2);
/// The longest that a client may read nothing of an answer.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// The slowest pace at which a client may read an answer, in bytes per second.
const WRITE_PACE: u64 = 1024;
/// How long the rest of an unread request is still received, so that the client reads the answer.
const DISCONNECT_TIME: Duration = Duration::from_secs(1);

/// What a listener needs besides the application.
pub struct Terms {
    /// The number of serving threads; by default one for each processor.
    pub workers: Option<usize>,
    /// How long requests in flight may take at shutdown, in seconds.
    pub end_seconds: u64,
    /// The TLS configuration; without it, the listener serves plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Trusted proxies. The limit for each client does not hold for them.
    pub proxies: Vec<IpNet>,
    pub limits: ConnectionLimits,
    pub open: Gauge,
    /// Connections that the listener has closed, by `reason`.
    pub ended: By<Counter>,
}

/// Serves the application on this socket. The outermost middleware must be [`answering`].
pub fn serve<F, I, S, B>(listener: TcpListener, terms: Terms, application: F) -> io::Result<Server>
where
    F: Fn() -> I + Send + Clone + 'static,
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig> + 'static,
    S::Error: Into<Error> + 'static,
    S::InitError: Debug,
    S::Response: Into<Response<B>> + 'static,
    <S::Service as Service<Request>>::Future: 'static,
    S::Service: 'static,
    B: MessageBody + 'static,
{
    let mut server = Server::build().shutdown_timeout(terms.end_seconds).disable_signals();
    if let Some(workers) = terms.workers {
        server = server.workers(workers);
    }
    let total = terms.limits.total;
    let entrance = Entrance {
        tls: terms.tls.map(TlsAcceptor::from),
        proxies: terms.proxies.into(),
        places: Arc::new(Places::new(terms.limits)),
        open: terms.open,
        ended: terms.ended,
    };
    let ending = server.graceful_shutdown_signal();
    let serve_one = move || {
        let (ending, entrance) = (ending.clone(), entrance.clone());
        let application = application().into_factory();
        let application = application.map_err(|error| error.into().error_response());
        let http = HttpService::build()
            .keep_alive(IDLE_TIME)
            .client_request_timeout(HEAD_TIME)
            .client_disconnect_timeout(DISCONNECT_TIME)
            .graceful_shutdown_signal(move || {
                let ending = ending.clone();
                async move { ending.notified().await }
            })
            .on_connect_ext(|socket: &Socket, belongings| {
                belongings.insert(connection::activity(socket));
            })
            .finish(map_config(application, |()| AppConfig::default()));
        let enter = move |socket: TcpStream| {
            let entrance = entrance.clone();
            async move {
                let entered = entrance.enter(socket).await;
                let (socket, peer) = entered.map_err(DispatchError::Io)?;
                Ok((socket, Protocol::Http1, Some(peer)))
            }
        };
        fn_service(enter).and_then(http)
    };
    // Workers must not stop accepting. A connection over the limit is closed at once, so it does not block others.
    let server = server.max_concurrent_connections(total.saturating_mul(2));
    Ok(server.listen("http", listener, serve_one)?.run())
}

/// Admits connections.
#[derive(Clone)]
struct Entrance {
    tls: Option<TlsAcceptor>,
    proxies: Arc<[IpNet]>,
    places: Arc<Places>,
    open: Gauge,
    ended: By<Counter>,
}

impl Entrance {
    /// Gives a connection its place, and does the TLS handshake.
    async fn enter(&self, socket: TcpStream) -> io::Result<(Socket, SocketAddr)> {
        let peer = socket.peer_addr()?;
        let client = (!is_proxy(peer.ip(), &self.proxies)).then(|| Client::of(peer.ip()));
        let place = Places::take(&self.places, client).map_err(|full| {
            static MENTIONED: Once = Once::new();
            MENTIONED.call_once(|| {
                tracing::warn!(
                    address = %peer.ip(), reason = full.as_str(),
                    "closed a connection over the limit; if it comes from your proxy or load balancer, name it in \
                     FLASHSALE_TRUSTED_PROXIES"
                );
            });
            self.end(full.as_str())
        })?;
        let connection = Connection::new(socket, place, self.open.clone(), self.ended.clone());
        let Some(tls) = &self.tls else {
            return Ok((Socket::Left(connection), peer));
        };
        let agreed = timeout(HANDSHAKE_TIME, tls.accept(connection)).await;
        let socket = agreed.map_err(|_| self.end("handshake"))??;
        Ok((Socket::Right(Box::new(socket)), peer))
    }

    fn end(&self, reason: &'static str) -> io::Error {
        self.ended.of([reason]).inc();
        io::Error::new(io::ErrorKind::ConnectionRefused, reason)
    }
}
