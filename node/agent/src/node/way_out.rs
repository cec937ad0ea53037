//! The source addresses of pods' connections out of the cluster, and Felix's settings about them that Manx does not
//! support.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::view::View;
use crate::own_addresses::is_own;
use manx_calculation::import::OutgoingAddress;
use manx_calculation::way_out::ExcludedHosts;
use manx_objects::few;

/// The most objects that a warning names.
const NAMED: usize = 3;

impl View {
    /// The first of the Node's addresses that its kernel has, for IPv4 and for IPv6.
    pub(super) fn first_addresses(&self) -> [Option<IpAddr>; 2] {
        [true, false].map(|is_v4| {
            let mut own = self.topology.addresses.iter().filter(|it| it.is_ipv4() == is_v4);
            own.find(|it| is_own(&self.own_addresses, it)).copied()
        })
    }

    /// The source addresses of pods' connections out of the cluster, for IPv4 and for IPv6: the node's first addresses,
    /// or for IPv4 the address in Felix's settings. If the node does not have the address in the settings, no other
    /// address replaces it, because outside hosts may trust the node's own processes more than its pods.
    pub(super) fn outgoing_addresses(&self) -> [Option<IpAddr>; 2] {
        let [first, v6] = self.first_addresses();
        let v4 = match self.cluster.way_out.address {
            OutgoingAddress::First => first,
            OutgoingAddress::Named(address) => {
                Some(IpAddr::from(address)).filter(|_| self.is_answered_at(address))
            }
            OutgoingAddress::Unknown => None,
        };
        [v4, v6]
    }

    /// The addresses at which Manx has the ports for translated connections out of the cluster.
    pub(super) fn addresses_of_way_out(&self) -> BTreeSet<IpAddr> {
        [self.first_addresses(), self.outgoing_addresses()]
            .into_iter()
            .flatten()
            .flatten()
            .collect()
    }

    /// Whether outside hosts can answer to an address of this node: the kernel has it, and it is neither link-local nor
    /// Manx's own.
    fn is_answered_at(&self, address: Ipv4Addr) -> bool {
        let is_of_link = address.is_loopback() || address.is_link_local();
        let address = IpAddr::from(address);
        !is_of_link && !self.is_of_manx(address) && is_own(&self.own_addresses, &address)
    }

    /// Warnings about settings of pools and of Felix that this node does not apply.
    pub(super) fn problems_of_way_out(&self) -> Vec<String> {
        let asks = self.cluster.pools.iter().filter(|pool| pool.nat_outgoing);
        let pools: Vec<_> = asks.map(|pool| pool.cidr).collect();
        if pools.is_empty() || !self.topology.connects_pods {
            return Vec::new();
        }
        if self.services.manx().is_none() {
            return vec![format!(
                "natOutgoing of the IPPools {} is not done, because this agent does not translate: what their pods send to the world \
                 keeps their own addresses; run the agents with --services manx, or have the nodes do it",
                few(pools, NAMED)
            )];
        }
        [self.problem_of_address(), self.problem_of_hosts()].into_iter().flatten().collect()
    }

    fn problem_of_address(&self) -> Option<String> {
        const DROPPED: &str = "what pods of the IPPools with natOutgoing send to the world by IPv4 is dropped (no-route)";
        match (self.cluster.way_out.address, self.outgoing_addresses()) {
            (OutgoingAddress::First, _) | (OutgoingAddress::Named(_), [Some(_), _]) => None,
            (OutgoingAddress::Named(address), [None, _]) => Some(format!(
                "natOutgoingAddress of FelixConfiguration: found {address}, expected an address of an interface of this node (ip -4 address) \
                 that is not loopback, link-local or in its pod CIDRs: {DROPPED}; give it to an interface, name another one in \
                 FelixConfiguration node.{}, or remove the field",
                self.node
            )),
            (OutgoingAddress::Unknown, _) => Some(format!(
                "a FelixConfiguration for this node (node.{} or default) is not valid, and may have a natOutgoingAddress: {DROPPED}; \
                 correct it, or name an address in a valid node.{0}",
                self.node
            )),
        }
    }

