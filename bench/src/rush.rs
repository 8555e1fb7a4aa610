//! A rush: many more shoppers than units. Each shopper wants one unit. A shopper waits two seconds for a reply, and
//! then asks again with the same key.

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

/// The time that a shopper waits for a reply.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause before a shopper asks again.
const AGAIN: Duration = Duration::from_millis(100);
/// The code of the refusal when no unit is left.
pub const SOLD_OUT: &str = "sold_out";

/// The final reply to a shopper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinalReply {
    Order(String),
    Refused(String),
    /// No reply within the time limit.
    Missing,
}

/// The first reply to a shopper that has an order.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// When the shopper sent the request.
    pub asked: Instant,
    /// When the reply arrived.
    pub answered: Instant,
    /// Whether this request made the order, and not an earlier one with the same key.
    pub is_new: bool,
}

/// The result of a rush.
pub struct Rush {
    pub from: usize,
    /// The final reply to each shopper, from `from` on.
    pub replies: Vec<FinalReply>,
    /// The accepted purchases, in the order of their replies.
    pub accepted: Vec<Accepted>,
    /// When the first shopper got `sold_out`.
    pub sold_out: Option<Instant>,
    /// The same by the machine's clock, which Redis uses too.
    pub sold_out_by_clock: Option<DateTime<Utc>>,
    /// Every reply, those before a retry included.
    pub tally: Tally,
    pub began: Instant,
}

impl Rush {
    /// Each shopper's name and final reply.
    pub fn shoppers(&self) -> impl Iterator<Item = (String, &FinalReply)> {
        (self.from..).map(name).zip(&self.replies)
    }

    /// The ids of the orders that shoppers know.
    pub fn orders(&self) -> impl Iterator<Item = &str> {
        self.replies.iter().filter_map(|reply| match reply {
            FinalReply::Order(id) => Some(id.as_str()),
            FinalReply::Refused(_) | FinalReply::Missing => None,
        })
    }

    /// The numbers of refused shoppers and of shoppers without a reply.
    pub fn others(&self) -> (usize, usize) {
        let missing = self
            .replies
            .iter()
            .filter(|reply| **reply == FinalReply::Missing)
            .count();
        (self.replies.len() - self.orders().count() - missing, missing)
    }

    /// New orders whose request was sent after a shopper got `sold_out`. Where no unit comes back, that refusal was
    /// false. Requests under way at the time do not count, although one of them may have reached the stock later.
    pub fn false_sold_out(&self) -> usize {
        let Some(sold_out) = self.sold_out else { return 0 };
        let later = self.accepted.iter().filter(|it| it.is_new && it.asked > sold_out);
        later.count()
    }

    /// Purchases a second in each stretch of this length; x is in seconds from the start.
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

    /// Seconds from a moment to the reply with the next new order whose request was sent after it. A repeated reply
    /// under the same key does not show that the sale still sells.
    pub fn next_after(&self, moment: Instant) -> Option<f64> {
        let later = self.accepted.iter().filter(|it| it.is_new && it.asked >= moment);
        let next = later.map(|it| it.answered).min()?;
        Some((next - moment).as_secs_f64())
    }
}

/// The shoppers of a rush, and their target.
pub struct Crowd<'a> {
    pub server: SocketAddr,
    pub purchase: Purchase,
    pub shoppers: &'a Shoppers,
    /// The numbers of the shoppers who take part.
    pub who: Range<usize>,
    pub salt: u32,
    pub connections: usize,
    /// The time limit of the rush.
    pub limit: Duration,
}

