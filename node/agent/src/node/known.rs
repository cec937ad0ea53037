//! The cluster's data that Calico's IPAM needs to give out addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_block_ipam::pool::Pool;
use manx_objects::object::{EncapsulationMode, IpPool, Kind, Object, ObjectKey};

use super::inputs::Inputs;
use super::view::View;
use crate::pool_addresses::Known;
use crate::tunnel_addresses::Wanted;

/// The most addresses of another node that are excluded for pods.
const MOST_OF_A_NODE: usize = 16;

impl View {
    /// The labels, pools and excluded addresses.
    pub(super) fn known_to_pools(&self, inputs: &Inputs) -> Known {
        let node = self.cluster.nodes.get(&self.node);
        Known {
            node_labels: node.map(|it| it.labels.clone()).unwrap_or_default(),
            pools: self
                .usable_pools(inputs)
                .filter_map(|(name, it)| Pool::new(name, it).ok())
                .collect(),
            taken: self.not_for_pods(inputs),
        }
    }

    /// The usable pools. A pool that is not valid, or overlaps an older one, has no routes, so its addresses are not given
    /// out.
    fn usable_pools<'a>(
        &'a self,
        inputs: &'a Inputs,
    ) -> impl Iterator<Item = (&'a str, &'a IpPool)> {
        let all = inputs.contents().of_kind(Kind::IpPool);
        let valid = all.filter_map(|(key, stored)| match stored.state.valid()? {
            Object::IpPool(pool) => Some((key.name.as_str(), &**pool)),
            _ => None,
        });
        let cluster = &self.cluster;
        valid.filter(|(name, _)| {
            !cluster.later_pools.contains(*name)
                && !cluster.invalid_pools.iter().any(|it| it == name)
        })
    }

    /// Addresses that no pod may have, in any pool: those of nodes, and those that this node needs. Only [`MOST_OF_A_NODE`]
    /// addresses of each node count, so a Node with very many addresses cannot exhaust the pools.
    fn not_for_pods(&self, inputs: &Inputs) -> BTreeMap<IpAddr, String> {
        let of_nodes = self.cluster.nodes.iter().flat_map(|(node, it)| {
            let addresses = it.addresses.iter().take(MOST_OF_A_NODE);
            addresses.map(move |address| (*address, format!("Node {node:?}")))
        });
        let reserved = self.reserved(inputs, &self.own_addresses).into_iter();
        of_nodes.chain(reserved.map(|(address, what)| (address, what.to_string()))).collect()
    }

    /// The tunnels for which this node needs addresses, and the tunnel addresses in its object.
    pub(super) fn wanted_tunnels(&self, inputs: &Inputs) -> Wanted {
        let encapsulates =
            |mode: Option<EncapsulationMode>| mode.is_some_and(|it| it != EncapsulationMode::Never);
        let of = |has: fn(&IpPool) -> Option<EncapsulationMode>| {
            let all = self.usable_pools(inputs);
            let all = all.filter(|(_, it)| it.cidr.addr().is_ipv4() && encapsulates(has(it)));
            all.filter_map(|(name, it)| Pool::new(name, it).ok()).collect()
        };
        let key = ObjectKey::new(Kind::Node, "", &self.node);
        let node = inputs.contents().objects.get(&key).and_then(|it| it.state.valid());
        let annotated = match node {
            Some(Object::Node(node)) => node.tunnel_addresses.iter().copied(),
            _ => [].iter().copied(),
        };
        let mut known = self.known_to_pools(inputs);
        // The node's own tunnel addresses are the ones to be assigned, so they are not excluded.
        known.taken.retain(|address, _| !self.topology.tunnel_addresses.contains(address));
        Wanted {
            pools: [of(|it| it.ipip_mode), of(|it| it.vxlan_mode)],
            known,
            annotated: annotated.filter(IpAddr::is_ipv4).collect(),
        }
    }
}
