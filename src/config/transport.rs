//! The transport to Redis and Postgres: the certificates for Redis, read once at the start. Also warnings about
//! connections that others on the network can read or change.

use super::{ConfigError, DATABASE_URL, REDIS_CACERT, REDIS_CERT, REDIS_KEY, REDIS_URL, Settings, parsed, tls};
use crate::domain::host::is_this_machine;
use crate::domain::redis_certificates::{ClientCertificate, RedisCertificates};
use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// The start of a Redis URL with TLS.
const REDIS_TLS: [&str; 2] = ["rediss://", "rediss+cluster://"];
/// The start of a Redis URL without TLS. A Unix socket needs none: it is on this machine.
const REDIS_PLAIN: [&str; 2] = ["redis://", "redis+cluster://"];

/// See `Settings::redis_certificates`.
pub fn redis_certificates(settings: &Settings) -> Result<RedisCertificates, ConfigError> {
    let has_tls = settings.get(REDIS_URL).is_some_and(|url| starts_with(url, REDIS_TLS));
    let given = [REDIS_CACERT, REDIS_CERT, REDIS_KEY]
        .into_iter()
        .find(|name| settings.get(name).is_some());
    if let Some(name) = given.filter(|_| !has_tls) {
        return refuse(
            settings,
            name,
            format!(
                "is set, and {REDIS_URL} has no TLS; write rediss://HOST:PORT or rediss+cluster://HOST:PORT,HOST:PORT \
                 there, or leave {name} out"
            ),
        );
    }
    let authorities = match settings.get(REDIS_CACERT) {
        Some(_) => Some(parsed(settings, REDIS_CACERT, authorities)?),
        None => None,
    };
    let alone = |name, other| {
        let problem = format!("is set and {other} is not; set both for a client certificate, or neither");
        refuse(settings, name, problem)
    };
    let client = match (settings.get(REDIS_CERT), settings.get(REDIS_KEY)) {
        (None, None) => None,
        (Some(_), None) => return alone(REDIS_CERT, REDIS_KEY),
        (None, Some(_)) => return alone(REDIS_KEY, REDIS_CERT),
        (Some(_), Some(_)) => Some(client_certificate(settings)?),
    };
    Ok(RedisCertificates { authorities, client })
}

fn refuse<T>(settings: &Settings, name: &str, problem: String) -> Result<T, ConfigError> {
    parsed(settings, name, |_value| Err(problem))
}

/// The content of a file of authorities, after a check that each certificate in it is valid.
fn authorities(path: &str) -> Result<Vec<u8>, String> {
    let pem = tls::read(path)?;
    let mut roots = RootCertStore::empty();
    for certificate in tls::certificates_in(path, &pem)? {
        roots.add(certificate).map_err(|error| {
            format!("names {path}, in which a certificate is broken ({error}); name a PEM file with the authorities")
        })?;
    }
    Ok(pem)
}

/// The client certificate with its key.
fn client_certificate(settings: &Settings) -> Result<ClientCertificate, ConfigError> {
    let (certificates, chain) = parsed(settings, REDIS_CERT, |path| {
        let pem = tls::read(path)?;
        let chain = tls::certificates_in(path, &pem)?;
        Ok((pem, chain))
    })?;
    let key = parsed(settings, REDIS_KEY, |path| {
        let pem = tls::read(path)?;
        fits(path, chain, tls::key_in(path, &pem)?)?;
        Ok(pem)
    })?;
    Ok(ClientCertificate { certificates, key })
}

/// Checks that a key belongs to the first of these certificates.
fn fits(path: &str, chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<(), String> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            let config = config.with_root_certificates(RootCertStore::empty());
            config.with_client_auth_cert(chain, key)
        });
    config.map(drop).map_err(|error| {
        format!(
            "names {path}, which is not the key of the first certificate in {REDIS_CERT}, or of a kind that cannot be \
             used ({error}); name the key that this certificate was made for"
        )
    })
}

