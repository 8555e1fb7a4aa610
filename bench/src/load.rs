//! The load generator. Closed clients send the next request when the last one has its reply. Open load arrives at a
//! given rate and does not wait for replies. The clients share one thread; open load has a second thread as its clock.

use super::shoppers::Question;
use super::wire::{Seen, Wire};
use anyhow::{Context as _, Result};
use futures_util::future::{join, try_join_all};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// The highest latency that a histogram records.
const LATENCY_MAX_MICROS: u64 = 60_000_000;
/// The largest share of unexpected replies at which a window still gives a latency.
const OTHERS_MAX: f64 = 0.01;
/// The interval at which open load releases requests.
const TICK: Duration = Duration::from_millis(1);

/// The status and the code of a reply. The code is empty for a success and for a request without a reply.
pub type Outcome<'a> = (u16, &'a str);

/// The outcome of a purchase that made an order.
pub const ACCEPTED: Outcome<'static> = (201, "");

/// A count as a float, for divisions.
#[expect(clippy::cast_precision_loss, reason = "counts far below what a double is exact for")]
pub const fn real(count: usize) -> f64 {
    count as f64
}

#[derive(Clone)]
pub struct Latency(Histogram<u64>);

/// The percentiles of a [`Latency`], in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Percentiles {
    pub count: u64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub p999_ms: Option<f64>,
    pub max_ms: Option<f64>,
}

impl Latency {
    /// An empty histogram. It never fails, because its bounds are constants and valid.
    pub fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_MICROS, 3);
        Ok(Self(histogram.context("a histogram cannot be made")?))
    }

    pub fn record(&mut self, took: Duration) {
        self.0
            .saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds the counts of another histogram. It never fails, because all histograms have the same bounds.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.0.add(&other.0).context("histograms differ")
    }

    /// The latency that this share of the replies did not exceed, in milliseconds; `None` without replies.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "microseconds below a minute")]
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(share) as f64 / 1000.0)
    }

    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            count: self.0.len(),
            p50_ms: self.quantile(0.5),
            p99_ms: self.quantile(0.99),
            p999_ms: self.quantile(0.999),
            max_ms: self.quantile(1.0),
        }
    }
}

/// The replies with one status and code.
struct Answers {
    status: u16,
    code: String,
    count: usize,
    /// Requests without a reply record no latency.
    latency: Latency,
}

/// The replies of the counted part of a window.
#[derive(Default)]
pub struct Tally {
    answers: Vec<Answers>,
    pub seconds: f64,
    /// Whether every shopper had asked before the window ended.
    pub ran_out: bool,
    /// All requests, those of the warm-up included.
    pub asked: usize,
}

impl Answers {
    fn is(&self, outcome: Outcome<'_>) -> bool {
        (self.status, self.code.as_str()) == outcome
    }
}

impl Tally {
    /// Counts a reply. It never fails: see [`Latency::new`].
    pub fn note(&mut self, seen: Seen<'_>, took: Duration) -> Result<()> {
        let code = match seen.status {
            0 | 200..=299 => "",
            _ => seen.text("\"code\":").unwrap_or_default(),
        };
        let found = self.answers.iter().position(|it| it.is((seen.status, code)));
        let at = found.unwrap_or(self.answers.len());
        if found.is_none() {
            self.answers.push(Answers {
                status: seen.status,
                code: code.to_owned(),
                count: 0,
                latency: Latency::new()?,
            });
        }
        if let Some(it) = self.answers.get_mut(at) {
            it.count += 1;
            if seen.status != 0 {
                it.latency.record(took);
            }
        }
        Ok(())
    }

    /// All requests, with and without a reply.
    fn all(&self) -> usize {
        self.answers.iter().map(|it| it.count).sum()
    }

    fn find(&self, outcome: Outcome<'_>) -> Option<&Answers> {
        self.answers.iter().find(|it| it.is(outcome))
    }

    /// Whether more than [`OTHERS_MAX`] of the replies have another status or code.
    fn is_mixed(&self, outcome: Outcome<'_>) -> bool {
        real(self.all() - self.count(outcome)) > OTHERS_MAX * real(self.all())
    }

