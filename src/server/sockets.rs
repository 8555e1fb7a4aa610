//! The sockets that a process binds, and how many connections it may have.

use super::Role;
use crate::config::{Config, ConnectionLimits};
use anyhow::Context as _;
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{SocketAddr, TcpListener};

/// Files that an instance opens besides its clients' connections.
const OTHER_FILES: usize = 512;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// What the kernel buffers of a response for a client that does not read it, in bytes.
const SEND_BUFFER: usize = 64 * 1024;

/// Bound sockets.
pub struct Listeners {
    pub(super) http: Option<HttpListeners>,
    pub(super) machines: Option<TcpListener>,
}

pub(super) struct HttpListeners {
    pub(super) shop: TcpListener,
    pub(super) admin: Option<TcpListener>,
}

impl Listeners {
    /// Binds what this role serves, so that a taken address is reported before anything is started. Clients that
    /// connect wait until it is served.
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

fn listen(address: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}; choose another address with {setting}"))?;
    // Accepted connections inherit the buffer of this socket.
    sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// The limit on shoppers' connections: as configured, or as many as this process may open files.
pub(super) fn connections_of(config: &Config) -> ConnectionLimits {
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
