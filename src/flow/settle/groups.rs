//! Groups: what several callers want of the same key at the same time is done together.
//!
//! The first caller begins at once, so a caller alone waits for nobody. Callers that come while a group is at work form
//! the next group, and the newest of them does the work of all. It has the most time left, and so is the least likely to
//! leave.
//!
//! A caller may leave at any time. If it was at work, its group has no outcome, and the next group begins. A crash ends
//! a group like the work of one caller.

use crate::domain::fault::Fault;
use parking_lot::{Mutex, MutexGuard};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The most callers in a group: its transaction locks the rows of all.
const GROUP_MAX: usize = 256;
/// Callers of one key that may wait.
const WAITING_MAX: usize = 8192;
/// How long a group may take. A server that has fallen silent holds up no later group for longer.
const WORK_MAX: Duration = Duration::from_secs(5);

/// The callers that wait for each key with a group at work.
pub struct Groups<K: Copy + Eq + Hash, T, R>(Mutex<HashMap<K, Queue<K, T, R>>>);

type Queue<K, T, R> = VecDeque<Waiting<K, T, R>>;

struct Waiting<K: Copy + Eq + Hash, T, R> {
    wanted: T,
    reply: oneshot::Sender<Reply<K, T, R>>,
}

enum Reply<K: Copy + Eq + Hash, T, R> {
    /// The outcome of what the caller wanted.
    Outcome(R),
    /// The caller does the work of the next group, which ends with what it wanted itself.
    Turn(Turn<K, T, R>, T),
}

/// The turn of a key. The end of a turn passes it on, also when its caller has left.
struct Turn<K: Copy + Eq + Hash, T, R> {
    groups: Arc<Groups<K, T, R>>,
    key: K,
}

impl<K: Copy + Eq + Hash, T, R> Default for Groups<K, T, R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash, T, R> Groups<K, T, R> {
    /// Has this done, perhaps with what others want of the same key. `work` gets all of it, and returns an outcome for
    /// each, in the same order. Fails with `Unavailable` when too many wait, or when the group ended without an
    /// outcome.
    pub(in crate::flow) async fn join<F>(
        self: &Arc<Self>,
        key: K,
        wanted: T,
        work: impl FnOnce(Vec<T>) -> F,
    ) -> Result<R, Fault>
    where
        F: Future<Output = Vec<R>>,
    {
        let replied = self.enter(key, wanted)?;
        let (turn, wanted) = match replied.await {
            Ok(Reply::Outcome(outcome)) => return Ok(outcome),
            Ok(Reply::Turn(turn, wanted)) => (turn, wanted),
            Err(_) => return Err(no_outcome()),
        };
        let others = turn.take().into_iter().map(|it| (it.wanted, it.reply));
        let (mut all, replies): (Vec<_>, Vec<_>) = others.unzip();
        all.push(wanted);
        let outcomes = timeout(WORK_MAX, work(all)).await;
        // The next group need not wait for these replies.
        drop(turn);
        let mut outcomes = outcomes.map_err(|_| no_outcome())?.into_iter();
        for (reply, outcome) in replies.into_iter().zip(outcomes.by_ref()) {
            // The caller may have left.
            let _gone = reply.send(Reply::Outcome(outcome));
        }
        outcomes.next().ok_or_else(no_outcome)
    }

