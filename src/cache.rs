//! A cache with room for so many entries, which may also end by their age. While one caller reads a value, the others
//! wait for it. If that caller is dropped, because its client has left, another one reads. A failed reading answers all
//! that waited for it, and no later caller.
//!
//! No caller gets an entry that has ended. It stays in memory until its key is read again, or another one needs its
//! place. A crash forgets all entries.

use futures_util::FutureExt as _;
use quick_cache::UnitWeighter;
use quick_cache::sync::DefaultLifecycle;
use std::convert::Infallible;
use std::hash::{Hash, RandomState};
use std::time::{Duration, Instant};

/// Clients choose some of the keys, so the hashes have a random seed.
type Entries<K, V> = quick_cache::sync::Cache<K, V, UnitWeighter, RandomState>;

/// `E` is the error of its readings.
pub struct Cache<K, V, E = Infallible> {
    entries: Entries<K, Entry<V, E>>,
    time_to_live: Option<Duration>,
}

#[derive(Clone)]
struct Entry<V, E> {
    outcome: Result<V, E>,
    /// `None` if no age ends it.
    until: Option<Instant>,
}

impl<V, E> Entry<V, E> {
    fn is_fresh(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

impl<K: Clone + Eq + Hash, V: Clone, E: Clone> Cache<K, V, E> {
    pub fn new(entries_max: usize) -> Self {
        Self::with(entries_max, None)
    }

    /// A cache whose entries end so long after they were inserted.
    pub fn fresh_for(time_to_live: Duration, entries_max: usize) -> Self {
        Self::with(entries_max, Some(time_to_live))
    }

    fn with(entries_max: usize, time_to_live: Option<Duration>) -> Self {
        let (places, hasher) = (entries_max as u64, RandomState::new());
        Self {
            entries: Entries::with(entries_max, places, UnitWeighter, hasher, DefaultLifecycle::default()),
            time_to_live,
        }
    }

    pub fn get(&self, key: &K) -> Option<V> {
        let entry = self.entries.get(key).filter(Entry::is_fresh)?;
        entry.outcome.ok()
    }

    pub fn insert(&self, key: K, value: V) {
        self.entries.insert(key, self.entry(Ok(value)));
    }

    /// Ends an entry. A reading that has begun answers only those that wait already, and its value is not kept.
    pub fn forget(&self, key: &K) {
        self.entries.remove(key);
    }

    /// [`Cache::forget`] for all entries.
    pub fn forget_all(&self) {
        self.entries.clear();
    }

    /// Ends an entry. A reading that has begun goes on for all: however many call this, one reads at a time.
    pub fn expire(&self, key: &K) {
        self.entries.remove_if(key, |_| true);
    }

    /// The entry's value, or the one that this reading returns.
    pub async fn try_get_or_read(&self, key: &K, read: impl Future<Output = Result<V, E>>) -> Result<V, E> {
        if let Some(value) = self.get_or_clear(key) {
            return Ok(value);
        }
        match self.entries.get_value_or_guard_async(key).await {
            // It was inserted after this call began, so its age does not matter.
            Ok(entry) => entry.outcome,
            Err(place) => {
                let outcome = read.await;
                // It is an error if the key was forgotten or inserted meanwhile.
                let _outdated = place.insert(self.entry(outcome.clone()));
                outcome
            }
        }
    }

    /// The entry's value. Without one, an entry that has ended makes room for the next.
    fn get_or_clear(&self, key: &K) -> Option<V> {
        let value = self.get(key);
        if value.is_none() {
            self.entries.remove_if(key, |entry| !entry.is_fresh());
        }
        value
    }

    /// A failure has ended at once. Those that wait for it get it all the same.
    fn entry(&self, outcome: Result<V, E>) -> Entry<V, E> {
        let time = outcome.as_ref().map_or(Some(Duration::ZERO), |_| self.time_to_live);
        Entry {
            outcome,
            until: time.map(|time| Instant::now() + time),
        }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Cache<K, V> {
    /// [`Cache::try_get_or_read`] for readings that do not fail.
    pub async fn get_or_read(&self, key: &K, read: impl Future<Output = V>) -> V {
        let Ok(value) = self.try_get_or_read(key, read.map(Ok)).await;
        value
    }

    /// The entry's value, or the one that `make` returns. Others that want it hold up their threads until then.
    pub fn get_or_make(&self, key: &K, make: impl FnOnce() -> V) -> V {
        if let Some(value) = self.get_or_clear(key) {
            return value;
        }
        let make = || Ok::<_, Infallible>(self.entry(Ok(make())));
        let Ok(entry) = self.entries.get_or_insert_with(key, make);
        let Ok(value) = entry.outcome;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::{join_all, pending};
    use std::cell::Cell;
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn one_reads_for_all_that_wait_and_nobody_later_gets_its_failure() {
        let cache: Cache<u8, u8, &str> = Cache::new(10);
        let readings = Cell::new(0);
        let ask = async |answer: Result<u8, &'static str>| {
            let read = async {
                readings.set(readings.get() + 1);
                yield_now().await;
                answer
            };
            cache.try_get_or_read(&1, read).await
        };
        let failed = join_all([ask(Err("away")), ask(Ok(1)), ask(Ok(2))]).await;
        assert_eq!((failed, readings.get()), (vec![Err("away"); 3], 1));
        assert_eq!(cache.get(&1), None);
        let read = join_all([ask(Ok(3)), ask(Ok(4)), ask(Err("away"))]).await;
        assert_eq!((read, readings.get()), (vec![Ok(3); 3], 2));
        assert_eq!((ask(Ok(5)).await, cache.get(&1), readings.get()), (Ok(3), Some(3), 2));
    }

    #[tokio::test]
    async fn another_that_waits_reads_if_the_first_leaves() {
        let cache: Cache<u8, u8> = Cache::new(10);
        let mut first = Box::pin(cache.get_or_read(&1, pending()));
        assert_eq!((&mut first).now_or_never(), None);
        let mut second = Box::pin(cache.get_or_read(&1, async { 2 }));
        assert_eq!((&mut second).now_or_never(), None, "it waits for the first");
        drop(first);
        assert_eq!(second.await, 2);
        assert_eq!(cache.get(&1), Some(2));
    }

    #[tokio::test]
    async fn an_older_value_does_not_come_back() {
        type Change = fn(&Cache<u8, u8>);
        let changes: [(Change, Option<u8>); 4] = [
            (|cache| cache.forget(&1), None),
            (Cache::forget_all, None),
            (|cache| cache.insert(1, 2), Some(2)),
            // The reading serves all.
            (|cache| cache.expire(&1), Some(1)),
        ];
        for (change, kept) in changes {
            let cache: Cache<u8, u8> = Cache::new(10);
            let (answer, answered) = oneshot::channel();
            let mut old = Box::pin(cache.get_or_read(&1, answered.map(Result::unwrap)));
            assert_eq!((&mut old).now_or_never(), None);
            change(&cache);
            answer.send(1).unwrap();
            assert_eq!((old.await, cache.get(&1)), (1, kept));
            cache.expire(&1);
            assert_eq!(cache.get(&1), None);
        }
    }

    #[tokio::test]
    async fn an_entry_ends_by_its_age_or_for_want_of_room() {
        for (time_to_live, kept) in [(Duration::ZERO, None), (Duration::from_secs(3600), Some(1))] {
            let cache: Cache<u8, u8> = Cache::fresh_for(time_to_live, 10);
            cache.insert(1, 1);
            assert_eq!(cache.get(&1), kept);
            assert_eq!(cache.get_or_make(&1, || 2), kept.unwrap_or(2));
            assert_eq!(cache.get_or_read(&1, async { 3 }).await, kept.unwrap_or(3));
        }
        for places in [1, 10] {
            let cache: Cache<u16, ()> = Cache::new(places);
            (0..1000).for_each(|key| cache.insert(key, ()));
            let left = (0..1000).filter(|key| cache.get(key).is_some()).count();
            assert!((1..=places).contains(&left), "{left} of {places}");
        }
    }
}
