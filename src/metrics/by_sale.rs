//! A gauge for each live sale. All values are replaced at once, so the series of a sale that is over disappears.

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Clone, Default)]
pub struct BySale(Arc<Mutex<BTreeMap<String, i64>>>);

impl BySale {
    pub fn replace(&self, values: BTreeMap<String, i64>) {
        *self.values() = values;
    }

    fn values(&self) -> MutexGuard<'_, BTreeMap<String, i64>> {
        self.0.lock()
    }
}

impl TypedMetric for BySale {
    const TYPE: MetricType = MetricType::Gauge;
}

impl EncodeMetric for BySale {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), std::fmt::Error> {
        for (sale, value) in self.values().iter() {
            encoder.encode_family(&[("sale", sale.as_str())])?.encode_gauge(value)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
