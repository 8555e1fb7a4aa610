//! How many connections to Postgres one process opens at most.

use serde::Deserialize;

/// The fewest connections of a pool: some work holds one and asks for another.
const LEAST: u32 = 2;
/// The fewest of `jobs`: four rebuilds hold one each, and so may those that await deadlines and rebalance. The drains
/// that they wait for need another.
const JOBS_LEAST: u32 = 7;
/// The most connections of a pool.
const MOST: u32 = 1000;

/// The most connections to Postgres, by what they are for. None of these can starve another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectionPools {
    pub shoppers: u32,
    pub operators: u32,
    pub payments: u32,
    /// For the drain and the scheduled jobs.
    pub jobs: u32,
    /// For statistics, audits and gauges.
    pub reports: u32,
    /// For what each process follows all the while: sales, settings, bans, guard warnings and readiness.
    pub upkeep: u32,
}

impl Default for ConnectionPools {
    fn default() -> Self {
        Self {
            shoppers: 12,
            operators: 6,
            payments: 6,
            jobs: 12,
            reports: 4,
            upkeep: 3,
        }
    }
}

impl ConnectionPools {
    /// These pools, if each has a number of connections that a pool may have. Fails with the numbers that a pool may
    /// have.
    pub fn check(self) -> Result<Self, String> {
        let all = [
            self.shoppers,
            self.operators,
            self.payments,
            self.jobs,
            self.reports,
            self.upkeep,
        ];
        if all.iter().all(|it| (LEAST..=MOST).contains(it)) && self.jobs >= JOBS_LEAST {
            Ok(self)
        } else {
            Err(format!(
                "has a pool with fewer than {LEAST} (`jobs`: {JOBS_LEAST}) or more than {MOST} connections"
            ))
        }
    }
}
