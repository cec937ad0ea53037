//! The state between two publications: the place of each address, and the verdicts of policy. It does not use the
//! tables: places follow from the fabric's addresses and the attached pods, and verdicts are those of the oracle, which
//! reads the manifests.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use ahash::AHashMap;
use manx_dataplane::tables::PortId;
use manx_objects::contents::Contents;
use manx_oracle::{Oracle, Packet, Party};

use super::plan::{Plan, PlannedPod};
use super::read::{FlowTuple, TransportKey};
use super::services::{End, Reach, Services};
use super::translations::{asked_of, end_of};
use super::way_out;
use crate::fabric::{HOST, MANX, NODES, RAW, ROUTER, UNDERLAY, underlay_v6};
use crate::packet::{SCTP, TCP, UDP};

/// The place of an address, as seen from one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// A pod of this node, by its number in the plan.
    Pod(usize),
    Node,
    /// The world, behind the node.
    World,
    /// The other node's pods, behind the tunnel.
    Tunnel,
    /// Services, which the node translates.
    Service,
    /// An address of this node's blocks without a pod.
    Unreachable,
    Nowhere,
}

impl Place {
    /// The port of the place, unless it is a pod (see [`Epoch::port`]).
    fn shared_port(self) -> Option<PortId> {
        match self {
            Self::Node | Self::World => Some(HOST),
            Self::Tunnel => Some(RAW),
            Self::Pod(_) | Self::Service | Self::Unreachable | Self::Nowhere => None,
        }
    }
}

/// The port, or kind of port, by which a packet came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    Host,
    /// The port of packets that the node forwards.
    Forwarded,
    /// The port for the node's ports that belong to Manx.
    Manx,
    /// The other node's tunnel.
    Tunnel,
    /// A port of a pod.
    Port(PortId),
}

impl Entry {
    /// The port by which packets leave to senders whose packets come in by this entry.
    pub fn back(self) -> PortId {
        match self {
            Self::Host | Self::Forwarded => HOST,
            Self::Manx => MANX,
            Self::Tunnel => RAW,
            Self::Port(port) => port,
        }
    }
}

/// See the module.
pub struct Epoch {
    /// The epoch's number, from 1 on.
    pub number: u64,
    /// The versions of the nodes' tables.
    pub versions: [u64; 2],
    pub services: Rc<Services>,
    places: [AHashMap<IpAddr, Place>; 2],
    ports: [AHashMap<PortId, usize>; 2],
    parties: AHashMap<IpAddr, Party>,
    planned_pods: Vec<PlannedPod>,
    oracle: Rc<Oracle>,
    /// The port numbers at which verdicts may change.
    numbers: Rc<[u16]>,
    verdicts: RefCell<AHashMap<FlowTuple, [bool; 2]>>,
    /// Whether no tables have been published yet.
    is_closed: bool,
}

impl Epoch {
    /// The epoch before the first publication.
    pub fn closed() -> Self {
        Self {
            number: 0,
            versions: [0; 2],
            services: Rc::default(),
            places: Default::default(),
            ports: Default::default(),
            parties: AHashMap::new(),
            planned_pods: Vec::new(),
            oracle: Rc::new(Oracle::new(&Contents::from_texts([]).objects)),
            numbers: Rc::default(),
            verdicts: RefCell::default(),
            is_closed: true,
        }
    }

