//! Limits the growth of the audit log: by an actor's refused actions, and by reads that it already has. A restart
//! forgets both.

use crate::cache::Cache;
use crate::domain::operator::console::{Actor, NewAction, OperatorName};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Refused actions of one actor in a minute. After them each action has to wait, because they would fill the disk.
const REFUSED_MAX: u32 = 600;
const MINUTE: Duration = Duration::from_secs(60);
/// Within this time, the same read by the same actor is one entry.
const SAME_READ: Duration = Duration::from_secs(600);
/// How many actors and reads are remembered: some megabytes.
const REMEMBERED_MAX: usize = 10_000;

/// An actor with the name of its key or session, and with its address: several operators may share the operators' key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ActorAt(pub Actor, pub Option<OperatorName>, pub Option<IpAddr>);

/// Counts the refused actions of each actor in the last minute.
pub struct RefusedActions(Cache<ActorAt, Arc<Window>>);

struct Window {
    since: Instant,
    refused: AtomicU32,
}

impl Default for RefusedActions {
    fn default() -> Self {
        Self(Cache::fresh_for(MINUTE, REMEMBERED_MAX))
    }
}

impl RefusedActions {
    pub fn count(&self, actor: ActorAt) {
        let fresh = || {
            Arc::new(Window {
                since: Instant::now(),
                refused: AtomicU32::new(0),
            })
        };
        let window = self.0.get_or_make(&actor, fresh);
        window.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the actor may act; else how long it has to wait.
    pub fn check(&self, actor: &ActorAt) -> Result<(), Duration> {
        match self.0.get(actor) {
            Some(window) if window.refused.load(Ordering::Relaxed) >= REFUSED_MAX => Err(MINUTE
                .saturating_sub(window.since.elapsed())
                .max(Duration::from_millis(1))),
            _ => Ok(()),
        }
    }
}

/// The reads that the audit log has got in the last minutes: pages repeat theirs by themselves.
pub struct KnownReads(Cache<(ActorAt, String), ()>);

impl Default for KnownReads {
    fn default() -> Self {
        Self(Cache::fresh_for(SAME_READ, REMEMBERED_MAX))
    }
}

impl KnownReads {
    pub fn has(&self, actor: &ActorAt, read: &NewAction) -> bool {
        self.0.get(&key(actor, read)).is_some()
    }

    pub fn note(&self, actor: &ActorAt, read: &NewAction) {
        self.0.insert(key(actor, read), ());
    }
}

fn key(actor: &ActorAt, read: &NewAction) -> (ActorAt, String) {
    let asked = serde_json::to_string(&read.detail).unwrap_or_default();
    (actor.clone(), format!("{} {:?} {asked}", read.action, read.operator))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_refused_actions_of_one_actor_make_it_wait_and_nobody_else() {
        let refused = RefusedActions::default();
        let named = |name: Option<&str>, address: &str| {
            let name = name.map(|name| name.parse().unwrap());
            ActorAt(Actor::ApiKey, name, Some(address.parse().unwrap()))
        };
        let at = |address: &str| named(None, address);
        for _ in 0..REFUSED_MAX {
            assert_eq!(refused.check(&at("192.0.2.1")), Ok(()));
            refused.count(at("192.0.2.1"));
        }
        let wait = refused.check(&at("192.0.2.1")).unwrap_err();
        assert!(
            wait > Duration::from_secs(50) && wait <= Duration::from_secs(60),
            "{wait:?}"
        );
        assert_eq!(refused.check(&at("192.0.2.2")), Ok(()));
        assert_eq!(refused.check(&named(Some("ada"), "192.0.2.1")), Ok(()));
    }
}
