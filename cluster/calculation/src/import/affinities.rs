//! The blocks that Calico's IPAM has given to nodes: those of the affinities that are in force. Affinities change as rarely
//! as blocks do, while a block's own object (`IPAMBlock`) changes with each pod, so that object is not read here.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::Cluster;
use manx_ipam::plan::{Ipam, Plan};
use manx_objects::contents::Contents;
use manx_objects::object::{BlockAffinity, Kind, Node, Object};

/// The blocks of each node that an affinity names. There need not be such a node.
pub(crate) type Affinities = BTreeMap<String, BTreeSet<IpNet>>;

/// The IPAM of a cluster of which nothing but the objects is known: Calico's if an affinity is in force. An agent is told
/// by its settings instead.
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
    /// Notes the blocks of all affinities. Nodes are imported after that.
    pub(super) fn note_affinities(&mut self, contents: &Contents) {
        if self.ipam == Ipam::HostLocal {
            return;
        }
        for affinity in in_force(contents) {
            self.affinities.entry(affinity.node.clone()).or_default().insert(affinity.cidr);
        }
    }

    /// Notes the blocks of a node anew, and returns whether they differ.
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

    /// The plan of a node.
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
