//! A scarce sale: many more shoppers than units, and kills in the middle.

use super::{Contender, DEMAND, Stage};
use crate::load::ACCEPTED;
use crate::program::Program;
use crate::rush::{Crowd, FinalReply, Rush, SOLD_OUT, rush};
use crate::shoppers::Purchase;
use crate::sql::{self, Booked};
use anyhow::{Context as _, Result, anyhow};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 128;
/// Units for each late shopper.
const LATE_SHARE: usize = 5;
/// The percentage of units sold at which the application is killed; the next constant is for Redis.
pub(super) const KILL_PROGRAM_AT: usize = 30;
pub(super) const KILL_REDIS_AT: usize = 60;
/// The time limit of a rush.
const RUSH_MAX: Duration = Duration::from_secs(300);
/// The interval at which the killer reads the number of sold units.
const WATCH: Duration = Duration::from_millis(1);
/// The length of one point of the timeline.
const STRETCH: Duration = Duration::from_millis(100);

/// The state of the stock after a rush with kills.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Scarce {
    pub(super) stock: usize,
    pub(super) shoppers: usize,
    /// Orders in replies to shoppers; the next field counts the units that the ledger has as sold.
    pub(super) acknowledged: usize,
    pub(super) booked: usize,
    pub(super) oversold: usize,
    /// `None` if every late shopper could buy, so that the remaining stock is unknown.
    pub(super) leaked: Option<usize>,
    pub(super) duplicates: usize,
    pub(super) lost: usize,
    /// Units sold to late shoppers after a shopper got `sold_out`.
    pub(super) sold_after_sold_out: usize,
    /// Orders of the rush made after a shopper got `sold_out`, although no unit comes back in a rush. For rivals, only
    /// orders whose request was sent after that reply count.
    pub(super) false_sold_out: usize,
    /// Shoppers who have an order and whose last reply was a refusal.
    pub(super) denied: usize,
    /// Refusals with another code than `sold_out`, by code.
    pub(super) refused_otherwise: BTreeMap<String, usize>,
    /// Shoppers who got no reply.
    pub(super) unanswered: usize,
    /// From the kill of Redis to the reply with the next new order whose request was sent after the kill.
    pub(super) recovery_seconds: Option<f64>,
    /// The same for the application.
    pub(super) program_recovery_seconds: Option<f64>,
    pub(super) seconds: f64,
    pub(super) answers: String,
    pub(super) timeline: Vec<(f64, f64)>,
    pub(super) marks: Vec<(f64, String)>,
}

impl fmt::Display for Scarce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            oversold,
            duplicates,
            lost,
            ..
        } = self;
        let leaked = self.leaked.map_or_else(|| "?".to_owned(), |it| it.to_string());
        write!(
            f,
            "{oversold} oversold, {leaked} leaked, {duplicates} duplicate, {lost} lost"
        )
    }
}

#[derive(Default)]
struct Killed {
    program: Option<Instant>,
    redis: Option<Instant>,
}

impl Stage<'_> {
    /// Runs a rush in which the application and Redis are killed once each. Late shoppers follow, and then the count.
    pub(super) fn scarcity(&self, contender: &Contender<'_>) -> Result<Scarce> {
        let (bench, stock) = (self.bench, self.stock);
        let program = contender.plan.start()?;
        let sale = contender.sell(bench, self.world, i64::try_from(stock)?)?;
        let crowd = |who| Crowd {
            server: contender.plan.address,
            purchase: Purchase::of(contender.plan.address, &sale.id.to_string(), 0),
            shoppers: self.shoppers,
            who,
            salt: bench.options.first_salt() + 1,
            connections: bench.options.clients.unwrap_or(CLIENTS),
            limit: RUSH_MAX,
        };
        let (sold, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (first, killing) = thread::scope(|scope| {
            let killing = scope.spawn(|| kill_both(contender, program, stock, &sold, &is_over));
            let first = bench.wait_for(rush(&crowd(0..stock * DEMAND), &sold, &bench.stop));
            is_over.store(true, Ordering::Relaxed);
            (first, killing.join())
        });
        let (program, killed) = killing.map_err(|_panic| anyhow!("the thread that kills panicked"))??;
        let first = first?;
        bench.go_on()?;
        contender.settle(bench, &sale)?;
        // Units that come back late must be on sale before the late shoppers ask.
        thread::sleep(Duration::from_millis(if bench.options.quick { 500 } else { 5000 }));
        let from = stock * DEMAND;
        let late = crowd(from..from + (stock / LATE_SHARE).max(20));
        let late = bench.wait_for(rush(&late, &sold, &bench.stop))?;
        bench.go_on()?;
        contender.settle(bench, &sale)?;
        program.stop();
        let is_ours = sale.ours.is_some();
        let booked = bench.wait_for(sql::booked(&contender.database, sale.id, is_ours))?;
        let records = Records {
            stock,
            is_ours,
            first: &first,
            late: &late,
            booked: &booked,
            killed: &killed,
        };
        Ok(records.count())
    }
}

