//! HMAC-SHA256 (RFC 7518, `HS256`) for the `jsonwebtoken` crate.
//!
//! The crate's own providers bring RSA and elliptic curves with them. Shoppers' tokens use only `HS256`, and `rsa` has
//! a known weakness (RUSTSEC-2023-0071). So this provider refuses every other algorithm.

use crate::domain::keyed_hash;
use hmac::{Hmac, Mac as _};
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Signer, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey};
use sha2::Sha256;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key| Ok(Box::new(signer(*algorithm, key)?)),
    verifier_factory: |algorithm, key| Ok(Box::new(verifier(*algorithm, key)?)),
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `jsonwebtoken` sign and verify with this module. Without it the crate panics. More than one call is fine.
pub fn install() {
    // An error says that an earlier call installed it.
    let _installed = PROVIDER.install_default();
}

#[derive(Clone)]
struct Hs256(Hmac<Sha256>);

fn signer(algorithm: Algorithm, key: &EncodingKey) -> Result<Hs256, Error> {
    Hs256::new(algorithm, key.family(), key.as_bytes())
}

fn verifier(algorithm: Algorithm, key: &DecodingKey) -> Result<Hs256, Error> {
    Hs256::new(algorithm, key.family(), key.try_get_as_bytes()?)
}

impl Hs256 {
    fn new(algorithm: Algorithm, family: AlgorithmFamily, key: &[u8]) -> Result<Self, Error> {
        if algorithm != Algorithm::HS256 || family != AlgorithmFamily::Hmac {
            return Err(ErrorKind::InvalidAlgorithm.into());
        }
        Ok(Self(keyed_hash::begin(key)))
    }
}

impl Signer<Vec<u8>> for Hs256 {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        Ok(self.0.clone().chain_update(message).finalize().into_bytes().to_vec())
    }
}

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let mac = self.0.clone().chain_update(message);
        // Takes the same time for every wrong signature.
        mac.verify_slice(signature).map_err(signature::Error::from_source)
    }
}

impl JwtSigner for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{Header, Validation};
    use serde_json::{Value, json};

    /// The example of RFC 7515, appendix A.1.
    #[test]
    fn the_example_of_the_standard_verifies_and_no_other_algorithm_signs() {
        install();
        install();
        let token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.\
                     eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.\
                     dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let key = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        let key = DecodingKey::from_base64_secret(&(key.replace('-', "+").replace('_', "/") + "==")).unwrap();
        let mut validation = Validation::new(Algorithm::HS256);
        validation.validate_exp = false;
        let claims = jsonwebtoken::decode::<Value>(token, &key, &validation).unwrap().claims;
        assert_eq!(claims["iss"], "joe");
        let other = DecodingKey::from_secret(b"another key");
        assert!(jsonwebtoken::decode::<Value>(token, &other, &validation).is_err());
        for algorithm in [Algorithm::HS384, Algorithm::HS512, Algorithm::RS256] {
            let key = EncodingKey::from_secret(b"key");
            assert!(jsonwebtoken::encode(&Header::new(algorithm), &json!({}), &key).is_err());
        }
    }
}
