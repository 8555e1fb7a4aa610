//! Instances: which ones live, and which of them does a piece of upkeep. Each instance ranks itself for each sale and
//! each job among those that live, by a hash of both. So upkeep costs by shards and time, not by instances.
//!
//! A rank decides what upkeep costs, and never whether it is safe. Any instance may do any of it at any time, side by
//! side with others: scripts, claims and locks see to that. An instance that cannot read which others live, because
//! Redis or its note is away, does everything itself. A note says what its instance is able to do, and the others count
//! on it for nothing else. A crash leaves a note that is soon out of date.
//!
//! The first three for a job may all hang. So the others take turns at it, one in each slot of time.

use crate::domain::fault::Fault;
use crate::flow::App;
use crate::stock::keys::ShardKey;
use crate::stock::recover::instances::{InstanceNote, LastNote, LiveNote};
use parking_lot::{Mutex, RwLock};
use siphasher::sip::SipHasher13;
use std::cmp::Reverse;
use std::hash::{Hash, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;
use uuid::Uuid;

/// How long the list of those that live counts after it was read. A note lasts about as long.
const COUNTS: Duration = Duration::from_secs(3);
/// The first, and those in reserve.
const PLACES: usize = 3;

/// Whose turn a piece of upkeep is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// This instance does it.
    First,
    /// This instance does it when the first falls behind.
    Second,
    /// This instance does it when the first two fall behind.
    Third,
    Other,
}

/// What this instance knows of the others.
pub struct Instances {
    own: Uuid,
    has_jobs: AtomicBool,
    reaches_ledger: AtomicBool,
    serves: AtomicBool,
    /// The name of the ledger: other instances may share only Redis with this one.
    ledger: OnceCell<String>,
    /// Empty while a note is written, and after one that failed.
    last_note: Mutex<LastNote>,
    others: RwLock<Option<Others>>,
}

impl Default for Instances {
    fn default() -> Self {
        Self {
            own: Uuid::new_v4(),
            has_jobs: AtomicBool::default(),
            reaches_ledger: AtomicBool::new(true),
            serves: AtomicBool::default(),
            ledger: OnceCell::new(),
            last_note: Mutex::default(),
            others: RwLock::default(),
        }
    }
}

/// The others that lived when this instance asked.
struct Others {
    asked: Instant,
    live: Vec<Other>,
}

#[derive(Debug, Clone, Copy)]
struct Other {
    hash: u64,
    works: bool,
    serves: bool,
    renews: bool,
}

impl From<&InstanceNote> for Other {
    fn from(note: &InstanceNote) -> Self {
        Self {
            hash: hash_of(note.id),
            works: note.works,
            serves: note.serves,
            renews: note.renews,
        }
    }
}

impl Instances {
    /// Notes whether this instance runs the jobs.
    pub fn note_works(&self, works: bool) {
        self.has_jobs.store(works, Ordering::Relaxed);
    }

    /// Notes whether this instance reaches the ledger. If it does not, other workers do its jobs.
    pub(in crate::flow) fn note_ledger(&self, reaches: bool) {
        self.reaches_ledger.store(reaches, Ordering::Relaxed);
    }

    pub(super) fn works(&self) -> bool {
        self.has_jobs.load(Ordering::Relaxed) && self.reaches_ledger.load(Ordering::Relaxed)
    }

    fn serves(&self) -> bool {
        self.serves.load(Ordering::Relaxed) && self.reaches_ledger.load(Ordering::Relaxed)
    }

    /// Notes that this instance serves HTTP.
    pub fn note_serves(&self) {
        self.serves.store(true, Ordering::Relaxed);
    }

