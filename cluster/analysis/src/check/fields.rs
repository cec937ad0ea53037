//! Finds the fields of an object that contain the parts of a rule.
//!
//! The model has several rules for one rule of an object (one for each protocol) and does not keep the object's lists.
//! A part is therefore found in the object by its content.

use ipnet::IpNet;
use manx_objects::object::cluster::{ClusterMatch, ClusterPeer, ClusterProtocol, ClusterRule};
use manx_objects::object::{Kind, Object, ObjectKey, Peer, PortNumber, calico};
use manx_policy_compiler::model::{Direction, PortMatch, Rule, RuleEnd};

use crate::explain::number;

/// Returns the field of a rule.
pub(super) fn rule_field(direction: Direction, index: u32) -> String {
    format!("spec.{direction}[{index}]")
}

/// A rule of an object.
#[derive(Clone, Copy)]
pub(super) struct RuleFields<'o> {
    pub(super) key: &'o ObjectKey,
    pub(super) object: &'o Object,
    pub(super) direction: Direction,
    pub(super) index: u32,
}

/// A side of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

impl Side {
    pub(super) const ALL: [Self; 2] = [Self::Source, Self::Destination];

    /// Returns the side of the policy's own endpoint.
    pub(super) const fn own(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Self::Destination,
            Direction::Egress => Self::Source,
        }
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Source => Self::Destination,
            Self::Destination => Self::Source,
        }
    }

    pub(super) const fn of(self, rule: &Rule) -> &RuleEnd {
        match self {
            Self::Source => &rule.source,
            Self::Destination => &rule.destination,
        }
    }

    /// Returns the name of this side in Calico's rules.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

impl<'o> RuleFields<'o> {
    pub(super) fn rule(&self) -> String {
        rule_field(self.direction, self.index)
    }

    /// Returns the field of a side of a Calico rule.
    pub(super) fn side(&self, side: Side) -> String {
        format!("{}.{}", self.rule(), side.name())
    }

    /// Returns the field of a peer with a selector. `index` is the peer's index in the model's rule.
    pub(super) fn peer(&self, side: Side, end: &RuleEnd, index: usize) -> String {
        if matches!(self.object, Object::CalicoPolicy(_)) {
            return self.side(side);
        }
        format!("{}.{}[{}]", self.rule(), self.peers(), self.written_at(end, index))
    }

    /// Returns the index of a peer with a selector in the policy as it is written. In cluster-wide policies it may
    /// differ from the model's index, because the model leaves out `nodes` that match no Node.
    fn written_at(&self, end: &RuleEnd, index: usize) -> usize {
        let rule = self.cluster().map(|rule| &rule.matches);
        let Some(ClusterMatch::Of { peers, .. }) = rule else { return index };
        let before = end.entities.iter().flatten().take(index);
        let before = before.filter(|entity| entity.selector.is_some()).count();
        let pods = (0..).zip(peers).filter(|(_, peer)| matches!(peer, ClusterPeer::Pods(_)));
        pods.map(|(at, _)| at).nth(before).unwrap_or(index)
    }

    /// Returns the field of a net of a side. Returns `None` if the rule does not contain the net and the net has
    /// another source, such as a Node's address.
    pub(super) fn net(&self, side: Side, net: IpNet) -> Option<String> {
        let rule = self.rule();
        match self.object {
            Object::NetworkPolicy(_) => {
                let is_it =
                    |peer: &Peer| matches!(peer, Peer::IpBlock(it) if it.cidr.trunc() == net);
                let at = self.kubernetes()?.peers.as_ref()?.iter().position(is_it)?;
                Some(format!("{rule}.{}[{at}].ipBlock.cidr", self.peers()))
            }
            Object::CalicoPolicy(_) => {
                let at = self.calico(side)?.nets.iter().position(|it| *it == net)?;
                Some(format!("{rule}.{}.nets[{at}]", side.name()))
            }
            Object::ClusterNetworkPolicy(_) => {
                let in_peer = |peer: &ClusterPeer| match peer {
                    ClusterPeer::Networks(nets) => nets.iter().position(|it| it.trunc() == net),
                    ClusterPeer::Pods(_) | ClusterPeer::Nodes(_) => None,
                };
                let ClusterMatch::Of { peers, .. } = &self.cluster()?.matches else { return None };
                let mut peers = peers.iter().enumerate();
                let (at, within) = peers.find_map(|(at, peer)| Some((at, in_peer(peer)?)))?;
                Some(format!("{rule}.{}[{at}].networks[{within}]", self.peers()))
            }
            _ => None,
        }
    }

