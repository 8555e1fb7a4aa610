//! Measures many holds that expire at one moment while other shoppers buy.

use super::FILLERS;
use super::stage::Stage;
use crate::Options;
use crate::cost::{self, Micros};
use crate::load::{self, ACCEPTED, Percentiles, Tally, Window, real};
use crate::numbers::{cell, median_of, ratio};
use crate::program::Program;
use crate::shoppers::Purchase;
use crate::sql;
use crate::world::Terms;
use anyhow::{Result, anyhow};
use chrono::{TimeDelta, Utc};
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The share of the peak rate at which shoppers buy during the expiry.
const SHARE_OF_PEAK: f64 = 0.5;
/// Connections of the shoppers.
const CONNECTIONS: usize = 256;
/// The time limit for the expiry of all holds.
const EXPIRY_MAX: Duration = Duration::from_secs(300);
/// The longest time that shoppers buy during the expiry: expiries give way to them, and so go on for as long as they buy.
const ASKED_MAX: Duration = Duration::from_secs(90);
/// The length in seconds of the window before the expiry. All holds must have their deadline before that window starts,
/// with [`ASIDE`] to spare.
const BEFORE: f64 = 4.0;
const ASIDE: Duration = Duration::from_millis(500);
/// Seconds from now to the deadline, in a trial and in a measurement. It is longer if a long window would leave less
/// than [`GIVING`] to set the deadlines.
const LEAD: [usize; 2] = [2, 20];
const GIVING: [usize; 2] = [1, 14];

/// The figures of an expiry of many holds at once.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Expiry {
    pub(super) holds: usize,
    /// Purchases a second before the expiry; the next field is during it.
    pub(super) rate_before: Option<f64>,
    pub(super) rate: Option<f64>,
    /// Microseconds of processor time in each millisecond before the expiry; the next field is during it.
    pub(super) busy_before: Micros,
    pub(super) busy_meanwhile: Micros,
    pub(super) before: Percentiles,
    pub(super) meanwhile: Percentiles,
    /// Seconds from the deadline until every unit was on sale again.
    pub(super) seconds: Option<f64>,
}

impl Expiry {
    /// The work of the processors, in words.
    pub(super) fn load_in_words(expired: &[Self]) -> String {
        let middle = |of: fn(&Self) -> Option<f64>| cell(median_of(expired, of), 0);
        let busy = |of: fn(&Self) -> Micros| cost::in_words(expired.iter().map(of));
        format!(
            "{} purchases a second came meanwhile, and {} holds a second were expired and given back beside them, on the same \
             processors: each millisecond took {}; before, with {} purchases and nothing that expired, {}",
            middle(|it| it.rate),
            middle(Self::holds_a_second),
            busy(|it| it.busy_meanwhile),
            middle(|it| it.rate_before),
            busy(|it| it.busy_before),
        )
    }

    pub(super) fn holds_a_second(&self) -> Option<f64> {
        ratio(Some(real(self.holds)), self.seconds)
    }
}

/// The time until the holds' deadline, and the time to set that deadline on all holds.
fn lead(before: Window, options: &Options) -> (Duration, Duration) {
    let of = |[quick, usual]: [usize; 2]| Duration::from_secs(options.size(quick, usual) as u64);
    let needed = before.warm + before.measured + ASIDE;
    let lead = of(LEAD).max(needed + of(GIVING));
    (lead, lead - needed)
}

/// Makes many holds expire at once while shoppers buy at half the peak rate.
pub(super) fn expire(stage: &mut Stage<'_>, program: &Program, peak: Option<f64>) -> Result<Expiry> {
    let bench = stage.bench;
    let holds = bench.options.size(2_000, 200_000);
    let mut expiry = Expiry {
        holds,
        ..Expiry::default()
    };
    let Some(rate) = peak.map(|peak| peak * SHARE_OF_PEAK) else {
        return Ok(expiry);
    };
    let (held, bought) = (stage.sale(&Terms::default())?, stage.sale(&Terms::default())?);
    stage.world.fill(bench, &held, FILLERS..FILLERS + holds, 0)?;
    stage.world.redis.drained(bench, &held)?;
    let before = bench.options.window(BEFORE);
    let (lead, giving) = lead(before, &bench.options);
    // All holds get one deadline, later than the update of the last hold, so that none expires early.
    let (due, deadline) = (Instant::now() + lead, Utc::now() + TimeDelta::from_std(lead)?);
    bench.wait_for(sql::expire_at(&stage.database, held.id.0, deadline))?;
    stage.calm()?;
    if Instant::now() + before.warm + before.measured + ASIDE > due {
        bench.remark(format!(
            "an expiry was not measured: within {:.1} s not all holds had their deadline",
            giving.as_secs_f64()
        ));
    } else {
        let load = Load {
            program,
            sale: bought.id.to_string(),
            rate,
        };
        load.measure(stage, &mut expiry, (before, due), held.id.0)?;
    }
    stage.world.redis.drained(bench, &bought)?;
    stage.world.close(bench, stage.all.address, &[held, bought])?;
    Ok(expiry)
}

