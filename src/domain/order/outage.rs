//! Outages: times in which no worker reached the ledger. No shopper could pay then. So a hold lasts longer by the part
//! of each outage after its order was created.

use crate::domain::time::Millis;

/// One outage, by the clock of Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    pub since: Millis,
    pub until: Millis,
}

/// Outages, the latest first; no two overlap.
#[derive(Debug, Clone, Default)]
pub struct Outages(pub Vec<Outage>);

impl Outages {
    /// The latest deadline, counted without outages, of the holds that have ended by `now`. `window` is how long a hold
    /// lasts without outages.
    ///
    /// Walks back from `now` over the time in which workers reached the ledger, until that time adds up to `window`.
    /// The holds that end now began there. The outages on the way extended them; earlier ones did not.
    pub fn due(&self, now: Millis, window: Millis) -> Millis {
        self.0.iter().fold(now, |due, outage| {
            if due - outage.until < window {
                due - (outage.until - outage.since)
            } else {
                due
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// How much longer the hold of an order lasts that was created then.
    fn extension(outages: &Outages, created_at: Millis) -> Millis {
        let of = |outage: &Outage| (outage.until - outage.since.max(created_at)).max(0);
        outages.0.iter().map(of).sum()
    }

    proptest! {
        #[test]
        fn a_hold_ends_exactly_with_its_window_and_the_outages_since_it_began(
            steps in proptest::collection::vec((0_i64..50, 1_i64..50), 0..6),
            after in 0_i64..60,
            window in 1_i64..80,
            age in 0_i64..400,
        ) {
            let (mut at, mut outages) = (0, Vec::new());
            for (gap, length) in steps {
                outages.insert(0, Outage { since: at + gap, until: at + gap + length });
                at += gap + length;
            }
            let outages = Outages(outages);
            let now = at + after;
            let created_at = now - age;
            let ends_at = created_at + window + extension(&outages, created_at);
            prop_assert_eq!(created_at + window <= outages.due(now, window), ends_at <= now);
        }
    }
}
