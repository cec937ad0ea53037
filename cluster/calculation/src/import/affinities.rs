//! The blocks that Calico's IPAM has assigned to nodes. They are the blocks of the affinities that are in force.
//! Affinities change as rarely as the set of blocks. A block's own object (`IPAMBlock`) changes with each pod, so it is
//! not read here.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::Cluster;
use manx_ipam::plan::{Ipam, Plan};
use manx_objects::contents::Contents;
use manx_objects::object::{BlockAffinity, Kind, Node, Object};

/// The blocks of each node that an affinity names. There may be no Node object with this name.
pub(crate) type BlockAffinities = BTreeMap<String, BTreeSet<IpNet>>;

/// Returns the IPAM of a cluster that is known only from its objects: Calico's if an affinity is in force, and
/// otherwise host-local. An agent gets the IPAM from its settings instead.
pub fn assumed_ipam(contents: &Contents) -> Ipam {
    match in_force(contents).next() {
        Some(_) => Ipam::Calico,
        None => Ipam::HostLocal,
    }
}

fn in_force(contents: &Contents) -> impl Iterator<Item = &BlockAffinity> {
    let all = contents.of_kind(Kind::BlockAffinity);
    let valid = all.filter_map(|(_, stored)| match stored.state.valid()? {
        Object::BlockAffinity(affinity) => Some(&**affinity),
        _ => None,
    });
    valid.filter(|affinity| affinity.is_in_force())
}

impl Cluster {
    /// Records the blocks of all affinities. This must come before the import of nodes.
    pub(super) fn note_affinities(&mut self, contents: &Contents) {
        if self.ipam == Ipam::HostLocal {
            return;
        }
        for affinity in in_force(contents) {
            self.affinities.entry(affinity.node.clone()).or_default().insert(affinity.cidr);
        }
    }

    /// Records the current blocks of a node, and returns whether they have changed.
    pub(super) fn refresh_affinities(&mut self, contents: &Contents, node: &str) -> bool {
        let of_node = in_force(contents).filter(|affinity| affinity.node == *node);
        let now: BTreeSet<IpNet> = of_node.map(|affinity| affinity.cidr).collect();
        let before = if now.is_empty() {
            self.affinities.remove(node)
        } else {
            self.affinities.insert(node.to_owned(), now.clone())
        };
        before.unwrap_or_default() != now
    }

    /// Returns the blocks and tunnel addresses of a node as a plan.
    pub(super) fn plan(&self, name: &str, node: &Node) -> Plan {
        match self.ipam {
            Ipam::HostLocal => Plan::host_local(node.pod_cidrs.as_slice()),
            Ipam::Calico => {
                let blocks = self.affinities.get(name).into_iter().flatten().copied();
                Plan::calico(blocks.collect::<Vec<_>>(), node.tunnel_addresses.as_slice())
            }
        }
    }
}
