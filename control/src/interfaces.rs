//! Which host endpoints govern this node's interfaces.
//!
//! Source: Calico documentation, "Host endpoints": one that names an interface comes before one that is found by its
//! addresses, and that before `interfaceName: "*"`, which is for all interfaces; of equals the first by name. Where none of
//! these governs an interface, one that is not valid may be meant, and does.

use manx_policy_compiler::model::{HostEndpoint, Interface, Model};

/// The interfaces of a node that Manx sees forwarded packets of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interfaces<'a> {
    /// The node.
    pub node: &'a str,
    /// The name of the interface to other nodes and the world, if there is one.
    pub uplink: Option<&'a str>,
    /// The node's addresses.
    pub addresses: &'a [std::net::IpAddr],
}

impl Interfaces<'_> {
    /// The host endpoint of the uplink: of packets that travel as they are.
    pub fn native<'m>(&self, model: &'m Model) -> Option<&'m str> {
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

    /// The host endpoint of the tunnels, which are an interface that nobody can name.
    pub fn tunnelled<'m>(&self, model: &'m Model) -> Option<&'m str> {
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
