//! A crowd that buys as fast as it is answered. It speaks HTTP by itself, because a client library costs as much as
//! the answers that are to be measured, on the same processors.

use crate::support::app::token;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Shoppers with their tokens, made ahead of the measurement.
pub struct Shoppers(Vec<String>);

/// When the crowd goes home.
#[derive(Clone, Copy)]
pub enum Until {
    /// Each of the shoppers has bought once.
    AllHave,
    /// So long after the first so many seconds, which are not counted.
    After { warm: Duration, measured: Duration },
}

/// What the crowd was told.
#[derive(Default)]
pub struct Bought {
    /// The ids of the orders that were acknowledged.
    pub orders: Vec<String>,
    /// How many of them in the time that counts, and how long that was.
    pub counted: usize,
    pub seconds: f64,
    /// Answers other than 201.
    pub refused: usize,
}

impl Shoppers {
    pub fn of(count: usize) -> Self {
        Self((0..count).map(|n| token(&name(n))).collect())
    }

    /// So many clients, each on its own connection, buy one unit for one shopper after the other under `key`.
    pub async fn buy(&self, url: &str, sale: &str, key: &str, clients: usize, until: Until) -> Bought {
        let next = AtomicUsize::new(0);
        let began = Instant::now();
        let (warm, end) = match until {
            Until::AllHave => (began, None),
            Until::After { warm, measured } => (began + warm, Some(began + warm + measured)),
        };
        let crowd = (0..clients).map(|_| async {
            let mut bought = Bought::default();
            let mut client = Client::connect(url).await;
            while end.is_none_or(|end| Instant::now() < end) {
                let n = next.fetch_add(1, Ordering::Relaxed);
                // Without an end by the clock, every shopper has one turn; else the pool has to be large enough.
                let Some(token) = self.0.get(n) else {
                    assert!(end.is_none(), "there are too few shoppers");
                    break;
                };
                let answer = client.buy(sale, token, key).await;
                if answer.status != 201 {
                    bought.refused += 1;
                    continue;
                }
                let now = Instant::now();
                bought.counted += usize::from(now >= warm && end.is_none_or(|end| now < end));
                bought.orders.push(answer.id);
            }
            bought
        });
        let mut all = Bought::default();
        for bought in futures_util::future::join_all(crowd).await {
            all.orders.extend(bought.orders);
            all.counted += bought.counted;
            all.refused += bought.refused;
        }
        all.seconds = match until {
            Until::AllHave => began.elapsed(),
            Until::After { measured, .. } => measured,
        }
        .as_secs_f64();
        all
    }
}

/// As long as the ids that shoppers mostly have.
pub fn name(n: usize) -> String {
    format!("shopper-{n:028}")
}

struct Client {
    stream: TcpStream,
    host: String,
    buffer: Vec<u8>,
}

struct Answer {
    status: u16,
    id: String,
}

impl Client {
    async fn connect(url: &str) -> Self {
        let host = url.strip_prefix("http://").unwrap().to_owned();
        let stream = TcpStream::connect(&host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            host,
            buffer: Vec::with_capacity(4096),
        }
    }

    async fn buy(&mut self, sale: &str, token: &str, key: &str) -> Answer {
        let body = json!({"sku": "phone", "quantity": 1}).to_string();
        let request = format!(
            "POST /v1/sales/{sale}/orders HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await.unwrap();
        self.buffer.clear();
        let (head, length) = loop {
            self.read().await;
            let text = String::from_utf8_lossy(&self.buffer);
            let Some(end) = text.find("\r\n\r\n") else {
                continue;
            };
            let length = text[..end].lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse::<usize>().unwrap())
            });
            break (end + 4, length.unwrap());
        };
        while self.buffer.len() < head + length {
            self.read().await;
        }
        let text = String::from_utf8_lossy(&self.buffer);
        let id = text[head..]
            .split_once("\"id\":\"")
            .map(|(_, rest)| rest[..36].to_owned());
        Answer {
            status: text[9..12].parse().unwrap(),
            id: id.unwrap_or_default(),
        }
    }

    async fn read(&mut self) {
        let read = self.stream.read_buf(&mut self.buffer).await.unwrap();
        assert!(read > 0, "the instance hung up");
    }
}
