//! Limits the open connections of each client, and of all clients. A place is free again when its connection closes.

use crate::config::ConnectionLimits;
use crate::guard::address::{Client, NETWORK_CLIENTS, Network};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

pub(super) struct Places {
    limits: ConnectionLimits,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    total: usize,
    by_holder: HashMap<Holder, usize>,
}

/// The owner of a count of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Client(Client),
    Network(Network),
}

/// A client and its network.
fn holders(client: Option<Client>) -> impl Iterator<Item = Holder> {
    let network = client.and_then(Client::network);
    let client = client.map(Holder::Client);
    client.into_iter().chain(network.map(Holder::Network))
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Client,
    Instance,
}

impl Full {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client_full",
            Self::Instance => "instance_full",
        }
    }
}

/// The place of one open connection, until this is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    client: Option<Client>,
}

impl Places {
    pub fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            taken: Mutex::default(),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // No step under this lock can leave the counts half changed.
        self.taken.lock()
    }

    /// Takes a place for a connection of this client. A proxy's connection has no client.
    pub fn take(places: &Arc<Self>, client: Option<Client>) -> Result<Place, Full> {
        let client = client.filter(|_| places.limits.per_client > 0);
        let mut taken = places.taken();
        if taken.total >= places.limits.total {
            return Err(Full::Instance);
        }
        let is_full = |holder: Holder| {
            let most = match holder {
                Holder::Client(_) => places.limits.per_client,
                Holder::Network(_) => places.limits.per_client.saturating_mul(NETWORK_CLIENTS.into()),
            };
            taken.by_holder.get(&holder).is_some_and(|held| *held >= most)
        };
        if holders(client).any(is_full) {
            return Err(Full::Client);
        }
        for holder in holders(client) {
            *taken.by_holder.entry(holder).or_default() += 1;
        }
        taken.total += 1;
        Ok(Place {
            places: Arc::clone(places),
            client,
        })
    }
}

impl Place {
    /// Whether more than three quarters of all places are taken.
    pub fn is_crowded(&self) -> bool {
        self.places.taken().total > self.places.limits.total / 4 * 3
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.total -= 1;
        for holder in holders(self.client) {
            if let Entry::Occupied(mut held) = taken.by_holder.entry(holder) {
                *held.get_mut() -= 1;
                if *held.get() == 0 {
                    held.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> Option<Client> {
        Some(Client::of(address.parse().unwrap()))
    }

    #[test]
    fn a_client_and_the_instance_have_so_many_places_and_get_them_back() {
        let places = Arc::new(Places::new(ConnectionLimits {
            total: 4,
            per_client: 2,
        }));
        let take = |address: &str| Places::take(&places, client(address));
        let (one, two) = (take("192.0.2.1").unwrap(), take("192.0.2.1").unwrap());
        assert_eq!(take("192.0.2.1").err(), Some(Full::Client));
        assert!(!one.is_crowded());
        let three = take("2001:db8:1:2::1").unwrap();
        let four = Places::take(&places, None).unwrap();
        assert!(one.is_crowded());
        assert_eq!(take("192.0.2.9").err(), Some(Full::Instance));
        drop((one, four));
        assert!(take("192.0.2.1").is_ok(), "a place that was given back");
        drop((two, three));
        assert!(places.taken().by_holder.is_empty(), "nobody is remembered");
        assert_eq!(places.taken().total, 0);
    }

    #[test]
    fn a_network_has_what_sixteen_of_its_clients_have() {
        let places = Arc::new(Places::new(ConnectionLimits {
            total: 100,
            per_client: 1,
        }));
        let take = |number: usize| Places::take(&places, client(&format!("2001:db8:1:{number:x}::1")));
        let held: Vec<_> = (0..16).map(take).collect();
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(take(16).err(), Some(Full::Client));
        assert!(Places::take(&places, client("2001:db8:2::1")).is_ok());
    }

    #[test]
    fn without_a_limit_a_client_has_as_many_as_the_instance() {
        let places = Arc::new(Places::new(ConnectionLimits {
            total: 3,
            per_client: 0,
        }));
        let held: Vec<_> = (0..3).map(|_| Places::take(&places, client("192.0.2.1"))).collect();
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(Places::take(&places, None).err(), Some(Full::Instance));
    }
}