    /// The latency of replies with this status and code. It is empty when too many replies were others, because those
    /// may have been the slow ones.
    pub fn percentiles(&self, outcome: Outcome<'_>) -> Percentiles {
        let found = self.find(outcome).filter(|_| !self.is_mixed(outcome));
        found.map(|it| it.latency.percentiles()).unwrap_or_default()
    }

    /// The replies with this status and code.
    pub fn count(&self, outcome: Outcome<'_>) -> usize {
        self.find(outcome).map_or(0, |it| it.count)
    }

    /// Estimates the replies with this status and code over the whole window, the warm-up included. It assumes the same
    /// shares in both parts.
    pub fn of_all_asked(&self, outcome: Outcome<'_>) -> f64 {
        real(self.asked) * real(self.count(outcome)) / real(self.all().max(1))
    }

    /// All replies except these, in words; `None` if there are none.
    pub fn others(&self, outcome: Outcome<'_>) -> Option<String> {
        let others = self
            .answers
            .iter()
            .filter(|it| !it.is(outcome))
            .map(|it| match it.status {
                0 => format!("{} without an answer", it.count),
                status => format!("{} × {status} {}", it.count, it.code).trim_end().to_owned(),
            });
        let others: Vec<String> = others.collect();
        (!others.is_empty()).then(|| others.join(", "))
    }

    /// The remarks on a window that expected this status and code.
    pub fn remarks(&self, outcome: Outcome<'_>, what: &str) -> impl Iterator<Item = String> {
        let others = self.others(outcome).map(|others| format!("{what}: also {others}"));
        let ran_out = self.ran_out.then(|| {
            format!(
                "{what}: shoppers ran out after {:.1} s, which is what is counted",
                self.seconds
            )
        });
        let is_mixed = self.is_mixed(outcome).then(|| {
            format!(
                "{what}: more than {:.0} % were answered otherwise, so that latency is not reported",
                OTHERS_MAX * 100.0
            )
        });
        others.into_iter().chain(is_mixed).chain(ran_out)
    }

    /// Replies a second with this status and code; `None` if the window had no length.
    pub fn rate(&self, outcome: Outcome<'_>) -> Option<f64> {
        (self.seconds > 0.0).then(|| real(self.count(outcome)) / self.seconds)
    }
}

/// The length of a window: a warm-up that does not count, then the counted part.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub warm: Duration,
    pub measured: Duration,
}

/// The requests of a window so far, and the replies of its counted part.
struct Count {
    warm: Instant,
    end: Instant,
    next: Cell<usize>,
    /// When no shopper was left.
    ran_out: Cell<Option<Instant>>,
    tally: RefCell<Tally>,
}

impl Count {
    fn new(warm: Instant, end: Instant) -> Self {
        Self {
            warm,
            end,
            next: Cell::default(),
            ran_out: Cell::default(),
            tally: RefCell::default(),
        }
    }

    /// Writes the next request; `false` if no shopper is left.
    fn write_next(&self, question: &Question<'_>, request: &mut Vec<u8>) -> bool {
        let is_written = question.write(self.next.replace(self.next.get() + 1), request);
        if !is_written {
            self.ran_out.set(self.ran_out.get().or_else(|| Some(Instant::now())));
        }
        is_written
    }

    /// The tally of a load that ended at this time, unless it ran out of shoppers.
    fn tally(self, ended: Instant) -> Tally {
        let ended = self.ran_out.get().unwrap_or(ended).min(self.end);
        Tally {
            seconds: ended.saturating_duration_since(self.warm).as_secs_f64(),
            ran_out: self.ran_out.get().is_some(),
            asked: self.next.get(),
            ..self.tally.into_inner()
        }
    }
}

