//! The figures of each round, and the goals among them.

use super::plan::{Round, Size};
use super::probe::Probe;
use super::scene::{Scene, is_refusal, lock};
use crate::load::real;
use crate::machine::{Machine, load_average};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// The goals, in order: the bots' share of the units, the share of people refused falsely, and the pace with bots as a
/// share of the pace without.
const SHARE_MAX: f64 = 0.07;
const FALSE_MAX: f64 = 0.001;
const PACE_MIN: f64 = 0.9;

/// The figures of one round.
#[derive(Serialize)]
pub struct Measured {
    pub round: Round,
    pub units_to_people: usize,
    pub units_to_bots: usize,
    /// The units of careful bots among the bots' units.
    pub units_to_careful_bots: usize,
    /// Units that the stock counts as held or sold and no reply reported, because that reply was lost.
    pub units_unheard_of: i64,
    pub bots_share: f64,
    /// The people in the waiting room at the start, and so in the lottery; the next field counts the bots.
    pub people_at_start: u64,
    pub bots_at_start: usize,
    /// Seconds from the first accepted purchase to each one, the first included.
    #[serde(skip)]
    sold_at: Vec<f64>,
    pub seconds_to_sell: f64,
    /// Accepted purchases a second over all units. `pace_ratio` compares this round with the round without bots, over
    /// the number of units that both sold.
    pub accepted_a_second: f64,
    pub compared_with: Option<&'static str>,
    pub compared_units: usize,
    pub pace_ratio: Option<f64>,
    pub people: BTreeMap<String, u64>,
    pub bots: BTreeMap<String, u64>,
    pub people_answered: u64,
    pub people_refused: usize,
    pub false_refusals: BTreeMap<String, u64>,
    pub false_share: f64,
    pub seconds: f64,
    pub bot_requests_a_second: f64,
    pub people_p50_ms: f64,
    pub people_p99_ms: f64,
    pub purchase_p50_ms: f64,
    pub purchase_p99_ms: f64,
    pub server_faults: u64,
    /// The processor time of the generator in seconds.
    pub generator_processor_seconds: f64,
    pub stopped: Value,
    pub is_oversold: bool,
    pub is_balanced: bool,
    pub differences: Value,
    pub breaches: Vec<String>,
}

/// A goal and its measurement.
#[derive(Serialize)]
pub struct Goal {
    pub goal: String,
    pub measured: String,
    pub is_reached: bool,
}

/// The report of all rounds.
#[derive(Serialize)]
pub struct Report {
    pub seed: u64,
    pub is_small: bool,
    pub began: String,
    pub machine: String,
    pub load_before: String,
    pub load_after: String,
    pub size: Size,
    pub probe: Option<Probe>,
    pub rounds: Vec<Measured>,
    pub goals: Vec<Goal>,
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { real(part) / real(whole) }
}

/// The latency that this percentage of the replies did not exceed, in milliseconds. The input is in microseconds.
fn percentile(sorted: &[u64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).map_or(0.0, |micros| {
        real(usize::try_from(*micros).unwrap_or(usize::MAX)) / 1000.0
    })
}

/// Purchases a second from the first to the `count`th.
fn pace(sold_at: &[f64], count: usize) -> f64 {
    let last = sold_at.get(count.saturating_sub(1)).filter(|last| **last > 0.0);
    last.map_or(0.0, |last| real(count - 1) / last)
}

