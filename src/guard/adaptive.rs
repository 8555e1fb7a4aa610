//! The rate that an instance takes, found by trying: a little more while all goes well, much less as soon as purchases
//! are slow or pile up (additive increase, multiplicative decrease).

use crate::domain::guard::GuardSettings;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How often the rate is set anew.
pub const STEP: Duration = Duration::from_millis(200);
/// What is left of the rate after a step in which purchases were slow or piled up, in percent.
const DECREASE_PERCENT: u32 = 70;
/// What is added in a good step, as a part of the highest rate: from nothing to all in ten seconds.
const INCREASE_PART: u32 = 50;
/// Purchases of a step that may be slow before all count as slow: one in ten, as for a ninetieth percentile.
const SLOW_PART: u32 = 10;

/// The rate of one instance, and what has been seen since it was last set.
#[derive(Default)]
pub struct AdaptiveRate {
    /// 0 while it has not been set.
    rate: AtomicU32,
    answered: AtomicU32,
    slow: AtomicU32,
    in_flight_max: AtomicU32,
}

impl AdaptiveRate {
    /// Notes how long a purchase took, by these settings.
    pub fn answered(&self, took: Duration, latency_max: Duration) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        if took > latency_max {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes how many requests are being answered at this moment.
    pub fn in_flight(&self, now: u32) {
        self.in_flight_max.fetch_max(now, Ordering::Relaxed);
    }

    /// Sets the rate by what was seen since the last step, and returns it. It begins at the highest.
    pub fn step(&self, settings: &GuardSettings) -> u32 {
        let answered = self.answered.swap(0, Ordering::Relaxed);
        let slow = self.slow.swap(0, Ordering::Relaxed);
        let in_flight = self.in_flight_max.swap(0, Ordering::Relaxed);
        let before = self.rate.load(Ordering::Relaxed);
        let (least, most) = (settings.adaptive_min_rate, settings.adaptive_max_rate);
        let rate = if before == 0 {
            most
        } else if slow > answered / SLOW_PART || in_flight > settings.adaptive_in_flight {
            before / 100 * DECREASE_PERCENT + before % 100 * DECREASE_PERCENT / 100
        } else {
            before.saturating_add((most / INCREASE_PART).max(1))
        };
        // Not `clamp`, which panics when the bounds are the wrong way round.
        let rate = rate.min(most).max(least);
        self.rate.store(rate, Ordering::Relaxed);
        rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: GuardSettings = GuardSettings {
        address_rate: 0,
        account_rate: 0,
        instance_rate: 0,
        shared_rate: 0,
        adaptive_min_rate: 100,
        adaptive_max_rate: 5_000,
        adaptive_latency_ms: 50,
        adaptive_in_flight: 64,
        browsing_alert_above: 0,
        browsing_ban_above: 0,
        browsing_ban_seconds: 0,
    };
    const LATENCY_MAX: Duration = Duration::from_millis(50);

    fn after(adaptive: &AdaptiveRate, fast: u32, slow: u32, in_flight: u32) -> u32 {
        for _ in 0..fast {
            adaptive.answered(LATENCY_MAX, LATENCY_MAX);
        }
        for _ in 0..slow {
            adaptive.answered(LATENCY_MAX + Duration::from_nanos(1), LATENCY_MAX);
        }
        adaptive.in_flight(in_flight);
        adaptive.step(&SETTINGS)
    }

    #[test]
    fn the_rate_falls_by_a_part_and_rises_by_a_step_between_its_bounds() {
        let adaptive = AdaptiveRate::default();
        assert_eq!(after(&adaptive, 0, 0, 0), 5_000);
        assert_eq!(after(&adaptive, 89, 11, 64), 3_500);
        assert_eq!(after(&adaptive, 90, 10, 64), 3_600);
        assert_eq!(after(&adaptive, 10, 0, 65), 2_520);
        assert_eq!(after(&adaptive, 0, 1, 0), 1_764);
        let mut rate = 0;
        for _ in 0..20 {
            rate = after(&adaptive, 0, 1, 0);
        }
        assert_eq!(rate, 100);
        for _ in 0..100 {
            rate = after(&adaptive, 1, 0, 1);
        }
        assert_eq!(rate, 5_000);
    }

    #[test]
    fn what_was_seen_before_a_step_does_not_count_in_the_next() {
        let adaptive = AdaptiveRate::default();
        after(&adaptive, 0, 0, 0);
        after(&adaptive, 0, 5, 100);
        let fallen = after(&adaptive, 0, 5, 100);
        assert!(after(&adaptive, 0, 0, 0) > fallen);
    }

    #[test]
    fn a_rate_that_was_set_before_its_bounds_changed_moves_into_them() {
        let adaptive = AdaptiveRate::default();
        after(&adaptive, 0, 0, 0);
        let lower = GuardSettings {
            adaptive_max_rate: 200,
            ..SETTINGS
        };
        assert_eq!(adaptive.step(&lower), 200);
    }
}
