//! Purchase tokens: proof that a shopper was let through to buy. One is bound to shopper, sale and idempotency key, so a
//! retry of the same request takes it again, and whoever copies it can only repeat that request.
//!
//! `v1.<key id>.<expiry, seconds since the epoch>.<HMAC-SHA256, base64url>`; the tag covers everything that comes before it,
//! and what the token is bound to.

use super::ids::{IdempotencyKey, SaleId, UserId};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// How long a token is good, in seconds.
pub const LASTS_SECONDS: i64 = 300;
/// The form that is written; others are not read.
const VERSION: &str = "v1";
/// Characters that a key's id may have.
const ID_MAX: usize = 16;
/// The fewest bytes of a key.
const KEY_MIN: usize = 32;

/// What a token is for.
#[derive(Debug, Clone, Copy)]
pub struct Bound<'a> {
    /// The sale.
    pub sale: SaleId,
    /// The shopper.
    pub user: &'a UserId,
    /// The request's name.
    pub key: &'a IdempotencyKey,
}

/// A key by its id.
#[derive(Clone)]
struct SigningKey {
    id: String,
    mac: Hmac<Sha256>,
}

/// The keys of tokens: the first one signs, all of them are taken, so that keys can be changed while tokens are about.
#[derive(Clone)]
pub struct TokenKeys(Vec<SigningKey>);

impl TokenKeys {
    /// The keys `ID:BASE64,ID:BASE64…`, newest first.
    ///
    /// # Errors
    /// What is wrong and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "is not a list of keys; write each as ID:BASE64 with commas in between, newest first: an id has 1 to {ID_MAX} of \
                 a-z and 0-9, a key at least {KEY_MIN} bytes, as `openssl rand -base64 32` draws them"
            )
        };
        let keys = text.split(',').map(str::trim).map(|key| {
            let (id, secret) = key.split_once(':')?;
            let good = (1..=ID_MAX).contains(&id.len())
                && id
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
            let secret = base64::engine::general_purpose::STANDARD.decode(secret).ok()?;
            let mac = Hmac::new_from_slice(&secret).ok()?;
            (good && secret.len() >= KEY_MIN).then(|| SigningKey { id: id.to_owned(), mac })
        });
        let keys: Option<Vec<SigningKey>> = keys.collect();
        let keys = keys.filter(|keys| !keys.is_empty()).ok_or_else(wrong)?;
        let twice = keys
            .iter()
            .enumerate()
            .any(|(at, key)| keys.iter().take(at).any(|other| other.id == key.id));
        if twice { Err(wrong()) } else { Ok(Self(keys)) }
    }

    /// A key that follows from another secret, for those who name none.
    #[must_use]
    pub fn derived(secret: &[u8]) -> Self {
        // Infallible: HMAC takes a key of any length.
        let mac = Hmac::<Sha256>::new_from_slice(secret).ok().and_then(|mut mac| {
            mac.update(b"flashsale purchase tokens");
            Hmac::new_from_slice(&mac.finalize().into_bytes()).ok()
        });
        let key = mac.map(|mac| SigningKey {
            id: "jwt".to_owned(),
            mac,
        });
        Self(key.into_iter().collect())
    }

    /// A token that is good until then, in seconds since the epoch.
    #[must_use]
    pub fn sign(&self, bound: &Bound<'_>, expires_at: i64) -> String {
        let Some(key) = self.0.first() else {
            return String::new();
        };
        let head = format!("{VERSION}.{}.{expires_at}", key.id);
        let tag = tagged(&key.mac, &head, bound).finalize().into_bytes();
        format!("{head}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Whether this is a token for that, and still good at `now`. It takes as long whatever is wrong with it.
    #[must_use]
    pub fn is_good(&self, token: &str, bound: &Bound<'_>, now: i64) -> bool {
        let (head, tag) = token.rsplit_once('.').unwrap_or_default();
        let mut words = head.split('.');
        let (version, id, expiry, rest) = (words.next(), words.next(), words.next(), words.next());
        // A number has one way to be written: what the tag covers must be all that there is.
        let expires_at = expiry.and_then(|expiry| expiry.parse::<i64>().ok().filter(|at| at.to_string() == expiry));
        let named = self.0.iter().find(|key| Some(key.id.as_str()) == id);
        let Some(key) = named.or_else(|| self.0.first()) else {
            return false;
        };
        let tag = URL_SAFE_NO_PAD.decode(tag).unwrap_or_default();
        let is_ours = tagged(&key.mac, head, bound).verify_slice(&tag).is_ok();
        let is_whole = version == Some(VERSION) && rest.is_none() && named.is_some();
        let is_in_time = expires_at.is_some_and(|at| now < at && at <= now.saturating_add(LASTS_SECONDS));
        is_ours & is_whole & is_in_time
    }
}

fn tagged(mac: &Hmac<Sha256>, head: &str, bound: &Bound<'_>) -> Hmac<Sha256> {
    let mut mac = mac.clone();
    // Lengths first, so that nothing can be taken for something else.
    mac.update(&(head.len() as u64).to_be_bytes());
    mac.update(head.as_bytes());
    mac.update(bound.sale.0.as_bytes());
    mac.update(&(bound.user.as_str().len() as u64).to_be_bytes());
    mac.update(bound.user.as_str().as_bytes());
    mac.update(bound.key.as_str().as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    const NOW: i64 = 1_900_000_000;
    const ONE: &str = "k1:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    const TWO: &str = "k2:MTEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

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
        assert!(!good(1, "ada", "k", NOW - 1), "no token is good for longer");
        assert!(!good(2, "ada", "k", NOW) && !good(1, "bob", "k", NOW) && !good(1, "ada", "l", NOW));
        // What one pair has at its end, another has at its beginning.
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
                    // Of the last character, two bits stand for nothing.
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
    fn keys_change_while_tokens_are_about() {
        with(1, "ada", "k", |bound| {
            let old = keys(ONE).sign(bound, NOW + 60);
            let both = keys(&format!("{TWO}, {ONE}"));
            assert!(both.is_good(&old, bound, NOW));
            let new = both.sign(bound, NOW + 60);
            assert!(new.starts_with("v1.k2."), "{new}");
            assert!(!keys(ONE).is_good(&new, bound, NOW));
            assert!(!keys(TWO).is_good(&old, bound, NOW));
            // The same id with another key is another key.
            let renamed = TWO.replace("k2", "k1");
            assert!(!keys(&renamed).is_good(&old, bound, NOW));
        });
    }

    #[test]
    fn keys_that_cannot_be_are_refused() {
        assert!(TokenKeys::parse(&format!("{ONE},{TWO}")).is_ok());
        for wrong in [
            "",
            "k1",
            "k1:",
            ":MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
            "K1:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
            "k1:c2hvcnQ=",
            "k1:no base64",
            &format!("{ONE},"),
            &format!("{ONE},{ONE}"),
        ] {
            assert!(TokenKeys::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_derived_key_is_the_secrets_own() {
        with(1, "ada", "k", |bound| {
            let token = TokenKeys::derived(&[1; 32]).sign(bound, NOW + 60);
            assert!(TokenKeys::derived(&[1; 32]).is_good(&token, bound, NOW));
            assert!(!TokenKeys::derived(&[2; 32]).is_good(&token, bound, NOW));
        });
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_no_token(text in "\\PC{0,100}") {
            let is_good = with(1, "ada", "k", |bound| keys(ONE).is_good(&text, bound, NOW));
            prop_assert!(!is_good);
        }
    }
}
