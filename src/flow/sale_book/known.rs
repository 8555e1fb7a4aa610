//! Which sales exist. An id or number that no sale can have costs no query, and one that a new sale may have costs few.

use crate::domain::ids::SaleId;
use crate::domain::sale::Sale;
use chrono::{DateTime, TimeDelta, Utc};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::RwLock;
use std::collections::HashSet;
use std::num::NonZeroU32;

/// Queries per second for ids that this process does not know. A sale may have been created a moment ago elsewhere.
/// All other such requests are answered from memory.
const UNKNOWN_IDS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(49);
/// The age of an unknown id, and the distance of an unknown number from the newest one, up to which it is queried.
/// Numbers are given out in order, but not committed in order.
const NEW: TimeDelta = TimeDelta::seconds(60);
const NEAR: u32 = 1000;

/// How well this process knows a sale's id or number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SaleStanding {
    /// There is such a sale, or this process has not read yet which there are.
    Known,
    /// It may have been created a moment ago.
    New,
    Nothing,
}

pub(super) struct KnownSales {
    known: RwLock<Known>,
    unknown_ids: DefaultDirectRateLimiter,
}

/// Every sale that existed at the last reading; nothing before the first.
#[derive(Default)]
struct Known {
    ids: HashSet<SaleId>,
    numbers: HashSet<u32>,
    newest: Option<u32>,
}

impl Default for KnownSales {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
            unknown_ids: RateLimiter::direct(Quota::per_second(UNKNOWN_IDS_MAX)),
        }
    }
}

impl KnownSales {
    /// The number after which the next reading begins. Numbers just before the newest one may have come late.
    pub(super) fn read_to(&self) -> Option<u32> {
        self.known.read().newest.map(|newest| newest.saturating_sub(NEAR))
    }

    /// Notes what a reading found.
    pub(super) fn note_read(&self, sales: Vec<(SaleId, u32)>) {
        let mut known = self.known.write();
        let seen = sales.iter().map(|(_, number)| *number).max();
        known.newest = known.newest.max(seen).or(Some(0));
        for (id, number) in sales {
            known.ids.insert(id);
            known.numbers.insert(number);
        }
    }

    pub(super) fn note(&self, sale: &Sale) {
        let mut known = self.known.write();
        known.ids.insert(sale.id);
        known.numbers.insert(sale.number);
    }

    pub(super) fn has(&self, id: SaleId) -> bool {
        self.known.read().ids.contains(&id)
    }

    pub(super) fn standing(&self, id: SaleId) -> SaleStanding {
        let known = self.known.read();
        if known.newest.is_none() || known.ids.contains(&id) {
            return SaleStanding::Known;
        }
        let made = id.0.get_timestamp().map(|at| at.to_unix().0);
        let made = made.and_then(|seconds| DateTime::from_timestamp(i64::try_from(seconds).ok()?, 0));
        let is_new = made.is_some_and(|made| (Utc::now() - made).abs() < NEW);
        if is_new {
            SaleStanding::New
        } else {
            SaleStanding::Nothing
        }
    }

    pub(super) fn standing_of_number(&self, number: u32) -> SaleStanding {
        let known = self.known.read();
        match known.newest {
            Some(_) if known.numbers.contains(&number) => SaleStanding::Known,
            Some(newest) if newest.abs_diff(number) > NEAR => SaleStanding::Nothing,
            Some(_) => SaleStanding::New,
            None => SaleStanding::Known,
        }
    }

    /// Whether an id that probably does not exist may be queried once more.
    pub(super) fn may_ask_ledger(&self) -> bool {
        self.unknown_ids.check().is_ok()
    }
}
