//! What this process knows of each shard.

use crate::domain::deployment::server::Server;
use crate::domain::ids::SaleId;
use crate::domain::order::event::Position;
use crate::domain::sale::Sale;
use crate::stock::keys::ShardKey;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a permit holds: longer than a few failed renewals, shorter than any failover.
pub(in crate::flow::recover) const HOLDS: Duration = Duration::from_secs(3);
/// How long a sale that is over must go unneeded before it rests.
pub(super) const QUIET: Duration = Duration::from_secs(10);

/// Why a shard is unverified although it was reconciled on this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The ledger has lost events of the shard that it had committed.
    LostCommits,
    /// The shard's stream has an entry that no script wrote.
    ForeignEntry,
}

impl Finding {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LostCommits => "lost_commits",
            Self::ForeignEntry => "foreign_entry",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LostCommits => "Postgres has lost commits (docs/alerts.md#flashsalelostcommits)",
            Self::ForeignEntry => "its stream has a foreign entry (docs/alerts.md#flashsaleforeignentry)",
        })
    }
}

/// Why a checked shard does not sell yet.
pub(in crate::flow::recover) const MARKED: &str = "a shard was marked unverified while it was checked";

/// A mark: the shard is unverified.
#[derive(Debug, Clone, Copy)]
pub(in crate::flow::recover) struct Mark {
    /// The epoch that is marked. If the ledger has a newer one, another process has rebuilt the shard.
    pub(in crate::flow::recover) epoch: i64,
    /// A check that began before this does not clear the mark.
    since: Instant,
}

#[derive(Default)]
pub(in crate::flow::recover) struct State {
    /// Servers that this process has admitted.
    pub(in crate::flow::recover) admitted: HashSet<Server>,
    /// The shards that were reconciled, with the contents of their permits.
    pub(in crate::flow::recover) held: HashMap<ShardKey, Held>,
    /// Shards that are marked unverified.
    pub(in crate::flow::recover) marks: HashMap<ShardKey, Mark>,
    /// Why shards are unverified, until they sell again.
    pub(in crate::flow::recover) findings: HashMap<ShardKey, Finding>,
    /// Up to where the drain had trimmed each shard's stream, at its last renewal.
    pub(in crate::flow::recover) trimmed: HashMap<ShardKey, Position>,
    /// When this process first saw each shard that is silent or damaged as unverified in the ledger.
    pub(in crate::flow::recover) set_aside: HashMap<ShardKey, Instant>,
    /// Rounds of renewals so far.
    pub(in crate::flow::recover) rounds: u64,
    /// Whether the ledger failed to answer in the last renewal round.
    pub(in crate::flow::recover) is_ledger_silent: bool,
    /// Whether a server of Redis failed to answer in the last renewal round.
    pub(in crate::flow::recover) is_stock_silent: bool,
    /// The last event that this process saw each shard write.
    pub(in crate::flow::recover) seen: HashMap<ShardKey, Position>,
    /// Shards whose brake holds.
    pub(in crate::flow::recover) braked: HashSet<ShardKey>,
    /// Shards that a promoted replica has taken over from the server that this process asks.
    pub(in crate::flow::recover) superseded: HashSet<ShardKey>,
    /// When each sale that is over, and does not rest, was last needed.
    pub(in crate::flow::recover) needed: HashMap<SaleId, Instant>,
    /// The number of shards of all sales that do not rest.
    pub(in crate::flow::recover) live: usize,
}

impl State {
    /// Forgets the sales that are not `live`. `awake` are those of them that do not rest, with their numbers of shards.
    pub(in crate::flow::recover) fn keep(&mut self, live: &HashSet<SaleId>, awake: &HashMap<SaleId, u16>) {
        self.live = awake.values().map(|shards| usize::from(*shards)).sum();
        // Another round may have reconciled shards of a sale that rests by now.
        self.held.retain(|shard, _| awake.contains_key(&shard.sale));
        self.braked.retain(|shard| awake.contains_key(&shard.sale));
        self.marks.retain(|shard, _| live.contains(&shard.sale));
        self.seen.retain(|shard, _| live.contains(&shard.sale));
        self.findings.retain(|shard, _| live.contains(&shard.sale));
        self.trimmed.retain(|shard, _| live.contains(&shard.sale));
        self.set_aside.retain(|shard, _| live.contains(&shard.sale));
        self.superseded.retain(|shard| live.contains(&shard.sale));
        self.needed.retain(|sale, _| live.contains(sale));
    }

