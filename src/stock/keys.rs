//! Every key of a sale in Redis. All keys of a shard begin with the hash tag `{sale:shard}`, so they are in one slot,
//! and one script can use them together. Names that users or operators choose come after the tag and cannot change it.
//!
//! | key | type | holds |
//! | --- | --- | --- |
//! | `{sale:shard}:shard` | string | the shard's state, the sale's times and limits ([`super::record`]) |
//! | `{sale:shard}:item:<sku>` | string | an item's units on the shard ([`super::record`]) |
//! | `{sale:shard}:buyer:<user>` | string | one shopper: window, units, orders ([`super::record`]) |
//! | `{sale:shard}:events` | stream | events that the drain has not trimmed |
//! | `{sale:shard}:transfers` | hash | transfers in transit, by id |
//! | `{sale:shard}:applied` | set | ids of transfers and restocks that are finished here |
//! | `{sale:shard}:fences` | hash | by lender, the earliest epoch whose transfers are accepted |
//! | `{sale:shard}:room` | sorted set | waiting shoppers, by place ([`super::door::room`]) |
//! | `{sale:shard}:admitted` | sorted set | admitted shoppers, by the end of their admission |
//! | `{sale:shard}:returned` | set | shoppers who took the place that they had in a lost line |
//! | `{sale:shard}:door` | string | the state of admission ([`super::record`]) |
//! | `{sale:shard}:halt` | string | empty; while it exists, no permit is given ([`super::recover::permit`]) |
//! | `{sale:shard}:barrier` | string | empty; written before each `WAIT` ([`super::settle::replicate`]) |
//!
//! Only a halt, a barrier and a buyer without orders expire. [`super::operate::retire`] removes the other keys a day
//! after the sale has ended.

use crate::domain::ids::{SaleId, Sku, UserId};
use crate::domain::sale::Sale;
use std::fmt::{self, Write as _};

/// The most bytes of a hash tag and the colon after it.
const TAG_MAX: usize = 45;

/// One shard of one sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShardKey {
    pub sale: SaleId,
    /// The shard's number in the sale.
    pub shard: u16,
}

impl fmt::Display for ShardKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "shard {} of sale {}", self.shard, self.sale)
    }
}

/// The keys of which a shard has one each. A method has the name with which its key ends.
macro_rules! keys {
    ($($name:ident)*) => {$(
        pub fn $name(&self) -> String {
            self.key(&[stringify!($name)])
        }
    )*};
}

impl ShardKey {
    keys! { shard events transfers applied fences room admitted returned door halt barrier }

    pub const fn new(sale: SaleId, shard: u16) -> Self {
        Self { sale, shard }
    }

    /// Every shard of a sale.
    pub fn all(sale: &Sale) -> impl Iterator<Item = Self> + use<> {
        let id = sale.id;
        (0..sale.shards).map(move |shard| Self::new(id, shard))
    }

    /// A shopper's home shard.
    pub fn home(sale: &Sale, user: &UserId) -> Self {
        Self::new(sale.id, sale.home_shard(user))
    }

    /// A key of these parts after the hash tag. Each purchase makes four, so the text never has to grow.
    fn key(&self, parts: &[&str]) -> String {
        let mut key = String::with_capacity(TAG_MAX + parts.iter().map(|part| part.len()).sum::<usize>());
        // Writing to a string cannot fail.
        let _infallible = write!(key, "{{{}:{}}}:", self.sale, self.shard);
        key.extend(parts.iter().copied());
        key
    }

    pub fn item(&self, sku: &Sku) -> String {
        self.key(&["item:", sku.as_str()])
    }

    pub fn buyer(&self, user: &UserId) -> String {
        self.key(&["buyer:", user.as_str()])
    }

    /// The prefix of every shopper's key on this shard.
    pub fn buyers(&self) -> String {
        self.key(&["buyer:"])
    }

    /// A pattern for every key of the sale, on any shard.
    pub fn pattern(sale: SaleId) -> String {
        format!("{{{sale}:*")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARD: ShardKey = ShardKey::new(SaleId(uuid::Uuid::nil()), 7);
    const TAG: &str = "00000000-0000-0000-0000-000000000000:7";

    /// The part that the cluster hashes: from the first `{` to the first `}` after it (Redis Cluster specification).
    fn hashed(key: &str) -> &str {
        let open = key.find('{').unwrap() + 1;
        &key[open..open + key[open..].find('}').unwrap()]
    }

    #[test]
    fn keys_are_written_like_this() {
        assert_eq!(SHARD.shard(), format!("{{{TAG}}}:shard"));
        assert_eq!(SHARD.item(&"S-1".parse().unwrap()), format!("{{{TAG}}}:item:S-1"));
        assert_eq!(SHARD.buyer(&"ada".parse().unwrap()), format!("{{{TAG}}}:buyer:ada"));
        assert_eq!(SHARD.events(), format!("{{{TAG}}}:events"));
        assert_eq!(SHARD.transfers(), format!("{{{TAG}}}:transfers"));
        assert_eq!(SHARD.applied(), format!("{{{TAG}}}:applied"));
        assert_eq!(SHARD.fences(), format!("{{{TAG}}}:fences"));
        assert_eq!(SHARD.room(), format!("{{{TAG}}}:room"));
        assert_eq!(SHARD.admitted(), format!("{{{TAG}}}:admitted"));
        assert_eq!(SHARD.returned(), format!("{{{TAG}}}:returned"));
        assert_eq!(SHARD.door(), format!("{{{TAG}}}:door"));
        assert_eq!(SHARD.halt(), format!("{{{TAG}}}:halt"));
        assert_eq!(SHARD.barrier(), format!("{{{TAG}}}:barrier"));
    }

    proptest! {
        #[test]
        fn no_user_id_changes_the_slot(user in "[{}:a-z\\n\u{1F600}]{1,20}") {
            let key = SHARD.buyer(&user.parse().unwrap());
            prop_assert_eq!(hashed(&key), TAG);
        }
    }
}