/// Kills the application and later Redis, each at its share of sold units, and restarts each at once.
fn kill_both(
    contender: &Contender<'_>,
    mut program: Program,
    stock: usize,
    sold: &AtomicUsize,
    is_over: &AtomicBool,
) -> Result<(Program, Killed)> {
    let mut killed = Killed::default();
    let reached = |percent: usize| {
        while !is_over.load(Ordering::Relaxed) {
            if sold.load(Ordering::Relaxed) * 100 >= stock * percent {
                return true;
            }
            thread::sleep(WATCH);
        }
        false
    };
    if reached(KILL_PROGRAM_AT) {
        killed.program = Some(Instant::now());
        program.kill();
        program = contender.plan.restart().context("after it was killed")?;
    }
    if reached(KILL_REDIS_AT) {
        killed.redis = Some(Instant::now());
        contender.redis.kill()?;
        contender.redis.restart()?;
    }
    Ok((program, killed))
}

/// The replies to shoppers, the orders in the ledger, and the kills.
struct Records<'a> {
    stock: usize,
    is_ours: bool,
    first: &'a Rush,
    late: &'a Rush,
    booked: &'a [Booked],
    killed: &'a Killed,
}

impl Records<'_> {
    /// Compares the replies to shoppers with the ledger.
    fn count(&self) -> Scarce {
        let Self {
            stock,
            first,
            late,
            booked,
            killed,
            ..
        } = *self;
        let acknowledged: HashSet<&str> = first.orders().chain(late.orders()).collect();
        let ids: HashSet<&str> = booked.iter().map(|it| it.id.as_str()).collect();
        let units: i64 = booked.iter().map(|it| it.units).sum();
        let units = usize::try_from(units).unwrap_or_default();
        let buyers: HashSet<&str> = booked.iter().map(|it| it.user.as_str()).collect();
        let ((_, missing), (late_refused, late_missing)) = (first.others(), late.others());
        Scarce {
            stock,
            shoppers: first.replies.len() + late.replies.len(),
            acknowledged: acknowledged.len(),
            booked: units,
            oversold: units.max(acknowledged.len()).saturating_sub(stock),
            leaked: (late_refused > 0).then(|| stock.saturating_sub(units)),
            // Each shopper wants one unit, so a second order of one shopper is a duplicate, whatever its key.
            duplicates: booked.len() - buyers.len(),
            lost: acknowledged.difference(&ids).count(),
            sold_after_sold_out: first.sold_out.map_or(0, |_| late.orders().count()),
            false_sold_out: first.false_sold_out().max(self.made_after_sold_out()),
            denied: self.denied(&buyers),
            refused_otherwise: self.refused_otherwise(),
            unanswered: missing + late_missing,
            recovery_seconds: killed.redis.and_then(|moment| first.next_after(moment)),
            program_recovery_seconds: killed.program.and_then(|moment| first.next_after(moment)),
            seconds: first.tally.seconds,
            answers: first.tally.others(ACCEPTED).unwrap_or_default(),
            timeline: first.timeline(STRETCH),
            marks: self.marks(),
        }
    }

    /// Buyers whose last reply was a refusal. Shoppers without a reply have a count of their own. An unknown buyer
    /// counts.
    fn denied(&self, buyers: &HashSet<&str>) -> usize {
        let replies: HashMap<String, &FinalReply> = self.first.shoppers().chain(self.late.shoppers()).collect();
        let is_denied = |user: &&&str| match replies.get(**user) {
            Some(FinalReply::Order(_) | FinalReply::Missing) => false,
            Some(FinalReply::Refused(_)) | None => true,
        };
        buyers.iter().filter(is_denied).count()
    }

    fn refused_otherwise(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for reply in self.first.replies.iter().chain(&self.late.replies) {
            if let FinalReply::Refused(code) = reply
                && code != SOLD_OUT
            {
                let code = if code.is_empty() { "no code" } else { code };
                *counts.entry(code.to_owned()).or_default() += 1;
            }
        }
        counts
    }

    /// Orders of the rush that Redis made after a shopper got `sold_out`. Redis stamps our orders with this machine's
    /// clock, in whole milliseconds. A rival stamps its orders before Postgres decides, or after Redis decided.
    fn made_after_sold_out(&self) -> usize {
        let Some(sold_out) = self.first.sold_out_by_clock.filter(|_| self.is_ours) else {
            return 0;
        };
        let of_the_rush: HashSet<String> = self.first.shoppers().map(|(name, _)| name).collect();
        let is_later = |it: &&Booked| it.created_at.timestamp_millis() > sold_out.timestamp_millis();
        let later = self.booked.iter().filter(is_later);
        later.filter(|it| of_the_rush.contains(&it.user)).count()
    }

    fn marks(&self) -> Vec<(f64, String)> {
        let since = |moment: Instant| moment.saturating_duration_since(self.first.began).as_secs_f64();
        let kills = [
            (self.killed.program, "application killed"),
            (self.killed.redis, "Redis killed"),
        ];
        let marks = kills
            .into_iter()
            .map(|(moment, what)| Some((since(moment?), what.to_owned())));
        marks.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::promises::{Rushes, breaches};
    use crate::rush::Accepted;
    use crate::rush::tests::rush_of;
    use crate::shoppers::name;
    use chrono::DateTime;

    /// When the first shopper gets `sold_out`, in milliseconds since 1970.
    const SOLD_OUT_MS: i64 = 1_000_000;
    /// The number of the first late shopper.
    const LATE: usize = 100;

    fn count((stock, is_ours): (usize, bool), first: &Rush, late: &Rush, booked: &[Booked], killed: &Killed) -> Scarce {
        let records = Records {
            stock,
            is_ours,
            first,
            late,
            booked,
            killed,
        };
        records.count()
    }

    fn a_rush(replies: Vec<FinalReply>) -> Rush {
        let is_sold_out = replies.contains(&refused());
        Rush {
            sold_out: is_sold_out.then(Instant::now),
            sold_out_by_clock: DateTime::from_timestamp_millis(SOLD_OUT_MS).filter(|_| is_sold_out),
            ..rush_of(replies)
        }
    }

    fn lates(replies: Vec<FinalReply>) -> Rush {
        Rush {
            from: LATE,
            ..a_rush(replies)
        }
    }

    /// The same, with a new order whose request was sent after both kills.
    fn recovered(replies: Vec<FinalReply>) -> (Rush, Killed) {
        let mut rush = a_rush(replies);
        let later = rush.began + Duration::from_millis(1);
        rush.accepted.push(Accepted {
            asked: later,
            answered: later,
            is_new: true,
        });
        let killed = Killed {
            program: Some(rush.began),
            redis: Some(rush.began),
        };
        rush.sold_out = rush.sold_out.map(|_| later);
        (rush, killed)
    }

    fn breaches_of(it: Scarce) -> Vec<String> {
        breaches("x", &Rushes(&[it]))
    }

    fn has(id: &str) -> FinalReply {
        FinalReply::Order(id.to_owned())
    }

    fn refused() -> FinalReply {
        FinalReply::Refused("sold_out".to_owned())
    }

    /// An order of this shopper, made at the moment of the first `sold_out`.
    fn booked(id: &str, shopper: usize) -> Booked {
        Booked {
            id: id.to_owned(),
            user: name(shopper),
            key: "k".to_owned(),
            units: 1,
            created_at: DateTime::from_timestamp_millis(SOLD_OUT_MS).unwrap(),
        }
    }

    #[test]
    fn a_clean_sale_breaks_no_promise() {
        let ((first, killed), late) = (recovered(vec![has("a"), has("b"), refused()]), lates(vec![refused()]));
        let books = [booked("a", 0), booked("b", 1)];
        let it = count((2, true), &first, &late, &books, &killed);
        assert_eq!((it.oversold, it.leaked, it.duplicates, it.lost), (0, Some(0), 0, 0));
        assert_eq!(it.recovery_seconds, Some(0.001));
        assert_eq!(breaches_of(it), [""; 0]);
    }

    #[test]
    fn who_stays_silent_after_a_kill_has_broken_a_promise() {
        let ((first, killed), late) = (
            recovered(vec![has("a"), refused(), FinalReply::Missing]),
            lates(vec![refused()]),
        );
        let books = [booked("a", 0)];
        let it = count((1, true), &first, &late, &books, &killed);
        assert_eq!(breaches_of(it), ["x: 1 shoppers without a reply"]);
        // A kill without a later new order counts as no recovery, even where only one server was killed.
        let (mut first, killed) = recovered(vec![has("a"), refused()]);
        let half = Killed {
            redis: None,
            ..recovered(vec![]).1
        };
        let it = count((1, true), &first, &late, &books, &half);
        let silent = "x: 1 rushes without a new order after each kill";
        assert_eq!(breaches_of(it), [silent]);
        first.accepted[0].is_new = false;
        let it = count((1, true), &first, &late, &books, &killed);
        assert_eq!(breaches_of(it), [silent], "an old order is no sale");
    }

    #[test]
    fn what_goes_wrong_is_counted_by_the_books_and_by_what_shoppers_know() {
        let (first, late) = (
            a_rush(vec![has("a"), has("b"), has("c"), refused(), FinalReply::Missing]),
            lates(vec![has("d"), refused()]),
        );
        // One shopper has two orders, and one acknowledged order is missing.
        let books = [booked("a", 0), booked("x", 0), booked("b", 1), booked("c", 2)];
        let it = count((3, true), &first, &late, &books, &Killed::default());
        assert_eq!((it.oversold, it.duplicates, it.lost, it.unanswered), (1, 1, 1, 1));
        assert_eq!(it.sold_after_sold_out, 1);
        let it = count((7, true), &first, &late, &books, &Killed::default());
        assert_eq!((it.oversold, it.leaked), (0, Some(3)));
        // A clean rush does not cancel the breaches of another.
        let clean = Scarce {
            leaked: Some(0),
            ..Scarce::default()
        };
        let all = [clean.clone(), it, clean];
        // A leak, a duplicate, a lost order, a sale after `sold_out`, a shopper without a reply, and no recovery.
        assert_eq!(breaches("x", &Rushes(&all)).len(), 6);
        assert_eq!(Rushes(&all).leaked(), Some(3));
        // If every late shopper could buy, the remaining stock is unknown.
        let it = count((7, true), &first, &lates(vec![has("d")]), &books, &Killed::default());
        assert_eq!(it.leaked, None);
    }

    #[test]
    fn an_order_whose_shopper_was_refused_is_counted_once_by_shopper() {
        let (first, killed) = recovered(vec![has("a"), refused(), FinalReply::Missing]);
        let late = lates(vec![refused()]);
        // The second shopper has an order, but a retry got `sold_out`. So did the late shopper's request. The third
        // shopper got no reply, and counts as unanswered only.
        let books = [booked("a", 0), booked("x", 1), booked("y", 2), booked("z", LATE)];
        let it = count((4, true), &first, &late, &books, &killed);
        assert_eq!((it.denied, it.unanswered, it.lost, it.duplicates), (2, 1, 0, 0));
        let said = ["x: 2 orders whose shopper was refused", "x: 1 shoppers without a reply"];
        assert_eq!(breaches_of(it), said);
    }

    #[test]
    fn a_refusal_for_another_reason_than_stock_is_counted_by_its_code() {
        let limit = || FinalReply::Refused("purchase_limit_reached".to_owned());
        let (first, killed) = recovered(vec![has("a"), limit(), limit(), refused()]);
        let late = lates(vec![refused(), FinalReply::Refused(String::new())]);
        let it = count((1, true), &first, &late, &[booked("a", 0)], &killed);
        let rushes = [it.clone(), it];
        assert_eq!(
            Rushes(&rushes).refused_otherwise(),
            "2 × no code, 4 × purchase_limit_reached"
        );
        assert_eq!(breaches("x", &Rushes(&rushes)), ["x: 6 refusals other than sold_out"]);
    }

    #[test]
    fn sold_out_was_false_if_redis_made_an_order_later() {
        let made_at = |id, shopper, ms| Booked {
            created_at: DateTime::from_timestamp_millis(ms).unwrap(),
            ..booked(id, shopper)
        };
        let (first, killed) = recovered(vec![has("a"), has("b"), refused()]);
        // The request was under way before the third shopper got `sold_out`, so a check by request time misses it.
        assert_eq!(first.false_sold_out(), 0);
        let late = lates(vec![refused()]);
        let books = |ms| [made_at("a", 0, SOLD_OUT_MS - 5), made_at("b", 1, ms)];
        let of = |is_ours, ms| count((2, is_ours), &first, &late, &books(ms), &killed);
        assert_eq!(
            of(true, SOLD_OUT_MS).false_sold_out,
            0,
            "it may have been before in that millisecond"
        );
        let it = of(true, SOLD_OUT_MS + 1);
        assert_eq!(it.false_sold_out, 1);
        assert_eq!(breaches_of(it), ["x: 1 false \"sold out\" while a unit was free"]);
        assert_eq!(
            of(false, SOLD_OUT_MS + 1).false_sold_out,
            0,
            "others write it down later"
        );
        // Orders of late shoppers have a count of their own.
        let (late, books) = (lates(vec![has("z")]), [made_at("z", LATE, SOLD_OUT_MS + 9)]);
        let it = count((1, true), &a_rush(vec![refused()]), &late, &books, &killed);
        assert_eq!((it.false_sold_out, it.sold_after_sold_out), (0, 1));
    }
}
