//! The packed records of the scripts. Their layouts are defined here. All numbers are big-endian and unsigned.
//!
//! Each record carries its version, which is 0 today, at a place that is the same in every version:
//!
//! | record | key | version | a newer version |
//! | --- | --- | --- | --- |
//! | a shard | `shard` | byte 0, above its two lowest bits | byte 0 is 4 to 31 |
//! | an item | `item:<sku>` | byte 0 | byte 0 is 1 to 31 |
//! | a shopper | `buyer:<user>` | byte 7, its upper four bits | byte 7 is 16 or more |
//! | a waiting room's door | `door` | byte 0, its upper four bits | byte 0 is 16 or more |
//! | a fixed window's counter | `counter` | byte 0, its upper four bits | byte 0 is 16 or more |
//! | a token bucket | `bucket` | byte 8, its upper four bits | byte 8 is 16 or more |
//! | an event's value | in `events` | byte 0 | byte 0 is 1 to 31 |
//! | a transfer's value | in `transfers` | byte 0 | byte 0 is 1 to 31 |
//!
//! The version of a door, a counter and a bucket is the upper four bits of a time. The time has 6 bytes, and needs only
//! 44 bits until the year 2527.
//!
//! A script or decoder that meets a newer version refuses with `NEWER` before it writes anything. The shard is then
//! unavailable to this instance, which never rebuilds it. A shard, item, event or transfer with a higher byte 0 is
//! damaged, not newer. Only [`super::operate::retire`] removes records of any version: it removes the whole sale.
//!
//! These strings carry no version:
//!
//! | key | because |
//! | --- | --- |
//! | `halt` | it is empty: that it exists is all it says |
//! | `barrier` | it is empty, and no script reads it |
//! | `answer` | it lives for minutes. An instance that cannot read it refuses that one challenge |
//!
//! A change of a record that version 0 cannot express takes two releases: the first reads the new version, the second
//! writes it. ARCHITECTURE.md, *Upgrades*, has the full rule.
//!
//! A shard, in `shard`:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 1 | version and state: 0 loading, 1 active, 2 paused, 3 closed |
//! | 1 | 1 | brake: 1 while events have waited too long for the ledger |
//! | 2 | 6 | permitted to sell until, milliseconds |
//! | 8 | 6 | starts_at, milliseconds |
//! | 14 | 6 | ends_at, milliseconds |
//! | 20 | 4 | rate limit, requests in a window |
//! | 24 | 6 | window, milliseconds |
//! | 30 | 6 | version of the state |
//! | 36 | 6 | epoch |
//! | 42 | rest | `<epoch>-*`, the id for the next event |
//!
//! An item, in `item:<sku>`. What a purchase changes comes first:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 1 | version; a script reads and writes it with the next field, as one number of 6 bytes |
//! | 1 | 5 | available |
//! | 6 | 6 | held |
//! | 12 | 4 | units that one shopper may have |
//! | 16 | 2 | position of the item in the sale |
//! | 18 | 6 each | sold, revoked, out, in, granted, version, withdrawn |
//!
//! A shopper, in `buyer:<user>`:
//!
//! | bytes | field |
//! | --- | --- |
//! | 4 | banned until, seconds; 0 when not, the highest number when for ever |
//! | 2 | revision of the last decision about a ban, 1 to 32767; 0 before the first |
//! | 1 | 0 while every order is here; else 1 to 255, which changes whenever one more order is left to the ledger |
//! | 2 | version, 4 bits; number of items, 12 bits |
//! | 3 | number of entries in the window |
//! | 6 an item | 2 position, 4 units that are reserved or paid |
//! | 12 an entry | the sliding window, oldest first: 6 the request's time, the last 6 of its order's id |
//! | 36 and more an order | 16 id, 1 state, 2 item, 4 quantity, 6 created at, 6 resolved at, 1 length of the event's id, the event's id as text; oldest first |
//!
//! A shopper's row is one string because a script pays more for each field of a hash than for the bytes of a string. To
//! keep the row short, an order that is decided while the row is longer than 4 KiB is left to the ledger.
//!
//! A waiting room's door, in `door`:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 6 | version, 4 bits; when the line began, 44 bits of milliseconds, which is also the line's name |
//! | 6 | 6 | time of the level, milliseconds |
//! | 12 | 6 | level: how many more the rate lets in, in millionths of a shopper |
//! | 18 | 6 | admitted shoppers who have bought |
//! | 24 | 6 | admitted shoppers who did not buy in time |
//! | 30 | 6 | when the span began in which admissions are counted, milliseconds |
//! | 36 | 4 | admissions in this span |
//! | 40 | 4 | admissions in the span before |
//!
//! A fixed window, in `{limit:id}:counter`:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 6 | version, 4 bits; the window's end, 44 bits of milliseconds |
//! | 6 | 4 | count |
//!
//! A token bucket, in `{limit:id}:bucket`:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | level, a floating-point number |
//! | 8 | 6 | version, 4 bits; time of the level, 44 bits of milliseconds |
//!
//! An event's value, under the field `reserved`: version, an order's record from its item up to *resolved at*, the
//! order's id, the idempotency key, a newline, the user. If the request is traced, a second field `origin` has 16 bytes
//! of its trace and 8 of its span.

