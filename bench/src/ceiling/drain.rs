//! The drain of a backlog, and plain inserts of the same rows.

use super::{Round, Stage};
use crate::Bench;
use crate::load::real;
use crate::numbers::ratio;
use crate::sql;
use crate::world::{Plan, Terms, World, backlog};
use anyhow::Result;
use flashsale::domain::sale::Sale;
use flashsale::flow::settle::drain::BATCH_MAX;
use std::thread;
use std::time::{Duration, Instant};

/// The time limit for draining a backlog.
const DRAIN_MAX: Duration = Duration::from_secs(300);

impl Stage<'_> {
    /// Measures a worker that drains a backlog, and plain inserts of the same rows. The rounds alternate which of the
    /// two is first. A round that inserts first uses an equal backlog that was drained before.
    pub(super) fn measure_drain(&self, round: &mut Round, number: usize) -> Result<()> {
        if number.is_multiple_of(2) {
            let (sale, _) = self.drained()?;
            round.insert = self.insert(&sale)?;
            round.drain = self.drained()?.1;
        } else {
            let (sale, rate) = self.drained()?;
            round.drain = rate;
            round.insert = self.insert(&sale)?;
        }
        if round.drain.is_none() {
            self.bench
                .remark("the backlog was gone before the drain could be watched".to_owned());
        }
        Ok(())
    }

    pub(super) fn orders(&self) -> usize {
        self.bench.options.size(8_000, 100_000)
    }

    /// Fills a backlog while no worker drains, then measures a worker. Gives the sale, and the orders a second that the
    /// worker drained.
    fn drained(&self) -> Result<(Sale, Option<f64>)> {
        let program = self.home.api.start()?;
        let sale = self.world.sale(
            self.bench,
            self.home.api.address,
            &self.home.database,
            &Terms::default(),
        )?;
        self.world.fill(self.bench, &sale, 0..self.orders(), self.salt())?;
        program.stop();
        self.calm()?;
        let rate = rate(self.bench, self.world, &sale, &self.home.worker)?;
        Ok((sale, rate))
    }

    /// Rows a second when the orders of a backlog are inserted once more.
    fn insert(&self, sale: &Sale) -> Result<Option<f64>> {
        self.calm()?;
        let inserting = sql::insert_again(&self.home.database, sale.id.0, BATCH_MAX);
        let (rows, seconds) = self.bench.wait_for(inserting)?;
        let orders = self.orders();
        if rows != orders {
            self.bench
                .remark(format!("of {orders} orders in the backlog, the ledger has {rows}"));
        }
        Ok(ratio(Some(real(rows)), Some(seconds)))
    }
}

/// Starts a worker and measures how it drains a backlog, in orders a second.
///
/// The clock starts at the first poll that finds the backlog smaller, so the worker's start does not count. Each shard
/// may have one batch nearly done at that time; those batches do not count. `None` if no more orders were left.
pub fn rate(bench: &Bench, world: &World, sale: &Sale, worker: &Plan) -> Result<Option<f64>> {
    let mut redis = world.redis.connect()?;
    let waiting = backlog(&mut redis, sale)?;
    let mut first = None;
    let nearly_done = BATCH_MAX * usize::from(sale.shards);
    let (started, ended) = thread::scope(|scope| {
        let starting = scope.spawn(|| worker.start());
        let ended = bench.poll("the backlog is drained", DRAIN_MAX, || {
            let left = backlog(&mut redis, sale)?;
            if left < waiting && first.is_none() {
                first = Some((Instant::now(), left));
            }
            Ok((left == 0).then(Instant::now))
        });
        (starting.join(), ended)
    });
    let worker = started.map_err(|_panic| anyhow::anyhow!("the start of a worker panicked"))??;
    worker.stop();
    let (ended, first) = (ended?, first);
    let rate = first.and_then(|(began, left)| {
        let orders = usize::try_from(left).ok()?.checked_sub(nearly_done)?;
        ratio(
            Some(real(orders)).filter(|it| *it > 0.0),
            Some((ended - began).as_secs_f64()),
        )
    });
    Ok(rate)
}
