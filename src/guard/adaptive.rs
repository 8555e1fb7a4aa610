//! Finds the rate that an instance can serve by trial: a little more while all goes well, much less once purchases are
//! slow or pile up (additive increase, multiplicative decrease). A restart begins at the highest rate.

use crate::domain::guard::GuardSettings;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How often the rate is adapted.
pub const STEP: Duration = Duration::from_millis(200);
/// The percentage of the rate that remains after a step with slow or piled-up purchases.
const DECREASE_PERCENT: u32 = 70;
/// The increase of a good step is the highest rate divided by this: from nothing to all in ten seconds.
const INCREASE_PART: u32 = 50;
/// A step is slow if more than one in so many of its purchases is slow: the 90th percentile.
const SLOW_PART: u32 = 10;

/// The rate of one instance, and the counts since its last step.
#[derive(Default)]
pub struct AdaptiveRate {
    /// 0 before the first step.
    rate: AtomicU32,
    answered: AtomicU32,
    slow: AtomicU32,
    in_flight_max: AtomicU32,
}

impl AdaptiveRate {
    /// Counts an answered purchase, which is slow above `latency_max`.
    pub fn answered(&self, took: Duration, latency_max: Duration) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        if took > latency_max {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes how many purchases are in flight now.
    pub fn in_flight(&self, now: u32) {
        self.in_flight_max.fetch_max(now, Ordering::Relaxed);
    }

    /// Adapts the rate to the counts since the last step, and returns it. The first step sets the highest rate.
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
        // `clamp` would panic if the minimum exceeds the maximum.
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
