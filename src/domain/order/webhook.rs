//! Webhook signatures, as in Standard Webhooks: an HMAC-SHA256 over `id.timestamp.body`, sent as `v1,<base64>`. Only
//! signed parts may be trusted. Both sides of the payment webhook use this module, and so does the webhook for guard
//! warnings.

use crate::domain::keyed_hash;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use subtle::ConstantTimeEq as _;

/// How far a timestamp may be off, in either direction. A replay older than this is refused.
pub const TOLERANCE_SECONDS: u64 = 300;

/// The most signatures of the right length that are compared. A provider that rotates its secret sends two.
const SIGNATURES_MAX: usize = 8;

/// The least bytes of a secret; the standard asks for 24 to 64.
const SECRET_BYTES_MIN: usize = 24;

/// Why a delivery is refused. The texts name the part to check, and never the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is no such header, or it is empty.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// The id has a `.`, which could shift bytes between the signed parts.
    #[error("webhook-id must have no dot")]
    BadId,
    /// The timestamp is not in whole Unix seconds.
    #[error("webhook-timestamp must be whole seconds since 1970")]
    BadTimestamp,
    /// The timestamp is further off than [`TOLERANCE_SECONDS`].
    #[error("webhook-timestamp is more than 5 minutes off: check the sender's clock")]
    TimestampOff,
    /// None of the signatures matches.
    #[error("no signature in webhook-signature matches: check the secret on both sides")]
    NoMatch,
}

/// Why a text is not a webhook secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("a webhook secret begins with whsec_")]
    NoPrefix,
    /// The part after the prefix is not base64.
    #[error("what follows whsec_ must be base64")]
    NotBase64,
    /// It has fewer bytes than the standard asks for.
    #[error("a webhook secret holds at least 24 bytes: whsec_$(openssl rand -base64 32) makes one")]
    TooShort,
}

/// Decodes `whsec_<base64>`, with or without padding, into the bytes of the key.
pub fn decode_secret(secret: &str) -> Result<Vec<u8>, SecretError> {
    let padding_optional = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let encoded = secret.strip_prefix("whsec_").ok_or(SecretError::NoPrefix)?;
    let bytes = padding_optional.decode(encoded).ok().ok_or(SecretError::NotBase64)?;
    if bytes.len() < SECRET_BYTES_MIN {
        return Err(SecretError::TooShort);
    }
    Ok(bytes)
}

/// Signs a delivery. Returns the value of the header `webhook-signature`, `v1,<base64>`.
pub fn sign(secret: &[u8], id: &str, timestamp: i64, body: &[u8]) -> String {
    let digest = mac(secret, id, &timestamp.to_string(), body);
    format!("v1,{}", STANDARD.encode(digest))
}

/// Verifies a delivery. `signature_header` may have several signatures, separated by spaces, while the provider rotates
/// its secret. One match is enough; versions other than `v1` are ignored. After an error, nothing of the delivery may
/// be recorded.
pub fn verify(
    secret: &[u8],
    id: &str,
    timestamp_header: &str,
    signature_header: &str,
    body: &[u8],
    now_unix: i64,
) -> Result<(), SignatureError> {
    for (name, header) in [
        ("webhook-id", id),
        ("webhook-timestamp", timestamp_header),
        ("webhook-signature", signature_header),
    ] {
        if header.is_empty() {
            return Err(SignatureError::Missing(name));
        }
    }
    if id.contains('.') {
        return Err(SignatureError::BadId);
    }
    // Digits only: `i64::from_str` would also accept a sign. The text itself is signed, so it must have one form.
    if !timestamp_header.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SignatureError::BadTimestamp);
    }
    let timestamp: i64 = timestamp_header.parse().ok().ok_or(SignatureError::BadTimestamp)?;
    if timestamp.abs_diff(now_unix) > TOLERANCE_SECONDS {
        return Err(SignatureError::TimestampOff);
    }
    let expected = STANDARD.encode(mac(secret, id, timestamp_header, body));
    let fits = signature_header
        .split_ascii_whitespace()
        .filter_map(|signature| signature.strip_prefix("v1,"))
        .filter(|given| given.len() == expected.len())
        .take(SIGNATURES_MAX)
        // In constant time, so that the answer does not reveal how much of a guess is right.
        .any(|given| given.as_bytes().ct_eq(expected.as_bytes()).into());
    if fits { Ok(()) } else { Err(SignatureError::NoMatch) }
}