    /// Returns the field of a port of a side and a protocol. Returns the field of the whole rule if the rule does not
    /// contain the port in this form.
    pub(super) fn port(&self, side: Side, protocol: Option<u8>, port: &PortMatch) -> String {
        let rule = self.rule();
        match self.port_in_list(side, protocol, port) {
            Some((list, at)) => format!("{rule}.{list}[{at}]"),
            None => rule,
        }
    }

    fn port_in_list(
        &self,
        side: Side,
        protocol: Option<u8>,
        port: &PortMatch,
    ) -> Option<(String, usize)> {
        match self.object {
            Object::NetworkPolicy(_) => {
                let is_it = |it: &manx_objects::object::Port| {
                    let is_number = |wire: &PortNumber| match (wire, port) {
                        (PortNumber::Name(wire), PortMatch::Named(name)) => wire == name,
                        (PortNumber::Number { port, end }, PortMatch::Range { first, last }) => {
                            port == first && end.unwrap_or(*port) == *last
                        }
                        _ => false,
                    };
                    protocol == Some(number(it.protocol)) && it.port.as_ref().is_some_and(is_number)
                };
                let at = self.kubernetes()?.ports.as_ref()?.iter().position(is_it)?;
                Some(("ports".to_owned(), at))
            }
            Object::ClusterNetworkPolicy(_) => {
                let is_it = |it: &ClusterProtocol| match (it, port) {
                    (ClusterProtocol::Named(wire), PortMatch::Named(name)) => wire == name,
                    (
                        ClusterProtocol::Ports { protocol: of, ports },
                        PortMatch::Range { first, last },
                    ) => protocol == Some(of.number()) && *ports == Some((*first, *last)),
                    _ => false,
                };
                let ClusterMatch::Of { protocols, .. } = &self.cluster()?.matches else {
                    return None;
                };
                let at = protocols.as_ref()?.iter().position(is_it)?;
                let is_newest = self.key.kind == Kind::ClusterNetworkPolicy;
                Some((if is_newest { "protocols" } else { "ports" }.to_owned(), at))
            }
            Object::CalicoPolicy(_) => {
                let wanted = match port {
                    PortMatch::Named(name) => calico::Port::Name(name.clone()),
                    PortMatch::Range { first, last } => calico::Port::Range(*first, *last),
                };
                let at = self.calico(side)?.ports.iter().position(|it| *it == wanted)?;
                Some((format!("{}.ports", side.name()), at))
            }
            _ => None,
        }
    }

    /// Returns the name of the field that lists peers in Kubernetes' policies.
    const fn peers(&self) -> &'static str {
        match self.direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        }
    }

    fn kubernetes(&self) -> Option<&'o manx_objects::object::Rule> {
        let Object::NetworkPolicy(policy) = self.object else { return None };
        let rules = self.list(&policy.ingress, &policy.egress).as_deref()?;
        rules.get(self.index as usize)
    }

    fn calico(&self, side: Side) -> Option<&'o calico::EntityRule> {
        let Object::CalicoPolicy(policy) = self.object else { return None };
        let rule = self.list(&policy.ingress, &policy.egress).get(self.index as usize)?;
        Some(match side {
            Side::Source => &rule.source,
            Side::Destination => &rule.destination,
        })
    }

    fn cluster(&self) -> Option<&'o ClusterRule> {
        let Object::ClusterNetworkPolicy(policy) = self.object else { return None };
        self.list(&policy.ingress, &policy.egress).get(self.index as usize)
    }

    const fn list<T: ?Sized>(&self, ingress: &'o T, egress: &'o T) -> &'o T {
        match self.direction {
            Direction::Ingress => ingress,
            Direction::Egress => egress,
        }
    }
}
