//! Names of Redis servers: the run id of the process, its replication id, and the replication id that it had as a
//! replica, with hyphens in between.

/// Whether the server named `noted` was a replica of the server named `other` and was promoted since. If so, later
/// writes of `other` do not belong to the sale.
#[must_use]
pub fn has_taken_over(noted: &str, other: &str) -> bool {
    let before = noted.split('-').nth(2);
    before.is_some() && before == other.split('-').nth(1)
}

/// The run id in a server's name. It stays the same until the process ends, also when the server becomes a replica.
#[must_use]
pub fn process_of(server: &str) -> &str {
    server.split('-').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promoted_replica_has_taken_over_from_its_primary_and_from_nobody_else() {
        let (primary, promoted, third) = ("r1-aa-00", "r2-bb-aa", "r3-cc-00");
        assert!(has_taken_over(promoted, primary));
        for (noted, other) in [
            (primary, promoted),
            (promoted, promoted),
            (promoted, third),
            (third, primary),
        ] {
            assert!(!has_taken_over(noted, other), "{noted} {other}");
        }
        // The name as an earlier version stored it.
        assert!(!has_taken_over("r2-bb", "r1"));
    }
}
