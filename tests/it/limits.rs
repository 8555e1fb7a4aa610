//! The limiters, each against a model of its own, at the edges to the millisecond.

use crate::support::raw::{Raw, arg};
use crate::support::servers;
use flashsale::domain::fault::Fault;
use flashsale::domain::time::Millis;
use flashsale::stock::Stock;
use flashsale::stock::door::limit::{Limit, LimitedRequest, Taken, Verdict};
use flashsale::stock::script::{FIXED_WINDOW, SLIDING_WINDOW, TOKEN_BUCKET};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::time::Duration;
use uuid::Uuid;

const START: Millis = 1_800_000_000_000;
/// Histories of each limiter, and requests in each.
const HISTORIES: u64 = 60;
const REQUESTS: usize = 80;

/// A limited account, in a Redis of all tests.
struct Limited {
    stock: Stock,
    raw: Raw,
    id: String,
}

impl Limited {
    async fn new() -> Self {
        let url = servers::redis();
        Self {
            stock: Stock::connect(&url).await.unwrap(),
            raw: Raw::connect(&url),
            id: Uuid::new_v4().to_string(),
        }
    }

    fn key(&self, kind: &str) -> String {
        format!("{{limit:{}}}:{kind}", self.id)
    }

    async fn ask(&self, limit: &Limit, request: [u8; 16], now: Millis) -> Verdict {
        let asking = LimitedRequest {
            id: &self.id,
            request,
            now: Some(now),
        };
        self.stock.pass(limit, &asking).await.unwrap()
    }

    async fn take(&self, bucket: (f64, f64), wanted: f64, at_least: f64, now: Millis) -> Taken {
        let asking = LimitedRequest {
            id: &self.id,
            request: [0; 16],
            now: Some(now),
        };
        self.stock.take_tokens(bucket, wanted, at_least, &asking).await.unwrap()
    }

    fn number(&self, command: &str, kind: &str) -> i64 {
        self.raw.call(redis::cmd(command).arg(self.key(kind)))
    }
}

/// The promise of a limiter.
trait Model {
    fn ask(&mut self, request: [u8; 16], now: Millis) -> Verdict;
}

struct Fixed {
    limit: i64,
    window: Millis,
    current: Option<(Millis, i64)>,
}

impl Model for Fixed {
    fn ask(&mut self, _: [u8; 16], now: Millis) -> Verdict {
        let (ends_at, count) = self
            .current
            .filter(|(ends_at, _)| now < *ends_at)
            .unwrap_or((now + self.window, 0));
        if count == self.limit {
            return Verdict::Limited { wait_ms: ends_at - now };
        }
        self.current = Some((ends_at, count + 1));
        Verdict::Passed { count: count + 1 }
    }
}

struct Sliding {
    limit: usize,
    window: Millis,
    passed: Vec<(Millis, [u8; 16])>,
}

impl Model for Sliding {
    fn ask(&mut self, request: [u8; 16], now: Millis) -> Verdict {
        self.passed.retain(|(at, _)| *at > now - self.window);
        if !self.passed.iter().any(|(_, it)| *it == request) {
            if self.passed.len() >= self.limit {
                let wait_ms = self.passed[self.passed.len() - self.limit].0 + self.window - now;
                return Verdict::Limited { wait_ms };
            }
            self.passed.push((now, request));
        }
        Verdict::Passed {
            count: self.passed.len().try_into().unwrap(),
        }
    }
}

/// In millionths of a token.
struct Bucket {
    per_ms: i64,
    burst: i64,
    level: i64,
    at: Millis,
}

const TOKEN: i64 = 1_000_000;

impl Model for Bucket {
    fn ask(&mut self, _: [u8; 16], now: Millis) -> Verdict {
        self.level = (self.level + (now - self.at) * self.per_ms).min(self.burst);
        self.at = now;
        if self.level < TOKEN {
            let missing = TOKEN - self.level;
            let wait_ms = missing.div_euclid(self.per_ms) + i64::from(missing % self.per_ms > 0);
            return Verdict::Limited { wait_ms };
        }
        self.level -= TOKEN;
        Verdict::Passed {
            count: self.level / TOKEN,
        }
    }
}

/// The moment of the next request: often at the very edge of something.
fn next(random: &mut StdRng, now: Millis, window: Millis, last: Verdict) -> Millis {
    let wait = match last {
        Verdict::Limited { wait_ms } => wait_ms,
        Verdict::Passed { .. } => 0,
    };
    now + match random.random_range(0..9) {
        0..=2 => 0,
        3 => 1,
        4 => wait,
        5 => (wait - 1).max(0),
        6 => window,
        7 => window - 1,
        _ => random.random_range(0..window * 2),
    }
}

