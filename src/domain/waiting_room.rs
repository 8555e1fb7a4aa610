//! The waiting room of a sale: places, and the tickets that prove them.
//!
//! Shoppers wait on their home shards, each of which has a line of its own. A keyed hash spreads shoppers over the
//! shards, so the lines are about equally long, and they advance equally fast. A shopper who comes before the start
//! draws a lot, also a keyed hash of the shopper's id. So the time of arrival does not matter, and coming again draws
//! the same lot. A shopper who comes later stands behind all of them, in the order of arrival.

use super::ids::{SaleId, UserId};
use super::keyed_hash;
use super::sale::SaleSecret;
use super::time::Millis;
use super::token_keys::TokenKeys;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most shoppers who may wait for one sale. Others are asked to come again.
pub const ROOM_MAX: u32 = 4_000_000;
/// The kind of the tickets that this version writes. It accepts no other.
const TICKET: &str = "w1";
/// The number of bits of a lot.
const LOT_BITS: u32 = 40;

/// A shopper in a waiting room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Member {
    /// A short hash of the shopper's id.
    pub id: [u8; 12],
    /// The place among the shoppers who come before the start, below 2^40.
    pub lot: u64,
}

impl Member {
    /// A shopper in the sale with this secret.
    #[must_use]
    pub fn of(secret: &SaleSecret, user: &UserId) -> Self {
        let mut id = [0; 12];
        let mut lot = [0; 8];
        let hash = keyed_hash::of(&secret.0, &[b"waiting room\n", user.as_str().as_bytes()]);
        id.copy_from_slice(&hash[..12]);
        lot.copy_from_slice(&hash[12..20]);
        Self {
            id,
            lot: u64::from_be_bytes(lot) >> (u64::BITS - LOT_BITS),
        }
    }
}

/// A place in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line's name. A line that was lost and rebuilt has another.
    pub room: i64,
    /// The position in the line; lower ones come first.
    pub place: i64,
}

/// How many shoppers are in a waiting room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoomCount {
    /// Shoppers who wait.
    pub waiting: i64,
    /// Shoppers who were admitted, have not bought, and still have time.
    pub admitted: i64,
}

/// A shopper's state in the waiting room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The shopper waits.
    Waiting {
        place: Place,
        /// How many shoppers come first, over all shards; an estimate from the line of the shopper's own shard.
        ahead: i64,
        /// How many shoppers wait, over all shards; the same kind of estimate.
        waiting: i64,
        /// The wait in milliseconds at the pace of the last seconds. Unknown while none is admitted.
        wait_ms: Option<Millis>,
        /// Whether no unit is free. Held units may come back, and the shopper keeps the place.
        sold_out: bool,
    },
    /// The shopper would be admitted, but no unit is free.
    SoldOut,
    /// The shopper may buy.
    Admitted {
        /// The end of the admission.
        until: Millis,
    },
}

impl TokenKeys {
    /// The ticket for a shopper's place, which restores the place if the line is lost.
    #[must_use]
    pub fn ticket(&self, sale: SaleId, user: &UserId, place: Place) -> String {
        let bound = [sale.0.as_bytes().as_slice(), user.as_str().as_bytes()];
        self.seal(TICKET, &format!("{}-{}", place.room, place.place), &bound)
    }

    /// The place in a shopper's ticket for a sale.
    #[must_use]
    pub fn place(&self, ticket: &str, sale: SaleId, user: &UserId) -> Option<Place> {
        let bound = [sale.0.as_bytes().as_slice(), user.as_str().as_bytes()];
        let (room, place) = self.open(TICKET, ticket, &bound)?.split_once('-')?;
        Some(Place {
            room: room.parse().ok()?,
            place: place.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn user(name: &str) -> UserId {
        name.parse().unwrap()
    }

    #[test]
    fn a_lot_is_drawn_once_and_says_nothing_about_the_name() {
        let secret = SaleSecret([7; 32]);
        let ada = Member::of(&secret, &user("ada"));
        assert_eq!(Member::of(&secret, &user("ada")), ada);
        assert_ne!(Member::of(&SaleSecret([8; 32]), &user("ada")), ada);
        let lots: Vec<u64> = (0..4000)
            .map(|n| Member::of(&secret, &user(&format!("u{n}"))).lot)
            .collect();
        assert!(lots.iter().all(|lot| *lot < 1 << LOT_BITS));
        // Low and high user numbers have about the same share of low lots.
        let half = 1 << (LOT_BITS - 1);
        let first = lots.iter().take(2000).filter(|lot| **lot < half).count();
        let last = lots.iter().skip(2000).filter(|lot| **lot < half).count();
        assert!(
            (900..1100).contains(&first) && (900..1100).contains(&last),
            "{first} {last}"
        );
    }

    #[test]
    fn a_ticket_says_the_place_to_the_shopper_and_the_sale_that_it_was_given_to() {
        let keys = TokenKeys::derived(&[1; 32]);
        let sale = |number| SaleId(Uuid::from_u128(number));
        let place = Place { room: 17, place: 4 };
        let ticket = keys.ticket(sale(1), &user("ada"), place);
        assert_eq!(keys.place(&ticket, sale(1), &user("ada")), Some(place));
        assert_eq!(keys.place(&ticket, sale(1), &user("bob")), None);
        assert_eq!(keys.place(&ticket, sale(2), &user("ada")), None);
        let changed = ticket.replace("17-4", "17-1");
        assert_eq!(keys.place(&changed, sale(1), &user("ada")), None);
        assert!(!keys.is_admitted(&ticket, sale(1), &user("ada"), 0));
    }
}
