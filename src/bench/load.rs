//! The generator: clients that ask as fast as they are answered, and requests that come at a given rate whether they
//! are answered or not. Everything runs on one thread.

use super::shoppers::Question;
use super::wire::{Seen, Wire};
use anyhow::{Context as _, Result};
use futures_util::future::{join, try_join_all};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// No answer takes longer than a client is patient.
const LATENCY_MAX_MICROS: u64 = 60_000_000;
/// No latency is told of a window in which a larger share was answered otherwise than expected.
const OTHERS_MAX: f64 = 0.01;
/// How often requests are released that come at a rate.
const TICK: Duration = Duration::from_millis(1);

/// A count as a number that can be divided.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts far below what a double is exact for")]
pub const fn real(count: usize) -> f64 {
    count as f64
}

#[derive(Clone)]
pub struct Latency(Histogram<u64>);

/// The same in milliseconds, for a report.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Percentiles {
    pub count: u64,
    /// Half of them took no longer.
    pub p50_ms: Option<f64>,
    /// Of a hundred, ninety-nine did not.
    pub p99_ms: Option<f64>,
    /// Of a thousand, all but one.
    pub p999_ms: Option<f64>,
    pub max_ms: Option<f64>,
}

impl Latency {
    /// Of nothing yet.
    ///
    /// # Errors
    /// Never: the bounds are fixed and good.
    pub fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_MICROS, 3);
        Ok(Self(histogram.context("a histogram cannot be made")?))
    }

    pub fn record(&mut self, took: Duration) {
        self.0
            .saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds all of another.
    ///
    /// # Errors
    /// Never: all have the same bounds.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.0.add(&other.0).context("histograms differ")
    }

    /// The milliseconds that this share of the answers took at most; nothing without answers.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "microseconds below a minute")]
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(share) as f64 / 1000.0)
    }

    #[must_use]
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

/// The answers of one status and code.
struct Answers {
    status: u16,
    code: String,
    count: usize,
    /// How long they took; what was not answered took no time.
    latency: Latency,
}

/// What was answered within the time that counts.
pub struct Tally {
    answers: Vec<Answers>,
    pub seconds: f64,
    /// Whether shoppers ran out before its end.
    pub ran_out: bool,
    /// How many were asked, also outside of the time that counts.
    pub asked: usize,
}

impl Answers {
    fn is(&self, status: u16, code: &str) -> bool {
        self.status == status && self.code == code
    }
}

impl Tally {
    /// Of nothing yet.
    ///
    /// # Errors
    /// Never: see [`Latency::new`].
    pub fn new() -> Result<Self> {
        Ok(Self {
            answers: Vec::new(),
            seconds: 0.0,
            ran_out: false,
            asked: 0,
        })
    }