    fn problem_of_hosts(&self) -> Option<String> {
        let ExcludedHosts { behind_tunnels, .. } =
            ExcludedHosts::new(&self.cluster, &self.topology);
        (!behind_tunnels.is_empty()).then(|| {
            format!(
                "natOutgoingExclusions: IPPoolsAndHostIPs of FelixConfiguration is not done for nodes behind a tunnel ({}): they see this \
                 node and not its pods, because no tunnel brings their answers; remove the field, or use pools with ipipMode and \
                 vxlanMode CrossSubnet or Never",
                few(behind_tunnels, NAMED)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use manx_calculation::services::GrantedPorts;
    use manx_datastore::Source;

    use super::*;
    use crate::node::inputs::Inputs;
    use crate::settings::{
        Ipam, ManxTranslationSettings, Network, PortRange, PortRanges, ServiceTranslator,
    };

    const OBJECTS: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: 'fd00::2'}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.244.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.0/16, ipipMode: Always, natOutgoing: true}}
";
    const OWN: [&str; 5] =
        ["172.18.0.2/32", "192.0.2.9/32", "fd00::2/128", "10.244.1.1/32", "127.0.0.0/8"];

    /// The view of node `n1` with these default settings of Felix.
    fn view(felix: &str) -> View {
        view_with(felix, &[])
    }

    /// The same view, with nets of addresses that have node ports.
    fn view_with(felix: &str, nets: &[&str]) -> View {
        let folder = tempfile::tempdir().unwrap();
        let felix = format!(
            "---\n{{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {{name: default}}, spec: {{{felix}}}}}\n"
        );
        std::fs::write(folder.path().join("all.yaml"), format!("{OBJECTS}{felix}")).unwrap();
        let mut inputs = Inputs::new(Source::open_directory(folder.path()).unwrap());
        let own: BTreeSet<IpNet> = OWN.iter().map(|net| net.parse().unwrap()).collect();
        inputs.set_interface_addresses(
            own.iter().map(IpNet::addr).filter(|it| !it.is_loopback()).collect(),
        );
        inputs.set_own_addresses(own);
        let range = |first, last| PortRange::new(first, last).unwrap();
        let ports = PortRanges { egress: range(61_000, 65_534), node_ports: range(30_000, 32_767) };
        let node_port_nets = nets.iter().map(|net| net.parse().unwrap()).collect();
        let (ranges, external_ips) = (Vec::new(), Vec::new());
        let services = ServiceTranslator::Manx(ManxTranslationSettings {
            ranges,
            external_ips,
            node_port_nets,
            ports,
        });
        let mut view = View::new("n1", Network::Manx, Ipam::HostLocal, &services);
        view.import(&mut inputs);
        view.place(&inputs).unwrap();
        view
    }

    fn addresses(all: &[&str]) -> BTreeSet<IpAddr> {
        all.iter().map(|it| it.parse().unwrap()).collect()
    }

    /// Rules, and the node's services, use the first address in any case.
    #[test]
    fn pods_leave_by_the_first_address_or_the_named_one_or_not_at_all() {
        let [first, named, v6] = ["172.18.0.2", "192.0.2.9", "fd00::2"];
        for (felix, outgoing, rules) in [
            ("", Some(first), &[first, v6][..]),
            ("natOutgoingAddress: ''", Some(first), &[first, v6]),
            ("natOutgoingAddress: 172.18.0.2", Some(first), &[first, v6]),
            ("natOutgoingAddress: 192.0.2.9", Some(named), &[first, named, v6]),
            ("natOutgoingAddress: 192.0.2.10", None, &[first, v6]),
            ("natOutgoingAddress: 127.0.0.1", None, &[first, v6]),
            ("natOutgoingAddress: 10.244.1.1", None, &[first, v6]),
            ("natOutgoingAddress: 'fd00::2'", None, &[first, v6]),
            ("failsafeInboundHostPorts: 5", None, &[first, v6]),
        ] {
            let view = view(felix);
            let v6 = "fd00::2".parse().ok();
            assert_eq!(view.outgoing_addresses(), [outgoing.map(|it| it.parse().unwrap()), v6]);
            let desired = view.manx_ports(&GrantedPorts::default(), BTreeSet::new());
            assert_eq!(desired.egress, addresses(rules), "{felix}");
            let node_ports = addresses(&[first, "fd00::2", "127.0.0.1"]);
            assert_eq!(desired.node_ports, node_ports, "{felix}");
            assert_eq!(desired.source("127.0.0.1".parse().unwrap()), first.parse().ok());
            assert_eq!(
                view.problems_of_way_out().len(),
                usize::from(outgoing.is_none()),
                "{felix}"
            );
        }
    }

    #[test]
    fn node_ports_are_served_at_the_first_addresses_or_at_those_in_the_nets_that_are_named() {
        let none = &[][..];
        for (nets, served) in [
            (none, &["172.18.0.2", "fd00::2", "127.0.0.1"][..]),
            (&["192.0.2.0/24"], &["192.0.2.9", "127.0.0.1"]),
            (&["fd00::/64", "192.0.2.9/32"], &["192.0.2.9", "127.0.0.1", "fd00::2"]),
            // Manx's own address lies in a block.
            (&["0.0.0.0/0"], &["172.18.0.2", "192.0.2.9", "127.0.0.1"]),
            (&["fd00::/64"], &["fd00::2"]),
            (&["127.0.0.0/8"], none),
        ] {
            let view = view_with("", nets);
            let desired = view.manx_ports(&GrantedPorts::default(), BTreeSet::new());
            assert_eq!(desired.node_ports, addresses(served), "{nets:?}");
            assert_eq!(desired.egress, addresses(&["172.18.0.2", "fd00::2"]), "{nets:?}");
            assert_eq!(view.problem_of_node_ports().is_some(), served.is_empty(), "{nets:?}");
        }
    }

    #[test]
    fn what_is_not_done_is_said_with_what_to_do() {
        let all = [
            "natOutgoingAddress: 192.0.2.10",
            "natOutgoingAddress: web",
            "natOutgoingExclusions: IPPoolsAndHostIPs",
        ];
        let told: Vec<String> =
            all.iter().flat_map(|felix| view(felix).problems_of_way_out()).collect();
        insta::assert_snapshot!(told.join("\n"), @r"
        natOutgoingAddress of FelixConfiguration: found 192.0.2.10, expected an address of an interface of this node (ip -4 address) that is not loopback, link-local or in its pod CIDRs: what pods of the IPPools with natOutgoing send to the world by IPv4 is dropped (no-route); give it to an interface, name another one in FelixConfiguration node.n1, or remove the field
        a FelixConfiguration for this node (node.n1 or default) is not valid, and may have a natOutgoingAddress: what pods of the IPPools with natOutgoing send to the world by IPv4 is dropped (no-route); correct it, or name an address in a valid node.n1
        natOutgoingExclusions: IPPoolsAndHostIPs of FelixConfiguration is not done for nodes behind a tunnel (172.18.0.3): they see this node and not its pods, because no tunnel brings their answers; remove the field, or use pools with ipipMode and vxlanMode CrossSubnet or Never
        ");
        assert!(view("natOutgoingExclusions: IPPoolsOnly").problems_of_way_out().is_empty());
    }
}
