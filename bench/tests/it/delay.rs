//! A link to a server's socket on which everything takes a while, as on the way to another machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// Opens a port that leads to the socket, for as long as the process runs. Each piece takes at least `delay`, in both
/// directions. A piece that comes while another waits takes up to twice as long.
///
/// Each direction of a connection has a thread, because tokio counts time in milliseconds.
pub fn delayed(socket: PathBuf, delay: Duration) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            // A server that is away breaks the connection, as it would without a link between.
            let (client, Ok(server)) = (client.unwrap(), UnixStream::connect(&socket)) else {
                continue;
            };
            client.set_nodelay(true).unwrap();
            let (from_client, from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                carry(from_client, &server, delay);
                // The other end may have closed it.
                let _closed = server.shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                carry(from_server, &client, delay);
                let _closed = client.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

/// Carries bytes one way until an end closes.
fn carry(mut from: impl Read, mut to: impl Write, delay: Duration) {
    // By default, Linux lets a thread sleep 50 µs longer than it asked for.
    rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN)).unwrap();
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        thread::sleep(delay);
        if to.write_all(&piece[..length]).is_err() {
            return;
        }
    }
}