impl Measured {
    pub fn of(scene: &Scene, ended: Instant, processor: f64, stats: &Value, audit: &Value) -> Self {
        let [mut people, bots] = [&scene.people, &scene.bots].map(|counts| std::mem::take(&mut *lock(counts)));
        people.latencies.sort_unstable();
        people.purchase_latencies.sort_unstable();
        let (to_people, to_bots) = (people.sold.len(), bots.sold.len());
        let sold_at = seconds_from_first([people.sold, bots.sold].concat());
        let number = |name: &str| stats["items"][0][name].as_i64().unwrap_or_default();
        let booked = number("held") + number("sold");
        let [stock, acknowledged] =
            [scene.size.stock, to_people + to_bots].map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        let refused = lock(&scene.refused).len();
        let seconds = (ended - scene.start).as_secs_f64();
        let bot_answers = bots.answers.values().sum::<u64>();
        Self {
            round: scene.round.clone(),
            units_to_people: to_people,
            units_to_bots: to_bots,
            units_to_careful_bots: bots.sold_carefully,
            units_unheard_of: booked - acknowledged,
            bots_share: share(to_bots, to_people + to_bots),
            people_at_start: scene.people_at_start.load(Ordering::Relaxed),
            bots_at_start: lock(&scene.bots_at_start).len(),
            seconds_to_sell: sold_at.last().copied().unwrap_or_default(),
            accepted_a_second: pace(&sold_at, sold_at.len()),
            sold_at,
            compared_with: None,
            compared_units: 0,
            pace_ratio: None,
            people_answered: scene.answered.load(Ordering::Relaxed),
            people_refused: refused,
            false_share: share(refused, scene.size.people),
            false_refusals: filter(&people.answers, is_refusal),
            seconds,
            bot_requests_a_second: share(usize::try_from(bot_answers).unwrap_or(usize::MAX), 1) / seconds.max(0.001),
            people_p50_ms: percentile(&people.latencies, 50),
            people_p99_ms: percentile(&people.latencies, 99),
            purchase_p50_ms: percentile(&people.purchase_latencies, 50),
            purchase_p99_ms: percentile(&people.purchase_latencies, 99),
            server_faults: [&people.answers, &bots.answers]
                .map(|answers| filter(answers, is_fault).values().sum::<u64>())
                .iter()
                .sum(),
            people: people.answers,
            bots: bots.answers,
            generator_processor_seconds: processor,
            stopped: stats["stopped"].clone(),
            is_oversold: booked > stock || acknowledged > stock || number("available") < 0 || number("total") != stock,
            is_balanced: audit["balanced"] == true,
            differences: audit["differences"].clone(),
            breaches: lock(&scene.breaches).clone(),
        }
    }

    pub fn line(&self) -> String {
        format!(
            "{} units to people, {} to bots ({:.1} %); {:.0} a second; {} people refused falsely; {:.0} bot requests a \
             second; {}",
            self.units_to_people,
            self.units_to_bots,
            self.bots_share * 100.0,
            self.accepted_a_second,
            self.people_refused,
            self.bot_requests_a_second,
            self.audit(),
        )
    }

    /// A line for each breach, for missing balance and for lost replies.
    fn warnings(&self) -> Vec<String> {
        let name = self.round.name;
        let breaches = self
            .breaches
            .iter()
            .map(|breach| format!("BREACH in {name}: {breach}\n"));
        let mut lines: Vec<String> = breaches.collect();
        if !self.is_balanced || self.is_oversold {
            lines.push(format!("NOT BALANCED: {name}: {}\n", self.differences));
        }
        if self.server_faults > 0 || self.units_unheard_of != 0 {
            lines.push(format!(
                "{name}: {} answers were the server's fault or never came, {} units in no reply\n",
                self.server_faults, self.units_unheard_of
            ));
        }
        lines
    }

    pub const fn audit(&self) -> &'static str {
        if self.is_balanced && !self.is_oversold {
            "balanced"
        } else {
            "NOT BALANCED"
        }
    }

    /// The round without bots and with the same admission.
    const fn without_bots(&self) -> &'static str {
        match (self.round.waiting_room, self.round.admissions_per_second) {
            (false, _) => "a",
            (true, None) => "g",
            (true, Some(_)) => "i",
        }
    }
}

/// Whether the name is a server error or no reply. `overloaded` is a refusal of a guard, and does not count.
fn is_fault(name: &str) -> bool {
    name == "no answer" || name.starts_with('5') && name != "503 overloaded"
}

fn filter(answers: &BTreeMap<String, u64>, is_wanted: fn(&str) -> bool) -> BTreeMap<String, u64> {
    let wanted = answers.iter().filter(|(name, _)| is_wanted(name));
    wanted.map(|(name, count)| (name.clone(), *count)).collect()
}

fn seconds_from_first(mut times: Vec<Instant>) -> Vec<f64> {
    times.sort_unstable();
    times.iter().map(|at| (*at - times[0]).as_secs_f64()).collect()
}

impl Report {
    pub fn new(seed: u64, is_small: bool, size: Size) -> Self {
        Self {
            seed,
            is_small,
            began: chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
            machine: format!(
                "{}, shared by the generator, the program, Redis and Postgres",
                Machine::of_this_run()
            ),
            load_before: load_average(),
            load_after: String::new(),
            size,
            probe: None,
            rounds: Vec::new(),
            goals: Vec::new(),
        }
    }

