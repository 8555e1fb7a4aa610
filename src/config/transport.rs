//! Warnings about connections to Redis and Postgres that others on the network can read or change.

use super::settings::Settings;
use super::{DATABASE_URL, REDIS_CACERT, REDIS_URL};
use crate::domain::deployment::host::{is_this_machine, without_port};

/// The start of a Redis URL with TLS.
const REDIS_TLS: [&str; 2] = ["rediss://", "rediss+cluster://"];
/// The start of a Redis URL without TLS. A Unix socket needs none: it is on this machine.
const REDIS_PLAIN: [&str; 2] = ["redis://", "redis+cluster://"];

/// Warnings about a Redis or Postgres whose traffic others on the network can read, or whose place they can take.
pub fn warnings(settings: &Settings) -> Vec<String> {
    let is_in = |name, is_open: fn(&str) -> bool| settings.get(name).is_some_and(is_open);
    let redis = is_in(REDIS_URL, is_plain_redis_elsewhere).then(|| {
        format!(
            "{REDIS_URL} leads to another machine without TLS: others on the network can read and change passwords \
             and orders; write rediss:// or rediss+cluster://, with {REDIS_CACERT} for an authority of your own"
        )
    });
    let postgres = is_in(DATABASE_URL, is_unverified_postgres_elsewhere).then(|| {
        format!(
            "{DATABASE_URL} leads to another machine, whose certificate is not checked: others on the network can \
             stand in for Postgres; add sslmode=verify-full&sslrootcert=FILE to it, with the file of its authority"
        )
    });
    redis.into_iter().chain(postgres).collect()
}

pub fn has_redis_tls(url: &str) -> bool {
    starts_with(url, REDIS_TLS)
}

fn starts_with(url: &str, schemes: [&str; 2]) -> bool {
    schemes.into_iter().any(|scheme| url.starts_with(scheme))
}

fn is_plain_redis_elsewhere(url: &str) -> bool {
    let mut hosts = authority(url).split(',').map(without_port);
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
    let host = last(["host", "hostaddr"]).unwrap_or_else(|| without_port(authority(url)));
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
