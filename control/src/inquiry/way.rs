//! The interfaces of nodes that a packet passes between two parties.
//!
//! It leaves the source's node and arrives at the destination's, by the uplink or, where the destination's pool asks for
//! it, in a tunnel. Nothing is passed between the pods of one node, or a node and its own pods.

use std::net::IpAddr;
use std::sync::Arc;

use crate::manifest::State;
use crate::manifest::object::{EncapsulationMode, Kind, Object, ObjectKey};
use crate::oracle::{Crossing, Direction, Oracle, Packet, Party};
use crate::store::{Contents, Stored};

/// The tunnels are an interface that no host endpoint can name.
const TUNNELS: &str = "its tunnels";

/// See the module.
#[derive(Debug)]
pub(super) struct Way {
    from: IpAddr,
    to: IpAddr,
    leaving: Option<Passed>,
    arriving: Option<Passed>,
}

/// An interface that is passed.
#[derive(Debug)]
struct Passed {
    node: String,
    interface: String,
    addresses: Vec<IpAddr>,
    forwarded: bool,
}

impl Way {
    /// The way from one party to another, if the nodes' uplink is called so.
    pub(super) fn new(
        contents: &Contents,
        oracle: &Oracle,
        from: &Party,
        to: &Party,
        uplink: &str,
    ) -> Self {
        let (leaves, arrives) = (oracle.node(from), oracle.node(to));
        let tunnel = is_tunnelled(contents, leaves, arrives, to.address());
        let passed = |party: &Party, node: Option<&str>| {
            let node = node.filter(|_| leaves != arrives)?;
            let addresses = super::nodes(contents, |name| name == node);
            Some(Passed {
                node: node.to_owned(),
                interface: if tunnel { TUNNELS } else { uplink }.to_owned(),
                addresses: addresses.filter(|_| !tunnel).map(|party| party.address()).collect(),
                forwarded: matches!(party, Party::Pod { .. }),
            })
        };
        Self {
            from: from.address(),
            to: to.address(),
            leaving: passed(from, leaves),
            arriving: passed(to, arrives),
        }
    }

    /// What a packet passes: first where it leaves, then where it arrives.
    pub(super) fn crossings(&self, packet: Packet) -> [Option<Crossing<'_>>; 2] {
        let ends = [(&self.leaving, Direction::Egress), (&self.arriving, Direction::Ingress)];
        ends.map(|(passed, direction)| {
            let passed = passed.as_ref()?;
            Some(Crossing {
                node: &passed.node,
                interface: &passed.interface,
                addresses: &passed.addresses,
                direction,
                forwarded: passed.forwarded,
                source: self.from,
                destination: self.to,
                packet,
                original: None,
            })
        })
    }
}

/// Whether the source's node sends what is for this address into a tunnel: if the address is of a block of the other node's,
/// and the smallest pool around the block asks for encapsulation between the two. Calico, "Overlay networking": `CrossSubnet`
/// compares the sender's subnet with the other node's address.
fn is_tunnelled(
    contents: &Contents,
    leaves: Option<&str>,
    arrives: Option<&str>,
    to: IpAddr,
) -> bool {
    let node = |name: Option<&str>| {
        let (kind, namespace, name) = (Kind::Node, String::new(), name?.to_owned());
        match &**valid(contents.objects.get(&ObjectKey { kind, namespace, name })?)? {
            Object::Node(node) => Some(node),
            _ => None,
        }
    };
    let (Some(here), Some(remote)) = (node(leaves), node(arrives)) else { return false };
    let Some(block) = remote.pod_cidrs.iter().find(|block| block.contains(&to)) else {
        return false;
    };
    let pools = contents.of_kind(Kind::IpPool).filter_map(|(_, stored)| match &**valid(stored)? {
        Object::IpPool(pool) if pool.cidr.contains(block) => Some(pool),
        _ => None,
    });
    let Some(pool) = pools.max_by_key(|pool| pool.cidr.prefix_len()) else { return false };
    let vxlan = pool.vxlan_mode.filter(|mode| *mode != EncapsulationMode::Never);
    match vxlan.or(pool.ipip_mode) {
        Some(EncapsulationMode::Always) => true,
        Some(EncapsulationMode::CrossSubnet) => {
            let address = remote.calico_address.map(|net| net.addr());
            let address = address.or_else(|| {
                remote.internal_ips.iter().copied().find(|it| it.is_ipv4() == to.is_ipv4())
            });
            let subnet = here.calico_address.map(|net| net.trunc());
            !address.zip(subnet).is_some_and(|(address, subnet)| subnet.contains(&address))
        }
        Some(EncapsulationMode::Never) | None => false,
    }
}

fn valid(stored: &Stored) -> Option<&Arc<Object>> {
    match &stored.state {
        State::Valid(object) => Some(object),
        State::Invalid(_) => None,
    }
}
