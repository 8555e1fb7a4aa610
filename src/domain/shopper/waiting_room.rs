//! The waiting room of a sale: places, and the tickets that prove them.
//!
//! Shoppers wait on their home shards, each of which has a line of its own. A keyed hash spreads shoppers over the
//! shards, so the lines are about equally long, and they advance equally fast. A shopper who comes before the start
//! draws a lot, also a keyed hash of the shopper's id. So the time of arrival does not matter, and coming again draws
//! the same lot. A shopper who comes later stands behind all of them, in the order of arrival.
//!
//! A position counts the shoppers of all lines who have an earlier place. There is none before the start, because others
//! may still draw better lots. Afterwards it never grows: the ticket has the last one.

use super::token_keys::TokenKeys;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::keyed_hash;
use crate::domain::sale::SaleSecret;
use crate::domain::time::Millis;
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
    /// Lower ones come first, also over several lines.
    pub place: i64,
}

impl Place {
    /// How long after the start the shopper came; 0 for a lot.
    pub fn came_after(&self) -> Millis {
        (self.place - (1 << LOT_BITS)).max(0)
    }
}

/// What a shopper's ticket proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub place: Place,
    /// The last position that the shopper got for this place: 1 is next.
    pub position: Option<i64>,
}

/// The line of one shard at one moment, in samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// How many shoppers wait in it.
    pub waiting: i64,
    /// The rank in this line, from 0, and the place of some shoppers. Ranks ascend.
    pub samples: Vec<(i64, i64)>,
}

impl Line {
    /// How many of this line have an earlier place. Between two samples that are not neighbours, places count as evenly
    /// spread.
    pub fn before(&self, place: i64) -> i64 {
        let at = self.samples.partition_point(|(_, its)| *its < place);
        let Some((rank, from)) = at.checked_sub(1).and_then(|at| self.samples.get(at)) else {
            return 0;
        };
        let between = self.samples.get(at).map_or(0, |(next, to)| {
            (next - rank - 1).saturating_mul(place - from) / (to - from).max(1)
        });
        rank + 1 + between
    }
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
        /// The place, with the position over all shards once it is known.
        ticket: Ticket,
        /// How many shoppers wait, over all shards; `None` if a shard did not answer.
        waiting: Option<i64>,
        /// Whether the next reading of the lines shows the position.
        is_counted_soon: bool,
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
    /// A shopper's ticket as text. It restores the place if the line is lost.
    pub fn seal_ticket(&self, sale: SaleId, user: &UserId, ticket: Ticket) -> String {
        let bound = [sale.0.as_bytes().as_slice(), user.as_str().as_bytes()];
        let Place { room, place } = ticket.place;
        let position = ticket.position.map(|position| format!("-{position}"));
        self.seal(
            TICKET,
            &format!("{room}-{place}{}", position.unwrap_or_default()),
            &bound,
        )
    }

    /// A shopper's ticket for a sale.
    pub fn open_ticket(&self, ticket: &str, sale: SaleId, user: &UserId) -> Option<Ticket> {
        let bound = [sale.0.as_bytes().as_slice(), user.as_str().as_bytes()];
        let mut numbers = self.open(TICKET, ticket, &bound)?.split('-').map(str::parse::<i64>);
        let mut next = || numbers.next()?.ok();
        Some(Ticket {
            place: Place {
                room: next()?,
                place: next()?,
            },
            position: next(),
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
        for position in [None, Some(9)] {
            let proved = Ticket { place, position };
            let ticket = keys.seal_ticket(sale(1), &user("ada"), proved);
            assert_eq!(keys.open_ticket(&ticket, sale(1), &user("ada")), Some(proved));
            assert_eq!(keys.open_ticket(&ticket, sale(1), &user("bob")), None);
            assert_eq!(keys.open_ticket(&ticket, sale(2), &user("ada")), None);
            let changed = ticket.replace("17-4", "17-1");
            assert_eq!(keys.open_ticket(&changed, sale(1), &user("ada")), None);
            assert!(!keys.is_admitted(&ticket, sale(1), &user("ada"), 0));
        }
    }

    #[test]
    fn a_line_counts_earlier_places_exactly_where_it_was_read_whole_and_evenly_between_samples() {
        assert_eq!(Line::default().before(7), 0);
        let line = Line {
            waiting: 201,
            samples: vec![(0, 10), (1, 20), (2, 20), (100, 1000), (200, 1000)],
        };
        for (place, before) in [
            (5, 0),
            (10, 0),
            (11, 1),
            (20, 1),
            (21, 3),
            (510, 51),
            (1000, 100),
            (1001, 201),
        ] {
            assert_eq!(line.before(place), before, "{place}");
        }
    }
}
