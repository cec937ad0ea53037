//! Matches a rule against a packet. If it does not match, the result is the first term that failed.
//!
//! A rule is evaluated in its original form, with the terms of its own API. Nothing is translated. All terms of a rule
//! must hold.
//!
//! Whether a selector matches is a property of the *address*. One member with the address must meet all conditions of
//! the rule for this end (selector, namespace, service account, and a named port). No member with the address may meet
//! an excluding condition of the rule.

use std::net::IpAddr;

use ipnet::IpNet;

use super::direction::Direction;
use super::matching::{in_block, in_net, protocol_number};
use super::members::Member;
use super::packet::{Packet, has_ports, is_of_family};
use super::service_slices::ServiceMembers;
use super::set::Set;
use manx_objects::object::calico::{self, Action, EntityRule};
use manx_objects::object::cluster::{self, ClusterProtocol};
use manx_objects::object::{self, IpBlock, PortNumber};

/// An end of a packet: source or destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketEnd {
    Source,
    Destination,
}

/// The first term of a rule that a packet does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mismatch {
    IpVersion,
    Family,
    Http,
    Protocol,
    NotProtocol,
    Icmp,
    NotIcmp,
    Ports(PacketEnd),
    NotPorts(PacketEnd),
    Nets(PacketEnd),
    NotNets(PacketEnd),
    Selector(PacketEnd),
    NotSelector(PacketEnd),
    Service(PacketEnd),
    /// The term `from` or `to`.
    Peers,
    /// The term `ports` or `protocols`.
    PeerPorts,
    /// The rule could not be converted and counts as absent.
    Dropped,
}

/// One end of a packet, and the members that may have its address.
#[derive(Debug)]
pub(super) struct Occupants {
    pub(super) address: IpAddr,
    /// All members that have the address.
    pub(super) holders: Vec<usize>,
    /// The endpoint whose policies are evaluated, if it is at this end. A port name then stands for the endpoint's own
    /// port.
    pub(super) endpoint: Option<usize>,
}

impl Occupants {
    pub(super) fn owners(&self) -> &[usize] {
        self.endpoint.as_ref().map_or(&self.holders, std::slice::from_ref)
    }
}

/// A packet with its two ends.
#[derive(Debug)]
pub(super) struct Flow<'a> {
    pub(super) members: &'a [Member],
    pub(super) source: Occupants,
    pub(super) destination: Occupants,
    pub(super) packet: Packet,
    pub(super) direction: Direction,
}

impl Flow<'_> {
    fn v4(&self) -> bool {
        self.destination.address.is_ipv4()
    }

    fn occupants(&self, end: PacketEnd) -> &Occupants {
        match end {
            PacketEnd::Source => &self.source,
            PacketEnd::Destination => &self.destination,
        }
    }

    /// Returns the end opposite to the endpoint whose policies are evaluated.
    pub(super) fn peer(&self) -> &Occupants {
        match self.direction {
            Direction::Ingress => &self.source,
            Direction::Egress => &self.destination,
        }
    }

    fn port(&self, end: PacketEnd) -> Option<u16> {
        let (source, destination) = self.packet.ports()?;
        Some(if end == PacketEnd::Source { source } else { destination })
    }
}

/// A rule that is ready to be evaluated.
#[derive(Debug)]
pub(super) struct Rule {
    /// The index in the object's list.
    pub(super) index: usize,
    pub(super) action: Action,
    pub(super) terms: Terms,
}

/// The packets that a rule matches.
#[derive(Debug)]
pub(super) enum Terms {
    /// Every packet.
    Everything,
    /// No packet, because it is not known which packets the rule should match.
    Nothing,
    Kubernetes {
        wire: object::Rule,
        peers: Vec<KubernetesPeer>,
        ports: Vec<object::Port>,
    },
    Cluster {
        wire: Vec<cluster::ClusterPeer>,
        peers: Vec<ClusterPeer>,
        protocols: Vec<ClusterProtocol>,
    },
    Calico(Box<CalicoTerms>),
}

#[derive(Debug)]
pub(super) enum KubernetesPeer {
    Block(IpBlock),
    Pods(Set),
}

#[derive(Debug)]
pub(super) enum ClusterPeer {
    Networks(Vec<IpNet>),
    Pods(Set),
}

#[derive(Debug)]
pub(super) struct CalicoTerms {
    pub(super) wire: calico::Rule,
    pub(super) source: Entity,
    pub(super) destination: Entity,
}

/// The members that one end of a Calico rule selects.
#[derive(Debug, Default)]
pub(super) struct Entity {
    /// At least one holder of the address is in this set.
    pub(super) positive: Option<Set>,
    /// No holder of the address is in this set.
    pub(super) negative: Option<Set>,
    pub(super) service: Option<ServiceMembers>,
}

