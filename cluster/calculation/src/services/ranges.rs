//! The ranges of services' addresses: the ranges of cluster IPs, and the ranges that the node announces to its BGP
//! peers.
//!
//! The node's own processes reach cluster IPs through routes for these ranges that lead to Manx. Manx has the same
//! routes, and refuses packets to an address in a range that no Service has. There are two places to which Manx must
//! not send such a packet: the node would send it to Manx again, and the router that has received the announcement
//! would send it to the node again.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object};

use crate::import::Cluster;
use crate::topology::Topology;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceRanges {
    /// All ranges.
    pub nets: BTreeSet<IpNet>,
    /// The ranges of cluster IPs.
    pub cluster_ips: BTreeSet<IpNet>,
    /// The reasons why other ranges are not used.
    pub problems: Vec<RangeProblem>,
}

/// The reason why there is no range, or why a range is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeProblem {
    /// Neither the objects nor the settings contain a range.
    Unknown,
    /// The range contains addresses of another type.
    Overlap {
        /// The range.
        range: IpNet,
        /// The address or net that overlaps the range.
        other: String,
    },
}

impl fmt::Display for RangeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str(
                "the ranges of cluster IPs are not known, so the node's own processes do not reach services: the cluster has \
                 no ServiceCIDR; start the agent with --service-cidr (MANX_SERVICE_CIDR) and the API server's \
                 --service-cluster-ip-range",
            ),
            Self::Overlap { range, other } => write!(
                f,
                "the range {range} of cluster IPs overlaps {other}, so it has no route, and the node's own processes do not \
                 reach its services: give services a range of their own"
            ),
        }
    }
}

impl ServiceRanges {
    /// Returns the ranges of the `ServiceCIDRs` (or, if there are none, the `configured` ranges), and the `announced`
    /// ranges. A range with addresses of nodes or pods is not used, because its route would divert their packets.
    pub fn new(
        contents: &Contents,
        configured: &[IpNet],
        announced: impl Iterator<Item = IpNet>,
        cluster: &Cluster,
    ) -> Self {
        let objects = contents.of_kind(Kind::ServiceCidr);
        let of_objects = objects.filter_map(|(_, stored)| match stored.state.valid()? {
            Object::ServiceCidr(ranges) => Some(&ranges.cidrs),
            _ => None,
        });
        let mut all: BTreeSet<IpNet> = of_objects.flatten().copied().collect();
        if all.is_empty() {
            all.extend(configured.iter().map(IpNet::trunc));
        }
        let mut ranges = Self::default();
        if all.is_empty() {
            ranges.problems.push(RangeProblem::Unknown);
        }
        for range in all {
            match overlapping(range, cluster) {
                Some(other) => ranges.problems.push(RangeProblem::Overlap { range, other }),
                None => _ = ranges.cluster_ips.insert(range),
            }
        }
        ranges.nets = ranges.cluster_ips.iter().copied().chain(announced).collect();
        ranges
    }

    /// Returns the addresses on a node to which the routes of the ranges apply.
    pub fn routed(&self, topology: &Topology) -> RoutedRanges<'_> {
        let longer = self.nets.iter().flat_map(|range| {
            let first = IpNet::from(range.network());
            let inside = topology.prefixes.range(first..).map(|(prefix, _)| *prefix);
            let of_range = inside.take_while(|prefix| range.contains(&prefix.addr()));
            of_range.filter(|prefix| prefix.prefix_len() > range.prefix_len())
        });
        RoutedRanges { ranges: &self.nets, longer: longer.collect() }
    }
}

/// The addresses of the ranges that do not have a route of their own.
#[derive(Debug)]
pub struct RoutedRanges<'a> {
    ranges: &'a BTreeSet<IpNet>,
    /// The prefixes within the ranges that have their own routes. These are addresses of pods outside of pools.
    longer: Vec<IpNet>,
}

impl RoutedRanges<'_> {
    /// Returns whether the route of an address is that of a range, which leads to Manx. A Service with this address
    /// needs no other route.
    pub fn contain(&self, address: &IpAddr) -> bool {
        let contains = |net: &IpNet| net.contains(address);
        self.ranges.iter().any(contains) && !self.longer.iter().any(contains)
    }
}

