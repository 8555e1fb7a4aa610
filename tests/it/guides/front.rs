//! Between a client and an instance: lost answers, and answers of others.

use crate::support::app::Client;
use reqwest::Method;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The fate of one request.
#[derive(Debug, Clone)]
pub enum Turn {
    /// It is carried out, and its answer comes back.
    Through,
    /// It is carried out, and its answer does not come back.
    Lost,
    /// It is answered here, with this status, this code and so many seconds to wait; the last says that the key is known to
    /// have no order.
    Problem(u16, String, u64, bool),
    /// A proxy forwards nothing and answers this status, in its own format.
    Proxy(u16),
}

impl Turn {
    pub fn problem(status: u16, code: &str, after: u64) -> Self {
        Self::Problem(status, code.to_owned(), after, false)
    }

    /// A problem that is certain that the key has no order.
    pub fn without_order(status: u16, code: &str, after: u64) -> Self {
        Self::Problem(status, code.to_owned(), after, true)
    }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub at: Instant,
    pub key: String,
    /// The admission and the purchase token for a guarded sale.
    pub shown: [Option<String>; 2],
}

/// Accepts requests for an instance; it ends when it is dropped.
pub struct Front {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    accepting: JoinHandle<()>,
}

impl Front {
    /// Treats the requests by these turns, one after the other; the last one is that of all further requests.
    pub async fn of(app: &Client, turns: &[Turn]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (app, turns, log) = (app.clone(), turns.to_vec(), Arc::clone(&seen));
        let accepting = tokio::spawn(async move {
            for number in 0.. {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let turn = turns[number.min(turns.len() - 1)].clone();
                answer(stream, &app, turn, &log).await;
            }
        });
        Self { url, seen, accepting }
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, app: &Client, turn: Turn, seen: &Mutex<Vec<Seen>>) {
    let mut stream = BufReader::new(stream);
    let (mut head, mut line) = (Vec::new(), String::new());
    while stream.read_line(&mut line).await.unwrap() > 2 {
        head.push(std::mem::take(&mut line));
    }
    let header = |name: &str| {
        let lines = head.iter().filter_map(|line| line.trim().split_once(": "));
        let mut values = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.to_owned())
    };
    let length = header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let key = header("idempotency-key").unwrap_or_default();
    let at = Instant::now();
    let shown = ["x-admission", "x-purchase-token"].map(header);
    let one = Seen {
        at,
        key: key.clone(),
        shown,
    };
    seen.lock().unwrap().push(one);

    let reply = match &turn {
        Turn::Through | Turn::Lost => {
            let path = head[0].split(' ').nth(1).unwrap();
            let token = header("authorization").unwrap_or_default();
            let request = app
                .request(Method::POST, crate::support::app::Who::Nobody, path)
                .header("authorization", token)
                .header("idempotency-key", key)
                .header("content-type", header("content-type").unwrap_or_default())
                .body(body);
            let answer = app.send(request).await;
            let after = answer.header("retry-after").map(|seconds| seconds.parse().unwrap());
            let kind = answer.header("content-type").unwrap_or_default();
            reply(answer.status, after, kind, &answer.text)
        }
        Turn::Problem(status, code, after, is_certain) => {
            let certain = if *is_certain { r#","key_has_order":false"# } else { "" };
            let problem = format!(r#"{{"type":"/problems/{code}","code":"{code}","detail":"it is so"{certain}}}"#);
            reply(*status, Some(*after), "application/problem+json", &problem)
        }
        Turn::Proxy(status) => reply(*status, None, "text/html", "<html>from in between"),
    };
    if !matches!(turn, Turn::Lost) {
        // A client that has given up gets nothing.
        let _heard = stream.write_all(reply.as_bytes()).await;
    }
}

fn reply(status: u16, after: Option<u64>, content_type: &str, body: &str) -> String {
    let after = after.map_or_else(String::new, |seconds| format!("Retry-After: {seconds}\r\n"));
    format!(
        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Type: {content_type}\r\n{after}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The least time between each request and the next.
pub fn pauses(seen: &[Seen]) -> Vec<Duration> {
    seen.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}
