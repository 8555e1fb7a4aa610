//! A crowd that buys as fast as it gets replies, and keeps the ids of its orders.

use crate::support::app::token;
use flashsale_bench::wire::{Request, Seen, Wire};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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

/// The replies to a crowd.
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
        let server = url.strip_prefix("http://").unwrap().parse().unwrap();
        let next = AtomicUsize::new(0);
        let began = Instant::now();
        let (warm, end) = match until {
            Until::AllHave => (began, None),
            Until::After { warm, measured } => (began + warm, Some(began + warm + measured)),
        };
        let crowd = (0..clients).map(|_| async {
            let mut bought = Bought::default();
            let mut wire = Wire::to(server);
            while end.is_none_or(|end| Instant::now() < end) {
                let n = next.fetch_add(1, Ordering::Relaxed);
                // Without an end by the clock, every shopper has one turn; else the pool has to be large enough.
                let Some(token) = self.0.get(n) else {
                    assert!(end.is_none(), "there are too few shoppers");
                    break;
                };
                let request = Request {
                    is_post: true,
                    path: format!("/v1/sales/{sale}/orders"),
                    bearer: token,
                    key: Some(key),
                    body: r#"{"quantity":1,"sku":"phone"}"#.to_owned(),
                    ..Request::default()
                };
                let answer = wire.ask(&request).await;
                if answer.status != 201 {
                    bought.refused += 1;
                    continue;
                }
                let now = Instant::now();
                bought.counted += usize::from(now >= warm && end.is_none_or(|end| now < end));
                let (status, body) = (answer.status, &answer.body);
                bought
                    .orders
                    .extend(Seen { status, body }.text("\"id\":").map(str::to_owned));
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
