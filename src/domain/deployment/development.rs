//! The key of development mode, which the program prints at its start. It is derived from the secret of shoppers'
//! tokens: all instances have the same key, and a restart keeps it.

use crate::domain::keyed_hash;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The bytes of the key.
const LENGTH: usize = 18;

/// The key derived from the secret, which it does not reveal.
pub fn key(jwt_secret: &str) -> String {
    let hash = keyed_hash::of(jwt_secret.as_bytes(), &[b"flashsale development mode"]);
    URL_SAFE_NO_PAD.encode(&hash[..LENGTH])
}

/// The address of a page with the key in its fragment, which browsers do not send.
pub fn link(page: &str, jwt_secret: &str) -> String {
    format!("{page}#development={}", key(jwt_secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_long_and_another_for_every_secret() {
        let one = key("0123456789abcdef0123456789abcdef");
        assert_eq!(one.len(), 24);
        assert_eq!(one, key("0123456789abcdef0123456789abcdef"));
        assert_ne!(one, key("0123456789abcdef0123456789abcdeg"));
        assert_eq!(link("http://a/", "s"), format!("http://a/#development={}", key("s")));
    }
}
