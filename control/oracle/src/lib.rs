//! The independent oracle: it judges the objects themselves.
//!
//! It reads wire objects and the documentation of Kubernetes and Calico, and nothing else: its own defaults, its own
//! selectors, its own addresses. It shares no code with the import, the model, resolution or the tables, so that one
//! mistake is not made twice; it is slow and plain on purpose. Its verdicts are what `manx rig` expects of real
//! traffic, and the conformance tests compare the compiled tables with them.
//!
//! The layers, in order:
//! - [`packet`]: what a packet shows. `selector`: Calico's selector language. `matching`: Kubernetes' selectors and
//!   blocks.
//! - `members`: which member has an address, and the labels that selectors see. `services`: the endpoints of services.
//! - `prepare`, `rules`: rules as they were written; which term of a rule a packet does not fit.
//! - `policies`, `tiers`, `selecting`, `profiles`: which policies apply to which endpoint, in which order.
//! - `decide`: the search. `enforcement`: the search at one end alone. `address_class`: what it looks at there.
//!   [`host`]: the search at a node's interface. [`verdict`]: the results. [`explain`], [`interface`], `staged`: the
//!   steps of the search.
//!
//! A connection passes if the egress side of its source and the ingress side of its destination both allow it. Replies
//! are not judged.

mod address_class;
mod address_owner;
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
    /// Any other address.
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

/// The objects of one cluster, prepared for judging.
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
    /// An oracle over all objects of a store.
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

    /// Every pod that is an endpoint, once for each of its addresses.
    pub fn pods(&self) -> impl Iterator<Item = Party> + '_ {
        self.members.list.iter().filter(|member| member.role == Role::Pod).flat_map(|member| {
            member.addresses.iter().map(|address| Party::Pod {
                namespace: member.namespace.clone().unwrap_or_default(),
                name: member.name.clone(),
                address: *address,
            })
        })
    }

    /// Whether a new connection from `from` to `to` passes. The two addresses must be of one family, because no other
    /// packet exists.
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

    /// The verdict of `local`'s policies on `peer`.
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
        // An address that the end shares with an invalid pod cannot be judged either.
        if [local, peer].iter().any(|end| self.members.invalid_addresses.contains(&end.address())) {
            return VerdictReason::InvalidPeer.into();
        }
        let mut local = self.occupants_of(local.address(), Some(endpoint));
        // For its own end only this pod counts, even if another pod still has the address.
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

    /// The verdict at an end that is no endpoint. Nothing passes the address of a pod that is no endpoint because it,
    /// or what it belongs to, is not valid. A node accepts or drops what its own pods send to it. Host endpoint policy
    /// does not apply to that; [`Oracle::judge_host`] judges everything else that passes a node's interfaces.
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
