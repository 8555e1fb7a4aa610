//! Redis servers by name.

use std::fmt;

/// The replication id of a Redis server that takes writes. It changes at least with every restart and every promotion, so
/// no two servers have accepted orders under the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationId(String);

impl From<&str> for ReplicationId {
    fn from(id: &str) -> Self {
        Self(id.to_owned())
    }
}

/// The name of a Redis server: the run id of its process, its replication id, and the replication id that it had as a
/// replica, with hyphens in between. An earlier version stored fewer of these parts. A name without a part has taken
/// over from no server.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server(String);

impl Server {
    pub fn new(run_id: &str, replication_id: &str, earlier_replication_id: &str) -> Self {
        Self(format!("{run_id}-{replication_id}-{earlier_replication_id}"))
    }

    /// The whole name, as the ledger and the scripts have it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The run id of the process. It stays the same until the process ends, also when the server becomes a replica.
    pub fn run_id(&self) -> &str {
        self.0.split('-').next().unwrap_or_default()
    }

    /// Missing in a name that an earlier version stored.
    pub fn replication_id(&self) -> Option<ReplicationId> {
        self.0.split('-').nth(1).map(ReplicationId::from)
    }

    /// Whether this server was a replica of `other` and was promoted since. If so, later writes of `other` do not
    /// belong to the sale.
    pub fn has_taken_over_from(&self, other: &Self) -> bool {
        let earlier = self.0.split('-').nth(2);
        earlier.is_some() && earlier == other.0.split('-').nth(1)
    }
}

impl From<&str> for Server {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promoted_replica_has_taken_over_from_its_primary_and_from_nobody_else() {
        let [primary, promoted, third] = ["r1-aa-00", "r2-bb-aa", "r3-cc-00"].map(Server::from);
        assert!(promoted.has_taken_over_from(&primary));
        for (noted, other) in [
            (&primary, &promoted),
            (&promoted, &promoted),
            (&promoted, &third),
            (&third, &primary),
        ] {
            assert!(!noted.has_taken_over_from(other), "{noted} {other}");
        }
        // The name as an earlier version stored it.
        assert!(!Server::from("r2-bb").has_taken_over_from(&"r1".into()));
    }

    #[test]
    fn a_name_is_stored_as_it_was_read_and_says_its_run_id() {
        for (name, run_id) in [("r1-aa-00", "r1"), ("r2-bb", "r2"), ("r1", "r1"), ("", ""), ("-", "")] {
            let server = Server::from(name);
            assert_eq!((server.as_str(), server.run_id()), (name, run_id));
            assert_eq!(server.to_string(), name);
        }
        assert_eq!(Server::new("r2", "bb", "aa"), "r2-bb-aa".into());
    }
}
