//! The independent oracle: judges the objects themselves.
//!
//! It reads wire objects and the documentation of Kubernetes and Calico, nothing else: its own defaults, its own selectors,
//! its own addresses. It shares no code with the import, the model, resolution or the tables, so that one mistake is not
//! made twice; it is slow and plain on purpose. What it says is what `manx rig` expects of real traffic, and what the
//! conformance tests hold the compiled tables to.
//!
//! The layers, in order:
//! - [`packet`]: what a packet shows. `selector`: Calico's selector language. `matching`: Kubernetes' selectors and blocks.
//! - `members`: who has an address, and the labels that selectors see. `services`: who serves.
//! - `prepare`, `rules`: rules as they were written; which term of one a packet does not fit.
//! - `policies`, `tiers`, `selecting`, `profiles`: what is asked, of whom, in which order.
//! - `decide`: the search. `ends`: the search at one end alone. `address_class`: what it looks at there. [`host`]: the search at a node's interface. [`verdict`]: what they answer. [`explain`],
//!   [`interface`], `staged`: what happened on the way.
//!
//! A connection passes if the egress side of its source and the ingress side of its destination both let it. Replies are
//! none of its business.

mod address_class;
mod decide;
mod enforcement;
pub mod explain;
pub mod host;
pub mod interface;
mod matching;
mod members;
pub mod packet;
mod policies;
mod prepare;
mod profiles;
mod rules;
mod selecting;
mod selector;
mod services;
mod staged;
#[cfg(test)]
mod tests;
mod tiers;
pub mod verdict;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use manx_objects::contents::Stored;
use manx_objects::object::ObjectKey;

use host::Hosts;
use members::{Members, Role};
use policies::Policy;
use prepare::Preparer;
use profiles::Profiles;
use rules::{Flow, Occupants};
use selecting::ByNamespace;
use services::Services;
use tiers::Tier;

pub use address_class::{AddressClass, Key, Limits};
pub use enforcement::{EnforcementPoint, Place};
pub use host::Crossing;
pub use packet::{Packet, Shown};
pub use rules::Direction;
pub use staged::Staged;
pub use verdict::{Judgement, RuleName, Verdict, VerdictReason};

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A pod, by one of its addresses.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The address that it uses.
        address: IpAddr,
    },
    /// A node, by the address that it uses.
    Node {
        /// Its name.
        name: String,
        /// The address that it uses.
        address: IpAddr,
    },
    /// Anybody else.
    Address(IpAddr),
}

impl Party {
    /// The address that packets carry.
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Pod { address, .. } | Self::Node { address, .. } | Self::Address(address) => {
                *address
            }
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { namespace, name, address } => write!(f, "{namespace}/{name} ({address})"),
            Self::Node { name, address } => write!(f, "node {name} ({address})"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// The objects of one cluster, ready to be asked.
#[derive(Debug)]
pub struct Oracle {
    members: Members,
    policies: Vec<Policy>,
    tiers: Vec<Tier>,
    by_namespace: ByNamespace,
    profiles: Profiles,
    hosts: Hosts,
}

impl Oracle {
    /// An oracle of everything in a store.
    pub fn new(objects: &BTreeMap<ObjectKey, Stored>) -> Self {
        let members = Members::new(objects);
        let services = Services::new(objects);
        let preparer = Preparer { members: &members, services: &services };
        let policies = policies::read(objects, &preparer);
        let tiers = tiers::arrange(objects, &policies);
        let profiles = Profiles::new(objects, &preparer);
        let by_namespace = ByNamespace::new(&tiers, &policies);
        Self { members, policies, tiers, by_namespace, profiles, hosts: Hosts::new(objects) }
    }

    /// Every pod that takes part, once for each of its addresses.
    pub fn pods(&self) -> impl Iterator<Item = Party> + '_ {
        self.members.list.iter().filter(|member| member.role == Role::Pod).flat_map(|member| {
            member.addresses.iter().map(|address| Party::Pod {
                namespace: member.namespace.clone().unwrap_or_default(),
                name: member.name.clone(),
                address: *address,
            })
        })
    }

    /// Whether a new connection from `from` to `to` passes. The two addresses should be of one family: otherwise there is
    /// no such packet.
    pub fn judge(&self, from: &Party, to: &Party, packet: Packet) -> Judgement {
        if is_same_pod(from, to) {
            return Judgement {
                egress: VerdictReason::Itself.into(),
                ingress: VerdictReason::Itself.into(),
            };
        }
        let egress = self.side(Direction::Egress, from, to, packet, &mut ());
        let ingress = self.side(Direction::Ingress, to, from, packet, &mut ());
        Judgement { egress, ingress }
    }

    /// What the policies of `local` say of `peer`.
    fn side(
        &self,
        direction: Direction,
        local: &Party,
        peer: &Party,
        packet: Packet,
        watch: &mut impl decide::Watch,
    ) -> Verdict {
        if !matches!(local, Party::Pod { .. }) {
            return self.at_no_pod(direction, local, peer).into();
        }
        let Some(endpoint) = self.endpoint(local) else { return VerdictReason::NoEndpoint.into() };
        if direction == Direction::Ingress
            && let Party::Node { name, .. } = peer
            && self.members.list[endpoint].node.as_ref() == Some(name)
        {
            return VerdictReason::OwnNode.into();
        }
        // An address that it shares with one that is not valid is nobody's to judge either.
        if [local, peer].iter().any(|end| self.members.invalid_addresses.contains(&end.address())) {
            return VerdictReason::InvalidPeer.into();
        }
        let mut local = self.occupants_of(local.address(), Some(endpoint));
        // At its own end the pod is meant, and not another that still has its address.
        local.holders.retain(|holder| {
            *holder == endpoint || self.members.list[*holder].role == Role::NetworkSet
        });
        let peer = self.occupants_of(peer.address(), None);
        let (source, destination) = match direction {
            Direction::Ingress => (peer, local),
            Direction::Egress => (local, peer),
        };
        let members = &self.members.list;
        let flow = Flow { members, source, destination, packet, direction };
        self.decide(endpoint, &self.selecting(endpoint), &flow, watch)
    }

    /// Nothing passes an address that a pod has which is no endpoint since it, or what it belongs to, is not valid. A node
    /// judges what its own pods send to it. Host endpoint policy does not apply to that; what else passes a node's interfaces
    /// is asked of [`Oracle::judge_host`].
    fn at_no_pod(&self, direction: Direction, local: &Party, peer: &Party) -> VerdictReason {
        if direction == Direction::Ingress
            && let Party::Node { name, .. } = local
            && let Some(pod) = self.endpoint(peer)
            && self.members.list[pod].node.as_ref() == Some(name)
        {
            return VerdictReason::EndpointToHost { accepted: self.hosts.accepts_pods(name) };
        }
        if let Party::Address(address) = local
            && self.members.closed_addresses.contains(address)
        {
            return VerdictReason::NoEndpoint;
        }
        VerdictReason::NoPod
    }

    fn occupants_of(&self, address: IpAddr, endpoint: Option<usize>) -> Occupants {
        Occupants { address, holders: self.members.holders(address), endpoint }
    }

    fn endpoint(&self, party: &Party) -> Option<usize> {
        let Party::Pod { namespace, name, address } = party else { return None };
        self.members.pod(namespace, name, *address)
    }
}

fn is_same_pod(from: &Party, to: &Party) -> bool {
    match (from, to) {
        (
            Party::Pod { namespace, name, .. },
            Party::Pod { namespace: other_namespace, name: other, .. },
        ) => (namespace, name) == (other_namespace, other),
        _ => false,
    }
}
