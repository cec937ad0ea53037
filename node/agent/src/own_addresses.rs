//! The node's own addresses: those that its kernel accepts as its own, on all interfaces.
//!
//! The Node object contains few of them. A bridge of another program (`docker0`), a dummy device, and the broadcast
//! addresses of their networks also lead to the node's processes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use manx_linux::netlink::{self, Address, Netlink};
use tokio::sync::watch;

/// The interval at which the addresses of the node's interfaces are read.
const REFRESH: Duration = Duration::from_secs(1);

/// The index of `lo` in every network namespace.
const LOOPBACK: u32 = 1;

/// The node's own addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct OwnAddresses {
    /// The prefixes that the kernel delivers to itself.
    pub(crate) prefixes: BTreeSet<IpNet>,
    /// The addresses of interfaces that other machines can reach. Loopback and link-local addresses are left out, and
    /// so are the first and the broadcast address of each network.
    pub(crate) of_interfaces: BTreeSet<IpAddr>,
    /// The nets of these addresses, except nets that contain only the interface's own address.
    pub(crate) links: Vec<IpNet>,
}

/// Keeps `own` equal to the node's own addresses; never ends.
pub(crate) async fn watch(netlink: Netlink, own: watch::Sender<OwnAddresses>) {
    loop {
        tokio::time::sleep(REFRESH).await;
        match read(&netlink).await {
            Ok(found) => {
                own.send_if_modified(|known| {
                    let changed = *known != found;
                    *known = found;
                    changed
                });
            }
            Err(error) => tracing::warn!(%error, "the node's own addresses stay as they were"),
        }
    }
}

/// Reads the node's own addresses.
pub(crate) async fn read(netlink: &Netlink) -> Result<OwnAddresses, netlink::Error> {
    let all = netlink.addresses().await?;
    let addresses = all.iter().map(|it| it.net.addr()).filter(|it| !is_of_link(*it));
    let nets = all.iter().map(|it| it.net).filter(|it| !is_of_link(it.addr()));
    let links = nets.filter(|it| it.prefix_len() < it.max_prefix_len()).map(|it| it.trunc());
    Ok(OwnAddresses {
        links: links.collect(),
        prefixes: all.iter().flat_map(of_address).collect(),
        of_interfaces: addresses.collect(),
    })
}

/// Whether an address cannot be reached by other machines, or only by those on one link.
fn is_of_link(address: IpAddr) -> bool {
    address.is_loopback()
        || match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
}

/// The prefixes that the kernel delivers to itself because an interface has this address. For IPv4 they are the address
/// itself, and the first and the last address of its network (broadcast: RFC 919 section 7, RFC 1122 section 3.2.1.3).
/// For IPv6 they are the address itself and the first address of its network (the subnet routers' anycast, RFC 4291
/// section 2.6.1). A network of one or two addresses has no such special addresses. For an address on `lo` it is the
/// whole network. A link-local IPv6 address gives no prefix.
fn of_address(Address { index, net }: &Address) -> Vec<IpNet> {
    let whole = net.trunc();
    let has_network = net.prefix_len() + 1 < net.max_prefix_len();
    match net {
        IpNet::V6(v6) if v6.addr().is_unicast_link_local() => Vec::new(),
        _ if *index == LOOPBACK => vec![whole],
        IpNet::V4(_) if has_network => {
            [net.addr(), whole.network(), whole.broadcast()].map(IpNet::from).to_vec()
        }
        IpNet::V6(_) if has_network => [net.addr(), whole.network()].map(IpNet::from).to_vec(),
        IpNet::V4(_) | IpNet::V6(_) => vec![IpNet::from(net.addr())],
    }
}

/// Whether one of these prefixes contains an address.
pub(crate) fn is_own(own: &BTreeSet<IpNet>, address: &IpAddr) -> bool {
    own.iter().any(|net| net.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_an_interface_brings_those_of_its_network_that_the_kernel_takes() {
        for (index, net, wanted) in [
            (3, "172.17.0.1/16", "172.17.0.0/32 172.17.0.1/32 172.17.255.255/32"),
            (3, "192.0.2.9/31", "192.0.2.9/32"),
            (3, "10.244.1.0/32", "10.244.1.0/32"),
            (3, "169.254.20.10/32", "169.254.20.10/32"),
            (3, "fd00:7::9/64", "fd00:7::/128 fd00:7::9/128"),
            (3, "fd00:7::9/127", "fd00:7::9/128"),
            (3, "fe80::1/64", ""),
            (LOOPBACK, "127.0.0.1/8", "127.0.0.0/8"),
            (LOOPBACK, "192.0.2.1/24", "192.0.2.0/24"),
        ] {
            let address = Address { index, net: net.parse().unwrap() };
            let found: BTreeSet<IpNet> = of_address(&address).into_iter().collect();
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.join(" "), wanted, "{net} on {index}");
        }
    }
}