    /// Adds an answer.
    ///
    /// # Errors
    /// Never: see [`Latency::new`].
    pub fn note(&mut self, seen: Seen<'_>, took: Duration) -> Result<()> {
        let code = match seen.status {
            0 | 200..=299 => "",
            _ => seen.text("\"code\":").unwrap_or_default(),
        };
        let found = self.answers.iter().position(|it| it.is(seen.status, code));
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

    /// How many were answered, or not, in all.
    fn all(&self) -> usize {
        self.answers.iter().map(|it| it.count).sum()
    }

    fn find(&self, status: u16, code: &str) -> Option<&Answers> {
        self.answers.iter().find(|it| it.is(status, code))
    }

    /// Whether answers other than these are so many that how long these took says nothing of the rest.
    fn is_mixed(&self, status: u16, code: &str) -> bool {
        real(self.all() - self.count(status, code)) > OTHERS_MAX * real(self.all())
    }

    /// How long answers with this status and code took; nothing when too many were others, who may have been the slow ones.
    #[must_use]
    pub fn percentiles(&self, status: u16, code: &str) -> Percentiles {
        let found = self.find(status, code).filter(|_| !self.is_mixed(status, code));
        found.map(|it| it.latency.percentiles()).unwrap_or_default()
    }

    /// How many had this status and code; none is the empty one.
    #[must_use]
    pub fn count(&self, status: u16, code: &str) -> usize {
        self.find(status, code).map_or(0, |it| it.count)
    }

    /// How many had this status and code if those outside of the time that counts were like the others.
    #[must_use]
    pub fn of_all_asked(&self, status: u16, code: &str) -> f64 {
        real(self.asked) * real(self.count(status, code)) / real(self.all().max(1))
    }

    /// All answers but these, in words; nothing if there are none.
    #[must_use]
    pub fn others(&self, status: u16, code: &str) -> Option<String> {
        let others = self
            .answers
            .iter()
            .filter(|it| !it.is(status, code))
            .map(|it| match it.status {
                0 => format!("{} without an answer", it.count),
                status => format!("{} × {status} {}", it.count, it.code).trim_end().to_owned(),
            });
        let others: Vec<String> = others.collect();
        (!others.is_empty()).then(|| others.join(", "))
    }

    /// What a report has to say of a window in which this status and code were expected.
    pub fn remarks(&self, status: u16, code: &str, what: &str) -> impl Iterator<Item = String> {
        let others = self.others(status, code).map(|others| format!("{what}: also {others}"));
        let ran_out = self.ran_out.then(|| {
            format!(
                "{what}: shoppers ran out after {:.1} s, which is what is counted",
                self.seconds
            )
        });
        let is_mixed = self.is_mixed(status, code).then(|| {
            format!(
                "{what}: more than {:.0} % were answered otherwise, so that latency is not told",
                OTHERS_MAX * 100.0
            )
        });
        others.into_iter().chain(is_mixed).chain(ran_out)
    }

    /// How many a second had this status and code; nothing when the time was none.
    #[must_use]
    pub fn rate(&self, status: u16, code: &str) -> Option<f64> {
        (self.seconds > 0.0).then(|| real(self.count(status, code)) / self.seconds)
    }
}

/// How long to ask: first without counting, then counting.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub warm: Duration,
    pub measured: Duration,
}

/// So many clients, each on a connection of its own, ask one thing after the other as fast as they are answered.
///
/// # Errors
/// Never but for what the machine itself refuses.
pub async fn closed(
    server: SocketAddr,
    question: &Question<'_>,
    clients: usize,
    window: Window,
    stop: &CancellationToken,
) -> Result<Tally> {
    let warm = Instant::now() + window.warm;
    let end = warm + window.measured;
    let (next, tally) = (Cell::new(0), RefCell::new(Tally::new()?));
    let ran_out = Cell::new(None);
    let crowd = (0..clients).map(|_| async {
        let mut wire = Wire::to(server);
        let mut request = Vec::with_capacity(1024);
        while Instant::now() < end && !stop.is_cancelled() {
            let n = next.replace(next.get() + 1);
            if !question.write(n, &mut request) {
                ran_out.set(ran_out.get().or_else(|| Some(Instant::now())));
                break;
            }
            let asked = Instant::now();
            let seen = wire.ask_written(&request).await;
            let now = Instant::now();
            if now >= warm && now < end {
                tally.borrow_mut().note(seen, now - asked)?;
            }
        }
        anyhow::Ok(())
    });
    try_join_all(crowd).await?;
    let mut tally = tally.into_inner();
    let ended = ran_out.get().unwrap_or(end).min(end);
    tally.seconds = ended.saturating_duration_since(warm).as_secs_f64();
    tally.ran_out = ran_out.get().is_some();
    tally.asked = next.get();
    Ok(tally)
}

