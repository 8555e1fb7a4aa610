//! The files with certificates and keys, of HTTPS and of connections to Redis, read once at the start.

use super::REDIS_CERT;
use rustls::RootCertStore;
use rustls::client::{ClientConfig, verify_server_name};
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, ServerConfig};
use std::sync::Arc;
use std::{fmt, fs};

/// The protocol over TLS. HTTP/2 is off: its implementation limits neither the streams nor the heads of a connection.
const PROTOCOL: &[u8] = b"http/1.1";

/// The certificate and key of HTTPS, with TLS 1.2 and 1.3.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    own: CertificateDer<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[certificate and key]")
    }
}

/// A file's certificates: first the server's, then its chain up to the authority.
pub fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    certificates_in(path, &read(path)?)
}

/// The content of a file with certificates or a key.
fn read(path: &str) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| wrong(path, "", &PemError::Io(error)))
}

/// The certificates in the content of a file.
fn certificates_in(path: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(wrong(path, "a certificate", &PemError::NoItemsFound)),
        Err(error) => Err(wrong(path, "a certificate", &error)),
    }
}

/// A file's private key: PKCS #8, PKCS #1 or SEC 1, without a password.
pub fn key(path: &str) -> Result<PrivateKeyDer<'static>, String> {
    key_in(path, &read(path)?)
}

/// The private key in the content of a file.
fn key_in(path: &str, pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| wrong(path, "a private key without a password", &error))
}

/// The content of a file of authorities, after a check that each certificate in it is valid.
pub fn authorities(path: &str) -> Result<Vec<u8>, String> {
    let pem = read(path)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in(path, &pem)? {
        roots.add(certificate).map_err(|error| {
            format!("names {path}, in which a certificate is broken ({error}); name a PEM file with the authorities")
        })?;
    }
    Ok(pem)
}

/// The content of a file with a client certificate, and the certificates in it.
pub fn client_chain(path: &str) -> Result<(Vec<u8>, Vec<CertificateDer<'static>>), String> {
    let pem = read(path)?;
    let chain = certificates_in(path, &pem)?;
    Ok((pem, chain))
}

/// The content of a file with the key of the first of these certificates.
pub fn client_key(path: &str, chain: Vec<CertificateDer<'static>>) -> Result<Vec<u8>, String> {
    let pem = read(path)?;
    let key = key_in(path, &pem)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            let config = config.with_root_certificates(RootCertStore::empty());
            config.with_client_auth_cert(chain, key)
        });
    config.map(|_| pem).map_err(|error| {
        format!(
            "names {path}, which is not the key of the first certificate in {REDIS_CERT}, or of a kind that cannot be \
             used ({error}); name the key that this certificate was made for"
        )
    })
}

impl Tls {
    /// HTTPS with these certificates and the key of the first one.
    pub fn new(certificates: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, String> {
        let own = certificates.first().cloned().unwrap_or_else(|| Vec::new().into());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(certificates, key));
        match config {
            Ok(mut config) => {
                config.alpn_protocols = vec![PROTOCOL.to_vec()];
                Ok(Self {
                    config: Arc::new(config),
                    own,
                })
            }
            Err(error) => Err(format!(
                "is not the key of the first certificate in FLASHSALE_TLS_CERT, or of a kind that cannot be used \
                 ({error}); name the key that this certificate was made for"
            )),
        }
    }

    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Whether the certificate is for this host, which is a name or an address.
    pub fn is_for(&self, host: &str) -> bool {
        let (Ok(own), Ok(name)) = (ParsedCertificate::try_from(&self.own), ServerName::try_from(host)) else {
            return false;
        };
        verify_server_name(&own, &name).is_ok()
    }
}

/// The message about a file. It never shows the content of the file, which may be a key.
fn wrong(path: &str, what: &str, error: &PemError) -> String {
    match error {
        PemError::Io(error) => {
            format!("names {path}, which cannot be read ({error}); name a PEM file that this user may read")
        }
        PemError::NoItemsFound => format!("names {path}, in which there is none; name a PEM file with {what}"),
        _ => format!("names {path}, which is no PEM file; name one with {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    #[test]
    fn a_certificate_and_its_key_make_a_server_and_another_key_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let made = || generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (CertifiedKey { cert, signing_key }, other) = (made(), made());
        let cert = file("cert.pem", &cert.pem());
        let (own, other) = (
            file("key.pem", &signing_key.serialize_pem()),
            file("other.pem", &other.signing_key.serialize_pem()),
        );
        let tls = Tls::new(certificates(&cert).unwrap(), key(&own).unwrap()).unwrap();
        assert!(tls.is_for("localhost"));
        for other in ["127.0.0.1", "::1", "example.org", "", "no host"] {
            assert!(!tls.is_for(other), "{other}");
        }
        let error = Tls::new(certificates(&cert).unwrap(), key(&other).unwrap()).unwrap_err();
        assert!(error.starts_with("is not the key of the first certificate"), "{error}");

        let (empty, broken) = (
            file("empty.pem", ""),
            file(
                "broken.pem",
                "-----BEGIN PRIVATE KEY-----\nhunter2!\n-----END PRIVATE KEY-----\n",
            ),
        );
        for (path, expected) in [
            (empty.as_str(), "in which there is none"),
            (cert.as_str(), "in which there is none"),
            (broken.as_str(), "is no PEM file"),
            ("/no/such/file", "cannot be read"),
        ] {
            let error = key(path).unwrap_err();
            assert!(error.contains(path) && error.contains(expected), "{error}");
            assert!(
                error.contains("; name") && !error.contains("hunter2") && !error.contains('\n'),
                "{error}"
            );
        }
        for path in [empty.as_str(), own.as_str(), "/no/such/file"] {
            assert!(certificates(path).unwrap_err().contains(path));
        }
    }
}