impl Rule {
    /// Returns the sets of members that the rule names.
    pub(super) fn sets(&self) -> Vec<&Set> {
        match &self.terms {
            Terms::Everything | Terms::Nothing => Vec::new(),
            Terms::Kubernetes { peers, .. } => peers
                .iter()
                .filter_map(|peer| match peer {
                    KubernetesPeer::Pods(set) => Some(set),
                    KubernetesPeer::Block(_) => None,
                })
                .collect(),
            Terms::Cluster { peers, .. } => peers
                .iter()
                .filter_map(|peer| match peer {
                    ClusterPeer::Pods(set) => Some(set),
                    ClusterPeer::Networks(_) => None,
                })
                .collect(),
            Terms::Calico(terms) => [&terms.source, &terms.destination]
                .into_iter()
                .flat_map(|end| end.positive.iter().chain(&end.negative))
                .collect(),
        }
    }

    /// Returns the first term that the packet does not match.
    pub(super) fn mismatch(&self, flow: &Flow<'_>) -> Option<Mismatch> {
        match &self.terms {
            Terms::Everything => None,
            Terms::Nothing => Some(Mismatch::Dropped),
            Terms::Kubernetes { peers, ports, .. } => {
                let peer_fits = |holder: Option<usize>| {
                    peers.is_empty()
                        || peers.iter().any(|peer| match peer {
                            KubernetesPeer::Block(block) => in_block(block, flow.peer().address),
                            KubernetesPeer::Pods(set) => {
                                holder.is_some_and(|holder| set.has(&flow.members[holder]))
                            }
                        })
                };
                let port_fits = |owner: Option<usize>| {
                    ports.is_empty() || ports.iter().any(|port| kubernetes_port(port, owner, flow))
                };
                with_peer(flow, &peer_fits, &port_fits)
            }
            Terms::Cluster { peers, protocols, .. } => {
                let peer_fits = |holder: Option<usize>| {
                    peers.iter().any(|peer| match peer {
                        ClusterPeer::Networks(nets) => {
                            nets.iter().any(|net| in_net(*net, flow.peer().address))
                        }
                        ClusterPeer::Pods(set) => {
                            holder.is_some_and(|holder| set.has(&flow.members[holder]))
                        }
                    })
                };
                let port_fits = |owner: Option<usize>| {
                    protocols.is_empty()
                        || protocols.iter().any(|protocol| cluster_port(protocol, owner, flow))
                };
                with_peer(flow, &peer_fits, &port_fits)
            }
            Terms::Calico(terms) => terms.mismatch(self.action, flow),
        }
    }
}

/// Matches a rule of Kubernetes' kinds, which names peers and ports of the destination. The rule matches if it matches
/// for any member that has the peer's address, or for the address alone. For egress, a port name is looked up at this
/// member.
fn with_peer(
    flow: &Flow<'_>,
    peer_fits: &dyn Fn(Option<usize>) -> bool,
    port_fits: &dyn Fn(Option<usize>) -> bool,
) -> Option<Mismatch> {
    let candidates = flow.peer().holders.iter().copied().map(Some).chain([None]);
    let mut meant = candidates.filter(|holder| peer_fits(*holder)).peekable();
    if meant.peek().is_none() {
        return Some(Mismatch::Peers);
    }
    let fits = match flow.direction {
        Direction::Ingress => port_fits(flow.destination.endpoint),
        Direction::Egress => meant.any(port_fits),
    };
    (!fits).then_some(Mismatch::PeerPorts)
}

/// Returns whether an entry of `ports` matches the packet. A port name is looked up at `owner`.
fn kubernetes_port(port: &object::Port, owner: Option<usize>, flow: &Flow<'_>) -> bool {
    let protocol = protocol_number(port.protocol);
    if protocol != flow.packet.protocol {
        return false;
    }
    let Some(wanted) = &port.port else { return true };
    let Some(number) = flow.port(PacketEnd::Destination) else { return false };
    match wanted {
        PortNumber::Number { port, end: None } => *port == number,
        PortNumber::Number { port, end: Some(end) } => *port <= number && number <= *end,
        PortNumber::Name(name) => {
            owner.is_some_and(|owner| flow.members[owner].names_port(name, protocol, number))
        }
    }
}

fn cluster_port(wanted: &ClusterProtocol, owner: Option<usize>, flow: &Flow<'_>) -> bool {
    let number = flow.port(PacketEnd::Destination);
    match wanted {
        ClusterProtocol::Ports { protocol, ports } => {
            protocol_number(Some(*protocol)) == flow.packet.protocol
                && ports.is_none_or(|(first, last)| {
                    number.is_some_and(|number| first <= number && number <= last)
                })
        }
        ClusterProtocol::Named(name) => owner.zip(number).is_some_and(|(owner, number)| {
            flow.members[owner].names_port(name, flow.packet.protocol, number)
        }),
    }
}