/// Warnings about a Redis or Postgres whose traffic others on the network can read, or whose place they can take.
pub fn warnings(settings: &Settings) -> Vec<String> {
    let redis = settings.get(REDIS_URL).filter(|url| is_plain_redis_elsewhere(url));
    let postgres = settings
        .get(DATABASE_URL)
        .filter(|url| is_unverified_postgres_elsewhere(url));
    let redis = redis.map(|_| {
        format!(
            "{REDIS_URL} leads to another machine without TLS: others on the network can read and change passwords \
             and orders; write rediss:// or rediss+cluster://, with {REDIS_CACERT} for an authority of your own"
        )
    });
    let postgres = postgres.map(|_| {
        format!(
            "{DATABASE_URL} leads to another machine, whose certificate is not checked: others on the network can \
             stand in for Postgres; add sslmode=verify-full&sslrootcert=FILE to it, with the file of its authority"
        )
    });
    redis.into_iter().chain(postgres).collect()
}

fn starts_with(url: &str, schemes: [&str; 2]) -> bool {
    schemes.into_iter().any(|scheme| url.starts_with(scheme))
}

fn is_plain_redis_elsewhere(url: &str) -> bool {
    let mut hosts = authority(url).split(',').map(host);
    starts_with(url, REDIS_PLAIN) && hosts.any(|host| !is_this_machine(host))
}

fn is_unverified_postgres_elsewhere(url: &str) -> bool {
    let parameters = || {
        let query = url.split_once('?').map_or("", |(_, query)| query);
        let query = query.split('#').next().unwrap_or_default();
        query.split('&').filter_map(|parameter| parameter.split_once('='))
    };
    // If a parameter occurs twice, Postgres' client takes the last one.
    let last = |names: [&str; 2]| {
        let (_, value) = parameters().rfind(|(name, _)| names.contains(name))?;
        Some(value)
    };
    let host = last(["host", "hostaddr"]).unwrap_or_else(|| host(authority(url)));
    // Without a host, or with a path as the host, the connection uses a Unix socket.
    let is_socket = host.is_empty() || host.starts_with('/') || is_encoded_path(host);
    let is_verified = last(["sslmode", "ssl-mode"]).is_some_and(|mode| mode.eq_ignore_ascii_case("verify-full"));
    !is_socket && !is_this_machine(host) && !is_verified
}

fn is_encoded_path(host: &str) -> bool {
    host.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("%2f"))
}

/// The part of a URL between its login and its path.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts)
}

/// A host without its port.
fn host(place: &str) -> &str {
    match place.rsplit_once(':') {
        // The colon may belong to an IPv6 address.
        Some((host, port)) if !port.contains(']') => host,
        _ => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_on_another_machine_without_tls_is_warned_of() {
        for url in [
            "redis://redis:6379",
            "redis://:password@10.0.0.1",
            "redis://user:p%40@[fd00::1]:6379/0",
            "redis+cluster://127.0.0.1:1,10.0.0.2:2",
            "redis+cluster://:password@a:1,b:2",
        ] {
            assert!(is_plain_redis_elsewhere(url), "{url}");
        }
        for url in [
            "redis://127.0.0.1:6379",
            "redis://:p@ss@localhost",
            "redis://[::1]:6379/0",
            "redis+cluster://127.0.0.1:1,localhost:2",
            "rediss://redis:6379",
            "rediss+cluster://a:1,b:2",
            "unix:///run/redis.sock",
            "redis+unix:///run/redis.sock",
        ] {
            assert!(!is_plain_redis_elsewhere(url), "{url}");
        }
    }

    #[test]
    fn postgres_on_another_machine_that_is_not_verified_is_warned_of() {
        for url in [
            "postgres://user:password@postgres:5432/flashsale",
            "postgres://10.0.0.1/x?sslmode=require",
            "postgres://10.0.0.1/x?sslmode=verify-ca&sslrootcert=ca.pem",
            "postgresql://[fd00::1]/x?sslmode=verify-full&sslmode=prefer",
            "postgres://localhost/x?host=10.0.0.1",
            "postgres:///x?hostaddr=10.0.0.1",
        ] {
            assert!(is_unverified_postgres_elsewhere(url), "{url}");
        }
        for url in [
            "postgres://user:password@127.0.0.1:5432/flashsale",
            "postgres://localhost/x",
            "postgres://[::1]:5432/x",
            "postgres://db.example/x?sslmode=verify-full",
            "postgres://db.example/x?application_name=a&sslmode=Verify-Full&sslrootcert=ca.pem",
            "postgres://%2Frun%2Fpostgresql/x",
            "postgres:///x?host=/run/postgresql",
            "postgres:///x?host=%2Frun%2Fpostgresql&user=flashsale",
            "postgres:///",
        ] {
            assert!(!is_unverified_postgres_elsewhere(url), "{url}");
        }
    }
}
