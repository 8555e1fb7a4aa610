//! Counts of the answers to a sale's purchases. Instances report them to each other while an operator follows the sale.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The counts since an instance began to count. A field that another version does not report is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Purchases by their answer.
    pub answers: BTreeMap<String, u64>,
    /// Answers by their longest duration in microseconds. Similar durations share an entry.
    pub latency: BTreeMap<u64, u64>,
}

/// The report of one instance.
#[derive(Debug, Clone, PartialEq)]
pub struct InstanceReport {
    /// The instance, for programs.
    pub id: Uuid,
    /// The instance, for people.
    pub instance: String,
    /// How long ago it reported.
    pub age_seconds: f64,
    /// How long it had counted until that report.
    pub counted_seconds: f64,
    pub counts: Counts,
}

/// An instance is silent after so long without a report: instances report about once a second.
const SILENT_SECONDS: f64 = 3.0;

impl InstanceReport {
    /// Whether the instance's next report is overdue.
    pub fn is_silent(&self) -> bool {
        self.age_seconds > SILENT_SECONDS
    }
}

impl Counts {
    pub fn add(&mut self, others: &Self) {
        add(&mut self.answers, &others.answers);
        add(&mut self.latency, &others.latency);
    }

    /// The counts since `before`.
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