/// Plays histories to a limiter and to its model.
async fn agrees(make: impl Fn(&mut StdRng) -> (Limit, Box<dyn Model>, Millis)) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut limited = 0;
    for history in 0..HISTORIES {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(history));
        let (limit, mut model, window) = make(&mut random);
        let who = Limited::new().await;
        let (mut now, mut last, mut request) = (START, Verdict::Passed { count: 0 }, [0; 16]);
        for _ in 0..REQUESTS {
            now = next(&mut random, now, window, last);
            if random.random_bool(0.9) {
                request = random.random();
            }
            last = who.ask(&limit, request, now).await;
            assert_eq!(
                last,
                model.ask(request, now),
                "{limit:?}, seed {seed}, history {history}"
            );
            limited += usize::from(matches!(last, Verdict::Limited { .. }));
        }
    }
    assert!(limited > 100, "only {limited} were limited");
}

fn terms(random: &mut StdRng) -> (u32, Millis) {
    // By Redis's own clock nothing expires while a history is played.
    (random.random_range(1..8), random.random_range(300_000..400_000))
}

const fn millis(window: Millis) -> Duration {
    Duration::from_millis(window.unsigned_abs())
}

#[tokio::test]
async fn a_fixed_window_does_what_its_model_does() {
    agrees(|random| {
        let (limit, window) = terms(random);
        let model = Fixed {
            limit: limit.into(),
            window,
            current: None,
        };
        let window_of = millis(window);
        (
            Limit::FixedWindow {
                limit,
                window: window_of,
            },
            Box::new(model),
            window,
        )
    })
    .await;
}

fn sliding(random: &mut StdRng) -> (u32, Millis, Box<dyn Model>) {
    let (limit, window) = terms(random);
    let passed = Vec::new();
    let model = Sliding {
        limit: limit.try_into().unwrap(),
        window,
        passed,
    };
    (limit, window, Box::new(model))
}

#[tokio::test]
async fn a_sliding_window_does_what_its_model_does() {
    agrees(|random| {
        let (limit, window, model) = sliding(random);
        (
            Limit::SlidingWindow {
                limit,
                window: millis(window),
            },
            model,
            window,
        )
    })
    .await;
}

#[tokio::test]
async fn a_token_bucket_does_what_its_model_does() {
    agrees(|random| {
        // Fractions of a token a second that are whole millionths a millisecond.
        let (per_ms, burst) = (random.random_range(1..40_i32), random.random_range(1..8_i32));
        let model = Bucket {
            per_ms: per_ms.into(),
            burst: i64::from(burst) * TOKEN,
            level: i64::from(burst) * TOKEN,
            at: START,
        };
        let limit = Limit::TokenBucket {
            rate: f64::from(per_ms) / 1000.0,
            burst: f64::from(burst),
        };
        (limit, Box::new(model), 30_000)
    })
    .await;
}

#[tokio::test]
async fn a_fixed_window_lets_twice_its_limit_through_at_its_edge_and_a_sliding_one_does_not() {
    const LIMIT: u32 = 10;
    let window = Duration::from_mins(5);
    let mut passed = Vec::new();
    for limit in [
        Limit::FixedWindow { limit: LIMIT, window },
        Limit::SlidingWindow { limit: LIMIT, window },
    ] {
        let who = Limited::new().await;
        // The first opens the window; the others come in the last millisecond of it, and in the first after it.
        let mut at_the_edge = 0;
        who.ask(&limit, rand::random(), START).await;
        for now in [START + 299_999, START + 300_000] {
            for _ in 0..30 {
                let verdict = who.ask(&limit, rand::random(), now).await;
                at_the_edge += u32::from(matches!(verdict, Verdict::Passed { .. }));
            }
        }
        passed.push(at_the_edge);
    }
    assert_eq!(passed, [2 * LIMIT - 1, LIMIT]);
}

