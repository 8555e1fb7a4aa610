//! History: count how the purchases of each sale are answered, and add the counts up in the ledger second by second.
//! The report of a sale comes from there.
//!
//! A crash loses the counts of the last second. While Postgres is away, counts are kept, and belong to the second in
//! which it is back.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::fairness::FairnessReport;
use crate::domain::sale::pulse::Counts;
use crate::domain::sale::report::{CourseStep, Latency, SaleReport, step_of, unpaid_share};
use crate::domain::time::from_millis;
use crate::flow::sale_book::clock;
use crate::flow::watch::pulse::{AnswerCounts, quantiles};
use crate::flow::{ADD_MAX, App, in_time};
use chrono::{DateTime, Utc};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use std::collections::HashMap;
use std::time::Duration;

/// Sales that are counted at once. Further ones are not counted.
const COUNTED_MAX: usize = 1000;

/// Answers since they were last added up.
#[derive(Default)]
pub struct History(RwLock<HashMap<SaleId, Mutex<AnswerCounts>>>);

impl History {
    /// Counts the answer to a purchase of an existing sale. `took` is how long the answer took, if the request was
    /// examined.
    pub fn count(&self, sale: SaleId, answer: &'static str, took: Option<Duration>) {
        let sales = self.0.read();
        if let Some(counts) = sales.get(&sale) {
            // The read lock keeps the counts from being taken away meanwhile.
            let mut counts = counts.lock();
            return counts.count(answer, took);
        }
        drop(sales);
        let mut counts = AnswerCounts::default();
        counts.count(answer, took);
        self.add(vec![(sale, counts)]);
    }

    fn alone(&self) -> RwLockWriteGuard<'_, HashMap<SaleId, Mutex<AnswerCounts>>> {
        self.0.write()
    }

    /// The counts of each sale, in one order, so that two processes do not wait for each other.
    fn take(&self) -> Vec<(SaleId, AnswerCounts)> {
        let counted = std::mem::take(&mut *self.alone());
        let counts = |it: Mutex<AnswerCounts>| it.into_inner();
        let mut counted: Vec<_> = counted.into_iter().map(|(sale, it)| (sale, counts(it))).collect();
        counted.sort_by_key(|(sale, _)| sale.0);
        counted
    }

    fn add(&self, counted: Vec<(SaleId, AnswerCounts)>) {
        let mut sales = self.alone();
        for (sale, counts) in counted {
            if sales.len() < COUNTED_MAX || sales.contains_key(&sale) {
                let now = sales.entry(sale).or_default();
                now.get_mut().add(&counts);
            }
        }
    }
}

/// Adds the answers of this process up in the ledger. Fails with `Unavailable` when Postgres does not answer: the
/// counts are kept for the next time.
pub async fn add_up(app: &App) -> Result<(), Fault> {
    let counted = app.history.take();
    if counted.is_empty() {
        return Ok(());
    }
    let counts: Vec<_> = counted.iter().map(|(sale, counts)| (*sale, counts.counts())).collect();
    let added = in_time(ADD_MAX, app.ledger.add_history(&counts)).await;
    if added.is_err() {
        app.history.add(counted);
    }
    added
}

/// The report of a sale, with its course between two times; `None` if there is no such sale. Fails with `Unavailable`
/// when Postgres does not answer, or takes too long.
pub async fn report(
    app: &App,
    id: SaleId,
    from: Option<DateTime<Utc>>,
    to: Option<DateTime<Utc>>,
) -> Result<Option<SaleReport>, Fault> {
    let Some(sale) = app.ledger.sale(id).await? else {
        return Ok(None);
    };
    let now = clock(app).await;
    let span = app.ledger.history_span(id, from, to).await?;
    let step_seconds = step_of(span.map_or(0, |(first, last)| (last - first).num_seconds()));
    let steps = app.ledger.history(id, from, to, step_seconds).await?;
    let mut all = Counts::default();
    for (_, counts) in &steps {
        all.add(counts);
    }
    let orders = app.ledger.order_counts(id).await?;
    let refusals = app.ledger.refusal_counts(id).await?;
    Ok(Some(SaleReport {
        sale_id: id,
        state: sale.state_at(now),
        server_time: from_millis(now),
        starts_at: sale.starts_at,
        ends_at: sale.ends_at,
        closed_at: sale.closed_at,
        items: app.ledger.item_reports(&sale).await?,
        orders,
        unpaid_share: unpaid_share(orders.paid, orders.cancelled + orders.expired),
        stopped: refusals.stopped,
        would_stop: refusals.would_stop,
        fairness: FairnessReport::of(&app.ledger.buyer_counts(id).await?),
        latency_ms: latency_of(&all),
        answers: all.answers,
        step_seconds,
        course: steps
            .into_iter()
            .map(|(at, counts)| CourseStep {
                at,
                latency_ms: latency_of(&counts),
                answers: counts.answers,
            })
            .collect(),
        name: sale.name,
    }))
}

fn latency_of(counts: &Counts) -> Latency {
    let [p50, p95, p99] = quantiles(counts, [0.5, 0.95, 0.99]);
    Latency { p50, p95, p99 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn nothing_is_lost_or_counted_twice_while_it_is_taken_and_given_back() {
        const EACH: u64 = 20_000;
        let history = History::default();
        let sale = SaleId(Uuid::from_u128(1));
        let sold_out = |taken: Vec<(SaleId, AnswerCounts)>| -> u64 {
            let counts = taken.iter().map(|(_, counts)| counts.counts());
            counts
                .map(|it| {
                    let count = it.answers.values().sum::<u64>();
                    assert_eq!(it.latency.values().sum::<u64>(), count);
                    count
                })
                .sum()
        };
        let taken: u64 = std::thread::scope(|scope| {
            let counting: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..EACH {
                            history.count(sale, "sold_out", Some(Duration::from_millis(1)));
                        }
                    })
                })
                .collect();
            let mut taken = 0;
            while !counting.iter().all(|it| it.is_finished()) {
                history.add(history.take());
                taken += sold_out(history.take());
            }
            taken
        });
        assert_eq!(taken + sold_out(history.take()), 4 * EACH);
        assert!(history.take().is_empty());
    }
}
