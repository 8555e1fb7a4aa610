//! Shards: how a sale's stock and shoppers are spread.

use crate::domain::ids::UserId;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The shopper's home shard, which has all of the shopper's state for one sale. The sale's secret keys it, so shoppers
/// cannot choose a shard by their names. It is fixed for the sale.
pub fn home_shard(secret: &[u8; 32], user: &UserId, shards: u16) -> u16 {
    let mut key = [0; 16];
    key.copy_from_slice(&secret[..16]);
    let mut hasher = SipHasher13::new_with_key(&key);
    hasher.write(user.as_str().as_bytes());
    // The remainder is below `shards`, so it fits.
    u16::try_from(hasher.finish() % u64::from(shards.max(1))).unwrap_or(0)
}

/// The share of `units` that `shard` gets when they are split evenly over `shards`, to the last unit.
pub fn part(units: i64, shards: u16, shard: u16) -> i64 {
    let shards = i64::from(shards.max(1));
    units / shards + i64::from(i64::from(shard) < units % shards)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_add_up_to_the_last_unit_and_differ_by_one_at_most(units in 0..2_000_000_000i64, shards in 1..=256u16) {
            let parts: Vec<i64> = (0..shards).map(|shard| part(units, shards, shard)).collect();
            prop_assert_eq!(parts.iter().sum::<i64>(), units);
            prop_assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1);
        }

        #[test]
        fn a_home_shard_exists_for_everybody(user in "\\PC{1,32}", shards in 1..=256u16) {
            prop_assume!(user.len() <= 128);
            prop_assert!(home_shard(&[3; 32], &user.parse().unwrap(), shards) < shards);
        }
    }

    #[test]
    fn shoppers_spread_evenly_and_differently_under_another_secret() {
        let mut counts = [0u32; 8];
        let mut moved = 0;
        for n in 0..8_000 {
            let user = format!("user-{n}").parse().unwrap();
            let home = home_shard(&[1; 32], &user, 8);
            counts[usize::from(home)] += 1;
            moved += u32::from(home != home_shard(&[2; 32], &user, 8));
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert!(moved > 6_000, "{moved}");
    }
}
