//! What this process knows of the shards that sell: which it has reconciled, which hold permits, and which are
//! unverified. A crash loses nothing: another process learns it from the ledger and the stock.

mod renewals;
mod state;
mod superseded;
mod unverified;

use crate::cache::Cache;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::event::Position;
use crate::domain::sale::Sale;
use crate::stock::keys::ShardKey;
use parking_lot::{Mutex, MutexGuard, RwLock};
use state::State;
pub use state::{Finding, ShardCounts};
pub(super) use state::{HOLDS, Held, MARKED};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
pub(in crate::flow) use superseded::{check_server, superseded};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
pub(in crate::flow) use unverified::mark_unverified;

/// Sales rebuilt at once. Each rebuild keeps a connection to the ledger; the drains that it waits for and the jobs
/// need some, too.
const REBUILDINGS_MAX: usize = 4;

/// What this process knows of the shards that sell.
pub struct Permits {
    state: Mutex<State>,
    /// Sales that are over and unneeded for a while. This process neither renews, reconciles nor drains their shards
    /// until the sale is needed again.
    pub(super) resting: RwLock<HashSet<SaleId>>,
    /// Wakes the reconciling of this process: a shard does not sell.
    pub wanted: Notify,
    /// Wakes the purchases that wait for a shard to sell again.
    granted: Notify,
    /// One task at a time reconciles a sale in this process.
    attending: Cache<SaleId, Arc<tokio::sync::Mutex<()>>>,
    /// Limits the rebuilds of this process.
    rebuilding: Semaphore,
}

impl Default for Permits {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            resting: RwLock::default(),
            wanted: Notify::default(),
            granted: Notify::default(),
            attending: Cache::new(10_000),
            rebuilding: Semaphore::new(REBUILDINGS_MAX),
        }
    }
}