    pub fn new(plan: &Plan, number: u64, versions: [u64; 2], contents: &Contents) -> Self {
        let mut places: [AHashMap<IpAddr, Place>; 2] = Default::default();
        let mut ports: [AHashMap<PortId, usize>; 2] = Default::default();
        let mut parties = AHashMap::new();
        for node in 0..2 {
            for address in addresses_of_node(node) {
                places[node].insert(address, Place::Node);
                parties.insert(address, Party::Node { name: NODES[node].to_owned(), address });
            }
        }
        for (at, planned) in plan.planned_pods.iter().enumerate() {
            let Some(attachment) = planned.attachment else { continue };
            ports[planned.node].insert(attachment.port, at);
            for address in &planned.addresses {
                places[planned.node].insert(*address, Place::Pod(at));
                // There is no tunnel for IPv6.
                let other = if address.is_ipv4() { Place::Tunnel } else { Place::World };
                places[1 - planned.node].insert(*address, other);
                let (namespace, name) = (planned.name.namespace.clone(), planned.name.name.clone());
                parties.insert(*address, Party::Pod { namespace, name, address: *address });
            }
        }
        Self {
            number,
            versions,
            services: Rc::clone(&plan.services),
            places,
            ports,
            parties,
            planned_pods: plan.planned_pods.clone(),
            oracle: Rc::new(Oracle::new(&contents.objects)),
            numbers: plan.numbers(),
            verdicts: RefCell::default(),
            is_closed: false,
        }
    }

    /// The state between this epoch and the next one, after pods have changed in the tables in use: policy is already
    /// that of `next`, and every address still has its old place.
    pub fn with_policy_of(&self, next: &Self, contents: &Contents) -> Self {
        Self {
            number: next.number,
            versions: self.versions,
            services: Rc::clone(&self.services),
            places: self.places.clone(),
            ports: self.ports.clone(),
            parties: next.parties.clone(),
            planned_pods: self.planned_pods.clone(),
            oracle: Rc::new(Oracle::new(&contents.objects)),
            numbers: Rc::clone(&next.numbers),
            verdicts: RefCell::default(),
            is_closed: self.is_closed,
        }
    }

    /// This state with the services of a plan.
    pub fn with_services_of(&self, plan: &Plan) -> Self {
        Self {
            number: self.number + 1,
            versions: self.versions,
            services: Rc::clone(&plan.services),
            places: self.places.clone(),
            ports: self.ports.clone(),
            parties: self.parties.clone(),
            planned_pods: self.planned_pods.clone(),
            oracle: Rc::clone(&self.oracle),
            numbers: Rc::clone(&self.numbers),
            verdicts: self.verdicts.clone(),
            is_closed: self.is_closed,
        }
    }

    /// The place of an address.
    pub fn place(&self, node: usize, address: IpAddr) -> Place {
        if self.is_closed {
            return Place::Nowhere;
        }
        if let Some(place) = self.places[node].get(&address) {
            return *place;
        }
        if self.services.is_address(address) {
            return Place::Service;
        }
        match address {
            IpAddr::V4(v4) => match v4.octets() {
                [10, 244, block, _] if usize::from(block) == node + 1 => Place::Unreachable,
                [10, 244, block, _] if usize::from(block) == 2 - node => Place::Tunnel,
                [10, 244, ..] => Place::Nowhere,
                _ => Place::World,
            },
            IpAddr::V6(v6) => match v6.segments() {
                [0xfd44, block, 0, 0, ..] if usize::from(block) == node + 1 => Place::Unreachable,
                // The address is in no pool.
                [0xfd44, block, 0, 0, ..] if usize::from(block) == 2 - node => Place::Nowhere,
                _ => Place::World,
            },
        }
    }

    /// Whether packets from a place may come in by an entry.
    pub fn may_enter(&self, node: usize, entry: Entry, place: Place) -> bool {
        match (entry, place) {
            (Entry::Host | Entry::Forwarded | Entry::Manx, Place::Node | Place::World)
            | (Entry::Tunnel, Place::Tunnel) => true,
            (Entry::Port(port), Place::Pod(at)) => self.ports[node].get(&port) == Some(&at),
            _ => false,
        }
    }

    /// Whether a packet with this tuple may come in by an entry. Either packets of its source come in there, or its
    /// source is an outside client, and the other node forwards its packets through the tunnel to a backend of this
    /// node.
    pub fn may_come(&self, node: usize, entry: Entry, tuple: &FlowTuple) -> bool {
        self.may_enter(node, entry, self.place(node, tuple.source))
            || entry == Entry::Tunnel && self.is_visit(node, tuple)
    }

