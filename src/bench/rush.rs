//! A rush: many more shoppers than units. Each wants one and asks until he is told: he waits two seconds for an answer,
//! and asks again under the same key.

use super::load::{Tally, real};
use super::shoppers::{Purchase, Shoppers, key, name};
use super::wire::Wire;
use anyhow::Result;
use chrono::{DateTime, Utc};
use futures_util::future::try_join_all;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long a shopper waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long before he asks again.
const AGAIN: Duration = Duration::from_millis(100);
/// The code of the answer that nothing is left.
pub const SOLD_OUT: &str = "sold_out";

/// What a shopper was told in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Order(String),
    Refused(String),
    Nothing,
}

/// A shopper's first answer with an order.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// When the request was sent that was answered so.
    pub asked: Instant,
    /// When the answer was there.
    pub answered: Instant,
    /// Whether the order was made by this request, and not by an earlier one under the same key.
    pub is_new: bool,
}

/// What came of a rush.
pub struct Rush {
    /// The number of the first shopper.
    pub from: usize,
    /// What everybody was told, from him on.
    pub told: Vec<Told>,
    /// Who bought, in the order of the answers.
    pub accepted: Vec<Accepted>,
    /// When the first was told that nothing is left.
    pub sold_out: Option<Instant>,
    /// The same by the clock of the machine, which Redis has as well.
    pub sold_out_by_clock: Option<DateTime<Utc>>,
    /// Every answer, also those that were asked again about.
    pub tally: Tally,
    pub began: Instant,
}

impl Rush {
    /// Everybody by name, with what he was told.
    pub fn shoppers(&self) -> impl Iterator<Item = (String, &Told)> {
        (self.from..).map(name).zip(&self.told)
    }

    /// The orders that shoppers know of.
    pub fn orders(&self) -> impl Iterator<Item = &str> {
        self.told.iter().filter_map(|told| match told {
            Told::Order(id) => Some(id.as_str()),
            Told::Refused(_) | Told::Nothing => None,
        })
    }

    /// How many were refused, and how many were told nothing.
    #[must_use]
    pub fn others(&self) -> (usize, usize) {
        let nothing = self.told.iter().filter(|told| **told == Told::Nothing).count();
        (self.told.len() - self.orders().count() - nothing, nothing)
    }

    /// Purchases that were asked for after somebody had been told that nothing is left. Where no unit comes back, he was
    /// told what was not true. Those that were under way when he was told are not in it, though one of them may have come
    /// later to what it bought.
    #[must_use]
    pub fn false_sold_out(&self) -> usize {
        let Some(sold_out) = self.sold_out else { return 0 };
        let later = self.accepted.iter().filter(|it| it.is_new && it.asked > sold_out);
        later.count()
    }

    /// Purchases a second in each stretch of this length, by seconds from the beginning.
    #[must_use]
    pub fn timeline(&self, stretch: Duration) -> Vec<(f64, f64)> {
        let at = |it: &Accepted| (it.answered - self.began).as_nanos() / stretch.as_nanos().max(1);
        let last = self.accepted.iter().map(at).max().unwrap_or_default();
        let mut counts = vec![0_usize; usize::try_from(last).unwrap_or_default() + 2];
        for it in &self.accepted {
            if let Some(count) = usize::try_from(at(it)).ok().and_then(|at| counts.get_mut(at)) {
                *count += 1;
            }
        }
        let seconds = stretch.as_secs_f64();
        let point = |(at, count): (usize, &usize)| (real(at) * seconds, real(*count) / seconds);
        counts.iter().enumerate().map(point).collect()
    }

    /// Seconds from a moment to the answer of the next purchase that was asked for after it. An order that is read once more
    /// under its key says nothing of whether anything is sold.
    #[must_use]
    pub fn next_after(&self, moment: Instant) -> Option<f64> {
        let later = self.accepted.iter().filter(|it| it.is_new && it.asked >= moment);
        let next = later.map(|it| it.answered).min()?;
        Some((next - moment).as_secs_f64())
    }
}

/// Who comes, and where to.
pub struct Crowd<'a> {
    pub server: SocketAddr,
    pub purchase: Purchase,
    pub shoppers: &'a Shoppers,
    /// Those of them who come.
    pub who: Range<usize>,
    pub salt: u32,
    pub connections: usize,
    /// The longest that all of it may take.
    pub limit: Duration,
}

