//! Fairness: who got the units of a sale, in counts that name no account and no address.

use crate::domain::ids::{SaleId, UserId};
use crate::domain::names::names;
use schemars::JsonSchema;
use serde::Serialize;
use siphasher::sip::SipHasher24;
use std::cmp::Reverse;
use std::hash::Hasher as _;

/// The fewest purchases of each bucket of `attempts`; buckets count from 1.
pub const ATTEMPTS: [i64; 6] = [1, 2, 3, 6, 11, 51];
/// How long before its order an account was first seen, in milliseconds, where buckets 2 to 5 of `first_seen` begin.
/// Bucket 1 is below. Bucket 0 has accounts that were first seen with their order.
pub const KNOWN_FOR_MS: [i64; 4] = [1000, 10_000, 60_000, 600_000];
/// Buckets of addresses. About half a million IPv4 addresses share each, so a bucket names nobody. One of so many pairs
/// of addresses shares a bucket by chance.
const ADDRESS_BUCKETS: u64 = 8192;

/// An account in one sale, as a hash that all instances derive alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccountHash(pub i64);

impl AccountHash {
    pub fn of(sale: SaleId, user: &UserId) -> Self {
        Self(i64::from_be_bytes(hash(sale, user.as_str().as_bytes()).to_be_bytes()))
    }
}

/// Which addresses count as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressGroup {
    Client,
    Network,
}

names! { AddressGroup: Client "client", Network "network" }

/// An IPv6 address, or an IPv4 address as one. Stands for its network if it is the network's first address.
pub type Address = [u8; 16];

pub fn address_bucket(sale: SaleId, address: Address) -> i32 {
    i32::try_from(hash(sale, &address) % ADDRESS_BUCKETS).unwrap_or_default()
}

fn hash(sale: SaleId, bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(sale.0.as_bytes());
    hasher.write(bytes);
    hasher.finish()
}

/// Units that a bucket has, by what they are counted by.
#[derive(Debug, Clone)]
pub struct BucketUnits {
    pub measure: String,
    pub bucket: i32,
    pub units: i64,
}

/// Who got the units, also those of orders that were not paid. An order counts a few seconds after its first answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct FairnessReport {
    /// Units by how many purchases the account had sent in this sale, the successful one included.
    pub attempts: AttemptUnits,
    /// Units by the time from the account's first page view or purchase in this sale to its order.
    pub first_seen: FirstSeenUnits,
    /// How many units went to the same clients: IPv4 addresses, or /64 of IPv6.
    pub clients: AddressShares,
    /// How many units went to the same networks: /24 of IPv4, or /48 of IPv6.
    pub networks: AddressShares,
}

/// Units by the purchases that the account had sent. Estimated from a sample in a large sale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AttemptUnits {
    /// The first purchase succeeded.
    pub one: i64,
    /// The second purchase.
    pub two: i64,
    /// The third to fifth purchase.
    pub three_to_five: i64,
    /// The sixth to tenth purchase.
    pub six_to_ten: i64,
    /// The eleventh to fiftieth purchase.
    pub eleven_to_fifty: i64,
    /// A later purchase.
    pub more: i64,
}

/// Units by how long before its order the account was first seen. Estimated from a sample in a large sale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FirstSeenUnits {
    /// No page view with a token and no earlier purchase.
    pub none: i64,
    /// Less than a second before the order.
    pub under_one_second: i64,
    /// One to ten seconds.
    pub under_ten_seconds: i64,
    /// Ten to sixty seconds.
    pub under_one_minute: i64,
    /// One to ten minutes.
    pub under_ten_minutes: i64,
    /// Longer.
    pub longer: i64,
}

/// Shares of the units by address. Some addresses are counted as one by chance: a share may be too high, never too low.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct AddressShares {
    /// Units whose buyer's address is known.
    pub units: i64,
    /// The share of the one address with the most units; null without units.
    pub largest: Option<f64>,
    /// The share of the ten addresses with the most units; null without units.
    pub largest_ten: Option<f64>,
}

