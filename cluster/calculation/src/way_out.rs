//! Decides which pods' packets get the node's address as source when they leave the cluster, and for which hosts pods
//! keep their own addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_dataplane::tables::ManxPorts;
use manx_policy_compiler::prefix_map::PrefixMap;

use crate::import::Cluster;
use crate::topology::Topology;

/// Returns the pools and the excluded hosts, each with its value for [`ManxPorts::masquerade`]. A pod outside of all
/// pools keeps its address.
pub(crate) fn values(
    cluster: &Cluster,
    topology: &Topology,
) -> impl Iterator<Item = (IpNet, u32)> + use<> {
    let of_pools = of_pools(cluster, topology);
    let ExcludedHosts { reached, .. } = ExcludedHosts::new(cluster, topology);
    of_pools.into_iter().chain(of_hosts(reached))
}

/// Returns whether packets from `source` to `destination` get the node's address. `excludes_hosts` says whether nodes
/// are excluded from this. The cluster's own setting is ignored.
pub fn is_masqueraded(
    (cluster, topology): (&Cluster, &Topology),
    excludes_hosts: bool,
    [source, destination]: [IpAddr; 2],
) -> bool {
    let ExcludedHosts { reached, .. } = ExcludedHosts::with(excludes_hosts, cluster, topology);
    let values = of_pools(cluster, topology).into_iter().chain(of_hosts(reached));
    let masquerade = PrefixMap::build(0, values);
    ManxPorts::masquerades_by(&masquerade, source.into(), destination.into())
}

fn of_pools(cluster: &Cluster, topology: &Topology) -> Vec<(IpNet, u32)> {
    let value = |asks: bool| ManxPorts::STAYS + if asks { ManxPorts::ASKS } else { 0 };
    let pools = cluster.pools.iter().filter(|_| topology.connects_pods);
    pools.map(|pool| (pool.cidr, value(pool.nat_outgoing))).collect()
}

fn of_hosts(reached: BTreeSet<IpAddr>) -> impl Iterator<Item = (IpNet, u32)> {
    reached.into_iter().map(|host| (IpNet::from(host), ManxPorts::STAYS))
}

/// The addresses of nodes that `natOutgoingExclusions: IPPoolsAndHostIPs` excludes. As in Calico, they are the first
/// address of each family of each node. There are none if the setting has another value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExcludedHosts {
    /// The addresses of nodes whose replies reach a pod at its own address.
    pub reached: BTreeSet<IpAddr>,
    /// The addresses of nodes behind a tunnel. Their replies would arrive through the tunnel, and a tunnel must not
    /// carry packets from a node's address. So pods' packets to these nodes are masqueraded.
    pub behind_tunnels: BTreeSet<IpAddr>,
}

impl ExcludedHosts {
    /// Returns the excluded hosts of a cluster as one node sees them.
    pub fn new(cluster: &Cluster, topology: &Topology) -> Self {
        Self::with(cluster.way_out.excludes_hosts, cluster, topology)
    }

    fn with(excludes_hosts: bool, cluster: &Cluster, topology: &Topology) -> Self {
        if !excludes_hosts {
            return Self::default();
        }
        let firsts = cluster.nodes.values().flat_map(|node| {
            let first = |is_v4| node.internal_ips.iter().find(move |it| it.is_ipv4() == is_v4);
            [first(true), first(false)].into_iter().flatten().copied()
        });
        let far_ends: BTreeSet<IpAddr> =
            topology.peers().into_iter().map(|peer| peer.address.into()).collect();
        let (behind_tunnels, reached) = firsts.partition(|address| far_ends.contains(address));
        Self { reached, behind_tunnels }
    }
}

#[cfg(test)]
mod tests {
    use manx_objects::contents::Contents;

    use super::*;
    use crate::import::import_for;
    use crate::topology::{Reserved, topology};

    fn excluded(mode: &str, setting: &str) -> ExcludedHosts {
        let calico = "apiVersion: projectcalico.org/v3, kind";
        let settings = format!(
            "{{{calico}: IPPool, metadata: {{name: p}}, spec: {{cidr: 10.244.0.0/16, ipipMode: {mode}}}}}\n---\n\
             {{{calico}: FelixConfiguration, metadata: {{name: default}}, spec: {{natOutgoingExclusions: {setting}}}}}\n"
        );
        let nodes = [(1, 0), (2, 0), (3, 1)].map(|(node, subnet)| {
            format!(
                "---\n{{apiVersion: v1, kind: Node, metadata: {{name: n{node}, annotations: {{projectcalico.org/IPv4Address: 172.18.{subnet}.{node}/24}}}}, \
                 spec: {{podCIDR: 10.244.{node}.0/24}}, status: {{addresses: [{{type: InternalIP, address: 172.19.0.{node}}}, \
                 {{type: InternalIP, address: 'fd00::{node}'}}, {{type: ExternalIP, address: 203.0.113.{node}}}]}}}}\n"
            )
        });
        let yaml = settings + &nodes.concat();
        let cluster = import_for(&Contents::from_texts([("file.yaml", &yaml[..])]), "n1");
        let topology = topology(&cluster, "n1", &Reserved::new()).unwrap();
        ExcludedHosts::new(&cluster, &topology)
    }

    fn addresses(all: &[&str]) -> BTreeSet<IpAddr> {
        all.iter().map(|it| it.parse().unwrap()).collect()
    }

    #[test]
    fn one_address_of_each_family_and_node_counts_and_none_behind_a_tunnel() {
        let [one, two, three] = ["172.18.0.1", "172.18.0.2", "172.18.1.3"];
        let v6 = ["fd00::1", "fd00::2", "fd00::3"];
        for (mode, reached, behind) in [
            ("Never", &[one, two, three][..], &[][..]),
            ("CrossSubnet", &[one, two], &[three]),
            ("Always", &[one], &[two, three]),
        ] {
            let found = excluded(mode, "IPPoolsAndHostIPs");
            assert_eq!(found.reached, addresses(&[reached, &v6].concat()), "{mode}");
            assert_eq!(found.behind_tunnels, addresses(behind), "{mode}");
            assert_eq!(excluded(mode, "IPPoolsOnly"), ExcludedHosts::default());
        }
    }
}