#[tokio::test]
async fn no_traffic_puts_an_expiry_off_or_takes_it_away() {
    let who = Limited::new().await;
    let window = Duration::from_secs(60);
    let limit = Limit::FixedWindow { limit: 3, window };
    for (passed, left) in [(0, 61_000), (20_000, 41_000), (59_000, 2_000), (59_500, 2_000)] {
        who.ask(&limit, [0; 16], START + passed).await;
        let expires = who.number("PTTL", "counter");
        assert!((left - 900..=left).contains(&expires), "{expires} of {left}");
    }
    // An expiry that somebody else took away is there again with the next that passes.
    let _gone: i64 = who.raw.call(redis::cmd("PERSIST").arg(who.key("counter")));
    who.ask(&limit, [0; 16], START + 60_000).await;
    assert!(who.number("PTTL", "counter") > 59_000);

    // The others leave when they are idle, also under a flood of requests that are refused.
    for (limit, kind, left) in [
        (Limit::SlidingWindow { limit: 3, window }, "window", 61_000),
        (Limit::TokenBucket { rate: 0.5, burst: 3.0 }, "bucket", 7_000),
    ] {
        for _ in 0..50 {
            who.ask(&limit, rand::random(), START).await;
        }
        let expires = who.number("PTTL", kind);
        assert!((left - 1_500..=left).contains(&expires), "{kind}: {expires}");
    }
    assert_eq!(who.number("ZCARD", "window"), 3);
}

#[tokio::test]
async fn a_counter_of_a_newer_version_is_refused_and_stays_as_it_is() {
    let window = Duration::from_secs(60);
    for (limit, kind, offset) in [
        (Limit::FixedWindow { limit: 3, window }, "counter", 0),
        (Limit::TokenBucket { rate: 0.5, burst: 3.0 }, "bucket", 8),
    ] {
        let who = Limited::new().await;
        let asking = LimitedRequest {
            id: &who.id,
            request: [0; 16],
            now: Some(START),
        };
        who.ask(&limit, [0; 16], START).await;
        for version in 1..=15_u8 {
            let mut change = redis::cmd("SETRANGE");
            change.arg(who.key(kind)).arg(offset).arg(&[(version << 4) | 1][..]);
            let _length: i64 = who.raw.call(&mut change);
            let before = who.raw.dump(&who.key(kind));
            let answer = who.stock.pass(&limit, &asking).await;
            assert!(matches!(answer, Err(Fault::Newer(_))), "{kind} {version}: {answer:?}");
            assert_eq!(who.raw.dump(&who.key(kind)), before, "{kind} {version}");
        }
    }
}

#[tokio::test]
async fn by_redis_s_own_clock_a_limit_holds_and_ends() {
    let who = Limited::new().await;
    let asking = LimitedRequest {
        id: &who.id,
        request: [1; 16],
        now: None,
    };
    let window = Duration::from_secs(3600);
    for limit in [
        Limit::FixedWindow { limit: 1, window },
        Limit::SlidingWindow { limit: 1, window },
        Limit::TokenBucket {
            rate: 0.001,
            burst: 1.0,
        },
    ] {
        let first = who.stock.pass(&limit, &asking).await.unwrap();
        assert!(matches!(first, Verdict::Passed { .. }), "{limit:?}: {first:?}");
        let other = LimitedRequest {
            request: [2; 16],
            ..asking
        };
        let second = who.stock.pass(&limit, &other).await.unwrap();
        assert!(
            matches!(second, Verdict::Limited { wait_ms } if (900_000..=3_600_000).contains(&wait_ms)),
            "{limit:?}: {second:?}"
        );
    }
}

#[tokio::test]
async fn many_tokens_are_taken_at_once_as_far_as_there_are_so_many() {
    let who = Limited::new().await;
    let bucket = (100.0, 50.0);
    let some = |taken: i64, left: i64| Taken::Some {
        taken: taken * 1000,
        left: left * 1000,
    };
    assert_eq!(who.take(bucket, 20.0, 1.0, START).await, some(20, 30));
    assert_eq!(who.take(bucket, 40.0, 1.0, START).await, some(30, 0));
    assert_eq!(
        who.take(bucket, 40.0, 10.0, START).await,
        Taken::Limited { wait_ms: 100 }
    );
    assert_eq!(
        who.take(bucket, 40.0, 10.0, START + 99).await,
        Taken::Limited { wait_ms: 1 }
    );
    assert_eq!(who.take(bucket, 40.0, 10.0, START + 100).await, some(10, 0));
    // Half a token each ten milliseconds.
    assert_eq!(
        who.take((50.0, 50.0), 0.5, 0.5, START + 110).await,
        Taken::Some { taken: 500, left: 0 }
    );
    // A clock that is set back fills nothing, now or when it reaches that time again.
    for now in [START - 60_000, START + 110] {
        assert_eq!(who.take(bucket, 1.0, 1.0, now).await, Taken::Limited { wait_ms: 10 });
    }
    assert_eq!(who.take(bucket, 1.0, 1.0, START + 120).await, some(1, 0));
}

