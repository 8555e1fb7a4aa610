//! The waiting room of a sale: who stands where, and what his ticket says of it.
//!
//! Everybody waits on the shopper's home shard, in a line of its own: shoppers are spread over the shards by a keyed hash, so
//! the lines are equally long, and are let in equally fast. Whoever comes before the start draws a lot, which is a keyed
//! hash of his name, too: it does not matter when he came, and coming again draws the same. Whoever comes later stands
//! behind all of them, in the order of coming.

use super::ids::{SaleId, UserId};
use super::sale::SaleSecret;
use super::time::Millis;
use super::token_keys::TokenKeys;
use hmac::{Hmac, Mac};
use schemars::JsonSchema;
use serde::Serialize;
use sha2::Sha256;

/// Shoppers who may wait for one sale; more are asked to come again.
pub const ROOM_MAX: u32 = 4_000_000;
/// The form of tickets that is written; others are not read.
const TICKET: &str = "w1";
/// Lots are drawn from so many bits.
const LOT_BITS: u32 = 40;

/// What stands for a shopper in a waiting room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Member {
    /// His name, in few bytes.
    pub id: [u8; 12],
    /// His place among those who come before the start, below 2^40.
    pub lot: u64,
}

impl Member {
    /// A shopper of the sale with this secret.
    #[must_use]
    pub fn of(secret: &SaleSecret, user: &UserId) -> Self {
        let mut id = [0; 12];
        let mut lot = [0; 8];
        // Infallible: HMAC takes a key of any length.
        if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&secret.0) {
            mac.update(b"waiting room\n");
            mac.update(user.as_str().as_bytes());
            let hash = mac.finalize().into_bytes();
            id.copy_from_slice(&hash[..12]);
            lot.copy_from_slice(&hash[12..20]);
        }
        Self {
            id,
            lot: u64::from_be_bytes(lot) >> (u64::BITS - LOT_BITS),
        }
    }
}

/// A place in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line's name: one that was lost and began anew has another.
    pub room: i64,
    /// Where in it; smaller comes first.
    pub place: i64,
}

/// How many shoppers are in a waiting room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RoomCount {
    /// Those who wait.
    pub waiting: i64,
    /// Those who were let in and have neither bought nor run out of time.
    pub admitted: i64,
}

/// How a shopper stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// He waits.
    Waiting {
        /// Where.
        place: Place,
        /// How many come before him, over all shards, by those of his own.
        ahead: i64,
        /// How many wait, over all shards, likewise.
        waiting: i64,
        /// When it is his turn, at the speed of the last seconds; in milliseconds from now. Nobody knows while nobody is
        /// let in.
        wait_ms: Option<Millis>,
        /// Whether no unit is free. Those that are held may come back, and he keeps his place.
        sold_out: bool,
    },
    /// It would be the shopper's turn, and no unit is free.
    SoldOut,
    /// It is his turn.
    Admitted {
        /// Until then.
        until: Millis,
    },
}

impl TokenKeys {
    /// The ticket of a shopper's place, which counts if the line is lost.
    #[must_use]
    pub fn ticket(&self, sale: SaleId, user: &UserId, place: Place) -> String {
        let bound = [sale.0.as_bytes().as_slice(), user.as_str().as_bytes()];
        self.seal(TICKET, &format!("{}-{}", place.room, place.place), &bound)
    }

    /// The place that a shopper's ticket for a sale says.
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
        // Of those who came with the lower numbers, as many as of the others are in the first half.
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