/// Closed load: each client has its own connection and sends its next request when it has the reply to the last one.
pub async fn closed(
    server: SocketAddr,
    question: &Question<'_>,
    clients: usize,
    window: Window,
    stop: &CancellationToken,
) -> Result<Tally> {
    let warm = Instant::now() + window.warm;
    let end = warm + window.measured;
    let count = Count::new(warm, end);
    let crowd = (0..clients).map(|_| async {
        let mut wire = Wire::to(server);
        let mut request = Vec::with_capacity(1024);
        while Instant::now() < end && !stop.is_cancelled() {
            if !count.write_next(question, &mut request) {
                break;
            }
            let asked = Instant::now();
            let seen = wire.ask_written(&request).await;
            let now = Instant::now();
            if now >= warm && now < end {
                count.tally.borrow_mut().note(seen, now - asked)?;
            }
        }
        anyhow::Ok(())
    });
    try_join_all(crowd).await?;
    Ok(count.tally(end))
}

/// Open load: requests arrive at this rate, and the first free connection sends each. The requests of one millisecond
/// arrive together at its start. Latency counts from the arrival, so it includes the wait for a free connection. Fails
/// when the rate is below 1.
pub async fn open(
    server: SocketAddr,
    question: &Question<'_>,
    rate: f64,
    connections: usize,
    window: Window,
    stop: &CancellationToken,
) -> Result<Tally> {
    anyhow::ensure!(rate.is_finite() && rate >= 1.0, "there is no rate to ask at");
    let began = Instant::now();
    let warm = began + window.warm;
    let end = warm + window.measured;
    let (clock, mut ticked) = tick(began, end, stop.clone());
    let (dues, released) = (RefCell::new(VecDeque::new()), Semaphore::new(0));
    let release = async {
        let mut so_far = 0;
        while let Some(tick) = ticked.recv().await {
            let all = due_until(tick - began, rate);
            dues.borrow_mut().extend((so_far..all).map(|_| tick));
            released.add_permits(all - so_far);
            so_far = all;
        }
        released.close();
    };
    let count = Count::new(warm, end);
    let crowd = (0..connections).map(|_| async {
        let mut wire = Wire::to(server);
        let mut request = Vec::with_capacity(1024);
        loop {
            // After the semaphore closes, clients take the remaining requests without a permit.
            if let Ok(permit) = released.acquire().await {
                permit.forget();
            }
            let due = dues.borrow_mut().pop_front();
            let Some(due) = due else { break };
            if !count.write_next(question, &mut request) {
                break;
            }
            let seen = wire.ask_written(&request).await;
            if due >= warm {
                count.tally.borrow_mut().note(seen, due.elapsed())?;
            }
        }
        anyhow::Ok(())
    });
    let (_released, asked) = join(release, try_join_all(crowd)).await;
    asked?;
    clock.join().map_err(|_panic| anyhow::anyhow!("the clock panicked"))?;
    Ok(count.tally(Instant::now()))
}

/// A thread that sends each tick of a window at its time. The runtime's timers have a resolution of a millisecond. The
/// lateness of a sleeping thread is a tenth of that. The thread wakes once a tick, because a wake-up for each request
/// costs more processor time than the requests.
fn tick(began: Instant, end: Instant, stop: CancellationToken) -> (JoinHandle<()>, UnboundedReceiver<Instant>) {
    let (ticks, ticked) = mpsc::unbounded_channel();
    let clock = thread::spawn(move || {
        let mut tick = began;
        while tick < end && !stop.is_cancelled() {
            thread::sleep(tick.saturating_duration_since(Instant::now()));
            // The channel needs no bound: the window limits the ticks.
            if ticks.send(tick).is_err() {
                break;
            }
            tick += TICK;
        }
    });
    (clock, ticked)
}

