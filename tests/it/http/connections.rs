//! Clients that hold connections: slow heads after the first request, slow readers, idle connections and TLS handshakes,
//! and more connections than one client may have. The server ends them, and honest shoppers buy meanwhile.

use super::tls::Files;
use crate::support::app::{TestApp, Who, rfc3339, sale, sale_with, token};
use crate::support::poll::{Patience, Stopwatch, within};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// How long the server may take to end a connection: its longest deadline is 15 seconds.
const PATIENCE: Duration = Duration::from_secs(40);
/// The shortest complete request.
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

fn address(app: &TestApp) -> SocketAddr {
    app.url.trim_start_matches("http://").parse().unwrap()
}

/// A connection from this loopback address.
async fn connect_from(source: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((source, 0))).unwrap();
    socket.connect(to).await.unwrap()
}

/// Asks for the health of the instance over a connection that stays open; whether it answered.
async fn is_answered(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4096];
    stream.write_all(HEALTH).await.is_ok()
        && matches!(stream.read(&mut answer).await, Ok(length @ 1..) if answer[..length].starts_with(b"HTTP/1.1 200"))
}

/// A metric of the instance, without labels or with them as they are written.
async fn metric(app: &TestApp, series: &str) -> f64 {
    let text = app.get(Who::Nobody, "/metrics").await.ok(200).text;
    let line = text.lines().find(|line| line.split(' ').next() == Some(series));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok())
        .unwrap_or_else(|| panic!("{series} is not in:\n{text}"))
}

