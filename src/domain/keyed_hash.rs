//! HMAC-SHA-256 (RFC 2104) with a key of any length.

use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};

/// The HMAC of a message that is still to be given.
///
/// The library's constructor for keys of any length returns a `Result`. A key longer than a block is hashed here, as
/// HMAC itself would do, and the padded block fits the constructor that cannot fail.
#[must_use]
pub fn begin(key: &[u8]) -> Hmac<Sha256> {
    let mut block = [0; 64];
    if key.len() <= block.len() {
        block[..key.len()].copy_from_slice(key);
    } else {
        block[..32].copy_from_slice(&Sha256::digest(key));
    }
    Hmac::<Sha256>::new(&block.into())
}

/// The HMAC of these parts, one after the other.
pub fn of(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = begin(key);
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_length_are_plain_hmac() {
        for length in [0, 24, 63, 64, 65, 200] {
            let key = vec![9; length];
            let mut plain = Hmac::<Sha256>::new_from_slice(&key).unwrap();
            plain.update(b"msg_1.body");
            assert_eq!(
                of(&key, &[b"msg_1", b".body"])[..],
                plain.finalize().into_bytes()[..],
                "{length}"
            );
        }
    }
}