/// Requests come at this rate, those of a millisecond together at its beginning, and the first free of so many
/// connections sends them. How long one took counts from when it was due, so that nobody who had to wait is left out.
///
/// # Errors
/// When the rate is none.
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
    let (ticks, mut ticked) = mpsc::unbounded_channel();
    let stopped = stop.clone();
    // The runtime's timers tell milliseconds; a thread that sleeps by itself is a tenth of that late. It wakes once a
    // tick and not once a request: that would take more of the processors than the requests themselves.
    let clock = thread::spawn(move || {
        let mut tick = began;
        while tick < end && !stopped.is_cancelled() {
            thread::sleep(tick.saturating_duration_since(Instant::now()));
            // As many as there are in the time: the channel ends with them.
            if ticks.send(tick).is_err() {
                break;
            }
            tick += TICK;
        }
    });
    let (dues, released) = (RefCell::new(VecDeque::new()), Semaphore::new(0));
    let release = async {
        let mut count = 0;
        while let Some(tick) = ticked.recv().await {
            let all = due_until(tick - began, rate);
            dues.borrow_mut().extend((count..all).map(|_| tick));
            released.add_permits(all - count);
            count = all;
        }
        released.close();
    };
    let (next, tally) = (Cell::new(0), RefCell::new(Tally::new()?));
    let ran_out = Cell::new(None);
    let crowd = (0..connections).map(|_| async {
        let mut wire = Wire::to(server);
        let mut request = Vec::with_capacity(1024);
        loop {
            // When all have been released, what is left is taken without being told.
            if let Ok(told) = released.acquire().await {
                told.forget();
            }
            let due = dues.borrow_mut().pop_front();
            let Some(due) = due else { break };
            let n = next.replace(next.get() + 1);
            if !question.write(n, &mut request) {
                ran_out.set(ran_out.get().or_else(|| Some(Instant::now())));
                break;
            }
            let seen = wire.ask_written(&request).await;
            if due >= warm {
                tally.borrow_mut().note(seen, due.elapsed())?;
            }
        }
        anyhow::Ok(())
    });
    let (_released, asked) = join(release, try_join_all(crowd)).await;
    asked?;
    clock.join().map_err(|_panic| anyhow::anyhow!("the clock panicked"))?;
    let mut tally = tally.into_inner();
    let ended = ran_out.get().unwrap_or_else(Instant::now).min(end);
    tally.seconds = ended.saturating_duration_since(warm).as_secs_f64();
    tally.ran_out = ran_out.get().is_some();
    tally.asked = next.get();
    Ok(tally)
}

/// How many requests have been due at a tick and before, so long after the first.
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
        let mut tally = Tally::new().unwrap();
        let refusal = br#"{"status":409,"code":"sold_out"}"#;
        for (status, body) in [(201, &b"{}"[..]), (409, refusal), (409, refusal), (0, b"")] {
            tally.note(Seen { status, body }, Duration::from_millis(1)).unwrap();
        }
        assert_eq!(
            (tally.count(201, ""), tally.count(409, "sold_out"), tally.count(503, "")),
            (1, 2, 0)
        );
        assert_eq!(tally.rate(201, ""), None, "no time has passed");
        tally.seconds = 2.0;
        assert_eq!(tally.rate(409, "sold_out"), Some(1.0));
        assert_eq!(tally.others(409, "sold_out").unwrap(), "1 × 201, 1 without an answer");
    }

    #[test]
    fn latency_is_of_the_answers_that_were_expected_and_of_none_among_too_many_others() {
        let mut tally = Tally::new().unwrap();
        let mut note = |status, count, ms| {
            for _ in 0..count {
                let seen = Seen { status, body: b"{}" };
                tally.note(seen, Duration::from_millis(ms)).unwrap();
            }
        };
        note(201, 990, 10);
        note(503, 9, 1);
        note(0, 1, 2000);
        let it = tally.percentiles(201, "");
        assert_eq!((it.count, it.max_ms.map(f64::round)), (990, Some(10.0)));
        assert_eq!(
            tally.remarks(201, "", "x").count(),
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
        assert_eq!((tally.percentiles(201, "").p99_ms, tally.count(201, "")), (None, 990));
        let said: Vec<String> = tally.remarks(201, "", "x").collect();
        assert!(said[1].contains("latency is not told"), "{said:?}");
    }

    /// Answers every request in so long, one after the other on each connection.
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
        // One connection answers 20 a second, and 100 come: the last waits for more than a second.
        let tally = open(server, &question, 100.0, 1, window, &stop).await.unwrap();
        assert!((38..=42).contains(&tally.count(200, "")), "{}", tally.count(200, ""));
        let it = tally.percentiles(200, "");
        assert!(it.max_ms.unwrap() > 1000.0, "{it:?}");
        // Whoever waits for answers sees none of that.
        let tally = closed(server, &question, 1, window, &stop).await.unwrap();
        assert!(tally.percentiles(200, "").max_ms.unwrap() < 300.0);
        assert!((1..=8).contains(&tally.count(200, "")), "{}", tally.count(200, ""));
    }
}