    /// Whether a packet may be one that an outside client sends to a frontend, and that the other node forwards to a
    /// backend of this node.
    pub fn is_visit(&self, node: usize, tuple: &FlowTuple) -> bool {
        let ends = [tuple.source, tuple.destination].map(|it| self.place(node, it));
        let leads = |end: End| self.services.leads_visitors(tuple.upper, &end);
        // A later fragment has no port, and follows the decision on its first fragment.
        let is_later =
            tuple.transport == TransportKey::Nothing && matches!(tuple.upper, TCP | UDP | SCTP);
        matches!(ends, [Place::World | Place::Node, Place::Pod(_)])
            && (is_later || end_of(tuple).is_some_and(leads))
    }

    /// Whether a packet that opens a connection may be translated: it goes to a service or to a
    /// port of this node that may belong to a service, or it leaves for the world.
    pub fn asks(&self, node: usize, tuple: &FlowTuple) -> bool {
        self.asks_service(node, tuple) || self.leaves(node, tuple)
    }

    /// Whether a packet goes to a service, or to a port of this node that may belong to a service.
    pub fn asks_service(&self, node: usize, tuple: &FlowTuple) -> bool {
        self.place(node, tuple.destination) == Place::Service || self.asks_node_port(node, tuple)
    }

    /// Whether a packet goes to a port of this node that may belong to a service.
    pub fn asks_node_port(&self, node: usize, tuple: &FlowTuple) -> bool {
        let reach = asked_of(tuple).and_then(|asked| self.services.reach(&asked));
        reach == Some(Reach::NodePort(node)) && !self.is_closed
    }

    /// Whether a packet that opens a connection leaves for the world with the node's address.
    pub fn leaves(&self, node: usize, tuple: &FlowTuple) -> bool {
        let [from, to] = [tuple.source, tuple.destination].map(|it| self.place(node, it));
        let (is_pod, is_world) = (matches!(from, Place::Pod(_)), to == Place::World);
        way_out::leaves(self.services.way_out.as_ref(), tuple, is_pod, is_world)
    }

    /// Whether a packet that [asks](Self::asks) may stay untranslated, because its port of the node
    /// belongs to no service.
    pub fn is_nodes_own(&self, node: usize, entry: Entry, tuple: &FlowTuple) -> bool {
        let frontend = asked_of(tuple).and_then(|asked| self.services.frontends.get(&asked));
        entry != Entry::Manx && self.asks_node_port(node, tuple) && frontend.is_none()
    }

    /// The port of a place.
    pub fn port(&self, place: Place) -> Option<PortId> {
        match place {
            Place::Pod(at) => Some(self.planned_pods[at].attachment?.port),
            other => other.shared_port(),
        }
    }

    /// The MTU of a place. `tunnel` is the tunnel's MTU.
    pub fn mtu(&self, place: Place, tunnel: u32) -> usize {
        let mtu = match place {
            Place::Pod(at) => self.planned_pods[at].device.mtu,
            Place::Tunnel => tunnel,
            _ => 1500,
        };
        mtu as usize
    }

    /// The place of an address, with the number of the pod's attachment, which distinguishes the pod from later pods
    /// with the same address.
    pub fn standing(&self, node: usize, address: IpAddr) -> (Place, u32) {
        let place = self.place(node, address);
        let number = match place {
            Place::Pod(at) => self.planned_pods[at].attachment.map_or(0, |it| it.number),
            _ => 0,
        };
        // This node and the world have the same port. A connection leads to only one of them, so the place is compared,
        // and not the port.
        (place, number)
    }