/// Waits until the server has ended the connection. Sends a byte each fifth of a second if `dribbles`.
async fn ended(stream: &mut TcpStream, dribbles: bool) {
    let patience = Patience::of(PATIENCE);
    let mut rest = vec![0; 65536];
    loop {
        match tokio::time::timeout(Duration::from_millis(200), stream.read(&mut rest)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => return,
            Err(_) if dribbles => _ = stream.write_all(b"a").await,
            Err(_) => {}
        }
        patience.pause("the server ends the connection").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_dribbles_after_a_first_request_is_not_waited_for() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut slow = Vec::new();
    for n in 0..50 {
        let mut stream = TcpStream::connect(address(&app)).await.unwrap();
        assert!(is_answered(&mut stream).await);
        // Half of them stop after one byte, the others go on.
        stream.write_all(b"G").await.unwrap();
        slow.push((stream, n % 2 == 0));
    }
    assert_eq!(app.buy("quick", &id, "k", 1).await.status, 201);
    let all = slow.iter_mut().map(|(stream, dribbles)| ended(stream, *dribbles));
    futures_util::future::join_all(all).await;
    assert!(metric(&app, r#"flashsale_http_connections_ended_total{reason="slow"}"#).await >= 50.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_nobody_reads_is_not_waited_for() {
    let app = TestApp::start_api_only().await;
    let mut stream = TcpStream::connect(address(&app)).await.unwrap();
    // The answer comes before the body: later bytes are discarded, for as long as a head may take.
    let head = "GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    ended(&mut stream, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_read_nothing_or_too_slowly_are_dropped() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut deaf = Vec::new();
    for _ in 0..10 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(address(&app)).await.unwrap();
        let many = b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n".repeat(64);
        stream.write_all(&many).await.unwrap();
        deaf.push(stream);
    }
    // Half a KiB a second: too slow, although they never stop.
    for mut stream in deaf.split_off(5) {
        tokio::spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(200));
            while matches!(stream.read(&mut [0; 100]).await, Ok(1..)) {
                pace.tick().await;
            }
        });
    }
    within(PATIENCE, "they are connected", async || {
        metric(&app, "flashsale_http_connections").await >= 10.0
    })
    .await;
    assert_eq!(app.buy("quick", &id, "k", 1).await.status, 201);
    within(PATIENCE, "they are dropped", async || {
        metric(&app, r#"flashsale_http_connections_ended_total{reason="slow"}"#).await >= 10.0
            && metric(&app, "flashsale_http_connections").await < 10.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_is_closed_and_a_stream_of_events_is_not() {
    let app = TestApp::start_api_only().await;
    let now = chrono::Utc::now();
    let id = app
        .load_sale(&sale_with(&json!({
            "guards": {"waiting_room": true},
            "starts_at": rfc3339(now + chrono::TimeDelta::hours(1)),
            "ends_at": rfc3339(now + chrono::TimeDelta::hours(2)),
        })))
        .await;
    let mut stream = TcpStream::connect(address(&app)).await.unwrap();
    let head = format!(
        "GET /v1/sales/{id}/waiting-room/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        token("waits")
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 4096];
    let length = stream.read(&mut first).await.unwrap();
    assert!(first[..length].starts_with(b"HTTP/1.1 200"));
    let mut idle = TcpStream::connect(address(&app)).await.unwrap();
    assert!(is_answered(&mut idle).await);
    ended(&mut idle, false).await;
    // Events that the stream has sent meanwhile, and still sends.
    for _ in 0..2 {
        let sent = tokio::time::timeout(PATIENCE, stream.read(&mut first)).await;
        assert!(matches!(sent, Ok(Ok(1..))), "{sent:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_has_so_many_connections_and_others_have_theirs() {
    let variables = [("FLASHSALE_ADDRESS_CONNECTIONS", "8"), ("FLASHSALE_CONNECTIONS", "24")];
    let app = TestApp::with("api", &variables).await;
    let to = address(&app);
    let (first, second, third) = (
        Ipv4Addr::new(127, 0, 1, 1),
        Ipv4Addr::new(127, 0, 1, 2),
        Ipv4Addr::new(127, 0, 1, 3),
    );
    let mut held = Vec::new();
    for source in [first, second] {
        for _ in 0..8 {
            let mut stream = connect_from(source, to).await;
            assert!(is_answered(&mut stream).await);
            held.push(stream);
        }
        let mut beyond = connect_from(source, to).await;
        assert!(!is_answered(&mut beyond).await, "the ninth of one client");
    }
    let refused = r#"flashsale_http_connections_ended_total{reason="client_full"}"#;
    assert_eq!(metric(&app, refused).await, 2.0);
    // Until the instance is full.
    let mut last = Vec::new();
    for _ in 0..12 {
        let mut stream = connect_from(third, to).await;
        if is_answered(&mut stream).await {
            last.push(stream);
        }
    }
    assert!((1..=8).contains(&last.len()), "{}", last.len());
    let refused = r#"flashsale_http_connections_ended_total{reason="instance_full"}"#;
    // A place that is given back can be taken again.
    drop(held);
    within(PATIENCE, "there is room", async || {
        is_answered(&mut connect_from(third, to).await).await
    })
    .await;
    assert!(metric(&app, refused).await >= 1.0);
}

/// Its bounds on streams and header lists cannot be set, so nobody gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_is_not_spoken_to_a_client_that_begins_it() {
    let app = TestApp::start_api_only().await;
    let mut stream = TcpStream::connect(address(&app)).await.unwrap();
    // The preface, its settings, and a head that never ends.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let mut answer = Vec::new();
    let patience = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer));
    // The server may end the connection before it has read everything.
    let _reset = patience.await.expect("the server ends the connection");
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trusted_proxy_has_as_many_connections_as_it_wants() {
    let variables = [
        ("FLASHSALE_ADDRESS_CONNECTIONS", "2"),
        ("FLASHSALE_TRUSTED_PROXIES", "127.0.1.0/24"),
    ];
    let app = TestApp::with("api", &variables).await;
    let mut held = Vec::new();
    for _ in 0..20 {
        let mut stream = connect_from(Ipv4Addr::new(127, 0, 1, 1), address(&app)).await;
        assert!(is_answered(&mut stream).await);
        held.push(stream);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_are_not_begun_keep_nobody_out() {
    let files = Files::new();
    let (cert, key) = (files.path("cert.pem"), files.path("key.pem"));
    let variables = [
        ("FLASHSALE_TLS_CERT", cert.as_str()),
        ("FLASHSALE_TLS_KEY", key.as_str()),
    ];
    let app = TestApp::with("api", &variables).await;
    let to = address(&app);
    // More than every worker of a machine with few processors would have at a time.
    let processors = std::thread::available_parallelism().unwrap().get();
    let (mut idle, began) = (Vec::new(), Instant::now());
    for _ in 0..(processors * 256 + 100) {
        idle.push(TcpStream::connect(to).await.unwrap());
    }
    let client = files.client();
    let url = format!("https://localhost:{}/healthz", to.port());
    let asked = Stopwatch::start();
    let answered = tokio::task::spawn_blocking(move || client.get(&url).call().unwrap().status().as_u16());
    assert_eq!(answered.await.unwrap(), 200);
    let took = asked.elapsed();
    assert!(took < Duration::from_millis(2_500), "as late as idle ones go: {took:?}");
    // None of them had to go first, before a handshake's three seconds were over.
    let mut byte = [0];
    let gone = idle.iter().filter(|stream| stream.try_read(&mut byte).is_ok()).count();
    assert!(
        gone == 0 || began.elapsed() >= Duration::from_secs(3),
        "{gone} of {}",
        idle.len()
    );
    let all = idle.iter_mut().map(|stream| ended(stream, false));
    futures_util::future::join_all(all).await;
}
