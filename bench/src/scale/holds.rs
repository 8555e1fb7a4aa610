//! The cost of a purchase beside many live holds, and the drain beside many orders.

use super::stage::{Measured, Stage};
use super::{Common, FEW_HOLDS, FILLERS, HOLDS, pair};
use crate::ceiling::drain;
use crate::load::real;
use crate::numbers::{grouped, ratio};
use crate::program::Program;
use crate::world::{Terms, backlog};
use anyhow::Result;
use flashsale::domain::sale::Sale;
use serde::Serialize;
use std::time::Instant;

/// The figures of a million holds and of their drain.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Many {
    pub(super) holds: usize,
    pub(super) bytes_a_purchase: Option<f64>,
    /// Bytes of Redis for each order that waits for the ledger, beside the bytes of its purchase.
    pub(super) bytes_an_event: Option<f64>,
    pub(super) fill_a_second: Option<f64>,
    pub(super) drain_a_second: Option<f64>,
}

/// The numbers of holds in ascending order.
pub(super) const fn sizes(is_quick: bool) -> &'static [usize] {
    if is_quick { &FEW_HOLDS } else { &HOLDS }
}

/// The smallest and the largest number of holds.
pub(super) fn ends(is_quick: bool) -> (usize, usize) {
    let sizes = sizes(is_quick);
    (sizes.first().copied().unwrap_or(1), sizes.last().copied().unwrap_or(1))
}

/// Fills a sale to each size, in its own world. Then it alternates the most holds, in that world, and the fewest, each
/// time in a new world.
pub(super) fn measure(common: &Common<'_>, measured: &mut Vec<Measured>) -> Result<Many> {
    let bench = common.bench;
    let (_, most) = ends(bench.options.quick);
    let mut stage = Stage::new(common)?;
    let program = stage.all.start()?;
    let sale = stage.sale(&Terms::default())?;
    let mut many = fill(&mut stage, &program, &sale, measured)?;
    program.stop();
    for turn in 1..=common.turns {
        bench.step(&format!("turn {turn}: fewest and most holds"))?;
        for size in pair(sizes(bench.options.quick), turn) {
            if size == most {
                let program = stage.all.start()?;
                measured.push(stage.again(&program, &sale, size, turn, common.long)?);
                program.stop();
            } else {
                measured.push(measure_few(common, size, turn)?);
            }
        }
    }
    bench.step("the drain beside many orders")?;
    measure_drain(&mut many, &stage, &sale)?;
    stage.note_outages("many holds")?;
    Ok(many)
}

/// Fills a sale to each size in turn, and runs a window on each size between the fewest and the most.
fn fill(stage: &mut Stage<'_>, program: &Program, sale: &Sale, measured: &mut Vec<Measured>) -> Result<Many> {
    let bench = stage.bench;
    let (fewest, most) = ends(bench.options.quick);
    let mut many = Many {
        holds: most,
        ..Many::default()
    };
    let mut redis = stage.world.redis.connect()?;
    let empty = redis.memory()?;
    let mut filled = 0;
    for size in sizes(bench.options.quick).iter().copied() {
        bench.step(&format!("{} holds", grouped(real(size))))?;
        let began = Instant::now();
        stage.world.fill(bench, sale, FILLERS + filled..FILLERS + size, 0)?;
        many.fill_a_second = ratio(Some(real(size - filled)), Some(began.elapsed().as_secs_f64()));
        filled = size;
        stage.world.redis.drained(bench, sale)?;
        if size == most {
            // The holds of the windows use memory too.
            let holds = real(filled + stage.next);
            many.bytes_a_purchase = ratio(Some(redis.memory()? - empty), Some(holds));
        } else if size != fewest {
            // These sizes share one world, so they are for the plot and not for a goal.
            measured.push(stage.again(program, sale, size, 0, stage.window)?);
        }
    }
    Ok(many)
}

/// Fills a sale in a new world, and runs a window on it.
fn measure_few(common: &Common<'_>, holds: usize, turn: usize) -> Result<Measured> {
    let mut stage = Stage::new(common)?;
    let program = stage.all.start()?;
    let sale = stage.sale(&Terms::default())?;
    stage.world.fill(common.bench, &sale, FILLERS..FILLERS + holds, 0)?;
    stage.world.redis.drained(common.bench, &sale)?;
    let measured = stage.again(&program, &sale, holds, turn, common.long)?;
    program.stop();
    Ok(measured)
}

fn measure_drain(many: &mut Many, stage: &Stage<'_>, sale: &Sale) -> Result<()> {
    let (bench, world) = (stage.bench, &stage.world);
    let url = world.redis.url()?;
    let plan = |role| world.plan(role, &["serve", "--role", role], &url, &stage.database);
    let (api, worker) = (plan("api")?, plan("worker")?);
    let program = api.start()?;
    let from = FILLERS + many.holds;
    world.fill(bench, sale, from..from + bench.options.size(4_000, 100_000), 0)?;
    program.stop();
    stage.calm()?;
    // No shopper buys now, so the freed memory is that of the events.
    let mut redis = world.redis.connect()?;
    let (waiting, full) = (usize::try_from(backlog(&mut redis, sale)?)?, redis.memory()?);
    many.drain_a_second = drain::rate(bench, world, sale, &worker)?;
    many.bytes_an_event = ratio(Some(full - redis.memory()?), Some(real(waiting)));
    Ok(())
}