#[tokio::test]
async fn a_clock_that_was_set_back_keeps_nobody_out_for_longer_than_a_window() {
    let who = Limited::new().await;
    let limit = Limit::FixedWindow {
        limit: 1,
        window: Duration::from_mins(5),
    };
    who.ask(&limit, [0; 16], START).await;
    let earlier = who.ask(&limit, [0; 16], START - 600_000).await;
    assert_eq!(earlier, Verdict::Passed { count: 1 });
}

#[tokio::test]
async fn a_lower_limit_than_before_counts_at_once() {
    let who = Limited::new().await;
    let window = Duration::from_mins(5);
    let wide = Limit::SlidingWindow { limit: 5, window };
    let narrow = Limit::SlidingWindow { limit: 2, window };
    for n in 0..5 {
        who.ask(&wide, rand::random(), START + n * 10).await;
    }
    let refused = who.ask(&narrow, rand::random(), START + 100).await;
    assert_eq!(refused, Verdict::Limited { wait_ms: 299_930 });
    let refused = who.ask(&narrow, rand::random(), START + 300_029).await;
    assert_eq!(refused, Verdict::Limited { wait_ms: 1 });
    let passed = who.ask(&narrow, rand::random(), START + 300_030).await;
    assert_eq!(passed, Verdict::Passed { count: 2 });
}

#[tokio::test]
async fn an_impossible_limit_is_refused() {
    let who = Limited::new().await;
    let six = "abcdef";
    let tables: [(&redis::Script, &str, &[&[&str]]); 3] = [
        (
            &FIXED_WINDOW,
            "fixed_window",
            &[
                &["0", "1", "1"],
                &["1000000001", "1", "1"],
                &["1.5", "1", "1"],
                &["1", "0", "1"],
                &["1", "86400001", "1"],
                &["1", "1.5", "1"],
                &["1", "1", "0"],
                &["1", "1", "2"],
                &["3", "1", "1.5"],
                &["nan", "1", "1"],
                &["1", "nan", "1"],
                &["1", "1", "nan"],
                &["1", "1"],
            ],
        ),
        (
            &SLIDING_WINDOW,
            "sliding_window",
            &[
                &["0", "1", six],
                &["100001", "1", six],
                &["1.5", "1", six],
                &["1", "0", six],
                &["1", "86400001", six],
                &["1", "1.5", six],
                &["1", "1", ""],
                &["1", "1", &"x".repeat(129)],
                &["nan", "1", six],
                &["1", "1"],
            ],
        ),
        (
            &TOKEN_BUCKET,
            "token_bucket",
            &[
                &["0", "1", "1", "1"],
                &["1000001", "1", "1", "1"],
                &["1", "0.5", "0.5", "0.5"],
                &["1", "1000001", "1", "1"],
                &["1", "1", "0", "0"],
                &["1", "1", "1.5", "1"],
                &["1", "1", "1", "0"],
                &["1", "2", "1", "1.5"],
                &["nan", "1", "1", "1"],
                &["1", "nan", "1", "1"],
                &["1", "1", "nan", "1"],
                &["1", "1", "1", "nan"],
                &["1", "1", "1"],
            ],
        ),
    ];
    for (script, name, table) in tables {
        for args in table {
            let shown = args;
            let args: Vec<Vec<u8>> = args.iter().map(arg).collect();
            let answer = who.raw.script(script, &[who.key("x")], &args);
            assert_eq!(answer, format!("ERR BADARG {name}"), "{shown:?}");
        }
    }
    assert_eq!(who.number("EXISTS", "x"), 0);

    for (limit, kind) in [
        (
            Limit::FixedWindow {
                limit: 1,
                window: Duration::from_secs(1),
            },
            "counter",
        ),
        (
            Limit::SlidingWindow {
                limit: 1,
                window: Duration::from_secs(1),
            },
            "window",
        ),
        (Limit::TokenBucket { rate: 1.0, burst: 1.0 }, "bucket"),
    ] {
        let _there: i64 = who
            .raw
            .call(redis::cmd("RPUSH").arg(who.key(kind)).arg("of another kind"));
        let asking = LimitedRequest {
            id: &who.id,
            request: [0; 16],
            now: None,
        };
        let answer = who.stock.pass(&limit, &asking).await;
        assert!(
            matches!(&answer, Err(Fault::Bug(text)) if text.contains("WRONGTYPE")),
            "{limit:?}: {answer:?}"
        );
    }
}