impl Permits {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent at every moment, also after a panic.
        self.state.lock()
    }

    /// The lock of the task that reconciles a sale.
    pub(super) fn attending(&self, sale: SaleId) -> Arc<tokio::sync::Mutex<()>> {
        self.attending.get_or_make(&sale, Arc::default)
    }

    /// Whether a sale rests. Its shards are as the sale left them, unless their server has changed.
    pub(in crate::flow) fn is_resting(&self, sale: SaleId) -> bool {
        let resting = self.resting.read();
        resting.contains(&sale)
    }

    /// Notes that a sale is needed. A resting sale is reconciled if its server has changed, and gets permits again.
    pub(in crate::flow) fn need(&self, sale: SaleId) {
        let rested = self.is_resting(sale) && {
            let mut resting = self.resting.write();
            resting.remove(&sale)
        };
        if let Some(needed) = self.state().needed.get_mut(&sale) {
            *needed = Instant::now();
        }
        if rested {
            self.wanted.notify_one();
        }
    }

    /// Lets a sale rest until it is needed, if it is still quiet.
    pub(super) fn rest(&self, sale: &Sale) {
        let mut state = self.state();
        if state.is_quiet(sale) {
            let mut resting = self.resting.write();
            resting.insert(sale.id);
            state.needed.remove(&sale.id);
        }
    }

    /// Stops renewing a shard, and has it checked before it gets another permit. The check trusts the ledger: a shard
    /// that the ledger lists as reconciled on its server sells again at once.
    pub fn recheck(&self, shard: ShardKey) {
        self.need(shard.sale);
        self.state().held.remove(&shard);
        self.wanted.notify_one();
    }

    #[must_use]
    pub fn count_shards(&self) -> ShardCounts {
        let state = self.state();
        let permitted = || state.held.iter().filter(|(_, held)| held.has_permit());
        let braked = permitted().filter(|(shard, _)| state.braked.contains(shard)).count();
        let (permitted, known) = (permitted().count(), state.held.len() + state.superseded.len());
        ShardCounts {
            selling: permitted - braked,
            braked,
            // A sale that was loaded a moment ago is not in `live` yet.
            halted: state.live.saturating_sub(known) + (state.held.len() - permitted),
            superseded: state.superseded.len(),
            epoch_max: state.held.values().map(|held| held.epoch).max().unwrap_or_default(),
        }
    }

    /// Notes that a shard sells, by a check that began at `checked`. Returns `false` if the shard was marked unverified
    /// since.
    pub(super) fn grant(&self, shard: ShardKey, held: Held, last: Position, checked: Instant) -> bool {
        let mut state = self.state();
        if state.is_marked_since(checked, shard, held.epoch) {
            return false;
        }
        state.held.insert(shard, held);
        state.seen.insert(shard, last);
        state.marks.remove(&shard);
        state.findings.remove(&shard);
        state.trimmed.remove(&shard);
        state.set_aside.remove(&shard);
        state.superseded.remove(&shard);
        drop(state);
        self.granted.notify_waiters();
        true
    }

    /// Waits for a place among the rebuilds of this process.
    pub(in crate::flow) async fn turn_to_rebuild(&self) -> Result<SemaphorePermit<'_>, Fault> {
        let turn = self.rebuilding.acquire().await;
        turn.map_err(|closed| Fault::Bug(closed.to_string()))
    }

    /// Has a halted shard checked, and waits until this process lets it sell again. Returns `false` if that takes
    /// longer than `patience`.
    pub async fn sells_again(&self, shard: ShardKey, patience: Duration) -> bool {
        self.recheck(shard);
        let wait = async {
            loop {
                let granted = self.granted.notified();
                if self.holds(shard) {
                    return;
                }
                granted.await;
            }
        };
        tokio::time::timeout(patience, wait).await.is_ok()
    }

    /// The epoch of each shard that this process knows as reconciled.
    pub(in crate::flow) fn epochs(&self) -> HashMap<ShardKey, i64> {
        let state = self.state();
        state.held.iter().map(|(shard, held)| (*shard, held.epoch)).collect()
    }

    /// A number that changes with the last event that this process knows of any shard of the sale. It hears of the
    /// events of shards that others renew by their notes.
    pub(super) fn last_events(&self, sale: &Sale) -> i64 {
        let state = self.state();
        let last = ShardKey::all(sale).filter_map(|key| state.seen.get(&key));
        last.fold(0, |sum: i64, last| sum.wrapping_add(last.epoch).wrapping_add(last.seq))
    }

    /// Whether a process has let a shard sell so lately that the permit still holds, as far as this one knows.
    pub(in crate::flow) fn lets_sell(&self, shard: ShardKey) -> bool {
        self.state().held.get(&shard).is_some_and(Held::has_permit)
    }

    /// Whether this process knows every shard as reconciled that does not rest.
    pub(super) fn holds_all(&self) -> bool {
        self.state().holds_all()
    }

    /// Whether this process knows a shard as reconciled, and sees to its permit.
    pub(in crate::flow) fn holds(&self, shard: ShardKey) -> bool {
        self.state().held.contains_key(&shard)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::state::QUIET;
    use super::*;
    use crate::domain::sale::NewSale;
    use chrono::Utc;

    pub fn sale() -> Sale {
        let now = Utc::now();
        Sale {
            shards: 4,
            ..NewSale::plain(Vec::new(), now, now).unstored()
        }
    }

    /// A shard that was permitted so long ago.
    fn held(sale: &Arc<Sale>, since: Duration) -> Held {
        let permitted = Instant::now().checked_sub(since).unwrap();
        Held {
            permitted,
            renewed: permitted,
            ..Held::begin(sale, 3, &"a".into())
        }
    }

    #[test]
    fn a_sale_rests_only_when_each_shard_has_a_permit() {
        let permits = Permits::default();
        let sale = Arc::new(sale());
        let (checked, first) = (Instant::now(), Position { epoch: 1, seq: 0 });
        assert!(!permits.state().is_quiet(&sale), "needed until now");
        permits
            .state()
            .needed
            .insert(sale.id, Instant::now().checked_sub(QUIET).unwrap());
        for shard in 0..sale.shards {
            assert!(!permits.state().is_quiet(&sale), "shard {shard} has no permit yet");
            permits.grant(
                ShardKey::new(sale.id, shard),
                held(&sale, Duration::ZERO),
                first,
                checked,
            );
        }
        assert!(permits.state().is_quiet(&sale));
        permits.grant(ShardKey::new(sale.id, 3), held(&sale, HOLDS), first, checked);
        permits.rest(&sale);
        assert!(!permits.is_resting(sale.id), "a permit is over");
        permits.grant(ShardKey::new(sale.id, 3), held(&sale, Duration::ZERO), first, checked);
        permits.rest(&sale);
        assert!(permits.is_resting(sale.id));
    }

    #[test]
    fn a_shard_whose_server_lets_nobody_renew_is_halted_when_its_permit_is_over() {
        let permits = Permits::default();
        let sale = Arc::new(sale());
        let shard = |shard| ShardKey::new(sale.id, shard);
        let (checked, first) = (Instant::now(), Position { epoch: 1, seq: 0 });
        permits.grant(shard(0), held(&sale, Duration::ZERO), first, checked);
        permits.grant(shard(1), held(&sale, HOLDS + Duration::from_millis(1)), first, checked);
        permits.grant(shard(2), held(&sale, HOLDS * 20), first, checked);
        let last = Position { epoch: 3, seq: 1 };
        permits.state().live = 4;
        let count = |selling, braked, halted| ShardCounts {
            selling,
            braked,
            halted,
            superseded: 0,
            epoch_max: 3,
        };
        assert_eq!(permits.count_shards(), count(1, 0, 3));
        permits.note(shard(2), Instant::now(), last, true, 7);
        assert_eq!(
            permits.count_shards(),
            count(1, 1, 2),
            "it answers again, and is braked"
        );
        permits.note(shard(2), Instant::now(), last, false, 0);
        assert_eq!(permits.count_shards(), count(2, 0, 2));
    }

    #[test]
    fn a_check_that_began_before_the_mark_does_not_let_the_shard_sell() {
        let permits = Permits::default();
        let sale = Arc::new(sale());
        let held = |epoch| Held {
            epoch,
            ..held(&sale, Duration::ZERO)
        };
        let (shard, last) = (ShardKey::new(sale.id, 0), Position { epoch: 3, seq: 0 });
        assert!(permits.grant(shard, held(3), last, Instant::now()));
        let checked = Instant::now();
        permits.mark_unverified(shard);
        assert!(!permits.grant(shard, held(3), last, checked));
        assert!(!permits.holds(shard), "it is checked at once more");
        // The mark concerns an older epoch, so the rebuilt shard may sell.
        assert!(permits.grant(shard, held(4), last, checked));
        permits.mark_unverified(shard);
        assert!(permits.grant(shard, held(4), last, Instant::now()));
        assert!(permits.holds(shard));
        // A mark after the rebuild concerns the new epoch, even while this process still holds the older one.
        let checked = Instant::now();
        permits.begin_epoch(shard, 5);
        permits.mark_unverified(shard);
        assert!(!permits.grant(shard, held(5), last, checked));
        assert!(permits.grant(shard, held(5), last, Instant::now()));
    }

    #[test]
    fn a_mark_of_a_shard_that_was_never_seen_holds_in_every_epoch() {
        let permits = Permits::default();
        let sale = Arc::new(sale());
        let shard = ShardKey::new(sale.id, 0);
        let held = || Held {
            epoch: 7,
            ..held(&sale, Duration::ZERO)
        };
        let (checked, last) = (Instant::now(), Position { epoch: 7, seq: 0 });
        permits.mark_unverified(shard);
        assert!(!permits.grant(shard, held(), last, checked));
        // A second mark in an earlier epoch takes nothing away from the first.
        permits.state().mark(shard, 6);
        assert!(!permits.grant(shard, held(), last, checked));
        assert!(permits.grant(shard, held(), last, Instant::now()));
    }
}