    /// This instance's rank for the permits of each of these shards, among those that know every shard as reconciled.
    /// One that has just started, or cannot reach a shard, is not among them, unless all are so. `holds_all` says whether
    /// this instance knows every shard. All shards of a sale have the same rank: otherwise every instance would be in
    /// reserve for some, and watch them in each round.
    pub(super) fn ranks_of<'a>(&self, shards: impl Iterator<Item = &'a ShardKey>, holds_all: bool) -> Vec<Rank> {
        let renewing = self.others(|it| it.renews);
        // If no instance can hold some shard, each would be first for all the rest.
        let none_renews = !holds_all && renewing.as_ref().is_some_and(Vec::is_empty);
        let others = if none_renews { self.others(|_| true) } else { renewing };
        shards
            .map(|shard| self.rank_among(others.as_deref(), hash_of(shard.sale)))
            .collect()
    }

    /// This instance's rank for a job, among those that run jobs.
    pub fn rank_of_job(&self, name: &str) -> Rank {
        // The others do not count on an instance that does not reach the ledger. It tries all the same.
        let others = self.others(|it| it.works).filter(|_| self.works());
        self.rank_among(others.as_deref(), hash_of(name))
    }

    /// Whether this instance runs no jobs, or is neither first nor in reserve for this one.
    pub(super) fn rests_from_job(&self, name: &str) -> bool {
        !self.works() || self.rank_of_job(name) == Rank::Other
    }

    /// This instance's rank for a piece of work, among those that serve HTTP.
    pub(in crate::flow) fn rank_to_serve(&self, work: &str) -> Rank {
        let others = self.others(|it| it.serves).filter(|_| self.serves());
        self.rank_among(others.as_deref(), hash_of(work))
    }

    /// This instance's rank beside these others. If it is not known which ones live, it does the work.
    fn rank_among(&self, others: Option<&[u64]>, work: u64) -> Rank {
        others.map_or(Rank::First, |others| rank(hash_of(self.own), others, work))
    }

    /// Whether this instance has the turn of a slot of time at a job, among the workers that are neither first for it nor
    /// in reserve. Where two list the living differently, a slot may have two turns, or none.
    pub fn has_turn(&self, name: &str, slot: i64) -> bool {
        let others = self.others(|it| it.works).filter(|_| self.works());
        let (work, slot) = (hash_of(name), hash_of((name, slot)));
        others.is_none_or(|others| has_turn(hash_of(self.own), &others, work, slot))
    }

    /// How long Redis took for the note of a moment ago. None also while the next one waits for its answer, and on a
    /// cluster.
    pub(in crate::flow) fn took(&self) -> Option<Duration> {
        self.last_note.lock().took()
    }

    /// Whether every instance that lives runs the jobs, so that each of them drains what it sells.
    pub fn all_work(&self) -> bool {
        self.works() && self.others(|it| !it.works).is_some_and(|idle| idle.is_empty())
    }

    /// The hashes of the other instances like this; `None` if it is not known which ones live.
    fn others(&self, is_like: impl Fn(&Other) -> bool) -> Option<Vec<u64>> {
        let others = self.others.read();
        let others = others.as_ref().filter(|others| others.asked.elapsed() < COUNTS)?;
        let like = others.live.iter().filter(|it| is_like(it));
        Some(like.map(|it| it.hash).collect())
    }
}

/// Not the standard library's hasher, which may change with the compiler: two releases must agree on who is first.
fn hash_of(it: impl Hash) -> u64 {
    let mut hasher = SipHasher13::new();
    it.hash(&mut hasher);
    hasher.finish()
}

