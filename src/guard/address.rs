//! The client of a request, by its address.

use crate::domain::sale::fairness::Address;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// How many hops of `X-Forwarded-For` are read.
const HOPS_MAX: usize = 32;
/// The bits of an IPv6 address that identify a client: a household or a virtual machine has a /64 to itself.
const IPV6_BITS: u8 = 64;

/// The bits of an IPv6 address that identify a network: a site or a hoster's customer has a /48, with 65,536 clients.
const IPV6_NETWORK_BITS: u8 = 48;
/// The bits of an IPv4 address that identify a network in the report of a sale.
const IPV4_NETWORK_BITS: u8 = 24;
/// The limit of a network is that of so many clients.
pub const NETWORK_CLIENTS: u8 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(Ipv6Addr);

/// The unit that one limit counts: an IPv4 address, or the /64 of an IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Client(IpAddr);

impl Client {
    pub fn of(address: IpAddr) -> Self {
        // An IPv4 address may arrive on an IPv6 socket.
        match address.to_canonical() {
            IpAddr::V4(address) => Self(IpAddr::V4(address)),
            IpAddr::V6(address) => Self(IpAddr::V6(block(address, IPV6_BITS))),
        }
    }

    /// The client as a shopper that a stage may pick.
    pub const fn bytes(self) -> [u8; 16] {
        match self.0 {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        }
    }

    /// The first addresses of the client and of its network, for the report of a sale.
    pub fn groups(self) -> [Address; 2] {
        let both = match self.0 {
            IpAddr::V4(address) => {
                let network = Ipv4Net::new(address, IPV4_NETWORK_BITS).map_or(address, |net| net.network());
                [address, network].map(|it| it.to_ipv6_mapped())
            }
            IpAddr::V6(address) => [address, block(address, IPV6_NETWORK_BITS)],
        };
        both.map(|it| it.octets())
    }

    /// The network of an IPv6 client, which has a limit; none for IPv4.
    pub fn network(self) -> Option<Network> {
        match self.0 {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(Network(block(address, IPV6_NETWORK_BITS))),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(formatter, "{address}"),
            IpAddr::V6(address) => write!(formatter, "{address}/{IPV6_BITS}"),
        }
    }
}

fn block(address: Ipv6Addr, bits: u8) -> Ipv6Addr {
    Ipv6Net::new(address, bits).map_or(address, |net| net.network())
}

/// The address of the client: the socket's, or behind a trusted proxy the right-most hop of `forwarded` that is no such
/// proxy. The client may have forged all hops left of it.
///
/// `forwarded` has the values of `X-Forwarded-For` in their order; each may be a list.
pub fn address<'a>(socket: IpAddr, forwarded: impl DoubleEndedIterator<Item = &'a str>, proxies: &[IpNet]) -> IpAddr {
    let is_trusted = |address: IpAddr| is_proxy(address, proxies);
    let mut nearest = socket;
    let hops = forwarded.rev().flat_map(|list| list.rsplit(',')).take(HOPS_MAX);
    for hop in hops {
        if !is_trusted(nearest) {
            break;
        }
        // The hop before a proxy that writes no address is unknown.
        let Some(address) = parse(hop.trim()) else {
            break;
        };
        nearest = address;
    }
    nearest.to_canonical()
}

/// Whether the address is one of the trusted proxies.
pub fn is_proxy(socket: IpAddr, proxies: &[IpNet]) -> bool {
    proxies.iter().any(|net| net.contains(&socket.to_canonical()))
}

/// Parses an address as proxies write it: alone, in brackets, or with a port.
fn parse(hop: &str) -> Option<IpAddr> {
    let bare = hop
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .map(|(address, _)| address);
    bare.unwrap_or(hop)
        .parse()
        .ok()
        .or_else(|| Some(hop.parse::<std::net::SocketAddrV4>().ok()?.ip().to_owned().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(socket: &str, forwarded: &[&str], proxies: &[&str]) -> Client {
        let proxies: Vec<IpNet> = proxies.iter().map(|net| net.parse().unwrap()).collect();
        Client::of(address(socket.parse().unwrap(), forwarded.iter().copied(), &proxies))
    }

    fn is(address: &str) -> Client {
        Client(address.parse().unwrap())
    }

    #[test]
    fn a_client_is_written_as_what_one_limit_counts() {
        let written = |address: &str| Client::of(address.parse().unwrap()).to_string();
        assert_eq!(written("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(written("2001:db8:1:2:3::4"), "2001:db8:1:2::/64");
    }

    #[test]
    fn an_ipv6_client_has_a_64_and_an_ipv4_client_an_address() {
        assert_eq!(of("192.0.2.7", &[], &[]), is("192.0.2.7"));
        assert_eq!(of("2001:db8:1:2:3:4:5:6", &[], &[]), is("2001:db8:1:2::"));
        assert_ne!(of("2001:db8:1:2::1", &[], &[]), of("2001:db8:1:3::1", &[], &[]));
        assert_eq!(of("::ffff:192.0.2.7", &[], &[]), is("192.0.2.7"));
    }

    #[test]
    fn ipv6_clients_share_a_48() {
        let network = |address: &str| of(address, &[], &[]).network();
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:2:2::1"));
        assert_eq!(network("192.0.2.7"), None);
    }

    #[test]
    fn a_report_counts_clients_and_their_networks() {
        let groups = |address: &str| of(address, &[], &[]).groups();
        let addresses = |texts: [&str; 2]| texts.map(|it| it.parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(groups("192.0.2.7"), addresses(["::ffff:192.0.2.7", "::ffff:192.0.2.0"]));
        assert_eq!(groups("2001:db8:1:2::9"), addresses(["2001:db8:1:2::", "2001:db8:1::"]));
    }

    #[test]
    fn the_right_most_hop_that_is_no_proxy_is_the_client() {
        let proxies = ["10.0.0.0/8", "fd00::/8"];
        let cases: [(&str, &[&str], &str); 12] = [
            // Only a trusted proxy is believed.
            ("192.0.2.7", &["203.0.113.1"], "192.0.2.7"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.1"], "203.0.113.1"),
            ("::ffff:10.0.0.1", &["203.0.113.1"], "203.0.113.1"),
            // The client's own text stands to the left.
            ("10.0.0.1", &["198.51.100.9, 203.0.113.1"], "203.0.113.1"),
            ("10.0.0.1", &["198.51.100.9", "203.0.113.1"], "203.0.113.1"),
            ("10.0.0.1", &["198.51.100.9, 203.0.113.1, 10.0.0.2"], "203.0.113.1"),
            ("10.0.0.1", &["10.0.0.3,10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &["203.0.113.1, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.1:4711"], "203.0.113.1"),
            ("fd00::1", &["[2001:db8:1:2::9]:4711"], "2001:db8:1:2::"),
            ("fd00::1", &["2001:db8:1:2::9"], "2001:db8:1:2::"),
        ];
        for (socket, forwarded, expected) in cases {
            assert_eq!(of(socket, forwarded, &proxies), is(expected), "{socket} {forwarded:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_client_writes_behind_a_proxy_he_stays_who_he_is(spoofed in "[ -~]{0,200}") {
            let forwarded = format!("{spoofed}, 203.0.113.1");
            prop_assert_eq!(of("10.0.0.1", &[&forwarded], &["10.0.0.0/8"]), is("203.0.113.1"));
            prop_assert_eq!(of("192.0.2.7", &[&spoofed], &["10.0.0.0/8"]), is("192.0.2.7"));
        }
    }
}
