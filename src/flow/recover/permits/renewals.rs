//! What renewals show of the shards: what is left of their permits, and the last events that they wrote.

use super::{HOLDS, Permits};
use crate::domain::order::event::Position;
use crate::stock::keys::ShardKey;
use crate::stock::recover::instances::Sighting;
use crate::stock::recover::permit::PermitLeft;
use std::time::{Duration, Instant};

/// A process that has asked for a shard's permit within this time is one of those that renew it.
const RENEWS: Duration = Duration::from_secs(2);

impl Permits {
    /// Notes that a rebuild gave a shard this epoch. Later findings concern the new generation.
    pub(in crate::flow) fn begin_epoch(&self, shard: ShardKey, epoch: i64) {
        self.state().seen.insert(shard, Position { epoch, seq: 0 });
    }

    /// Notes a shard's backlog. Logs once when its brake begins to hold, and once when the brake lets go.
    pub(in crate::flow::recover) fn note(
        &self,
        shard: ShardKey,
        asked: Instant,
        last: Position,
        brake: bool,
        waiting: i64,
    ) {
        let mut state = self.state();
        // A late reply may be of an earlier epoch.
        if state.seen.get(&shard).is_none_or(|seen| seen.epoch <= last.epoch) {
            state.seen.insert(shard, last);
        }
        if let Some(held) = state.held.get_mut(&shard) {
            (held.permitted, held.renewed) = (asked, asked);
            let seq = last.seq - waiting;
            state.trimmed.insert(shard, Position { seq, ..last });
        }
        let is_news = state.note_brake(shard, brake);
        let (sale, number) = (shard.sale, shard.shard);
        if is_news && brake {
            tracing::warn!(%sale, shard = number, waiting, "orders wait too long for the ledger, or Redis is short of memory; the shard sells nothing");
        } else if is_news {
            tracing::info!(%sale, shard = number, "the ledger has caught up; the shard sells again");
        }
    }

    /// Notes what is left of a permit that another instance renews, as read after `asked`. Returns `false` if that is
    /// less than `least`, or the shard has another epoch: then this process has to ask for a permit itself.
    pub(in crate::flow::recover) fn note_left(
        &self,
        shard: ShardKey,
        asked: Instant,
        read: Option<PermitLeft>,
        least: Duration,
    ) -> bool {
        let mut state = self.state();
        let Some(held) = state.held.get_mut(&shard) else {
            return true;
        };
        let Some(read) = read.filter(|read| read.epoch == held.epoch) else {
            return false;
        };
        let spent = HOLDS.saturating_sub(read.left);
        held.permitted = asked.checked_sub(spent).unwrap_or(held.permitted);
        state.note_brake(shard, read.brake);
        read.left >= least
    }

    /// Notes that the instances whose turn it was have fallen behind with these shards: this process renews their
    /// permits for a while.
    pub(in crate::flow::recover) fn stand_in(&self, shards: &[ShardKey]) {
        let mut state = self.state();
        for shard in shards {
            if let Some(held) = state.held.get_mut(shard) {
                held.stands_in = Instant::now();
            }
        }
    }

    /// The shards whose permits this process renews. If Redis loses their last events, the instance that notices first
    /// counts the loss.
    pub(in crate::flow::recover) fn sightings(&self) -> Vec<Sighting> {
        let state = self.state();
        let renewed = state.held.iter().filter(|(_, held)| held.renewed.elapsed() < RENEWS);
        renewed
            .filter_map(|(shard, held)| {
                let last = state.seen.get(shard).filter(|last| last.epoch == held.epoch)?;
                let brake = state.braked.contains(shard);
                Some(Sighting::new(*shard, &held.server, *last, brake))
            })
            .collect()
    }

    /// Notes what another instance noted then of shards whose permits it had renewed, at most [`RENEWS`] before. What this
    /// process saw itself is newer, and a shard on another server by now may have lost events: that loss was counted.
    pub(in crate::flow::recover) fn note_sightings(&self, sightings: &[Sighting], then: Instant) {
        let mut state = self.state();
        for it in sightings {
            let Some(held) = state.held.get_mut(&it.shard) else {
                continue;
            };
            if held.epoch != it.last.epoch || !it.is_on(&held.server) {
                continue;
            }
            held.permitted = held.permitted.max(then);
            if held.renewed.elapsed() >= RENEWS {
                state.seen.insert(it.shard, it.last);
                state.note_brake(it.shard, it.brake);
            }
        }
    }

    /// The number of events that this process saw the shard write and that the shard no longer has. `last` is its last
    /// event now.
    pub(in crate::flow) fn lost_since(&self, shard: ShardKey, last: Position) -> i64 {
        let before = self.state().seen.insert(shard, last);
        before.map_or(0, |before| {
            let same_epoch = before.epoch == last.epoch;
            if same_epoch { (before.seq - last.seq).max(0) } else { 0 }
        })
    }

    /// The last event that this process saw a shard write.
    pub(in crate::flow) fn last_seen(&self, shard: ShardKey) -> Option<Position> {
        self.state().seen.get(&shard).copied()
    }
}