/// How well an instance suits a piece of work: a mix of both hashes (the finalizer of `SplitMix64`).
const fn weight(instance: u64, work: u64) -> u64 {
    let mut mixed = instance ^ work;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The rank of an instance: how many others suit the work better.
fn rank(own: u64, others: &[u64], work: u64) -> Rank {
    let own = weight(own, work);
    match others.iter().filter(|other| weight(**other, work) > own).count() {
        0 => Rank::First,
        1 => Rank::Second,
        2 => Rank::Third,
        _ => Rank::Other,
    }
}

/// Whether the turn of a slot is this instance's, among those behind the first places for the work.
fn has_turn(own: u64, others: &[u64], work: u64, slot: u64) -> bool {
    let mut all: Vec<u64> = others.iter().copied().chain([own]).collect();
    all.sort_unstable_by_key(|it| Reverse(weight(*it, work)));
    let behind = all.into_iter().skip(PLACES);
    behind.max_by_key(|it| weight(*it, slot)) == Some(own)
}

/// The name of the ledger, which is read once. Fails with `Unavailable` when Postgres has not answered yet.
pub(in crate::flow) async fn ledger_name(app: &App) -> Result<&str, Fault> {
    let name = app.instances.ledger.get_or_try_init(|| app.ledger.name()).await;
    name.map(String::as_str)
}

/// Notes that this instance lives, and reads which others do and what they know of shards. Fails with `Unavailable`
/// when Redis or Postgres does not answer: soon this instance does everything itself.
pub async fn note(app: &App) -> Result<(), Fault> {
    let instances = &app.instances;
    let ledger = ledger_name(app).await?;
    let asked = Instant::now();
    let own = InstanceNote {
        id: instances.own,
        works: instances.works(),
        serves: instances.serves(),
        renews: app.permits.holds_all(),
        sightings: app.permits.sightings(),
    };
    let last = std::mem::take(&mut *instances.last_note.lock());
    let (notes, last) = app.stock.note_instance(ledger, &own, last).await?;
    *instances.last_note.lock() = last;
    for LiveNote { note, age } in &notes {
        let noted = asked.checked_sub(*age).unwrap_or(asked);
        app.permits.note_sightings(&note.sightings, noted);
    }
    let live = notes.iter().map(|it| Other::from(&it.note)).collect();
    let mut others = instances.others.write();
    *others = Some(Others { asked, live });
    Ok(())
}

/// Removes the note of this instance, which ends. Fails with `Unavailable` when Redis does not answer: the note is soon
/// out of date.
pub async fn forget(app: &App) -> Result<(), Fault> {
    match app.instances.ledger.get() {
        Some(ledger) => app.stock.forget_instance(ledger, app.instances.own).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(instances: u64) -> Vec<(u64, Vec<u64>)> {
        let all: Vec<u64> = (0..instances).map(hash_of).collect();
        let others = |own: u64| all.iter().copied().filter(|it| *it != own).collect();
        all.iter().map(|own| (*own, others(*own))).collect()
    }

    #[test]
    fn each_work_has_one_first_and_two_in_reserve_and_all_have_about_as_much() {
        const WORKS: u64 = 2_000;
        let lists = lists(10);
        let mut firsts = vec![0; lists.len()];
        for work in (0..WORKS).map(|it| hash_of(("work", it))) {
            let ranks: Vec<Rank> = lists.iter().map(|(own, others)| rank(*own, others, work)).collect();
            for (expected, count) in [(Rank::First, 1), (Rank::Second, 1), (Rank::Third, 1), (Rank::Other, 7)] {
                assert_eq!(ranks.iter().filter(|rank| **rank == expected).count(), count);
            }
            firsts[ranks.iter().position(|rank| *rank == Rank::First).unwrap()] += 1;
        }
        assert!(firsts.iter().all(|count| (100..=300).contains(count)), "{firsts:?}");
    }

    #[test]
    fn in_each_slot_one_of_those_behind_the_first_places_has_the_turn_and_all_get_about_as_many() {
        const SLOTS: u64 = 2_100;
        let (lists, work) = (lists(10), hash_of("expire"));
        let is_behind = |(own, others): &(u64, Vec<u64>)| rank(*own, others, work) == Rank::Other;
        let mut turns = vec![0; lists.len()];
        for slot in (0..SLOTS).map(|it| hash_of(("expire", it))) {
            let chosen: Vec<usize> = (0..lists.len())
                .filter(|at| has_turn(lists[*at].0, &lists[*at].1, work, slot))
                .collect();
            assert_eq!(chosen.len(), 1);
            turns[chosen[0]] += 1;
        }
        for (list, turns) in lists.iter().zip(turns) {
            assert_eq!(turns > 0, is_behind(list));
            assert!(turns == 0 || (200..=400).contains(&turns), "{turns}");
        }
        let few = self::lists(3);
        assert!(few.iter().all(|(own, others)| !has_turn(*own, others, work, 0)));
    }

    #[test]
    fn when_the_first_is_gone_the_second_is_first_and_nothing_else_moves() {
        let lists = lists(6);
        let (gone, _) = lists[0];
        for work in (0..500).map(hash_of) {
            for (own, others) in &lists[1..] {
                let left: Vec<u64> = others.iter().copied().filter(|it| *it != gone).collect();
                let (before, after) = (rank(*own, others, work), rank(*own, &left, work));
                let moved = weight(gone, work) > weight(*own, work);
                assert!(moved || before == after);
                assert!(!moved || before != Rank::Second || after == Rank::First);
            }
        }
    }

    #[test]
    fn an_instance_that_does_not_know_the_others_does_everything() {
        let instances = Instances::default();
        let shard = ShardKey::new(crate::domain::ids::SaleId(Uuid::nil()), 1);
        let first = |instances: &Instances| {
            instances.ranks_of([shard].iter(), true) == [Rank::First]
                && instances.rank_of_job("expire") == Rank::First
                && instances.has_turn("expire", 7)
                && instances.rank_to_serve("count") == Rank::First
        };
        assert!(first(&instances));
        assert!(!instances.all_work());
        instances.note_works(true);
        instances.note_serves();
        let better = (0..).map(hash_of).filter(|other| {
            let suits_better = |work| weight(*other, work) > weight(hash_of(instances.own), work);
            suits_better(hash_of(shard.sale)) && suits_better(hash_of("expire")) && suits_better(hash_of("count"))
        });
        let live = better.take(3).map(|hash| Other {
            hash,
            works: true,
            serves: true,
            renews: true,
        });
        let mut live: Vec<Other> = live.collect();
        let note = |asked, live| *instances.others.write() = Some(Others { asked, live });
        note(Instant::now(), live.clone());
        assert_eq!(instances.ranks_of([shard].iter(), true), [Rank::Other]);
        assert_eq!(instances.rank_of_job("expire"), Rank::Other);
        assert!(instances.rests_from_job("expire"));
        assert!(
            instances.has_turn("expire", 7),
            "nobody else is behind the first places"
        );
        assert!(instances.all_work());
        assert_eq!(instances.rank_to_serve("count"), Rank::Other);
        instances.note_ledger(false);
        assert_eq!(
            instances.rank_of_job("expire"),
            Rank::First,
            "it does not reach the ledger"
        );
        assert!(!instances.all_work());
        instances.note_ledger(true);
        live[0].works = false;
        note(Instant::now(), live.clone());
        assert!(!instances.all_work(), "one of them only sells");
        live.iter_mut().for_each(|other| other.renews = false);
        note(Instant::now(), live.clone());
        assert_eq!(
            instances.ranks_of([shard].iter(), true),
            [Rank::First],
            "they cannot renew it"
        );
        assert_eq!(
            instances.ranks_of([shard].iter(), false),
            [Rank::Other],
            "nobody can hold every shard"
        );
        note(Instant::now().checked_sub(COUNTS).unwrap(), live);
        assert!(first(&instances), "the list is too old");
    }
}
