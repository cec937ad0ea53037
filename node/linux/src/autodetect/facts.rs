//! The kernel's facts about a node's interfaces, their addresses, and the route to a destination.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use ipnet::IpNet;

use super::method::Method;
use crate::netlink::{Error, Netlink};

/// The longest time to resolve a name.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most addresses of a name that are used.
const MOST_ADDRESSES: usize = 16;

/// The facts from which an address is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// The interfaces, in the kernel's order of their indices.
    pub interfaces: Vec<Interface>,
    /// For each destination that methods name, its addresses and the node's source addresses for them.
    pub destinations: Vec<Destination>,
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// The interface's addresses with their prefix lengths, in the kernel's order: primary addresses before secondary ones.
    /// Addresses that do not last are left out: temporary ones (RFC 8981), deprecated and tentative ones (RFC 4862), and
    /// those that another host has (failed duplicate address detection).
    pub addresses: Vec<IpNet>,
}

/// An address of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The destination, as the method names it.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The source address that the kernel chooses. `None` if it has no route to the destination.
    pub source: Option<IpAddr>,
}

/// Reads the facts that methods need. A name that cannot be resolved now gives no destination.
///
/// # Errors
/// The kernel does not answer.
pub async fn read(
    netlink: &Netlink,
    methods: impl IntoIterator<Item = &Method>,
) -> Result<Facts, Error> {
    let mut links = netlink.links().await?;
    links.sort_by_key(|link| link.index);
    let lasting = netlink.lasting_addresses().await?;
    let of_link = |index: u32| {
        lasting.iter().filter(|it| it.index == index).map(|it| it.net).collect::<Vec<_>>()
    };
    let interfaces = links.into_iter().map(|link| Interface {
        addresses: of_link(link.index),
        name: link.name,
        up: link.up,
    });
    let mut facts = Facts { interfaces: interfaces.collect(), destinations: Vec::new() };
    for method in methods {
        let Method::CanReach(name) = method else { continue };
        if facts.destinations.iter().any(|it| it.name == *name) {
            continue;
        }
        for address in resolve(name).await {
            let hop = netlink.next_hop(address).await?;
            let source = hop.and_then(|hop| hop.source);
            facts.destinations.push(Destination { name: name.clone(), address, source });
        }
    }
    Ok(facts)
}

/// The addresses of a name; none if it cannot be resolved in time.
async fn resolve(name: &str) -> Vec<IpAddr> {
    if let Ok(address) = name.parse() {
        return vec![address];
    }
    let name = name.to_owned();
    let found = tokio::task::spawn_blocking(move || {
        let found = (name.as_str(), 0).to_socket_addrs();
        found.map(|all| all.map(|it| it.ip()).collect::<Vec<_>>()).unwrap_or_default()
    });
    let mut addresses = match tokio::time::timeout(PATIENCE, found).await {
        Ok(Ok(addresses)) => addresses,
        _ => Vec::new(),
    };
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(MOST_ADDRESSES);
    addresses
}
