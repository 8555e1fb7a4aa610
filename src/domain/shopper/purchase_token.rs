//! Proofs that a shopper may buy. A purchase token is bound to shopper, sale and idempotency key. A retry of the same
//! request can use it again, and a thief can only repeat that request. An admission from a waiting room is bound to
//! shopper and sale. Both carry their expiry in Unix seconds.

use super::token_keys::TokenKeys;
use crate::domain::ids::{IdempotencyKey, SaleId, UserId};

/// How long a purchase token lasts, in seconds.
pub const LASTS_SECONDS: i64 = 300;
/// How many seconds the clocks of two instances, or of an instance and Redis, may differ.
const CLOCKS_APART: i64 = 5;
/// The kind of the purchase tokens that this version writes. It accepts no other.
const PURCHASE: &str = "v1";
/// The kind of the admissions that this version writes. It accepts no other.
const ADMISSION: &str = "a1";

/// What a purchase token is bound to.
#[derive(Debug, Clone, Copy)]
pub struct Bound<'a> {
    pub sale: SaleId,
    pub user: &'a UserId,
    pub key: &'a IdempotencyKey,
}

impl Bound<'_> {
    fn parts(&self) -> [&[u8]; 3] {
        [
            self.sale.0.as_bytes(),
            self.user.as_str().as_bytes(),
            self.key.as_str().as_bytes(),
        ]
    }
}

impl TokenKeys {
    /// A purchase token that lasts until `expires_at` (Unix seconds).
    pub fn sign(&self, bound: &Bound<'_>, expires_at: i64) -> String {
        self.seal(PURCHASE, &expires_at.to_string(), &bound.parts())
    }

    /// Whether this is a purchase token for `bound` that is valid at `now`.
    pub fn is_good(&self, token: &str, bound: &Bound<'_>, now: i64) -> bool {
        let expires_at = self.open(PURCHASE, token, &bound.parts()).and_then(number);
        expires_at.is_some_and(|at| now < at && at <= now.saturating_add(LASTS_SECONDS + CLOCKS_APART))
    }

    /// A shopper's admission to a sale until `expires_at` (Unix seconds).
    pub fn admit(&self, sale: SaleId, user: &UserId, expires_at: i64) -> String {
        let bound = [sale.0.as_bytes().as_slice(), user.as_str().as_bytes()];
        self.seal(ADMISSION, &expires_at.to_string(), &bound)
    }

    /// Whether this is a shopper's admission to a sale that is valid at `now`. Redis's clock set its end, so a few
    /// seconds of difference are allowed.
    pub fn is_admitted(&self, token: &str, sale: SaleId, user: &UserId, now: i64) -> bool {
        let bound = [sale.0.as_bytes().as_slice(), user.as_str().as_bytes()];
        self.open(ADMISSION, token, &bound)
            .and_then(number)
            .is_some_and(|at| now < at.saturating_add(CLOCKS_APART))
    }
}