    /// Whether this process knows every shard as reconciled that does not rest.
    pub(in crate::flow::recover) fn holds_all(&self) -> bool {
        // Before the first round of reconciling, no shard is known to live.
        self.live > 0 && self.held.len() >= self.live
    }

    /// Marks a shard in this epoch unverified.
    pub(in crate::flow::recover) fn mark(&mut self, shard: ShardKey, epoch: i64) {
        self.held.remove(&shard);
        let before = self.marks.get(&shard).map_or(epoch, |it| it.epoch);
        let mark = Mark {
            epoch: epoch.max(before),
            since: Instant::now(),
        };
        self.marks.insert(shard, mark);
    }

    /// Notes whether a shard's brake holds. Returns whether that is news.
    pub(super) fn note_brake(&mut self, shard: ShardKey, brake: bool) -> bool {
        if brake {
            self.braked.insert(shard)
        } else {
            self.braked.remove(&shard)
        }
    }

    /// Whether a sale that is over is unneeded for a while, and this process knows all of its shards as reconciled.
    pub(in crate::flow::recover) fn is_quiet(&mut self, sale: &Sale) -> bool {
        let needed = *self.needed.entry(sale.id).or_insert_with(Instant::now);
        let mut shards = ShardKey::all(sale);
        needed.elapsed() >= QUIET && shards.all(|key| self.held.get(&key).is_some_and(Held::has_permit))
    }

    /// Whether a shard in this epoch was marked unverified after a check that began at `checked`.
    pub(in crate::flow::recover) fn is_marked_since(&self, checked: Instant, shard: ShardKey, epoch: i64) -> bool {
        let is_newer = |it: &Mark| it.since >= checked && it.epoch >= epoch;
        self.marks.get(&shard).is_some_and(is_newer)
    }
}

/// The number of shards of each kind, as one process knows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Reconciled, with a permit that holds.
    pub selling: usize,
    /// With a permit, but the brake holds.
    pub braked: usize,
    /// Not reconciled, or not renewed before the permit ran out.
    pub halted: usize,
    /// Taken over by a promoted replica.
    pub superseded: usize,
    /// The highest epoch of the shards that this process knows as reconciled.
    pub epoch_max: i64,
}

/// A shard that was reconciled.
#[derive(Clone)]
pub(in crate::flow::recover) struct Held {
    pub(in crate::flow::recover) sale: Arc<Sale>,
    pub(in crate::flow::recover) epoch: i64,
    /// The server on which it was reconciled.
    pub(in crate::flow::recover) server: Server,
    /// When the shard's current permit began, as far as this process knows. By another instance's note, this is up to two
    /// seconds too late.
    pub(in crate::flow::recover) permitted: Instant,
    /// When this process last asked for a permit of the shard.
    pub(in crate::flow::recover) renewed: Instant,
    /// When this process last let the shard sell, or found that the instance whose turn it was fell behind.
    pub(in crate::flow::recover) stands_in: Instant,
}

impl Held {
    /// A shard for which this process is about to ask for a permit.
    pub(in crate::flow::recover) fn begin(sale: &Arc<Sale>, epoch: i64, server: &Server) -> Self {
        let now = Instant::now();
        Self {
            sale: Arc::clone(sale),
            epoch,
            server: server.clone(),
            permitted: now,
            renewed: now,
            stands_in: now,
        }
    }

    /// How long its permit still holds, as far as this process knows.
    pub(in crate::flow::recover) fn left(&self) -> Duration {
        HOLDS.saturating_sub(self.permitted.elapsed())
    }

    pub(super) fn has_permit(&self) -> bool {
        !self.left().is_zero()
    }
}