impl FairnessReport {
    pub fn of(counted: &[BucketUnits]) -> Self {
        let attempts = |bucket| units(counted, "attempts", bucket);
        let seen = |bucket| units(counted, "first_seen", bucket);
        Self {
            attempts: AttemptUnits {
                one: attempts(1),
                two: attempts(2),
                three_to_five: attempts(3),
                six_to_ten: attempts(4),
                eleven_to_fifty: attempts(5),
                more: attempts(6),
            },
            first_seen: FirstSeenUnits {
                none: seen(0),
                under_one_second: seen(1),
                under_ten_seconds: seen(2),
                under_one_minute: seen(3),
                under_ten_minutes: seen(4),
                longer: seen(5),
            },
            clients: shares(counted, AddressGroup::Client),
            networks: shares(counted, AddressGroup::Network),
        }
    }
}

fn units(counted: &[BucketUnits], measure: &str, bucket: i32) -> i64 {
    let of_bucket = counted.iter().filter(|it| it.bucket == bucket && it.measure == measure);
    of_bucket.map(|it| it.units).sum()
}

fn shares(counted: &[BucketUnits], group: AddressGroup) -> AddressShares {
    let of_group = counted.iter().filter(|it| it.measure == group.as_str());
    let mut units: Vec<i64> = of_group.map(|it| it.units).collect();
    units.sort_unstable_by_key(|units| Reverse(*units));
    let all: i64 = units.iter().sum();
    #[expect(
        clippy::cast_precision_loss,
        reason = "a sale has fewer units than a double is exact for"
    )]
    let share = |first: usize| (all > 0).then(|| units.iter().take(first).sum::<i64>() as f64 / all as f64);
    AddressShares {
        units: all,
        largest: share(1),
        largest_ten: share(10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn sale(number: u128) -> SaleId {
        SaleId(Uuid::from_u128(number))
    }

    fn counted(measure: &str, bucket: i32, units: i64) -> BucketUnits {
        BucketUnits {
            measure: measure.to_owned(),
            bucket,
            units,
        }
    }

    #[test]
    fn a_report_has_every_bucket_and_the_shares_of_the_largest_addresses() {
        let mut rows: Vec<_> = (1..=6)
            .map(|bucket| counted("attempts", bucket, i64::from(bucket)))
            .collect();
        rows.extend((0..=5).map(|bucket| counted("first_seen", bucket, 10 + i64::from(bucket))));
        rows.push(counted("client", 77, 9));
        rows.extend((0..11).map(|bucket| counted("client", bucket, 1)));
        let report = FairnessReport::of(&rows);
        let attempts = report.attempts;
        assert_eq!((attempts.one, attempts.two, attempts.three_to_five), (1, 2, 3));
        assert_eq!(
            (attempts.six_to_ten, attempts.eleven_to_fifty, attempts.more),
            (4, 5, 6)
        );
        let first = report.first_seen;
        assert_eq!(
            (first.none, first.under_one_second, first.under_ten_seconds),
            (10, 11, 12)
        );
        assert_eq!(
            (first.under_one_minute, first.under_ten_minutes, first.longer),
            (13, 14, 15)
        );
        let clients = AddressShares {
            units: 20,
            largest: Some(0.45),
            largest_ten: Some(0.9),
        };
        assert_eq!((report.clients, report.networks), (clients, AddressShares::default()));
    }

    #[test]
    fn an_account_or_address_has_another_hash_in_each_sale() {
        let ada = "ada".parse().unwrap();
        assert_eq!(AccountHash::of(sale(1), &ada), AccountHash::of(sale(1), &ada));
        assert_ne!(AccountHash::of(sale(1), &ada), AccountHash::of(sale(2), &ada));
        let buckets: Vec<i32> = (0..100).map(|number| address_bucket(sale(number), [7; 16])).collect();
        assert!(buckets.iter().all(|bucket| (0..8192).contains(bucket)), "{buckets:?}");
        assert!(buckets.iter().any(|bucket| *bucket != buckets[0]), "{buckets:?}");
    }
}
