//! Measures many holds that expire at one moment while other shoppers buy.

use super::{FILLERS, Stage};
use crate::Options;
use crate::load::{self, Percentiles, Tally, Window, real};
use crate::numbers::{NOT_MEASURED, cell, median, ratio};
use crate::program::Program;
use crate::shoppers::{Purchase, Question};
use crate::sql;
use crate::world::{Micros, Terms, in_words, middle};
use anyhow::{Result, anyhow};
use chrono::{TimeDelta, Utc};
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// The share of the peak rate at which shoppers buy during the expiry.
const SHARE_OF_PEAK: f64 = 0.5;
/// Connections of the shoppers.
const CONNECTIONS: usize = 256;
/// The time limit for the expiry of all holds.
const EXPIRY_MAX: Duration = Duration::from_secs(180);
/// The longest time that shoppers buy during the expiry.
const ASKED_MAX: Duration = Duration::from_secs(20);
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
    pub(super) fn in_its_way(expired: &[Self]) -> String {
        let meanwhile = |of: fn(&Self) -> Option<f64>| median(&expired.iter().filter_map(of).collect::<Vec<_>>());
        let busy = |of: fn(&Self) -> Micros| {
            let micros = middle(&expired.iter().map(of).collect::<Vec<_>>());
            in_words(&micros).unwrap_or_else(|| NOT_MEASURED.to_owned())
        };
        format!(
            "{} purchases a second came meanwhile, and {} holds a second were expired and given back beside them, on the same \
             processors: each millisecond took {}; before, with {} purchases and nothing that expired, {}",
            cell(meanwhile(|it| it.rate), 0),
            cell(meanwhile(|it| ratio(Some(real(it.holds)), it.seconds)), 0),
            busy(|it| it.busy_meanwhile),
            cell(meanwhile(|it| it.rate_before), 0),
            busy(|it| it.busy_before),
        )
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
    let mut came_to = Expiry {
        holds,
        ..Expiry::default()
    };
    let Some(rate) = peak.map(|peak| peak * SHARE_OF_PEAK) else {
        return Ok(came_to);
    };
    let (held, bought) = (stage.sale(&Terms::default())?, stage.sale(&Terms::default())?);
    stage.world.fill(bench, &held, FILLERS..FILLERS + holds, 0)?;
    stage.world.drained(bench, &held)?;
    let before_window = bench.options.window(BEFORE);
    let (lead, giving) = lead(before_window, &bench.options);
    // All holds get one deadline, later than the update of the last hold, so that none expires early.
    let (due, deadline) = (Instant::now() + lead, Utc::now() + TimeDelta::from_std(lead)?);
    bench.wait_for(sql::expire_at(&stage.database, held.id.0, deadline))?;
    stage.calm()?;
    let is_late = Instant::now() + before_window.warm + before_window.measured + ASIDE > due;
    if is_late {
        stage.remark(format!(
            "an expiry was not measured: within {:.1} s not all holds had their deadline",
            giving.as_secs_f64()
        ));
    } else {
        let redis = [stage.world.redis.pid()?];
        let (began, used) = (Instant::now(), stage.world.used(&redis, program.pid()));
        let before = ask(stage, (&bought.id.to_string(), 0), rate, before_window, &bench.stop)?;
        let seconds = began.elapsed().as_secs_f64();
        came_to.busy_before = stage
            .world
            .used(&redis, program.pid())
            .micros_since(&used, seconds * 1000.0);
        bench.go_on()?;
        stage.note(&before, "before holds expired");
        let (is_over, database) = (bench.stop.child_token(), stage.database.clone());
        let (meanwhile, ended) = thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let ended = runtime.block_on(sql::wait_expired(&database, held.id.0, EXPIRY_MAX));
                is_over.cancel();
                ended
            });
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let (began, used) = (Instant::now(), stage.world.used(&redis, program.pid()));
            let window = Window {
                warm: Duration::ZERO,
                measured: ASKED_MAX,
            };
            let meanwhile = ask(stage, (&bought.id.to_string(), before.asked), rate, window, &is_over);
            let seconds = began.elapsed().as_secs_f64();
            came_to.busy_meanwhile = stage
                .world
                .used(&redis, program.pid())
                .micros_since(&used, seconds * 1000.0);
            (meanwhile, watching.join())
        });
        let ended = ended.map_err(|_panic| anyhow!("who watched the holds panicked"))??;
        let meanwhile = meanwhile?;
        bench.go_on()?;
        stage.note(&meanwhile, "while holds expired");
        (came_to.rate_before, came_to.rate) = (before.rate(201, ""), meanwhile.rate(201, ""));
        came_to.before = before.percentiles(201, "");
        came_to.meanwhile = meanwhile.percentiles(201, "");
        came_to.seconds = ended.map(|at| at.saturating_duration_since(due).as_secs_f64());
    }
    stage.world.drained(bench, &bought)?;
    stage.world.close(bench, stage.all.address, &[held, bought])?;
    Ok(came_to)
}

/// Purchases of a sale at a rate, by shoppers from this number on.
fn ask(
    stage: &mut Stage<'_>,
    (sale, from): (&str, usize),
    rate: f64,
    window: Window,
    stop: &CancellationToken,
) -> Result<Tally> {
    stage.salt += 1;
    let server = stage.all.address;
    let question = Question::Purchases {
        of: vec![Purchase::of(server, sale, 0)],
        shoppers: stage.shoppers,
        from,
        salt: stage.salt,
    };
    let asking = load::open(server, &question, rate, CONNECTIONS, window, stop);
    stage.bench.wait_for(asking)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_deadline_is_after_what_is_measured_before_it_however_long_that_is() {
        let options = |is_quick, seconds| Options {
            quick: is_quick,
            seconds,
            clients: None,
            rounds: None,
            seed: 1,
            out: PathBuf::new(),
            data: PathBuf::new(),
            stop: CancellationToken::new(),
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