/// Parses a number in its only valid form, so that no token has a second spelling.
fn number(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use proptest::prelude::*;
    use uuid::Uuid;

    const NOW: i64 = 1_900_000_000;
    const ONE: &str = "k1:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn keys(text: &str) -> TokenKeys {
        TokenKeys::parse(text).unwrap()
    }

    fn with<T>(sale: u128, user: &str, key: &str, check: impl FnOnce(&Bound<'_>) -> T) -> T {
        let (user, key) = (user.parse().unwrap(), key.parse().unwrap());
        check(&Bound {
            sale: SaleId(Uuid::from_u128(sale)),
            user: &user,
            key: &key,
        })
    }

    #[test]
    fn a_token_is_good_for_what_it_is_bound_to_until_it_expires() {
        let keys = keys(ONE);
        let token = with(1, "ada", "k", |bound| keys.sign(bound, NOW + LASTS_SECONDS));
        let good = |sale, user, key, now| with(sale, user, key, |bound| keys.is_good(&token, bound, now));
        assert!(good(1, "ada", "k", NOW) && good(1, "ada", "k", NOW + LASTS_SECONDS - 1));
        assert!(!good(1, "ada", "k", NOW + LASTS_SECONDS), "expired");
        assert!(
            good(1, "ada", "k", NOW - CLOCKS_APART),
            "of an instance whose clock is ahead"
        );
        assert!(
            !good(1, "ada", "k", NOW - CLOCKS_APART - 1),
            "no token is good for longer"
        );
        assert!(!good(2, "ada", "k", NOW) && !good(1, "bob", "k", NOW) && !good(1, "ada", "l", NOW));
        // A byte at the end of one part moves to the beginning of the next.
        let token = with(1, "a", "da", |bound| keys.sign(bound, NOW + 1));
        assert!(!with(1, "ad", "a", |bound| keys.is_good(&token, bound, NOW)));
    }

    #[test]
    fn a_token_with_any_bit_changed_cut_off_or_added_to_is_none() {
        let keys = keys(ONE);
        with(1, "ada", "k", |bound| {
            let token = keys.sign(bound, NOW + 60);
            assert!(keys.is_good(&token, bound, NOW));
            for at in 0..token.len() {
                assert!(!keys.is_good(&token[..at], bound, NOW), "cut off at {at}");
                for bit in 0..7 {
                    let mut bytes = token.clone().into_bytes();
                    bytes[at] ^= 1 << bit;
                    let changed = String::from_utf8(bytes).unwrap();
                    // Two bits of the last character carry nothing.
                    let same = changed
                        .rsplit('.')
                        .next()
                        .and_then(|tag| URL_SAFE_NO_PAD.decode(tag).ok());
                    assert!(
                        same.is_none() || !keys.is_good(&changed, bound, NOW),
                        "bit {bit} of {at}"
                    );
                }
            }
            for more in ["=", ".", "a", " "] {
                assert!(!keys.is_good(&format!("{token}{more}"), bound, NOW), "{more:?}");
                assert!(!keys.is_good(&format!("{more}{token}"), bound, NOW), "{more:?}");
            }
            let tag = token.rsplit('.').next().unwrap();
            for head in [
                format!("v1.k1.+{}", NOW + 60),
                format!("v1.k1.0{}", NOW + 60),
                format!("v2.k1.{}", NOW + 60),
                format!("v1.k2.{}", NOW + 60),
                format!("v1.k1.{}", NOW + 61),
                format!("v1.k1.{}.", NOW + 60),
            ] {
                assert!(!keys.is_good(&format!("{head}.{tag}"), bound, NOW), "{head}");
            }
        });
    }

    #[test]
    fn an_admission_is_good_for_a_shopper_and_a_sale_until_it_expires_and_is_no_purchase_token() {
        let keys = keys(ONE);
        let sale = |number| SaleId(Uuid::from_u128(number));
        let (ada, bob): (UserId, UserId) = ("ada".parse().unwrap(), "bob".parse().unwrap());
        let token = keys.admit(sale(1), &ada, NOW + 60);
        let end = NOW + 60 + CLOCKS_APART;
        assert!(keys.is_admitted(&token, sale(1), &ada, end - 1));
        assert!(!keys.is_admitted(&token, sale(1), &ada, end), "expired");
        assert!(!keys.is_admitted(&token, sale(2), &ada, NOW) && !keys.is_admitted(&token, sale(1), &bob, NOW));
        assert!(!with(1, "ada", "k", |bound| keys.is_good(&token, bound, NOW)));
        let token = with(1, "ada", "k", |bound| keys.sign(bound, NOW + 60));
        assert!(!keys.is_admitted(&token, sale(1), &ada, NOW));
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_no_token(text in "\\PC{0,100}") {
            let is_good = with(1, "ada", "k", |bound| keys(ONE).is_good(&text, bound, NOW));
            prop_assert!(!is_good);
        }
    }
}
