//! A shard's own record, in `shard`.

use super::{Pack, Unpack, known};
use crate::domain::fault::Fault;
use crate::domain::sale::{Lifecycle, PurchaseRate};
use crate::domain::time::Millis;

/// The bytes of a shard's record before the event prefix.
const SHARD_HEAD: usize = 42;

/// A shard's own record, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRecord {
    /// The sale's state as this shard has it.
    pub lifecycle: Lifecycle,
    /// Whether events have waited too long for the ledger, so that the shard sells nothing.
    pub brake: bool,
    /// Until when it may sell.
    pub permit_until: Millis,
    /// When it starts to sell.
    pub starts_at: Millis,
    pub ends_at: Millis,
    /// The newest version of the state that the shard received.
    pub state_version: i64,
    pub epoch: i64,
}

impl ShardRecord {
    /// Decodes the value of `shard`. Fails with `Incomplete` when the bytes are not a whole record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        known(bytes, 4, "shard")?;
        Self::read(bytes).ok_or_else(|| Fault::Incomplete("the shard's record is damaged".to_owned()))
    }

    /// The value of `shard`, with the sale's limits, as `lua/operate/preload.lua` writes it.
    pub fn encode(&self, rate: &PurchaseRate) -> Vec<u8> {
        let mut bytes = Pack(vec![self.lifecycle.code(), u8::from(self.brake)]);
        bytes.put(6, self.permit_until);
        bytes.put(6, self.starts_at);
        bytes.put(6, self.ends_at);
        bytes.put(4, i64::from(rate.limit));
        bytes.put(6, rate.window_ms);
        bytes.put(6, self.state_version);
        bytes.put(6, self.epoch);
        bytes.0.extend(format!("{}-*", self.epoch).as_bytes());
        bytes.0
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() <= SHARD_HEAD {
            return None;
        }
        let mut bytes = Unpack(bytes);
        let lifecycle = Lifecycle::from_code(u8::try_from(bytes.number(1)?).ok()?)?;
        let (brake, permit_until) = (bytes.number(1)? == 1, bytes.number(6)?);
        let (starts_at, ends_at) = (bytes.number(6)?, bytes.number(6)?);
        let _limits = (bytes.number(4)?, bytes.number(6)?);
        Some(Self {
            lifecycle,
            brake,
            permit_until,
            starts_at,
            ends_at,
            state_version: bytes.number(6)?,
            epoch: bytes.number(6)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stock::record::tests::{MILLIS, is_newer};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_shard_comes_back_as_it_was_written(
            code in 0..=3_u8, brake: bool, times in [0..=MILLIS, 0..=MILLIS, 0..=MILLIS], version in 0..=MILLIS,
            epoch in 1..=MILLIS, limit: u32, window_ms in 0..=MILLIS,
        ) {
            let record = ShardRecord {
                lifecycle: Lifecycle::from_code(code).unwrap(),
                brake,
                permit_until: times[0],
                starts_at: times[1],
                ends_at: times[2],
                state_version: version,
                epoch,
            };
            let bytes = record.encode(&PurchaseRate { limit, window_ms });
            let next = format!("{epoch}-*");
            prop_assert_eq!(&bytes[42..], next.as_bytes());
            prop_assert_eq!(ShardRecord::decode(&bytes).unwrap(), record);
            prop_assert!(is_newer(ShardRecord::decode(&[&[bytes[0] + 4], &bytes[1..]].concat())));
            prop_assert!(ShardRecord::decode(&bytes[..42]).is_err());
        }
    }
}
