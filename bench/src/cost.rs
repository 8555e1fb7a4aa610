//! The processor time of a purchase: of Redis, the application, Postgres and the generator.

use super::numbers::{NOT_MEASURED, median, ratio};

/// The owners of the four parts, in their order.
pub const WHO: [&str; 4] = ["Redis", "application", "Postgres", "generator"];

/// Processor seconds so far.
#[derive(Clone, Copy, Debug)]
pub struct Used(pub(super) [Option<f64>; 4]);

/// Microseconds of processor time for each purchase.
pub type Micros = [Option<f64>; 4];

impl Used {
    /// Microseconds since an earlier moment, for each of this many purchases.
    pub fn micros_since(&self, before: &Self, purchases: f64) -> Micros {
        let mut micros = [None; 4];
        for (each, (now, then)) in micros.iter_mut().zip(self.0.iter().zip(before.0)) {
            *each = ratio(now.zip(then).map(|(now, then)| (now - then) * 1e6), Some(purchases));
        }
        micros
    }
}

/// One part of a cost.
pub fn part(micros: &Micros, part: usize) -> Option<f64> {
    micros.get(part).copied().flatten()
}

/// The median of each part over the rounds.
pub fn middle(rounds: impl Iterator<Item = Micros>) -> Micros {
    let rounds: Vec<Micros> = rounds.collect();
    std::array::from_fn(|at| median(&rounds.iter().filter_map(|it| part(it, at)).collect::<Vec<_>>()))
}

/// The median of each part over the rounds, in words.
pub fn in_words(rounds: impl Iterator<Item = Micros>) -> String {
    let micros = middle(rounds);
    let parts = WHO.iter().zip(micros);
    let parts: Vec<String> = parts
        .filter_map(|(who, micros)| Some(format!("{who} {:.0}", micros?)))
        .collect();
    if parts.is_empty() {
        return NOT_MEASURED.to_owned();
    }
    let sum: f64 = micros.iter().flatten().sum();
    format!("{sum:.0} µs of processor time ({})", parts.join(", "))
}