    /// Queues a caller. If no group is at work, the caller gets the turn at once.
    fn enter(self: &Arc<Self>, key: K, wanted: T) -> Result<oneshot::Receiver<Reply<K, T, R>>, Fault> {
        let (reply, replied) = oneshot::channel();
        match self.waiting().entry(key) {
            Entry::Occupied(mut queue) if queue.get().len() < WAITING_MAX => {
                queue.get_mut().push_back(Waiting { wanted, reply });
            }
            Entry::Occupied(_) => return Err(Fault::Unavailable("too many wait for the same sale".to_owned())),
            Entry::Vacant(idle) => {
                idle.insert(VecDeque::new());
                let groups = Arc::clone(self);
                // The receiver is here.
                let _sent = reply.send(Reply::Turn(Turn { groups, key }, wanted));
            }
        }
        Ok(replied)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<K, Queue<K, T, R>>> {
        self.0.lock()
    }
}

fn no_outcome() -> Fault {
    Fault::Unavailable("a group ended without an outcome".to_owned())
}

impl<K: Copy + Eq + Hash, T, R> Turn<K, T, R> {
    /// Takes out those that wait, oldest first, as many as a group has beside the caller itself.
    fn take(&self) -> Vec<Waiting<K, T, R>> {
        let mut waiting = self.groups.waiting();
        let Some(queue) = waiting.get_mut(&self.key) else {
            return Vec::new();
        };
        queue.retain(|it| !it.reply.is_closed());
        let count = queue.len().min(GROUP_MAX - 1);
        queue.drain(..count).collect()
    }
}

impl<K: Copy + Eq + Hash, T, R> Drop for Turn<K, T, R> {
    fn drop(&mut self) {
        let next = {
            let mut waiting = self.groups.waiting();
            let Some(queue) = waiting.get_mut(&self.key) else {
                return;
            };
            queue.retain(|it| !it.reply.is_closed());
            let next = queue.pop_back();
            if next.is_none() {
                waiting.remove(&self.key);
            }
            next
        };
        if let Some(Waiting { wanted, reply }) = next {
            let (groups, key) = (Arc::clone(&self.groups), self.key);
            // If the caller has just left, this drops the new turn, which passes it on.
            let _left = reply.send(Reply::Turn(Turn { groups, key }, wanted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use futures_util::future::{join, join_all, pending};
    use tokio::task::unconstrained;

    /// A number with the size of its group.
    type Outcome = (u32, usize);

    fn outcomes(all: Vec<u32>) -> Vec<Outcome> {
        let size = all.len();
        all.into_iter().map(|it| (it, size)).collect()
    }

    fn groups() -> Arc<Groups<u8, u32, Outcome>> {
        Arc::default()
    }

    #[tokio::test]
    async fn callers_that_come_while_a_group_is_at_work_form_the_next_ones() {
        let groups = groups();
        let (go, gone) = oneshot::channel::<()>();
        let first = groups.join(1, 0, |all| async {
            gone.await.unwrap();
            outcomes(all)
        });
        let count = u32::try_from(GROUP_MAX).unwrap() + 2;
        let others = (1..=count).map(|it| groups.join(1, it, |all| async { outcomes(all) }));
        // Otherwise one poll would not reach all of them.
        let mut all = Box::pin(unconstrained(join(first, join_all(others))));
        assert!((&mut all).now_or_never().is_none(), "they wait for the first");
        let elsewhere = groups.join(2, 9, |all| async { outcomes(all) });
        assert_eq!(elsewhere.await.unwrap(), (9, 1), "another key waits for nobody");
        go.send(()).unwrap();
        let (first, others) = all.await;
        assert_eq!(first.unwrap(), (0, 1));
        for (other, number) in others.into_iter().zip(1..) {
            // The newest has begun the first group, so two others are left.
            let is_left = [count - 2, count - 1].contains(&number);
            let size = if is_left { 2 } else { GROUP_MAX };
            assert_eq!(other.unwrap(), (number, size));
        }
        assert!(groups.waiting().is_empty());
    }

    #[tokio::test]
    async fn a_caller_that_leaves_ends_its_group_and_no_other() {
        let groups = groups();
        let mut first = Box::pin(groups.join(1, 1, |_| pending()));
        assert!((&mut first).now_or_never().is_none());
        let mut with_second = Box::pin(groups.join(1, 2, |all| async { outcomes(all) }));
        let mut second = Box::pin(groups.join(1, 3, |_| pending()));
        assert!((&mut with_second).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert!((&mut second).now_or_never().is_none(), "it is at work for both");
        let mut last = Box::pin(groups.join(1, 4, |all| async { outcomes(all) }));
        let mut third = Box::pin(groups.join(1, 5, |all| async { outcomes(all) }));
        assert!((&mut last).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        assert!(matches!(with_second.await, Err(Fault::Unavailable(_))));
        // It has the turn, and leaves before it begins.
        drop(third);
        assert_eq!(last.await.unwrap(), (4, 1));
        assert!(groups.waiting().is_empty());
    }
}
