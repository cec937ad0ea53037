//! Finds the host endpoints that apply to this node's interfaces.
//!
//! Source: Calico documentation, "Host endpoints". A host endpoint that names the interface comes first, then one that
//! is found by its addresses, and then one with `interfaceName: "*"`, which applies to all interfaces. Among equals,
//! the first by name is used. If none of these applies to an interface, an invalid host endpoint does, because it may
//! be meant for this interface.

use manx_policy_compiler::model::{HostEndpoint, Interface, Model};

/// The interfaces of a node on which Manx sees forwarded packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interfaces<'a> {
    pub node: &'a str,
    /// The name of the interface to other nodes and to destinations outside the cluster, if there is one.
    pub uplink: Option<&'a str>,
    pub addresses: &'a [std::net::IpAddr],
}

impl Interfaces<'_> {
    /// Returns the host endpoint that applies to the uplink, for packets without a tunnel.
    pub fn uplink_host_endpoint<'m>(&self, model: &'m Model) -> Option<&'m str> {
        let named = |host: &HostEndpoint| match (&host.interface, self.uplink) {
            (Interface::Named(name), Some(uplink)) => name == uplink,
            _ => false,
        };
        let addressed = |host: &HostEndpoint| {
            host.interface == Interface::OfAddresses
                && self.addresses.iter().any(|address| host.addresses.contains(address))
        };
        self.first(model, named)
            .or_else(|| self.first(model, addressed))
            .or_else(|| self.all(model))
    }

    /// Returns the host endpoint that applies to the tunnels. The tunnels count as one interface, which no host
    /// endpoint can name.
    pub fn tunnel_host_endpoint<'m>(&self, model: &'m Model) -> Option<&'m str> {
        self.all(model)
    }

    fn all<'m>(&self, model: &'m Model) -> Option<&'m str> {
        let broken = || model.host_endpoints.iter().find(|(_, host)| host.broken);
        self.first(model, |host| host.interface == Interface::All)
            .or_else(|| broken().map(|(name, _)| name.as_str()))
    }

    fn first<'m>(
        &self,
        model: &'m Model,
        is_it: impl Fn(&HostEndpoint) -> bool,
    ) -> Option<&'m str> {
        let hosts = model.host_endpoints.iter();
        let mut here = hosts.filter(|(_, host)| host.node == self.node && !host.broken);
        here.find(|(_, host)| is_it(host)).map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const ADDRESS: &str = "192.0.2.1";

    fn host(node: &str, interface: Interface, addresses: &[&str]) -> HostEndpoint {
        HostEndpoint {
            node: node.to_owned(),
            interface,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            broken: false,
            ..HostEndpoint::broken()
        }
    }

    fn named(name: &str) -> HostEndpoint {
        host("n1", Interface::Named(name.to_owned()), &[])
    }

    fn of_address(address: &str) -> HostEndpoint {
        host("n1", Interface::OfAddresses, &[address])
    }

    fn all() -> HostEndpoint {
        host("n1", Interface::All, &[])
    }

    /// Returns the host endpoints that apply to the uplink and the tunnels of node n1; `-` stands for none.
    fn govern(hosts: &[(&str, HostEndpoint)]) -> String {
        let mut model = Model::default();
        for (name, host) in hosts {
            model.host_endpoints.insert((*name).to_owned(), Arc::new(host.clone()));
        }
        let addresses = [ADDRESS.parse().unwrap()];
        let here = Interfaces { node: "n1", uplink: Some("eth0"), addresses: &addresses };
        let name = |governs: Option<&str>| governs.unwrap_or("-").to_owned();
        format!(
            "{} {}",
            name(here.uplink_host_endpoint(&model)),
            name(here.tunnel_host_endpoint(&model))
        )
    }

    #[test]
    fn the_name_comes_before_the_address_and_that_before_all_interfaces() {
        let hosts = [("c", named("eth0")), ("b", of_address(ADDRESS)), ("a", all())];
        assert_eq!(govern(&hosts), "c a");
        assert_eq!(govern(&hosts[1..]), "b a");
        assert_eq!(govern(&hosts[2..]), "a a");
        assert_eq!(govern(&[]), "- -", "an interface without a host endpoint is open");
    }

    #[test]
    fn of_equals_the_first_by_name_governs() {
        assert_eq!(govern(&[("b", named("eth0")), ("a", named("eth0"))]), "a -");
        assert_eq!(govern(&[("b", of_address(ADDRESS)), ("a", of_address(ADDRESS))]), "a -");
        assert_eq!(govern(&[("b", all()), ("a", all())]), "a a");
    }

    #[test]
    fn tunnels_are_an_interface_that_only_the_star_means() {
        assert_eq!(govern(&[("a", named("eth0"))]), "a -");
        assert_eq!(govern(&[("a", of_address(ADDRESS))]), "a -");
    }

    #[test]
    fn what_is_of_another_node_interface_or_address_governs_nothing() {
        let elsewhere = host("n2", Interface::All, &[]);
        let hosts = [("a", elsewhere), ("b", named("eth1")), ("c", of_address("192.0.2.9"))];
        assert_eq!(govern(&hosts), "- -");
    }

    #[test]
    fn one_that_is_not_valid_governs_what_no_valid_one_does() {
        let broken = ("a", HostEndpoint::broken());
        assert_eq!(govern(std::slice::from_ref(&broken)), "a a");
        assert_eq!(govern(&[broken.clone(), ("b", named("eth0"))]), "b a");
        assert_eq!(govern(&[broken, ("b", all())]), "b b");
    }
}
