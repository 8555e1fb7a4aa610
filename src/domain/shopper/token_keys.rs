//! The keys of tokens that the application signs and does not store. The first key signs, and all keys verify. So an
//! operator can change keys while tokens are in use.
//!
//! A token is `<kind>.<key id>.<body>.<HMAC-SHA256, base64url>`. The HMAC covers everything before it, and the values
//! that the token is bound to. The verifier must know these values.

use crate::domain::keyed_hash;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

/// The most characters of a key's id.
const ID_MAX: usize = 16;
/// The least bytes of a key.
const KEY_MIN: usize = 32;

#[derive(Clone)]
struct SigningKey {
    id: String,
    mac: Hmac<Sha256>,
}

#[derive(Clone)]
pub struct TokenKeys(Vec<SigningKey>);

impl TokenKeys {
    /// Parses the keys `ID:BASE64,ID:BASE64…`, newest first. The error says what to write instead.
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
            let secret = STANDARD.decode(secret).ok()?;
            let mac = keyed_hash::begin(&secret);
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

    /// A key derived from another secret, for an instance without configured keys.
    pub fn derived(secret: &[u8]) -> Self {
        let key = keyed_hash::of(secret, &[b"flashsale purchase tokens"]);
        Self(vec![SigningKey {
            id: "jwt".to_owned(),
            mac: keyed_hash::begin(&key),
        }])
    }

    /// A token of this kind with this body, which has no dot. It is valid only with the values that it is bound to.
    pub fn seal(&self, kind: &str, body: &str, bound: &[&[u8]]) -> String {
        let Some(key) = self.0.first() else {
            return String::new();
        };
        let head = format!("{kind}.{}.{body}", key.id);
        let tag = tagged(&key.mac, &head, bound).finalize().into_bytes();
        format!("{head}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// The body of a valid token of this kind. Takes the same time for every invalid one.
    pub fn open<'a>(&self, kind: &str, token: &'a str, bound: &[&[u8]]) -> Option<&'a str> {
        let (head, tag) = token.rsplit_once('.').unwrap_or_default();
        let mut words = head.split('.');
        let (its_kind, id, body, rest) = (words.next(), words.next(), words.next(), words.next());
        let named = self.0.iter().find(|key| Some(key.id.as_str()) == id);
        let key = named.or_else(|| self.0.first())?;
        let tag = URL_SAFE_NO_PAD.decode(tag).unwrap_or_default();
        let is_ours = tagged(&key.mac, head, bound).verify_slice(&tag).is_ok();
        let is_whole = its_kind == Some(kind) && rest.is_none() && named.is_some();
        body.filter(|_| is_ours & is_whole)
    }
}

fn tagged(mac: &Hmac<Sha256>, head: &str, bound: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = mac.clone();
    // Each length first, so that no two lists of parts give the same bytes.
    for part in std::iter::once(&head.as_bytes()).chain(bound) {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "k1:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    const TWO: &str = "k2:MTEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn keys(text: &str) -> TokenKeys {
        TokenKeys::parse(text).unwrap()
    }

    #[test]
    fn a_token_says_what_it_was_sealed_with_to_whoever_knows_what_it_is_bound_to() {
        let keys = keys(ONE);
        let token = keys.seal("a1", "body", &[b"sale", b"ada"]);
        assert!(token.starts_with("a1.k1.body."), "{token}");
        assert_eq!(keys.open("a1", &token, &[b"sale", b"ada"]), Some("body"));
        let others: [&[&[u8]]; 4] = [
            &[b"sale", b"bob"],
            &[b"salea", b"da"],
            &[b"sale"],
            &[b"sale", b"ada", b""],
        ];
        for other in others {
            assert_eq!(keys.open("a1", &token, other), None, "{other:?}");
        }
        assert_eq!(keys.open("v1", &token, &[b"sale", b"ada"]), None, "of another kind");
    }

    #[test]
    fn keys_change_while_tokens_are_about() {
        let old = keys(ONE).seal("a1", "body", &[]);
        let both = keys(&format!("{TWO}, {ONE}"));
        assert_eq!(both.open("a1", &old, &[]), Some("body"));
        let new = both.seal("a1", "body", &[]);
        assert!(new.starts_with("a1.k2."), "{new}");
        assert_eq!(keys(ONE).open("a1", &new, &[]), None);
        assert_eq!(keys(TWO).open("a1", &old, &[]), None);
        // A key with the same id and other bytes is another key.
        assert_eq!(keys(&TWO.replace("k2", "k1")).open("a1", &old, &[]), None);
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
        let token = TokenKeys::derived(&[1; 32]).seal("a1", "body", &[]);
        assert!(TokenKeys::derived(&[1; 32]).open("a1", &token, &[]).is_some());
        assert!(TokenKeys::derived(&[2; 32]).open("a1", &token, &[]).is_none());
    }
}