/// Returns an address or net that overlaps a range and is not for services.
pub(super) fn overlapping(range: IpNet, cluster: &Cluster) -> Option<String> {
    let overlaps = |net: &IpNet| range.contains(net) || net.contains(&range);
    let pool = cluster.pools.iter().find(|pool| overlaps(&pool.cidr));
    let of_node = || {
        cluster.nodes.iter().find_map(|(name, node)| {
            let holds = |address: &&IpAddr| range.contains(*address);
            let address = node.addresses.iter().find(holds).copied().map(IpNet::from);
            let block = node.plan.blocks().iter().find(|block| overlaps(block)).copied();
            let net = block.or(address)?;
            Some(format!("{net} of Node {name}"))
        })
    };
    pool.map(|pool| format!("the IPPool {}", pool.cidr)).or_else(of_node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::import_for;

    const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.244.1.0/24}, \
                        status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}\n---\n";

    fn ranges(objects: &str, configured: &[&str]) -> (Vec<String>, Vec<String>) {
        let text = format!("{NODE}{objects}");
        let contents = Contents::from_texts([("a.yaml", text.as_str())]);
        let configured: Vec<IpNet> = configured.iter().map(|it| it.parse().unwrap()).collect();
        let found = ServiceRanges::new(
            &contents,
            &configured,
            std::iter::empty(),
            &import_for(&contents, "n1"),
        );
        let words = |it: &dyn fmt::Display| it.to_string();
        let nets = found.nets.iter().map(|it| words(it)).collect();
        (nets, found.problems.iter().map(|it| words(it)).collect())
    }

    fn service_cidr(name: &str, cidrs: &str) -> String {
        format!(
            "{{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {{name: {name}}}, spec: {{cidrs: [{cidrs}]}}}}\n---\n"
        )
    }

    #[test]
    fn objects_say_the_ranges_or_else_the_settings_do() {
        let objects = [
            service_cidr("a", "10.96.0.0/12, 'fd00:96::/112'"),
            service_cidr("b", "10.112.0.0/16"),
        ];
        let (nets, problems) = ranges(&objects.concat(), &["192.0.2.0/24"]);
        assert_eq!(nets, ["10.96.0.0/12", "10.112.0.0/16", "fd00:96::/112"]);
        assert!(problems.is_empty());
        assert_eq!(ranges("", &["10.96.0.1/12"]).0, ["10.96.0.0/12"]);
        let (nets, problems) = ranges("", &[]);
        assert!(nets.is_empty());
        insta::assert_snapshot!(problems.join("\n"), @"the ranges of cluster IPs are not known, so the node's own processes do not reach services: the cluster has no ServiceCIDR; start the agent with --service-cidr (MANX_SERVICE_CIDR) and the API server's --service-cluster-ip-range");
    }

    #[test]
    fn a_range_that_holds_nodes_or_pods_is_none() {
        let pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.96.128.0/17}}\n";
        let all =
            ["172.16.0.0/12", "10.244.0.0/16", "10.244.1.128/25", "10.96.0.0/16", "10.97.0.0/16"];
        let (nets, problems) = ranges(pool, &all);
        assert_eq!(nets, ["10.97.0.0/16"]);
        insta::assert_snapshot!(problems.join("\n"), @"
        the range 10.96.0.0/16 of cluster IPs overlaps the IPPool 10.96.128.0/17, so it has no route, and the node's own processes do not reach its services: give services a range of their own
        the range 10.244.0.0/16 of cluster IPs overlaps 10.244.1.0/24 of Node n1, so it has no route, and the node's own processes do not reach its services: give services a range of their own
        the range 10.244.1.128/25 of cluster IPs overlaps 10.244.1.0/24 of Node n1, so it has no route, and the node's own processes do not reach its services: give services a range of their own
        the range 172.16.0.0/12 of cluster IPs overlaps 172.18.0.2/32 of Node n1, so it has no route, and the node's own processes do not reach its services: give services a range of their own
        ");
    }
}
