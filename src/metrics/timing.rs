//! A histogram of durations without a lock, so that one timed purchase never waits for another.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bounds of all histograms, from which each takes a part.
const STEPS: &[Duration] = &[
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(600),
];

/// Bounds for answers that people wait for: 1 ms to 10 s.
pub const ANSWERS: &[Duration] = STEPS.split_at(15).0.split_at(2).1;

/// Bounds for calls of a script: 250 µs to 1 s. Most take less than a millisecond, and none takes longer than its limit
/// of 1.5 s.
pub const CALLS: &[Duration] = STEPS.split_at(12).0;

/// Bounds for work in the background: 5 ms to ten minutes.
pub const WORK: &[Duration] = STEPS.split_at(4).1;

#[derive(Clone, Debug)]
pub struct Timing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bounds: &'static [Duration],
    /// How many durations were at most each bound and above the bound before. The last count is for the rest.
    counts: Vec<AtomicU64>,
    /// The sum of the durations. It has room for 584 years.
    nanoseconds: AtomicU64,
}

impl Timing {
    /// A histogram with these bounds, in ascending order.
    pub fn new(bounds: &'static [Duration]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Inner {
            bounds,
            counts,
            nanoseconds: AtomicU64::new(0),
        }))
    }

    /// Counts a duration.
    pub fn observe(&self, took: Duration) {
        let at = self.0.bounds.partition_point(|bound| *bound < took);
        if let Some(count) = self.0.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.0.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl TypedMetric for Timing {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Timing {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), std::fmt::Error> {
        let sum = Duration::from_nanos(self.0.nanoseconds.load(Ordering::Relaxed)).as_secs_f64();
        let bounds = self.0.bounds.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // The sum of the counts in this report, so that both agree while other threads count.
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::{Registry, Unit};

    #[test]
    fn each_duration_is_in_the_buckets_that_hold_it() {
        const BOUNDS: &[Duration] = &[Duration::from_millis(1), Duration::from_secs(1)];
        let timing = Timing::new(BOUNDS);
        for took in [0, 1_000, 1_001, 1_000_000, 2_000_000] {
            timing.observe(Duration::from_micros(took));
        }
        let mut registry = Registry::default();
        registry.register_with_unit("t", "T", Unit::Seconds, timing);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "t_seconds_sum 3.002001",
            "t_seconds_count 5",
            "t_seconds_bucket{le=\"0.001\"} 2",
            "t_seconds_bucket{le=\"1.0\"} 4",
            "t_seconds_bucket{le=\"+Inf\"} 5",
        ] {
            assert!(text.lines().any(|it| it == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn bounds_rise_from_one_to_the_next() {
        for bounds in [ANSWERS, CALLS, WORK] {
            assert!(bounds.is_sorted_by(|one, next| one < next), "{bounds:?}");
        }
    }
}
