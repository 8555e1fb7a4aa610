//! One metric for each combination of values of some labels. All values are known in advance and reported from the
//! start. So counting needs no lock and no allocation, no label set can grow, and a rate includes the first
//! occurrence of a value.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::sync::Arc;

/// `N` is the number of labels.
#[derive(Debug)]
pub struct By<M, const N: usize = 1>(Arc<Inner<M, N>>);

#[derive(Debug)]
struct Inner<M, const N: usize> {
    labels: [&'static str; N],
    metrics: Vec<([&'static str; N], M)>,
    /// Counts unknown values. It is not reported.
    unknown: M,
}

impl<M, const N: usize> Clone for By<M, N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M, const N: usize> By<M, N> {
    /// Metrics made by `make`, one for each combination of the labels' values. Frequent values should come first,
    /// since a value is searched from the start.
    pub fn new(labels: [(&'static str, &[&'static str]); N], make: impl Fn() -> M) -> Self {
        let mut sets = vec![[""; N]];
        for (at, (_, values)) in labels.iter().enumerate() {
            let longer = |set: &[&'static str; N], value: &'static str| {
                let mut set = *set;
                if let Some(it) = set.get_mut(at) {
                    *it = value;
                }
                set
            };
            sets = sets
                .iter()
                .flat_map(|set| values.iter().map(move |value| longer(set, value)))
                .collect();
        }
        Self(Arc::new(Inner {
            labels: labels.map(|(label, _)| label),
            metrics: sets.into_iter().map(|set| (set, make())).collect(),
            unknown: make(),
        }))
    }

    /// The metric of these values, in the order of the labels.
    pub fn of(&self, values: [&str; N]) -> &M {
        let found = self.0.metrics.iter().find(|(known, _)| *known == values);
        debug_assert!(found.is_some(), "{:?} is never {values:?}", self.0.labels);
        found.map_or(&self.0.unknown, |(_, metric)| metric)
    }

    /// Whether these values are among the known ones.
    pub fn knows(&self, values: [&str; N]) -> bool {
        self.0.metrics.iter().any(|(known, _)| *known == values)
    }
}

impl<M: TypedMetric, const N: usize> TypedMetric for By<M, N> {
    const TYPE: MetricType = M::TYPE;
}

impl<M: EncodeMetric + TypedMetric, const N: usize> EncodeMetric for By<M, N> {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), std::fmt::Error> {
        for (values, metric) in &self.0.metrics {
            let labels: Vec<(&str, &str)> = self.0.labels.into_iter().zip(*values).collect();
            metric.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::registry::Registry;

    #[test]
    fn every_value_is_told_before_it_is_counted() {
        let by: By<Counter, 2> = By::new([("a", &["x", "y"]), ("b", &["1", "2"])], Counter::default);
        by.of(["y", "1"]).inc();
        let mut registry = Registry::default();
        registry.register("c", "C", by);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "c_total{a=\"x\",b=\"1\"} 0",
                "c_total{a=\"x\",b=\"2\"} 0",
                "c_total{a=\"y\",b=\"1\"} 1",
                "c_total{a=\"y\",b=\"2\"} 0",
            ]
        );
    }
}
