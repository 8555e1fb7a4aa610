//! Ids and names, parsed once at the edge, so that no code inside has to check them again.

use super::keyed_hash;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use std::borrow::Cow;
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;
use uuid::Uuid;

/// The most bytes of a shopper's id.
pub const USER_MAX: usize = 128;
/// The most characters of an idempotency key.
pub const KEY_MAX: usize = 64;
/// The most characters of a SKU.
const SKU_MAX: usize = 64;

/// Why a text is not a valid id or name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAName(pub &'static str);

/// A canonical UUID: 36 characters with hyphens, as the API writes ids.
fn canonical_uuid(text: &str) -> Result<Uuid, NotAName> {
    if text.len() != 36 {
        return Err(NotAName("not a UUID"));
    }
    Uuid::try_parse(text).or(Err(NotAName("not a UUID")))
}

/// The texts of ids.
macro_rules! uuid_texts {
    ($($id:ident)*) => {$(
        impl FromStr for $id {
            type Err = NotAName;
            fn from_str(text: &str) -> Result<Self, NotAName> {
                canonical_uuid(text).map(Self)
            }
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

uuid_texts! { SaleId OrderId }

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SaleId(pub Uuid);

/// An order's id. It is derived, not random (a UUID of version 8, RFC 9562). The first four bytes are the sale's
/// number, and two are a keyed check of the others. The rest is a keyed hash of the shopper and the idempotency key.
///
/// So the same request has the same id on every instance and on every attempt. An id alone names its sale. The check
/// rejects all but one in 65,536 guessed ids without a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OrderId(pub Uuid);

impl OrderId {
    /// The id of the order of `user` under `key`, in the sale with this number and secret.
    pub fn derive(sale_number: u32, secret: &[u8; 32], user: &UserId, key: &IdempotencyKey) -> Self {
        // The user's length comes first, so no two pairs of user and key give the same message.
        let length = (user.0.len() as u64).to_be_bytes();
        let digest = keyed_hash::of(secret, &[&length, user.0.as_bytes(), key.0.as_bytes()]);
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&sale_number.to_be_bytes());
        for (byte, digested) in bytes[6..].iter_mut().zip(digest) {
            *byte = digested;
        }
        let mut bytes = *uuid::Builder::from_custom_bytes(bytes).as_uuid().as_bytes();
        let check = check(secret, &bytes);
        bytes[4..6].copy_from_slice(&check);
        Self(Uuid::from_bytes(bytes))
    }

    /// The bytes that stand for the order in its shopper's sliding window.
    pub fn window_member(&self) -> [u8; 6] {
        let [.., a, b, c, d, e, f] = *self.0.as_bytes();
        [a, b, c, d, e, f]
    }

    /// Whether this can be the id of an order in the sale with this secret.
    pub fn may_be_of(&self, secret: &[u8; 32]) -> bool {
        let bytes = self.0.as_bytes();
        bytes[4..6] == check(secret, bytes)
    }

    /// The least and the greatest id of an order in the sale with this number.
    pub fn bounds_of_sale(number: u32) -> [Self; 2] {
        let least = u128::from(number) << 96;
        [least, least | (u128::MAX >> 32)].map(|id| Self(Uuid::from_u128(id)))
    }

    /// The number of the order's sale. Meaningless if the id is not an order's.
    pub fn sale_number(&self) -> u32 {
        let [a, b, c, d, ..] = *self.0.as_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

/// The check of an order's id: a keyed hash of all its other bytes.
fn check(secret: &[u8; 32], id: &[u8; 16]) -> [u8; 2] {
    let [a, b, c, d, e, f, g, h, rest @ ..] = *secret;
    let low = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let [i, j, k, l, m, n, o, p, ..] = rest;
    let high = u64::from_le_bytes([i, j, k, l, m, n, o, p]);
    let mut hasher = SipHasher24::new_with_keys(low, high);
    hasher.write(&id[..4]);
    hasher.write(&id[6..]);
    // The purpose is part of the hash, so that the check differs from the hash of the home shard.
    hasher.write(b"order id");
    let [first, second, ..] = hasher.finish().to_le_bytes();
    [first, second]
}

/// A shopper: 1 to 128 bytes from the token's `sub`, compared as bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct UserId(String);

impl UserId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for UserId {
    type Err = NotAName;
    fn from_str(text: &str) -> Result<Self, NotAName> {
        // A NUL is valid UTF-8, but Postgres stores no text with one.
        if text.is_empty() || text.len() > USER_MAX || text.contains('\0') {
            return Err(NotAName("a user id has 1 to 128 bytes and no NUL"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The client's own name for a request: 1 to 64 printable ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Stands for the unknown key of an order of which only the id is known. Derived from the id. No client can send
    /// it.
    pub fn forgotten(order: OrderId) -> Self {
        Self(format!("\u{7f}{order}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IdempotencyKey {
    type Err = NotAName;
    fn from_str(text: &str) -> Result<Self, NotAName> {
        if text.is_empty() || text.len() > KEY_MAX || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(NotAName("Idempotency-Key must be 1 to 64 printable ASCII characters"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The smallest unit with a stock of its own: 1 to 64 of `A-Za-z0-9._-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Sku(String);

impl Sku {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Sku {
    type Err = NotAName;
    fn from_str(text: &str) -> Result<Self, NotAName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if text.is_empty() || text.len() > SKU_MAX || !text.bytes().all(allowed) {
            return Err(NotAName("a sku is 1 to 64 of A-Z a-z 0-9 . _ -"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Sku {
    type Error = NotAName;
    fn try_from(text: String) -> Result<Self, NotAName> {
        text.parse()
    }
}

impl fmt::Display for Sku {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Implements the schema of an id or name.
macro_rules! described {
    ($($name:ident $schema:expr;)*) => {$(
        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )*};
}

described! {
    SaleId json_schema!({"type": "string", "format": "uuid"});
    OrderId json_schema!({"type": "string", "format": "uuid"});
    UserId json_schema!({
        "type": "string",
        "description": format!("1 to {USER_MAX} bytes of UTF-8, no NUL."),
        "minLength": 1,
        "maxLength": USER_MAX,
        "pattern": r"^[^\u0000]*$",
    });
    IdempotencyKey json_schema!({
        "type": "string",
        "description": "Printable ASCII.",
        "minLength": 1,
        "maxLength": KEY_MAX,
        "pattern": "^[ -~]*$",
    });
    Sku json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": SKU_MAX,
        "pattern": "^[A-Za-z0-9._-]*$",
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(number: u32, user: &str, key: &str) -> OrderId {
        OrderId::derive(number, &[7; 32], &user.parse().unwrap(), &key.parse().unwrap())
    }

    #[test]
    fn an_order_id_is_the_same_for_the_same_request_and_tells_its_sale() {
        assert_eq!(order(4_000_000_001, "ada", "k"), order(4_000_000_001, "ada", "k"));
        assert_eq!(order(4_000_000_001, "ada", "k").sale_number(), 4_000_000_001);
        assert_eq!(order(1, "ada", "k").0.get_version_num(), 8);
        assert_eq!(order(1, "ada", "k").0.get_variant(), uuid::Variant::RFC4122);
    }

    #[test]
    fn an_order_id_with_any_bit_changed_is_none_and_neither_is_one_of_another_sale() {
        let id = order(7, "ada", "k");
        assert!(id.may_be_of(&[7; 32]));
        assert!(!id.may_be_of(&[8; 32]));
        for bit in 0..128 {
            let changed = OrderId(Uuid::from_u128(id.0.as_u128() ^ (1 << bit)));
            assert!(!changed.may_be_of(&[7; 32]), "{bit}");
        }
    }

    #[test]
    fn other_requests_have_other_order_ids() {
        assert_ne!(order(1, "ada", "k1"), order(1, "ada", "k2"));
        assert_ne!(order(1, "ada", "bk"), order(1, "adab", "k"));
        assert_ne!(order(1, "ada", "k"), order(2, "ada", "k"));
    }

    #[test]
    fn names_are_refused_just_outside_their_bounds() {
        assert!("a".repeat(64).parse::<Sku>().is_ok());
        for bad in ["", &"a".repeat(65), "a b", "a/b", "é", ":shard"] {
            assert!(bad.parse::<Sku>().is_err(), "{bad:?}");
        }
        assert!("~ !".parse::<IdempotencyKey>().is_ok());
        for bad in ["", &"k".repeat(65), "a\n", "é", "\u{7f}"] {
            assert!(bad.parse::<IdempotencyKey>().is_err(), "{bad:?}");
        }
        assert!("{}:é\n".parse::<UserId>().is_ok());
        for bad in ["", &"u".repeat(129), "a\0b"] {
            assert!(bad.parse::<UserId>().is_err(), "{bad:?}");
        }
        assert!("0190B2A4-5C2E-8000-8000-000000000000".parse::<SaleId>().is_ok());
        assert!("0190b2a45c2e80008000000000000000".parse::<SaleId>().is_err());
    }
}