    fn find(&self, name: &str) -> Option<&Measured> {
        self.rounds.iter().find(|measured| measured.round.name == name)
    }

    /// Compares the rounds with those without bots, and judges the goals.
    pub fn finish(&mut self) {
        self.load_after = load_average();
        let alone: BTreeMap<&str, Vec<f64>> = self
            .rounds
            .iter()
            .filter(|it| !it.round.has_bots)
            .map(|it| (it.round.name, it.sold_at.clone()))
            .collect();
        for measured in self.rounds.iter_mut().filter(|it| it.round.has_bots) {
            let name = measured.without_bots();
            if let Some(others) = alone.get(name) {
                let count = others.len().min(measured.sold_at.len());
                measured.compared_with = Some(name);
                measured.compared_units = count;
                let before = pace(others, count);
                measured.pace_ratio = (before > 0.0).then(|| pace(&measured.sold_at, count) / before);
            }
        }
        self.goals = [self.share_goal(), self.refusals_goal(), self.pace_goal()]
            .into_iter()
            .flatten()
            .collect();
    }

    fn share_goal(&self) -> Option<Goal> {
        let share = self.find("f")?.bots_share;
        Some(Goal {
            goal: format!(
                "with all guards, bots that are {:.1} % of the accounts get at most {:.0} % of the units",
                self.size.bot_share() * 100.0,
                SHARE_MAX * 100.0
            ),
            measured: format!("{:.1} %", share * 100.0),
            is_reached: share <= SHARE_MAX,
        })
    }

    fn refusals_goal(&self) -> Option<Goal> {
        let guarded = ["f", "g"].iter().filter_map(|name| self.find(name));
        let worst = guarded.map(|it| it.false_share).reduce(f64::max)?;
        Some(Goal {
            goal: format!(
                "with all guards, at most {:.1} % of the people are refused falsely",
                FALSE_MAX * 100.0
            ),
            measured: format!("{:.2} %", worst * 100.0),
            is_reached: worst <= FALSE_MAX,
        })
    }

    /// Only h and i have this goal. In f and g, the waiting room's admission rate sets the pace.
    fn pace_goal(&self) -> Option<Goal> {
        let ratio = self.find("h")?.pace_ratio?;
        Some(Goal {
            goal: format!("accepted purchases a second stay at {PACE_MIN} of those without bots (h and i)"),
            measured: format!("{ratio:.2}"),
            is_reached: ratio >= PACE_MIN,
        })
    }

    /// Whether every sale balances, none was oversold, and no guard accepted a forbidden request.
    pub fn is_sound(&self) -> bool {
        let probe = self
            .probe
            .as_ref()
            .is_none_or(|it| it.broken == 0 && it.let_through <= it.most);
        probe
            && self
                .rounds
                .iter()
                .all(|it| it.is_balanced && !it.is_oversold && it.breaches.is_empty())
    }

    /// The report in Markdown, for a terminal and for a web page.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "| round | units: people / bots | bots' share | accepted a second (ratio) | people refused falsely | bots' \
             requests a second | purchases p50 / p99 | all answers to people p50 / p99 |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for it in &self.rounds {
            let ratio = it.pace_ratio.map(|ratio| format!(" ({ratio:.2})")).unwrap_or_default();
            text.push_str(&format!(
                "| {}: {} | {} / {} | {:.1} % | {:.0}{ratio} | {} ({:.2} %) | {:.0} | {:.0} / {:.0} ms | \
                 {:.0} / {:.0} ms |\n",
                it.round.name,
                it.round.title,
                it.units_to_people,
                it.units_to_bots,
                it.bots_share * 100.0,
                it.accepted_a_second,
                it.people_refused,
                it.false_share * 100.0,
                it.bot_requests_a_second,
                it.purchase_p50_ms,
                it.purchase_p99_ms,
                it.people_p50_ms,
                it.people_p99_ms,
            ));
        }
        text.push('\n');
        for goal in &self.goals {
            let word = if goal.is_reached { "reached" } else { "MISSED" };
            text.push_str(&format!("{word}: {}: {}\n", goal.goal, goal.measured));
        }
        if let Some(probe) = &self.probe {
            text.push_str(&format!(
                "bursts at the window's boundary: {} of {} requests let through, {} at the most; {} accounts with \
                 too many\n",
                probe.let_through, probe.asked, probe.most, probe.broken
            ));
        }
        text + &self.rounds.iter().flat_map(Measured::warnings).collect::<String>()
    }
}