/// Runs the rush until each shopper has a reply, or until the time limit.
/// It counts accepted purchases in `sold` as they happen.
pub async fn rush(crowd: &Crowd<'_>, sold: &AtomicUsize, stop: &CancellationToken) -> Result<Rush> {
    let began = Instant::now();
    let next = Cell::new(crowd.who.start);
    let records = Records {
        replies: RefCell::new(vec![FinalReply::Missing; crowd.who.len()]),
        accepted: RefCell::default(),
        tally: RefCell::default(),
        sold_out: Cell::default(),
        sold,
    };
    let is_over = || began.elapsed() > crowd.limit || stop.is_cancelled();
    let clients = (0..crowd.connections).map(|_| async {
        let mut wire = Wire::patient(crowd.server, PATIENCE);
        let mut request = Vec::with_capacity(1024);
        while next.get() < crowd.who.end {
            let n = next.replace(next.get() + 1);
            let Some(token) = crowd.shoppers.token(n) else { break };
            crowd.purchase.write(token, &key(crowd.salt, n), &mut request);
            let Some(reply) = records.ask(&mut wire, &request, is_over).await? else {
                break;
            };
            if let Some(place) = records.replies.borrow_mut().get_mut(n - crowd.who.start) {
                *place = reply;
            }
        }
        anyhow::Ok(())
    });
    try_join_all(clients).await?;
    let mut tally = records.tally.into_inner();
    tally.seconds = began.elapsed().as_secs_f64();
    let sold_out = records.sold_out.into_inner();
    Ok(Rush {
        from: crowd.who.start,
        replies: records.replies.into_inner(),
        accepted: records.accepted.into_inner(),
        sold_out: sold_out.map(|(at, _)| at),
        sold_out_by_clock: sold_out.map(|(_, by_clock)| by_clock),
        tally,
        began,
    })
}

/// The records of a rush that runs.
struct Records<'a> {
    replies: RefCell<Vec<FinalReply>>,
    accepted: RefCell<Vec<Accepted>>,
    tally: RefCell<Tally>,
    sold_out: Cell<Option<(Instant, DateTime<Utc>)>>,
    sold: &'a AtomicUsize,
}

impl Records<'_> {
    /// Repeats a request until it has an order or a refusal; `None` when the rush is over.
    async fn ask(&self, wire: &mut Wire, request: &[u8], is_over: impl Fn() -> bool) -> Result<Option<FinalReply>> {
        loop {
            if is_over() {
                return Ok(None);
            }
            let asked = Instant::now();
            let seen = wire.ask_written(request).await;
            let answered = Instant::now();
            self.tally.borrow_mut().note(seen, answered - asked)?;
            let text = |member| seen.text(member).unwrap_or_default().to_owned();
            match seen.status {
                200 | 201 => {
                    self.sold.fetch_add(1, Ordering::Relaxed);
                    self.accepted.borrow_mut().push(Accepted {
                        asked,
                        answered,
                        is_new: seen.status == 201,
                    });
                    return Ok(Some(FinalReply::Order(text("\"id\":"))));
                }
                400..=499 => {
                    let code = text("\"code\":");
                    if code == SOLD_OUT && self.sold_out.get().is_none() {
                        self.sold_out.set(Some((answered, Utc::now())));
                    }
                    return Ok(Some(FinalReply::Refused(code)));
                }
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn rush_of(replies: Vec<FinalReply>) -> Rush {
        Rush {
            from: 0,
            replies,
            accepted: Vec::new(),
            sold_out: None,
            sold_out_by_clock: None,
            tally: Tally::default(),
            began: Instant::now(),
        }
    }

    #[test]
    fn a_timeline_has_every_purchase_once_and_the_next_one_was_asked_for_later() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let accepted = |asked, answered| Accepted {
            asked: at(asked),
            answered: at(answered),
            is_new: true,
        };
        let refused = FinalReply::Refused("sold_out".to_owned());
        let mut rush = Rush {
            accepted: vec![accepted(0, 50), accepted(10, 120), accepted(200, 450)],
            began,
            ..rush_of(vec![FinalReply::Order("a".to_owned()), refused, FinalReply::Missing])
        };
        let points = rush.timeline(Duration::from_millis(100));
        assert_eq!(points.iter().map(|(_, rate)| rate * 0.1).sum::<f64>().round(), 3.0);
        assert_eq!(points[1], (0.1, 10.0));
        // A purchase that was under way at the time does not count.
        assert!((rush.next_after(at(100)).unwrap() - 0.35).abs() < 1e-9);
        assert_eq!(rush.next_after(at(300)), None);
        // An older order that a reply repeats does not count.
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
            // One request before `sold_out`, one repeated order, and one new order after `sold_out`.
            accepted: vec![accepted(99, true), accepted(150, false), accepted(160, true)],
            sold_out: Some(at(100)),
            ..rush_of(Vec::new())
        };
        assert_eq!(rush.false_sold_out(), 1);
        rush.sold_out = None;
        assert_eq!(rush.false_sold_out(), 0);
    }
}
