//! A network that may come apart. Each member has an address of its own; servers are reached through links, and a cut
//! stops every link between its two sides.

use super::servers::FROM_ADDRESS;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A process on a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member(Ipv4Addr);

impl Member {
    /// The member with this number, up to 200.
    pub const fn number(number: u8) -> Self {
        Self(Ipv4Addr::new(127, 0, 0, 50 + number))
    }

    /// The variables of the member's process: its connections come from its address.
    pub fn environment(self) -> [(String, String); 2] {
        [
            ("LD_PRELOAD".to_owned(), FROM_ADDRESS.display().to_string()),
            ("FROM_ADDRESS".to_owned(), self.0.to_string()),
        ]
    }
}

/// The links end when this is dropped.
pub struct Network {
    /// The smaller side of the cut; empty while there is none.
    apart: watch::Sender<BTreeSet<Member>>,
}

impl Network {
    pub fn new() -> Self {
        Self {
            apart: watch::Sender::default(),
        }
    }

    /// A link to a member that listens on `port`; returns the port of the link.
    pub async fn link(&self, to: Member, port: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = listener.local_addr().unwrap().port();
        tokio::spawn(accept(listener, to, port, self.apart.subscribe()));
        link
    }

    /// Cuts these members off from all others.
    pub fn cut_off(&self, members: impl IntoIterator<Item = Member>) {
        self.apart.send_replace(members.into_iter().collect());
    }

    pub fn heal(&self) {
        self.cut_off([]);
    }
}

/// The path between two members.
#[derive(Clone)]
struct Path {
    ends: [Member; 2],
    apart: watch::Receiver<BTreeSet<Member>>,
}

impl Path {
    /// Waits while a cut is in between; false once the network has ended.
    async fn is_open(&mut self) -> bool {
        let [one, other] = self.ends;
        let open = self
            .apart
            .wait_for(|apart| apart.contains(&one) == apart.contains(&other));
        open.await.is_ok()
    }
}

async fn accept(listener: TcpListener, to: Member, port: u16, apart: watch::Receiver<BTreeSet<Member>>) {
    let mut end = apart.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ended(&mut end) => return,
        };
        let Ok((client, from)) = accepted else { continue };
        let IpAddr::V4(from) = from.ip() else { continue };
        let path = Path {
            ends: [Member(from), to],
            apart: apart.clone(),
        };
        tokio::spawn(join(client, port, path));
    }
}

async fn ended(apart: &mut watch::Receiver<BTreeSet<Member>>) {
    while apart.changed().await.is_ok() {}
}

async fn join(client: TcpStream, port: u16, mut path: Path) {
    if !path.is_open().await {
        return;
    }
    // A server that is away breaks the connection, as it would without a link between.
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    for end in [&client, &server] {
        let _set = end.set_nodelay(true);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, path.clone()) => {}
        () = pump(from_server, to_client, path) => {}
    }
}

/// Carries bytes one way until an end closes. Neither bytes nor the end of a connection cross a cut.
async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut path: Path) {
    let mut piece = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut piece).await;
        if !path.is_open().await {
            return;
        }
        let Ok(length @ 1..) = read else { return };
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
