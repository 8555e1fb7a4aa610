//! Hosts and origins of URLs.

use core::net::IpAddr;
use std::fmt;

/// Whether a URL with this host leads to this machine. Behind a proxy, `localhost` would be the proxy's own.
pub fn is_this_machine(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address: Option<IpAddr> = bare.unwrap_or(host).parse().ok();
    host.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback())
}

/// A host without its port.
pub fn without_port(place: &str) -> &str {
    match place.rsplit_once(':') {
        // The colon may belong to an IPv6 address.
        Some((host, port)) if !port.contains(']') => host,
        _ => place,
    }
}

/// Whether a page can have this text as an address: it has no white space, and nothing that ends an address.
pub fn has_only_url_characters(text: &str) -> bool {
    text.bytes()
        .all(|it| it.is_ascii_graphic() && !b"\"'<>\\^`|".contains(&it))
}

/// The origin of an `http` or `https` address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    scheme: &'a str,
    /// The host, perhaps with a port.
    place: &'a str,
}

impl<'a> Origin<'a> {
    /// `None` if the address has another scheme, no host, or a password, which every visitor could read.
    pub fn of(address: &'a str) -> Option<Self> {
        let (scheme, rest) = address.split_once("://")?;
        let place = rest.split(['/', '?', '#']).next()?;
        let is_of_host = |it: u8| it.is_ascii_alphanumeric() || b".-:[]".contains(&it);
        let is_right = ["http", "https"].contains(&scheme) && !place.is_empty() && place.bytes().all(is_of_host);
        is_right.then_some(Self { scheme, place })
    }

    /// Whether nobody on the network can change what comes from there.
    pub fn is_secure(self) -> bool {
        self.scheme == "https" || is_this_machine(without_port(self.place))
    }
}

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_secure_by_https_or_on_this_machine() {
        for (address, origin, is_secure) in [
            ("https://a.example/b?c#d", "https://a.example", true),
            ("https://a.example:8443", "https://a.example:8443", true),
            ("http://127.0.0.1:9000/x", "http://127.0.0.1:9000", true),
            ("http://localhost?x", "http://localhost", true),
            ("http://[::1]:1/", "http://[::1]:1", true),
            ("http://a.example/", "http://a.example", false),
            ("http://localhost.example/", "http://localhost.example", false),
        ] {
            let found = Origin::of(address).unwrap();
            assert_eq!((found.to_string().as_str(), found.is_secure()), (origin, is_secure));
        }
        for wrong in [
            "",
            "a.example",
            "https://",
            "https:///x",
            "ftp://a.example",
            "https://ada:x@a.example/",
        ] {
            assert_eq!(Origin::of(wrong), None, "{wrong}");
        }
    }

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