impl CalicoTerms {
    fn mismatch(&self, action: Action, flow: &Flow<'_>) -> Option<Mismatch> {
        let Self { wire, source, destination } = self;
        let (packet, v4) = (flow.packet, flow.v4());
        if wire.ip_version.is_some_and(|version| version != if v4 { 4 } else { 6 }) {
            return Some(Mismatch::IpVersion);
        }
        // If a list of nets has no entry of the packet's family, the whole rule does not apply to that family.
        for nets in [
            &wire.source.nets,
            &wire.source.not_nets,
            &wire.destination.nets,
            &wire.destination.not_nets,
        ] {
            if !nets.is_empty() && !nets.iter().any(|net| net.addr().is_ipv4() == v4) {
                return Some(Mismatch::Family);
            }
        }
        // HTTP cannot be inspected here. So a rule that would deny some of it denies all of it, and a rule that would
        // allow some of it allows none.
        if wire.http && action != Action::Deny {
            return Some(Mismatch::Http);
        }
        if let Some(protocol) = wire.protocol
            && (protocol != packet.protocol || !is_of_family(protocol, v4))
        {
            return Some(Mismatch::Protocol);
        }
        if wire.not_protocol == Some(packet.protocol) {
            return Some(Mismatch::NotProtocol);
        }
        if wire.icmp.is_some_and(|icmp| !covers_icmp(icmp, flow)) {
            return Some(Mismatch::Icmp);
        }
        // The ICMP type of a later fragment is not known, so it may be the excluded type.
        let hides = packet.is_icmp(v4) && packet.type_and_code(v4).is_none();
        if wire.not_icmp.is_some_and(|icmp| hides || covers_icmp(icmp, flow)) {
            return Some(Mismatch::NotIcmp);
        }
        entity_mismatch(&wire.source, source, PacketEnd::Source, flow).or_else(|| {
            entity_mismatch(&wire.destination, destination, PacketEnd::Destination, flow)
        })
    }
}

/// Returns whether type and code match together. A packet without an ICMP type matches only a rule that requires no
/// type.
fn covers_icmp(icmp: calico::IcmpMatch, flow: &Flow<'_>) -> bool {
    let v4 = flow.v4();
    let Some(wanted) = icmp.kind else { return flow.packet.is_icmp(v4) };
    flow.packet
        .type_and_code(v4)
        .is_some_and(|(kind, code)| kind == wanted && icmp.code.is_none_or(|wanted| code == wanted))
}

fn entity_mismatch(
    wire: &EntityRule,
    entity: &Entity,
    end: PacketEnd,
    flow: &Flow<'_>,
) -> Option<Mismatch> {
    let seen = flow.occupants(end);
    let inside = |nets: &[IpNet]| nets.iter().any(|net| in_net(*net, seen.address));
    if !wire.nets.is_empty() && !inside(&wire.nets) {
        return Some(Mismatch::Nets(end));
    }
    if inside(&wire.not_nets) {
        return Some(Mismatch::NotNets(end));
    }
    if let Some(positive) = &entity.positive
        && !seen.holders.iter().any(|holder| positive.has(&flow.members[*holder]))
    {
        return Some(Mismatch::Selector(end));
    }
    if let Some(negative) = &entity.negative
        && seen.holders.iter().any(|holder| negative.has(&flow.members[*holder]))
    {
        return Some(Mismatch::NotSelector(end));
    }
    if let Some(service) = &entity.service {
        let with_ports = end == PacketEnd::Destination && flow.direction == Direction::Egress;
        let fits = if with_ports {
            service.has_port(seen.address, flow.packet.protocol, flow.port(end))
        } else {
            service.has(seen.address)
        };
        if !fits {
            return Some(Mismatch::Service(end));
        }
    }
    let takes = |ports: &[calico::Port], of: Option<&Set>| {
        let Some(number) = flow.port(end) else { return false };
        ports.iter().any(|port| match port {
            calico::Port::Range(first, last) => {
                has_ports(flow.packet.protocol) && *first <= number && number <= *last
            }
            calico::Port::Name(name) => seen.owners().iter().any(|owner| {
                of.is_none_or(|set| set.has(&flow.members[*owner]))
                    && flow.members[*owner].names_port(name, flow.packet.protocol, number)
            }),
        })
    };
    if !wire.ports.is_empty() && !takes(&wire.ports, entity.positive.as_ref()) {
        return Some(Mismatch::Ports(end));
    }
    // A packet of a protocol without ports has none of the excluded ports. A later fragment may have any of them.
    let hides = has_ports(flow.packet.protocol) && flow.port(end).is_none();
    if !wire.not_ports.is_empty() && (hides || takes(&wire.not_ports, None)) {
        return Some(Mismatch::NotPorts(end));
    }
    None
}