/// The requests due by the tick at this time after the start.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts far below what a double is exact for"
)]
fn due_until(since: Duration, rate: f64) -> usize {
    ((since + TICK).as_secs_f64() * rate - 1e-6).ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_has_percentiles_and_none_without_answers() {
        let mut latency = Latency::new().unwrap();
        assert_eq!(latency.percentiles().p99_ms, None);
        for ms in 1..=1000 {
            latency.record(Duration::from_millis(ms));
        }
        let it = latency.percentiles();
        assert_eq!(it.count, 1000);
        let near = |found: Option<f64>, wanted: f64| (found.unwrap() / wanted - 1.0).abs() < 0.002;
        assert!(
            near(it.p50_ms, 500.0) && near(it.p99_ms, 990.0) && near(it.p999_ms, 999.0),
            "{it:?}"
        );
        assert!(near(it.max_ms, 1000.0), "{it:?}");
        latency.record(Duration::from_secs(3600));
        assert!(near(latency.quantile(1.0), 60_000.0));
    }

    #[test]
    fn answers_are_counted_by_status_and_code() {
        let mut tally = Tally::default();
        let refusal = br#"{"status":409,"code":"sold_out"}"#;
        for (status, body) in [(201, &b"{}"[..]), (409, refusal), (409, refusal), (0, b"")] {
            tally.note(Seen { status, body }, Duration::from_millis(1)).unwrap();
        }
        assert_eq!(
            (
                tally.count(ACCEPTED),
                tally.count((409, "sold_out")),
                tally.count((503, ""))
            ),
            (1, 2, 0)
        );
        assert_eq!(tally.rate(ACCEPTED), None, "no time has passed");
        tally.seconds = 2.0;
        assert_eq!(tally.rate((409, "sold_out")), Some(1.0));
        assert_eq!(tally.others((409, "sold_out")).unwrap(), "1 × 201, 1 without an answer");
    }

    #[test]
    fn latency_is_of_the_answers_that_were_expected_and_of_none_among_too_many_others() {
        let mut tally = Tally::default();
        let mut note = |status, count, ms| {
            for _ in 0..count {
                let seen = Seen { status, body: b"{}" };
                tally.note(seen, Duration::from_millis(ms)).unwrap();
            }
        };
        note(201, 990, 10);
        note(503, 9, 1);
        note(0, 1, 2000);
        let it = tally.percentiles(ACCEPTED);
        assert_eq!((it.count, it.max_ms.map(f64::round)), (990, Some(10.0)));
        assert_eq!(
            tally.remarks(ACCEPTED, "x").count(),
            1,
            "it says which others there were"
        );
        tally
            .note(
                Seen {
                    status: 503,
                    body: b"{}",
                },
                Duration::from_millis(1),
            )
            .unwrap();
        assert_eq!((tally.percentiles(ACCEPTED).p99_ms, tally.count(ACCEPTED)), (None, 990));
        let said: Vec<String> = tally.remarks(ACCEPTED, "x").collect();
        assert!(said[1].contains("latency is not reported"), "{said:?}");
    }

    /// Answers each request after this time, and one request at a time on each connection.
    async fn slow_server(took: Duration) -> SocketAddr {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    while stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                        tokio::time::sleep(took).await;
                        stream
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                            .await
                            .unwrap();
                    }
                });
            }
        });
        address
    }

    #[test]
    fn as_many_are_due_as_the_rate_says_whatever_its_fraction() {
        for rate in [1.0, 100.0, 999.5, 18_000.0] {
            let ticks = (0..2000).map(|tick| due_until(TICK * tick, rate));
            let counts: Vec<usize> = ticks.collect();
            assert_eq!(counts[0], (rate / 1000.0).ceil() as usize, "the first are due at once");
            assert_eq!(counts[1999], (rate * 2.0) as usize);
            assert!(counts.is_sorted());
        }
    }

    #[tokio::test]
    async fn who_asks_at_a_rate_counts_the_time_from_when_it_was_due() {
        let server = slow_server(Duration::from_millis(50)).await;
        let window = Window {
            warm: Duration::ZERO,
            measured: Duration::from_millis(400),
        };
        let (question, stop) = (Question::get(server, "/"), CancellationToken::new());
        // One connection answers 20 requests a second and 100 arrive, so the last one waits for more than a second.
        let tally = open(server, &question, 100.0, 1, window, &stop).await.unwrap();
        assert!(
            (38..=42).contains(&tally.count((200, ""))),
            "{}",
            tally.count((200, ""))
        );
        let it = tally.percentiles((200, ""));
        assert!(it.max_ms.unwrap() > 1000.0, "{it:?}");
        // Closed load does not see that wait.
        let tally = closed(server, &question, 1, window, &stop).await.unwrap();
        assert!(tally.percentiles((200, "")).max_ms.unwrap() < 300.0);
        assert!((1..=8).contains(&tally.count((200, ""))), "{}", tally.count((200, "")));
    }
}