    /// Whether policy lets a connection pass this node: the egress policy of its source and the ingress policy of its
    /// destination, if they are pods of this node.
    pub fn allows(&self, node: usize, tuple: &FlowTuple) -> bool {
        let ends = [tuple.source, tuple.destination].map(|address| self.place(node, address));
        let is_pod = |place: Place| matches!(place, Place::Pod(_));
        if ends.contains(&Place::Service) {
            // Packets reach this address only through the translation.
            return false;
        }
        let asked = match ends {
            // Packets that pass from other nodes to other nodes are not forwarded.
            [from, to] if !is_pod(from) && !is_pod(to) => {
                let known =
                    matches!(ends, [Place::Node, Place::Tunnel] | [Place::Tunnel, Place::Node]);
                return known || matches!(to, Place::Unreachable | Place::Nowhere);
            }
            [from, to] => [is_pod(from), is_pod(to) || (is_pod(from) && to == Place::Node)],
        };
        let class = self.class(tuple);
        let known = self.verdicts.borrow().get(&class).copied();
        let says = known.unwrap_or_else(|| {
            let says = self.judge(&class);
            self.verdicts.borrow_mut().insert(class, says);
            says
        });
        says.into_iter().zip(asked).all(|(says, asked)| says || !asked)
    }

    /// Returns a tuple on which all policies decide as on this one, so that few verdicts are computed. Each port is
    /// replaced by the lowest port that policies treat alike, and the identifier of an ICMP query by 0.
    fn class(&self, tuple: &FlowTuple) -> FlowTuple {
        let least = |port: u16| match self.numbers.binary_search(&port) {
            // Each of the numbers is the beginning or the end of a range, or a single port.
            Ok(_) => port,
            Err(at) => at.checked_sub(1).map_or(0, |at| self.numbers[at].saturating_add(1)),
        };
        let transport = match tuple.transport {
            TransportKey::Ports(source, destination) => {
                TransportKey::Ports(least(source), least(destination))
            }
            TransportKey::Query { kind, asks, .. } => TransportKey::Query { kind, asks, id: 0 },
            transport => transport,
        };
        FlowTuple { transport, ..*tuple }
    }

    /// Whether policy lets a connection begin that comes in by this entry. Policy judges a masqueraded client as a mere
    /// address, although the address is a node's.
    pub fn admits(&self, node: usize, entry: Entry, tuple: &FlowTuple) -> bool {
        let ends = [tuple.source, tuple.destination].map(|address| self.place(node, address));
        match (entry, ends) {
            (Entry::Forwarded | Entry::Tunnel, [Place::Node, Place::Pod(_)]) => {
                self.judge_from(Party::Address(tuple.source), tuple)[1]
            }
            _ => self.allows(node, tuple),
        }
    }

    fn party(&self, address: IpAddr) -> Party {
        self.parties.get(&address).cloned().unwrap_or(Party::Address(address))
    }

    fn judge(&self, tuple: &FlowTuple) -> [bool; 2] {
        self.judge_from(self.party(tuple.source), tuple)
    }

    fn judge_from(&self, from: Party, tuple: &FlowTuple) -> [bool; 2] {
        let to = self.party(tuple.destination);
        let packet = match (tuple.transport, tuple.icmp()) {
            (TransportKey::Ports(source, destination), _) => Packet {
                protocol: tuple.upper,
                l4: manx_oracle::L4Header::Ports { source, destination },
            },
            (_, Some((kind, code))) => Packet::icmp(tuple.upper, kind, code),
            _ => Packet::bare(tuple.upper),
        };
        // A pod that is not valid reaches no address, not even its own.
        if from == to && !self.oracle.pods().any(|pod| pod == from) {
            return [false; 2];
        }
        let judgement = self.oracle.judge(&from, &to, packet);
        [judgement.egress.allows(), judgement.ingress.allows()]
    }
}

/// A node's own addresses: on the underlay, and those of its tunnels.
pub fn own_addresses(node: usize) -> [IpAddr; 4] {
    let router_v6 = format!("fd44:{}::1", node + 1).parse().unwrap();
    [UNDERLAY[node].into(), ROUTER[node].into(), underlay_v6(node), router_v6]
}

/// The node's own addresses, and those with which it masquerades: the first address of each of its blocks. A packet
/// from the host port may have any of them.
pub fn addresses_of_node(node: usize) -> impl Iterator<Item = IpAddr> {
    let masquerade = [format!("10.244.{}.0", node + 1), format!("fd44:{}::", node + 1)];
    own_addresses(node).into_iter().chain(masquerade.map(|it| it.parse().unwrap()))
}