/// Has them all ask until they are told, and counts in `sold` as they buy.
///
/// # Errors
/// Never but for what the machine itself refuses.
pub async fn rush(crowd: &Crowd<'_>, sold: &AtomicUsize, stop: &CancellationToken) -> Result<Rush> {
    let began = Instant::now();
    let end = began + crowd.limit;
    let next = Cell::new(crowd.who.start);
    let told = RefCell::new(vec![Told::Nothing; crowd.who.len()]);
    let (accepted, tally) = (RefCell::new(Vec::new()), RefCell::new(Tally::new()?));
    let sold_out = Cell::new(None);
    let clients = (0..crowd.connections).map(|_| async {
        let mut wire = Wire::patient(crowd.server, PATIENCE);
        let mut request = Vec::with_capacity(1024);
        'shoppers: while next.get() < crowd.who.end {
            let n = next.replace(next.get() + 1);
            let Some(token) = crowd.shoppers.token(n) else { break };
            crowd.purchase.write(token, &key(crowd.salt, n), &mut request);
            loop {
                let asked = Instant::now();
                if asked > end || stop.is_cancelled() {
                    break 'shoppers;
                }
                let seen = wire.ask_written(&request).await;
                let answered = Instant::now();
                tally.borrow_mut().note(seen, answered - asked)?;
                let answer = match seen.status {
                    200 | 201 => Told::Order(seen.text("\"id\":").unwrap_or_default().to_owned()),
                    400..=499 => Told::Refused(seen.text("\"code\":").unwrap_or_default().to_owned()),
                    _ => {
                        tokio::time::sleep(AGAIN).await;
                        continue;
                    }
                };
                match &answer {
                    Told::Order(_) => {
                        sold.fetch_add(1, Ordering::Relaxed);
                        let is_new = seen.status == 201;
                        accepted.borrow_mut().push(Accepted {
                            asked,
                            answered,
                            is_new,
                        });
                    }
                    Told::Refused(code) if code == SOLD_OUT && sold_out.get().is_none() => {
                        sold_out.set(Some((answered, Utc::now())));
                    }
                    Told::Refused(_) | Told::Nothing => {}
                }
                if let Some(place) = told.borrow_mut().get_mut(n - crowd.who.start) {
                    *place = answer;
                }
                break;
            }
        }
        anyhow::Ok(())
    });
    try_join_all(clients).await?;
    let mut tally = tally.into_inner();
    tally.seconds = began.elapsed().as_secs_f64();
    let sold_out = sold_out.into_inner();
    Ok(Rush {
        from: crowd.who.start,
        told: told.into_inner(),
        accepted: accepted.into_inner(),
        sold_out: sold_out.map(|(at, _)| at),
        sold_out_by_clock: sold_out.map(|(_, by_clock)| by_clock),
        tally,
        began,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_every_purchase_once_and_the_next_one_was_asked_for_later() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let accepted = |asked, answered| Accepted {
            asked: at(asked),
            answered: at(answered),
            is_new: true,
        };
        let mut rush = Rush {
            from: 0,
            told: vec![
                Told::Order("a".to_owned()),
                Told::Refused("sold_out".to_owned()),
                Told::Nothing,
            ],
            accepted: vec![accepted(0, 50), accepted(10, 120), accepted(200, 450)],
            sold_out: None,
            sold_out_by_clock: None,
            tally: Tally::new().unwrap(),
            began,
        };
        let points = rush.timeline(Duration::from_millis(100));
        assert_eq!(points.iter().map(|(_, rate)| rate * 0.1).sum::<f64>().round(), 3.0);
        assert_eq!(points[1], (0.1, 10.0));
        // The one that was under way at the time does not count.
        assert!((rush.next_after(at(100)).unwrap() - 0.35).abs() < 1e-9);
        assert_eq!(rush.next_after(at(300)), None);
        // Neither does one that was made before and is only told of once more.
        rush.accepted.push(Accepted {
            asked: at(101),
            answered: at(102),
            is_new: false,
        });
        assert!((rush.next_after(at(100)).unwrap() - 0.35).abs() < 1e-9);
        assert_eq!((rush.orders().count(), rush.others()), (1, (1, 1)));
    }

    #[test]
    fn sold_out_was_false_if_somebody_bought_who_asked_later() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let accepted = |asked, is_new| Accepted {
            asked: at(asked),
            answered: at(asked + 5),
            is_new,
        };
        let mut rush = Rush {
            from: 0,
            told: Vec::new(),
            // One who asked before, one who got his order once more, and one who bought what was not there.
            accepted: vec![accepted(99, true), accepted(150, false), accepted(160, true)],
            sold_out: Some(at(100)),
            sold_out_by_clock: None,
            tally: Tally::new().unwrap(),
            began,
        };
        assert_eq!(rush.false_sold_out(), 1);
        rush.sold_out = None;
        assert_eq!(rush.false_sold_out(), 0);
    }
}