/// The shoppers who buy before the expiry and during it.
struct Load<'a> {
    program: &'a Program,
    sale: String,
    rate: f64,
}

impl Load<'_> {
    /// Runs a window before the moment when the holds of the sale `held` are due, and a window from that moment on.
    fn measure(
        &self,
        stage: &mut Stage<'_>,
        expiry: &mut Expiry,
        (before, due): (Window, Instant),
        held: Uuid,
    ) -> Result<()> {
        let bench = stage.bench;
        let tally;
        (tally, expiry.busy_before) = self.window(stage, 0, before, &bench.stop)?;
        bench.go_on()?;
        bench.note(&tally, ACCEPTED, "before holds expired");
        (expiry.rate_before, expiry.before) = (tally.rate(ACCEPTED), tally.percentiles(ACCEPTED));
        let (is_over, database) = (bench.stop.child_token(), stage.database.clone());
        let (meanwhile, ended) = thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let ended = runtime.block_on(sql::wait_expired(&database, held, EXPIRY_MAX));
                is_over.cancel();
                ended
            });
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let window = Window {
                warm: Duration::ZERO,
                measured: ASKED_MAX,
            };
            let meanwhile = self.window(stage, tally.asked, window, &is_over);
            (meanwhile, watching.join())
        });
        let ended = ended.map_err(|_panic| anyhow!("the thread that watches the holds panicked"))??;
        let tally;
        (tally, expiry.busy_meanwhile) = meanwhile?;
        bench.go_on()?;
        bench.note(&tally, ACCEPTED, "while holds expired");
        (expiry.rate, expiry.meanwhile) = (tally.rate(ACCEPTED), tally.percentiles(ACCEPTED));
        expiry.seconds = ended.map(|at| at.saturating_duration_since(due).as_secs_f64());
        Ok(())
    }

    /// Purchases at the rate, by shoppers from this number on. Gives the processor time of each millisecond.
    fn window(
        &self,
        stage: &mut Stage<'_>,
        from: usize,
        window: Window,
        stop: &CancellationToken,
    ) -> Result<(Tally, Micros)> {
        let (server, redis) = (stage.all.address, [stage.world.redis.pid()?]);
        let question = stage.question(vec![Purchase::of(server, &self.sale, 0)], from);
        let (began, before) = (Instant::now(), stage.world.used(&redis, self.program.pid()));
        let load = load::open(server, &question, self.rate, CONNECTIONS, window, stop);
        let tally = stage.bench.wait_for(load)?;
        let milliseconds = began.elapsed().as_secs_f64() * 1000.0;
        let used = stage.world.used(&redis, self.program.pid());
        Ok((tally, used.micros_since(&before, milliseconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_after_what_is_measured_before_it_however_long_that_is() {
        let options = |quick, seconds| Options {
            quick,
            seconds,
            ..Options::default()
        };
        for (is_quick, seconds, wanted) in [
            (false, None, 20.0),
            (true, None, 2.0),
            (false, Some(16.0), 34.5),
            (false, Some(3600.0), 4514.5),
            (true, Some(5.0), 7.75),
        ] {
            let options = options(is_quick, seconds);
            let before = options.window(BEFORE);
            let (lead, giving) = lead(before, &options);
            assert!((lead.as_secs_f64() - wanted).abs() < 1e-9, "{lead:?}");
            assert!(giving >= Duration::from_secs(1), "{giving:?}");
            assert_eq!(before.warm + before.measured + ASIDE + giving, lead);
        }
    }
}
