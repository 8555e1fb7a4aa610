//! Refusal counts: count what the guards of this process refuse, or would refuse, by sale, and add it up in the ledger.
//!
//! A crash loses the counts of the last second.

use crate::domain::fault::Fault;
use crate::domain::guard::{Effect, Layer, Sender, ShadowRefusal};
use crate::domain::ids::SaleId;
use crate::flow::{ADD_MAX, App, in_time};
use parking_lot::{RwLock, RwLockWriteGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sales and layers that are counted at once. Only requests for invented sales can reach this; further ones are not
/// counted.
const COUNTED_MAX: usize = 10_000;

type Key = (SaleId, Layer, Effect);

/// Refusals since they were last added up. Requests that count do not wait for each other, except for the first of
/// each sale and layer.
#[derive(Default)]
pub struct RefusalCounts(RwLock<HashMap<Key, AtomicU64>>);

impl RefusalCounts {
    /// Counts one request for this sale that a guard refuses or would refuse.
    pub fn count(&self, sale: SaleId, layer: Layer, effect: Effect) {
        let key = (sale, layer, effect);
        let counts = self.0.read();
        if let Some(count) = counts.get(&key) {
            // The read lock keeps the counts from being taken away meanwhile.
            count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        drop(counts);
        add(&mut self.alone(), key, 1);
    }

    fn alone(&self) -> RwLockWriteGuard<'_, HashMap<Key, AtomicU64>> {
        self.0.write()
    }

    fn take(&self) -> HashMap<Key, u32> {
        let counts = std::mem::take(&mut *self.alone());
        let whole = |count: AtomicU64| u32::try_from(count.into_inner()).unwrap_or(u32::MAX);
        counts.into_iter().map(|(key, count)| (key, whole(count))).collect()
    }

    fn give_back(&self, counts: HashMap<Key, u32>) {
        let mut now = self.alone();
        for (key, count) in counts {
            add(&mut now, key, count);
        }
    }
}

fn add(counts: &mut HashMap<Key, AtomicU64>, key: Key, more: u32) {
    if counts.len() < COUNTED_MAX || counts.contains_key(&key) {
        *counts.entry(key).or_default().get_mut() += u64::from(more);
    }
}

/// Counts a request that a guard in shadow would have refused, and notes its sender, if there is a known one.
pub fn would_stop(app: &App, sale: Option<SaleId>, layer: Layer, sender: Option<Sender>) {
    app.metrics.guard_shadow_refusals.of([layer.as_str()]).inc();
    let sale = sale.filter(|sale| app.sales.knows(*sale));
    if let Some(sale) = sale {
        app.refusal_counts.count(sale, layer, Effect::Shadow);
    }
    if let Some(sender) = sender {
        app.shadow_refusals.note(ShadowRefusal { layer, sale, sender });
    }
}

/// Adds the refusals of existing sales up in the ledger. Fails with `Unavailable` when Postgres does not answer: the
/// counts are kept for the next time.
pub async fn add_up(app: &App) -> Result<usize, Fault> {
    let counts = app.refusal_counts.take();
    if counts.is_empty() {
        return Ok(0);
    }
    let added = in_time(ADD_MAX, app.ledger.add_refusal_counts(&counts)).await;
    if added.is_err() {
        app.refusal_counts.give_back(counts);
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn nothing_is_lost_or_counted_twice_while_it_is_taken_and_given_back() {
        const EACH: u32 = 20_000;
        let counts = RefusalCounts::default();
        let sale = SaleId(Uuid::from_u128(1));
        let key = (sale, Layer::Address, Effect::Refused);
        let taken: u32 = std::thread::scope(|scope| {
            let counting: Vec<_> = (0..4)
                .map(|_| {
                    let count = || (0..EACH).for_each(|_| counts.count(sale, Layer::Address, Effect::Refused));
                    scope.spawn(count)
                })
                .collect();
            let mut taken = 0;
            while !counting.iter().all(|it| it.is_finished()) {
                counts.give_back(counts.take());
                taken += counts.take().remove(&key).unwrap_or_default();
            }
            taken
        });
        assert_eq!(taken + counts.take().remove(&key).unwrap_or_default(), 4 * EACH);
        assert!(counts.take().is_empty());
    }
}
