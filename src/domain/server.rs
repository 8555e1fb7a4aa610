//! Redis servers by name: the run id of the process, its replication id, and the replication id that it had as a replica,
//! with hyphens in between.

/// Whether the server `noted` was a replica of the server `other`, both by name, and was promoted
/// since: then what `other` goes on to write is no part of the sale.
#[must_use]
pub fn has_taken_over(noted: &str, other: &str) -> bool {
    let before = noted.split('-').nth(2);
    before.is_some() && before == other.split('-').nth(1)
}

/// The process of a server's name: the same for as long as the process lives, whatever it
/// replicates meanwhile.
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
        // As an earlier version noted it.
        assert!(!has_taken_over("r2-bb", "r1"));
    }
}
