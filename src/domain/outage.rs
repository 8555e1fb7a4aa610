//! Outages: times in which no worker came to the ledger. Nobody could pay then, so a hold lasts that much longer: by as much of
//! each outage as comes after the order was created.

use super::time::Millis;

/// One outage, by Postgres's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// Its begin.
    pub since: Millis,
    /// Its end.
    pub until: Millis,
}

/// Outages, the latest first; no two overlap.
#[derive(Debug, Clone, Default)]
pub struct Outages(pub Vec<Outage>);

impl Outages {
    /// The latest deadline without outages of which the hold has ended by `now`. `window` is how long a hold lasts without them.
    ///
    /// Walks back from `now` over the time in which workers came. Where `window` of it is reached, orders were created whose
    /// holds end now: the outages on the way extended them, those before did not.
    #[must_use]
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

    /// By how much the hold of an order that was created then is extended.
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