mod buyer;
mod event;
mod item;
mod order;
mod shard;

use crate::domain::fault::Fault;
use crate::domain::order::event::Position;
pub use buyer::{BuyerRecord, BuyerStanding};
pub use event::decode_event;
pub use item::{decode_item, encode_item};
pub use order::OrderRecord;
pub use shard::ShardRecord;

/// The highest first byte of a newer record; a record with a higher one is damaged.
const NEWER_MAX: u8 = 31;

/// Refuses a record that a newer version has written; `oldest` is the lowest first byte of a newer record.
pub(super) fn known(bytes: &[u8], oldest: u8, what: &str) -> Result<(), Fault> {
    match bytes.first() {
        Some(first) if (oldest..=NEWER_MAX).contains(first) => Err(newer(what)),
        _ => Ok(()),
    }
}

/// The fault for a record that a newer version has written.
pub(super) fn newer(what: &str) -> Fault {
    Fault::Newer(format!("a newer version of the program has written the {what}"))
}

/// Takes packed numbers off the front of some bytes.
pub(super) struct Unpack<'a>(pub(super) &'a [u8]);

impl<'a> Unpack<'a> {
    /// The next bytes; `None` when fewer are left.
    pub(super) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(head)
    }

    /// The next `width` bytes (at most 6, so it fits an `i64`) as a number; `None` at the end.
    pub(super) fn number(&mut self, width: usize) -> Option<i64> {
        Some(
            self.take(width)?
                .iter()
                .fold(0, |number, byte| (number << 8) | i64::from(*byte)),
        )
    }
}

/// Puts packed numbers after each other.
struct Pack(Vec<u8>);

impl Pack {
    /// Appends a number, which is not negative, as `width` bytes (at most 8).
    fn put(&mut self, width: usize, number: i64) {
        self.0.extend_from_slice(&number.to_be_bytes()[8 - width..]);
    }
}

/// Decodes `<epoch>-<seq>`. Redis accepts numbers above `i64::MAX`, which no script gives; they become `i64::MAX`.
pub fn decode_position(id: &str) -> Option<Position> {
    let number = |text: &str| text.parse::<u64>().ok().map(|it| i64::try_from(it).unwrap_or(i64::MAX));
    let (epoch, seq) = id.split_once('-')?;
    Some(Position {
        epoch: number(epoch)?,
        seq: number(seq)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::order::event::Unreadable;
    use crate::domain::time::Millis;

    pub const MILLIS: Millis = (1 << 48) - 1;

    pub fn is_newer<T>(decoded: Result<T, Fault>) -> bool {
        matches!(decoded, Err(Fault::Newer(_)))
    }

    /// Every newer version, at any length. A record that begins with no version is damaged.
    #[test]
    fn what_a_newer_version_has_written_is_never_misread() {
        for length in [1, 44, 60, 100] {
            let record = |first: u8| [vec![first], vec![0; length - 1]].concat();
            for first in 0..=255 {
                let record = record(first);
                assert_eq!(
                    is_newer(ShardRecord::decode(&record)),
                    (4..=31).contains(&first),
                    "{first}"
                );
                assert_eq!(is_newer(decode_item(&record)), (1..=31).contains(&first), "{first}");
                let event = decode_event(&record);
                assert_eq!(
                    matches!(event, Err(Unreadable::Newer(_))),
                    (1..=31).contains(&first),
                    "{first}"
                );
            }
        }
        for version in 0..=15_u8 {
            let row = [vec![0; 7], vec![version << 4, 0, 0, 0, 0]].concat();
            assert_eq!(is_newer(BuyerRecord::decode(&row)), version > 0, "{version}");
        }
    }
}