/// The HMAC over `id.timestamp.body`.
fn mac(secret: &[u8], id: &str, timestamp: &str, body: &[u8]) -> [u8; 32] {
    keyed_hash::of(secret, &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    const ID: &str = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
    const AT: i64 = 1_649_367_553;
    const BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;
    const SIGNATURE: &str = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";

    fn check(id: &str, timestamp: &str, signature: &str, body: &[u8], now: i64) -> Result<(), SignatureError> {
        verify(&decode_secret(SECRET).unwrap(), id, timestamp, signature, body, now)
    }

    #[test]
    fn the_published_vector_signs_and_verifies() {
        assert_eq!(sign(&decode_secret(SECRET).unwrap(), ID, AT, BODY), SIGNATURE);
        assert_eq!(check(ID, "1649367553", SIGNATURE, BODY, AT), Ok(()));
    }

    #[test]
    fn one_of_several_signatures_is_enough() {
        let several = format!("v1a,abc v1,!!! v1,AAAA {SIGNATURE}");
        assert_eq!(check(ID, "1649367553", &several, BODY, AT), Ok(()));
        assert_eq!(
            check(ID, "1649367553", "v1,AAAA", BODY, AT),
            Err(SignatureError::NoMatch)
        );
    }

    #[test]
    fn the_ninth_signature_of_the_right_length_is_not_compared() {
        let other = format!("v1,{}=", "A".repeat(43));
        // Signatures of another length or version are ignored and do not count.
        let before = |others: usize| {
            format!("{}v1,AAAA v2,{}= ", "v1,AA ".repeat(100), "A".repeat(43)) + &format!("{other} ").repeat(others)
        };
        let header = |others: usize| before(others) + SIGNATURE;
        assert_eq!(check(ID, "1649367553", &header(7), BODY, AT), Ok(()));
        let ninth = check(ID, "1649367553", &header(8), BODY, AT);
        assert_eq!(ninth, Err(SignatureError::NoMatch));
    }

    #[test]
    fn a_changed_byte_is_refused() {
        assert_eq!(
            check(ID, "1649367553", SIGNATURE, b"{}", AT),
            Err(SignatureError::NoMatch)
        );
        assert_eq!(
            check("msg_2", "1649367553", SIGNATURE, BODY, AT),
            Err(SignatureError::NoMatch)
        );
        assert_eq!(
            check(ID, "1649367554", SIGNATURE, BODY, AT),
            Err(SignatureError::NoMatch)
        );
        assert_eq!(
            verify(&[7; 24], ID, "1649367553", SIGNATURE, BODY, AT),
            Err(SignatureError::NoMatch)
        );
    }

    #[test]
    fn five_minutes_either_way_are_tolerated_and_no_more() {
        for (now, expected) in [
            (AT + 300, Ok(())),
            (AT - 300, Ok(())),
            (AT + 301, Err(SignatureError::TimestampOff)),
            (AT - 301, Err(SignatureError::TimestampOff)),
        ] {
            assert_eq!(check(ID, "1649367553", SIGNATURE, BODY, now), expected);
        }
    }

    #[test]
    fn dots_and_signs_that_could_shift_the_signed_parts_are_refused() {
        assert_eq!(
            check("msg.1", "1649367553", SIGNATURE, BODY, AT),
            Err(SignatureError::BadId)
        );
        for timestamp in [
            "1649367553.0",
            "+1649367553",
            "-1",
            " 1649367553",
            "99999999999999999999",
        ] {
            assert_eq!(
                check(ID, timestamp, SIGNATURE, BODY, AT),
                Err(SignatureError::BadTimestamp),
                "{timestamp}"
            );
        }
    }

    #[test]
    fn a_header_that_is_missing_is_named() {
        let missing = |id, timestamp, signature| check(id, timestamp, signature, BODY, AT).unwrap_err().to_string();
        assert_eq!(missing("", "1649367553", SIGNATURE), "webhook-id is missing");
        assert_eq!(missing(ID, "", SIGNATURE), "webhook-timestamp is missing");
        assert_eq!(missing(ID, "1649367553", ""), "webhook-signature is missing");
    }

    #[test]
    fn a_secret_is_a_prefix_and_base64() {
        assert_eq!(decode_secret(SECRET).unwrap().len(), 24);
        assert_eq!(
            decode_secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGA").unwrap().len(),
            25
        );
        assert_eq!(
            decode_secret("C2FVsBQIhrscChlQIMV+b5sSYspob7oD"),
            Err(SecretError::NoPrefix)
        );
        assert_eq!(decode_secret("whsec_***"), Err(SecretError::NotBase64));
        assert_eq!(decode_secret("whsec_AAAA"), Err(SecretError::TooShort));
    }
}
