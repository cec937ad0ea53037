//! The interfaces and routes of a pod's namespace.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sched::{CloneFlags, setns};

use crate::error::{Code, Error};

/// The calling process's own namespace.
const OWN: &str = "/proc/self/ns/net";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundInterface {
    pub is_up: bool,
    /// Its hardware address, if it has one.
    pub mac: Option<[u8; 6]>,
    pub addresses: BTreeSet<IpAddr>,
    /// Whether a default route leads to the interface, for IPv4 and for IPv6.
    pub default_routes: [bool; 2],
}

/// Checks that there is a namespace, and that it is not the node's. A default route in the node's namespace would cut
/// the node off.
pub(crate) fn check(netns: &Path) -> Result<(), Error> {
    let wrong = |source: io::Error| {
        let text = format!("CNI_NETNS: {} cannot be examined: {source}", netns.display());
        Error::new(Code::Environment, text)
    };
    let (given, own) = (fs::metadata(netns).map_err(wrong)?, fs::metadata(OWN).map_err(wrong)?);
    if (given.dev(), given.ino()) == (own.dev(), own.ino()) {
        let text = format!(
            "CNI_NETNS: {} is the node's own namespace, and a pod needs another",
            netns.display()
        );
        return Err(Error::new(Code::Namespace, text));
    }
    Ok(())
}

/// Enters a namespace and looks for an interface there. The calling process must have one thread, and stays in the
/// namespace.
pub(crate) fn enter_and_find(
    netns: &Path,
    interface: &str,
) -> Result<Option<FoundInterface>, Error> {
    let io_error = |what: &str, source: io::Error| {
        Error::new(Code::Io, format!("{what} of {} cannot be read: {source}", netns.display()))
    };
    let file = File::open(netns).map_err(|source| io_error("the namespace", source))?;
    setns(file, CloneFlags::CLONE_NEWNET)
        .map_err(|errno| io_error("the namespace", errno.into()))?;
    let all = getifaddrs().map_err(|errno| io_error("the addresses", errno.into()))?;
    let of_it: Vec<_> = all.filter(|it| it.interface_name == interface).collect();
    let Some(first) = of_it.first() else { return Ok(None) };
    let is_up = first.flags.contains(InterfaceFlags::IFF_UP);
    let address = |it: &nix::ifaddrs::InterfaceAddress| {
        let storage = it.address?;
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    let addresses = of_it.iter().filter_map(address).collect();
    let link = |it: &nix::ifaddrs::InterfaceAddress| it.address?.as_link_addr()?.addr();
    let mac = of_it.iter().find_map(link);
    let routes = |table, is_default: fn(&[&str], &str) -> bool| {
        // A kernel without IPv6 has no such file.
        let text = match fs::read_to_string(format!("/proc/self/net/{table}")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("the routes", error));
            }
            text => text.unwrap_or_default(),
        };
        Ok(text
            .lines()
            .any(|line| is_default(&line.split_whitespace().collect::<Vec<_>>(), interface)))
    };
    let default_routes = [routes("route", is_default_v4)?, routes("ipv6_route", is_default_v6)?];
    Ok(Some(FoundInterface { is_up, mac, addresses, default_routes }))
}

/// Whether a line of `/proc/net/route` is a default route by the interface. Fields (proc(5)): interface, destination,
/// gateway, flags, three numbers, mask.
fn is_default_v4(fields: &[&str], interface: &str) -> bool {
    let zero = format!("{:08X}", Ipv4Addr::UNSPECIFIED.to_bits());
    matches!(fields, [device, to, _, _, _, _, _, mask, ..] if *device == interface && *to == zero && *mask == zero)
}

/// Whether a line of `/proc/net/ipv6_route` is a default route by the interface. Fields: destination, its length,
/// source, its length, next hop, four numbers, interface.
fn is_default_v6(fields: &[&str], interface: &str) -> bool {
    let zero = format!("{:032x}", Ipv6Addr::UNSPECIFIED.to_bits());
    matches!(fields, [to, "00", .., device] if *to == zero && *device == interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_are_known_by_destination_length_and_interface() {
        let fields = |line: &'static str| line.split_whitespace().collect::<Vec<_>>();
        let v4 = fields("eth0 00000000 0101FEA9 0005 0 0 0 00000000 0 0 0");
        let net = fields("eth0 00000000 00000000 0001 0 0 0 000000FF 0 0 0");
        assert!(is_default_v4(&v4, "eth0") && !is_default_v4(&v4, "eth1"));
        assert!(!is_default_v4(&net, "eth0"), "0.0.0.0/8");
        let zero = "00000000000000000000000000000000";
        let v6 = [zero, "00", zero, "00", zero, "00000400", "00000001", "00000000", "00000001"];
        let at = |device| v6.into_iter().chain([device]).collect::<Vec<_>>();
        assert!(is_default_v6(&at("eth0"), "eth0") && !is_default_v6(&at("lo"), "eth0"));
    }
}
