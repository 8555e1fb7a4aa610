//! An item's record, in `item:<sku>`.

use super::{Pack, Unpack, known};
use crate::domain::fault::Fault;
use crate::domain::operator::report::Counters;

/// The bytes of an item's record.
const ITEM: usize = 60;

/// Decodes the value of `item:<sku>`. Fails with `Incomplete` when the bytes are not a whole record.
pub fn decode_item(bytes: &[u8]) -> Result<Counters, Fault> {
    known(bytes, 1, "item")?;
    read_item(bytes).ok_or_else(|| Fault::Incomplete("an item's record is damaged".to_owned()))
}

/// The value of `item:<sku>`, as `lua/operate/preload.lua` writes it.
pub fn encode_item(counters: &Counters, per_user_limit: u32, position: u16) -> Vec<u8> {
    let mut bytes = Pack(Vec::with_capacity(ITEM));
    bytes.put(1, 0);
    bytes.put(5, counters.available);
    bytes.put(6, counters.held);
    bytes.put(4, i64::from(per_user_limit));
    bytes.put(2, i64::from(position));
    for number in [
        counters.sold,
        counters.revoked,
        counters.out,
        counters.r#in,
        counters.granted,
        counters.version,
        counters.withdrawn,
    ] {
        bytes.put(6, number);
    }
    bytes.0
}

fn read_item(bytes: &[u8]) -> Option<Counters> {
    if bytes.len() != ITEM {
        return None;
    }
    let mut bytes = Unpack(bytes);
    let (_version, available, held) = (bytes.number(1)?, bytes.number(5)?, bytes.number(6)?);
    let _limit_and_position = (bytes.number(4)?, bytes.number(2)?);
    Some(Counters {
        available,
        held,
        sold: bytes.number(6)?,
        revoked: bytes.number(6)?,
        out: bytes.number(6)?,
        r#in: bytes.number(6)?,
        granted: bytes.number(6)?,
        version: bytes.number(6)?,
        withdrawn: bytes.number(6)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stock::record::tests::{MILLIS, is_newer};
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_item_comes_back_as_it_was_written(
            available in 0..1_i64 << 40, numbers in vec(0..=MILLIS, 9), limit: u32, position: u16,
        ) {
            let counters = Counters {
                available,
                held: numbers[1],
                sold: numbers[2],
                revoked: numbers[3],
                out: numbers[4],
                r#in: numbers[5],
                granted: numbers[6],
                version: numbers[7],
                withdrawn: numbers[8],
            };
            let bytes = encode_item(&counters, limit, position);
            prop_assert_eq!(decode_item(&bytes).unwrap(), counters);
            prop_assert!(decode_item(&bytes[1..]).is_err());
            prop_assert!(is_newer(decode_item(&[&[1], &bytes[1..]].concat())));
        }
    }
}
