//! A link between two processes that can be cut, stalled, slowed and robbed of its answers.

use crate::support::poll::pass;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// How a link treats its traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Open,
    /// Connections break, and new ones break at once.
    Cut,
    /// Nothing moves, in neither direction, and neither end is notified.
    Stalled,
    /// Requests arrive; answers do not.
    Mute,
    /// Every piece takes this many milliseconds.
    Slow(u64),
    /// Answers arrive byte by byte.
    Dribbling,
}

/// The mode, and how often connections were broken on purpose: a connection may not see every mode.
#[derive(Debug, Clone, Copy)]
struct State {
    mode: Mode,
    cuts: u64,
}

/// One link; it ends when it is dropped.
pub struct Proxy {
    pub port: u16,
    state: watch::Sender<State>,
    target: Arc<Mutex<PathBuf>>,
}

impl Proxy {
    /// A link to a server's socket.
    pub async fn to(target: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, seen) = watch::channel(State {
            mode: Mode::Open,
            cuts: 0,
        });
        let target = Arc::new(Mutex::new(target));
        tokio::spawn(accept(listener, Arc::clone(&target), seen));
        Self { port, state, target }
    }

    pub fn set(&self, mode: Mode) {
        self.state.send_modify(|state| {
            state.mode = mode;
            state.cuts += u64::from(mode == Mode::Cut);
        });
    }

    /// Leads new connections elsewhere and breaks the others.
    pub fn lead_to(&self, target: PathBuf) {
        *self.target.lock().unwrap() = target;
        self.state.send_modify(|state| state.cuts += 1);
    }
}

async fn accept(listener: TcpListener, target: Arc<Mutex<PathBuf>>, mut state: watch::Receiver<State>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The link has been dropped.
            () = closed(&mut state) => return,
        };
        let Ok((client, _)) = accepted else { continue };
        if state.borrow().mode == Mode::Cut {
            continue;
        }
        let target = target.lock().unwrap().clone();
        let mode = state.clone();
        tokio::spawn(async move {
            // A server that is away breaks the connection, as it would without a link between.
            if let Ok(server) = UnixStream::connect(target).await {
                join(client, server, mode).await;
            }
        });
    }
}

async fn closed(state: &mut watch::Receiver<State>) {
    while state.changed().await.is_ok() {}
}

async fn join(client: TcpStream, server: UnixStream, state: watch::Receiver<State>) {
    let _set = client.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut until = state.clone();
    let cuts = state.borrow().cuts;
    tokio::select! {
        () = pump(from_client, to_server, state.clone(), false) => {}
        () = pump(from_server, to_client, state, true) => {}
        _cut = until.wait_for(|state| state.cuts != cuts) => {}
    }
}

/// Carries bytes one way until an end closes.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
    answers: bool,
) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let flows = state.wait_for(|state| state.mode != Mode::Stalled).await;
        let Ok(now) = flows.map(|state| state.mode) else {
            return;
        };
        let piece = &piece[..length];
        let sent = match now {
            Mode::Mute if answers => {
                // Bytes never go missing in the middle of a connection: this one ends without them.
                let _open = state.wait_for(|state| state.mode != Mode::Mute).await;
                return;
            }
            Mode::Slow(millis) => {
                pass(Duration::from_millis(millis)).await;
                to.write_all(piece).await
            }
            Mode::Dribbling if answers => dribble(&mut to, piece).await,
            _ => to.write_all(piece).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn dribble(to: &mut (impl AsyncWrite + Unpin), piece: &[u8]) -> std::io::Result<()> {
    for byte in piece {
        to.write_all(&[*byte]).await?;
        to.flush().await?;
        tokio::task::yield_now().await;
    }
    Ok(())
}
