//! Hosts of URLs.

use core::net::IpAddr;

/// Whether a URL with this host leads to this machine. Behind a proxy, `localhost` would be the proxy's own.
#[must_use]
pub fn is_this_machine(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address: Option<IpAddr> = bare.unwrap_or(host).parse().ok();
    host.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_and_addresses_of_loopback_are_this_machine() {
        for host in ["localhost", "LocalHost", "127.0.0.1", "127.8.9.1", "[::1]", "::1"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "",
            "127.0.0.1.example.com",
            "10.0.0.1",
            "[::2]",
            "localhost.example.com",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
