//! The state between two publications: where each address is, and the verdicts of policy. It knows nothing of the
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
use crate::fabric::{HOST, NODES, RAW, ROUTER, UNDERLAY, underlay_v6};

/// Where an address is, seen from one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// A pod of this node, by its number in the plan.
    Pod(usize),
    /// This node.
    Node,
    /// The world, behind the node.
    World,
    /// The other node's pods, behind the tunnel.
    Tunnel,
    /// An address of this node's blocks without a pod.
    Unreachable,
    Nowhere,
}

impl Place {
    /// Its port, if it is no pod (see [`Epoch::port`]).
    fn shared_port(self) -> Option<PortId> {
        match self {
            Self::Node | Self::World => Some(HOST),
            Self::Tunnel => Some(RAW),
            Self::Pod(_) | Self::Unreachable | Self::Nowhere => None,
        }
    }
}

/// Where a packet came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    Host,
    /// The port of what the node forwards.
    Forwarded,
    /// The other node's tunnel.
    Tunnel,
    /// A port of a pod.
    Port(PortId),
}

/// See the module.
pub struct Epoch {
    /// Counts up from 1.
    pub number: u64,
    /// The versions of the nodes' tables.
    pub versions: [u64; 2],
    places: [AHashMap<IpAddr, Place>; 2],
    ports: [AHashMap<PortId, usize>; 2],
    parties: AHashMap<IpAddr, Party>,
    planned_pods: Vec<PlannedPod>,
    oracle: Oracle,
    /// The port numbers at which verdicts may change.
    numbers: Rc<[u16]>,
    verdicts: RefCell<AHashMap<FlowTuple, [bool; 2]>>,
    /// No tables have been published.
    is_closed: bool,
}

impl Epoch {
    /// Before anything is published.
    pub fn closed() -> Self {
        Self {
            number: 0,
            versions: [0; 2],
            places: Default::default(),
            ports: Default::default(),
            parties: AHashMap::new(),
            planned_pods: Vec::new(),
            oracle: Oracle::new(&Contents::from_texts([]).objects),
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
            places,
            ports,
            parties,
            planned_pods: plan.planned_pods.clone(),
            oracle: Oracle::new(&contents.objects),
            numbers: plan.numbers(),
            verdicts: RefCell::default(),
            is_closed: false,
        }
    }

    /// The world between this epoch and the next one, after pods have changed in the tables in use: policy is already
    /// that of `next`, and every address is still where it was.
    pub fn with_policy_of(&self, next: &Self, contents: &Contents) -> Self {
        Self {
            number: next.number,
            versions: self.versions,
            places: self.places.clone(),
            ports: self.ports.clone(),
            parties: next.parties.clone(),
            planned_pods: self.planned_pods.clone(),
            oracle: Oracle::new(&contents.objects),
            numbers: Rc::clone(&next.numbers),
            verdicts: RefCell::default(),
            is_closed: self.is_closed,
        }
    }

    /// Where an address is.
    pub fn place(&self, node: usize, address: IpAddr) -> Place {
        if self.is_closed {
            return Place::Nowhere;
        }
        if let Some(place) = self.places[node].get(&address) {
            return *place;
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
                // In no pool.
                [0xfd44, block, 0, 0, ..] if usize::from(block) == 2 - node => Place::Nowhere,
                _ => Place::World,
            },
        }
    }

    /// Whether packets from a place may come in by an entry.
    pub fn may_enter(&self, node: usize, entry: Entry, place: Place) -> bool {
        match (entry, place) {
            (Entry::Host | Entry::Forwarded, Place::Node | Place::World)
            | (Entry::Tunnel, Place::Tunnel) => true,
            (Entry::Port(port), Place::Pod(at)) => self.ports[node].get(&port) == Some(&at),
            _ => false,
        }
    }

    /// The port of a place.
    pub fn port(&self, place: Place) -> Option<PortId> {
        match place {
            Place::Pod(at) => Some(self.planned_pods[at].attachment?.port),
            other => other.shared_port(),
        }
    }

    /// The MTU of a place. `tunnel`: that of the tunnel.
    pub fn mtu(&self, place: Place, tunnel: u32) -> usize {
        let mtu = match place {
            Place::Pod(at) => self.planned_pods[at].device.mtu,
            Place::Tunnel => tunnel,
            Place::Node | Place::World | Place::Unreachable | Place::Nowhere => 1500,
        };
        mtu as usize
    }

    /// A place, and the number of the pod's attachment, which tells it from later pods with the same address.
    pub fn standing(&self, node: usize, address: IpAddr) -> (Place, u32) {
        let place = self.place(node, address);
        let number = match place {
            Place::Pod(at) => self.planned_pods[at].attachment.map_or(0, |it| it.number),
            _ => 0,
        };
        // This node and the world share a port, but a connection leads to one of them.
        (place, number)
    }

    /// Whether policy lets a connection pass this node: the egress of a pod of this node, the ingress of one.
    pub fn allows(&self, node: usize, tuple: &FlowTuple) -> bool {
        let ends = [tuple.source, tuple.destination].map(|address| self.place(node, address));
        let is_pod = |place: Place| matches!(place, Place::Pod(_));
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

    /// The first port that all policies treat as this one.
    fn class(&self, tuple: &FlowTuple) -> FlowTuple {
        let least = |port: u16| match self.numbers.binary_search(&port) {
            // A number is the begin or the end of a range, or a single port.
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

    /// Whether policy lets a connection begin that comes by this entry. A masqueraded client is an address and nothing
    /// else.
    pub fn admits(&self, node: usize, entry: Entry, tuple: &FlowTuple) -> bool {
        let ends = [tuple.source, tuple.destination].map(|address| self.place(node, address));
        match (entry, ends) {
            (Entry::Forwarded, [Place::Node, Place::Pod(_)]) => {
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
                shown: manx_oracle::Shown::Ports { source, destination },
            },
            (_, Some((kind, code))) => Packet::icmp(tuple.upper, kind, code),
            _ => Packet::bare(tuple.upper),
        };
        // A pod that is not valid reaches nothing, not even itself.
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

/// These, and those by which the node masquerades: the first of each of its blocks. From the host port they are its own.
pub fn addresses_of_node(node: usize) -> impl Iterator<Item = IpAddr> {
    let masquerade = [format!("10.244.{}.0", node + 1), format!("fd44:{}::", node + 1)];
    own_addresses(node).into_iter().chain(masquerade.map(|it| it.parse().unwrap()))
}
