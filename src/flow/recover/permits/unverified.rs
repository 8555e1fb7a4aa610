//! Shards that are unverified: each is reconciled before its next permit.

use super::{Finding, Permits};
use crate::domain::ids::SaleId;
use crate::flow::App;
use crate::stock::keys::ShardKey;
use std::time::{Duration, Instant};

/// Once the ledger has listed a shard as unverified for this long, no permit for it is left. Every process reads the
/// ledger before it renews.
const SET_ASIDE: Duration = Duration::from_millis(4_500);

impl Permits {
    /// Marks a shard unverified: it lacks something that it should have. It is reconciled even if the ledger lists it
    /// as reconciled on its server.
    pub fn mark_unverified(&self, shard: ShardKey) {
        self.need(shard.sale);
        let mut state = self.state();
        // The shard may have lost its permit already. Its epoch may be newer than the one we reconciled. Take the last
        // epoch we saw, or any epoch if we never saw one.
        let held = state.held.get(&shard).map(|held| held.epoch);
        let seen = state.seen.get(&shard).map(|last| last.epoch);
        let epoch = held.max(seen).unwrap_or(i64::MAX);
        state.mark(shard, epoch);
        drop(state);
        self.wanted.notify_one();
    }

    /// Marks a shard in this epoch unverified because of a finding. Returns `false` if the shard has a finding
    /// already.
    fn mark_unverified_in(&self, shard: ShardKey, epoch: i64, finding: Finding) -> bool {
        self.need(shard.sale);
        let mut state = self.state();
        state.mark(shard, epoch);
        let is_new = state.findings.insert(shard, finding).is_none();
        drop(state);
        self.wanted.notify_one();
        is_new
    }

    /// The shards that are unverified because of a finding, in words.
    #[must_use]
    pub fn unverified(&self) -> Vec<String> {
        let state = self.state();
        let named = state.findings.iter();
        named
            .map(|(shard, finding)| format!("shard {} of sale {} is unverified: {finding}", shard.shard, shard.sale))
            .collect()
    }

    /// Whether every permit for these shards has run out: the ledger has listed them as unverified for `SET_ASIDE`.
    /// The `fresh` ones have been listed just now.
    pub(in crate::flow) fn are_set_aside(&self, sale: SaleId, shards: &[u16], fresh: &[u16]) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        let since = shards.iter().map(|shard| {
            let key = ShardKey::new(sale, *shard);
            if fresh.contains(shard) {
                state.set_aside.remove(&key);
            }
            *state.set_aside.entry(key).or_insert(now)
        });
        since.max().is_none_or(|since| now.duration_since(since) >= SET_ASIDE)
    }
}

/// Marks a shard unverified, and counts and logs the finding if it is new.
pub(in crate::flow) fn mark_unverified(app: &App, shard: ShardKey, epoch: i64, finding: Finding) {
    if app.permits.mark_unverified_in(shard, epoch, finding) {
        app.metrics.unverified_shards.of([finding.as_str()]).inc();
        tracing::error!(sale = %shard.sale, shard = shard.shard, "a shard is unverified: {finding}");
    }
}
