//! How purchases of a sale are answered, as the instances tell each other while somebody watches.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// How many, since an instance began to count. What an instance of another version does not tell is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Purchases, by what was answered.
    pub answers: BTreeMap<String, u64>,
    /// Answers, by the microseconds that they took at most; those that took about as long are together.
    pub latency: BTreeMap<u64, u64>,
}

/// What an instance has told.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// Which one, for programs.
    pub id: Uuid,
    /// Which one, for people.
    pub instance: String,
    /// How long ago it told that.
    pub age_seconds: f64,
    /// For how long it had counted by then.
    pub counted_seconds: f64,
    /// What it had counted.
    pub counts: Counts,
}

/// After so long without a word, an instance is silent: it tells about once a second.
const SILENT_SECONDS: f64 = 3.0;

impl Told {
    /// Whether the instance should have told something since.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.age_seconds > SILENT_SECONDS
    }
}

impl Counts {
    /// Adds others.
    pub fn add(&mut self, others: &Self) {
        add(&mut self.answers, &others.answers);
        add(&mut self.latency, &others.latency);
    }

    /// What has come since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            answers: since(&self.answers, &before.answers),
            latency: since(&self.latency, &before.latency),
        }
    }
}

fn add<K: Ord + Clone>(sums: &mut BTreeMap<K, u64>, counts: &BTreeMap<K, u64>) {
    for (key, count) in counts {
        let sum = sums.entry(key.clone()).or_default();
        *sum = sum.saturating_add(*count);
    }
}

fn since<K: Ord + Clone>(now: &BTreeMap<K, u64>, before: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    let more = now.iter().filter_map(|(key, count)| {
        let more = count.saturating_sub(before.get(key).copied().unwrap_or_default());
        (more > 0).then(|| (key.clone(), more))
    });
    more.collect()
}
