//! The tables that a worker decides by: one value, published whole.
//!
//! A worker holds one `Arc<Tables>` and takes the next one between batches, so that every packet is decided by one of
//! them. Before the first publication it holds [`Tables::closed`], which lets nothing pass. Identities and next hops of
//! addresses may change in place ([`Tables::changes`]); nothing else does.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ahash::RandomState;
use manx_policy_compiler::image::{ChainId, Identity, Image};
use manx_policy_compiler::model::Direction;
use manx_policy_compiler::prefix_map::PrefixMap;

use zerocopy::FromZeros;

use crate::encapsulation::{Encapsulation, Outer};
use crate::services::ServiceTable;
use crate::wire::address::Address;

/// A port of the worker. The number is the port's from attach to detach, and is given to another only when no tables in
/// use and no unread report can mean the former one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// The next hop of an address: the way of packets to it, and so the only way by which packets from it may come. Routes
/// hold it as an [`EncodedNextHop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NextHop {
    /// Nowhere.
    NoRoute,
    /// An address in a block of this node that no endpoint has.
    Unreachable,
    /// This node itself: its own addresses, behind the host port.
    Node,
    /// The world, behind the host port or the uplink: other networks, and pods of other nodes that need no
    /// encapsulation.
    Host,
    /// An endpoint of this node, an index into [`Tables::endpoints`].
    Endpoint(u32),
    /// Another node's pods, an index into [`Tables::tunnels`].
    Tunnel(u32),
    /// A service address, which the node translates: see [`ServicePort`].
    Service,
    /// Of a source: an endpoint of this node whose packets come back from that translation. No route holds it.
    Translated,
    /// Of a source: an address of this node in a packet that the node forwards. The node's kernel has masqueraded the
    /// sender, and nothing says who that is: it has none of the node's rights. No route holds it.
    Forwarded,
    /// Of a packet with an address of this node and a port that is Manx's: what is behind the node, and the node's own
    /// processes, by the port of [`ManxPorts`]. No route holds it.
    ManxPorts,
    /// The node and everything beyond it, by the link of one endpoint that another plugin has connected: an index into
    /// [`Tables::host_sides`]. No route holds it: see [`ReturnPath::next_hops`].
    HostSide(u32),
    /// Of a source: a client from outside, whom another node has led to a backend here: by its tunnel, an index into
    /// [`Tables::tunnels`], his packets come and the answers go. Whatever his address is, he has none of this node's rights.
    /// No route holds it.
    Visitor(u32),
}

/// A [`NextHop`] in one number, as routes and flows hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromZeros)]
#[repr(transparent)]
pub struct EncodedNextHop(pub u32);

impl EncodedNextHop {
    /// This node.
    pub const NODE: Self = NextHop::Node.encode();
    /// The bit in which this node differs from the world; they differ in no other.
    pub const NODE_OR_HOST: u32 = NextHop::Node.encode().0 ^ NextHop::Host.encode().0;
    /// A service address.
    pub const SERVICE: Self = NextHop::Service.encode();
    /// An endpoint behind the translation of service addresses.
    pub const TRANSLATED: Self = NextHop::Translated.encode();
    /// An address of this node in a packet that it forwards.
    pub const FORWARDED: Self = NextHop::Forwarded.encode();
    /// The world behind the node.
    pub const HOST: Self = NextHop::Host.encode();
    /// What is behind the ports of this node that are Manx's.
    pub const MANX_PORTS: Self = NextHop::ManxPorts.encode();
    /// The only bit in which [`NextHop::Host`] and [`NextHop::Forwarded`] differ.
    pub const HOST_OR_FORWARDED: u32 = NextHop::Host.encode().0 ^ NextHop::Forwarded.encode().0;
    /// The only bit in which [`NextHop::Host`] and [`NextHop::Service`] differ.
    pub const HOST_OR_SERVICE: u32 = NextHop::Host.encode().0 ^ NextHop::Service.encode().0;
    /// The only bit in which [`NextHop::Service`] and [`NextHop::Translated`] differ.
    pub const SERVICE_OR_TRANSLATED: u32 =
        NextHop::Service.encode().0 ^ NextHop::Translated.encode().0;
    /// The only bit in which a tunnel and its visitors differ.
    pub const TUNNEL_OR_VISITOR: u32 =
        NextHop::Tunnel(0).encode().0 ^ NextHop::Visitor(0).encode().0;
    /// The only bits in which the tunnels to one node differ.
    pub const TUNNEL_KIND_BITS: u32 =
        NextHop::Tunnel(TUNNELS_PER_NODE - 1).encode().0 ^ NextHop::Tunnel(0).encode().0;
}

impl EncodedNextHop {
    /// Whether it is this node, or the way to it by an endpoint's own link.
    #[inline]
    pub const fn is_of_node(self) -> bool {
        self.0 & NODE_BITS == Self::NODE.0
    }

    /// The index of the endpoint of this node that it leads to.
    #[inline]
    pub const fn endpoint(self) -> Option<u32> {
        match NextHop::decode(self) {
            NextHop::Endpoint(index) => Some(index),
            _ => None,
        }
    }
}

const _: () = assert!(
    EncodedNextHop::NODE_OR_HOST.is_power_of_two()
        && EncodedNextHop::HOST_OR_FORWARDED.is_power_of_two()
        && EncodedNextHop::HOST_OR_SERVICE.is_power_of_two()
        && EncodedNextHop::SERVICE_OR_TRANSLATED.is_power_of_two()
        && EncodedNextHop::TUNNEL_OR_VISITOR.is_power_of_two()
        && NextHop::HostSide(7).encode().is_of_node()
        && !NextHop::Endpoint(7).encode().is_of_node()
        && !NextHop::Visitor(7).encode().is_of_node()
);

/// The kind is in the low bits, so that the numbers are small and routes hold them in two bytes.
const KIND_BITS: u32 = 3;
const KIND: u32 = (1 << KIND_BITS) - 1;
const INDEX: u32 = (1 << 28) - 1;
/// In these bits the node equals all that is of it, and nothing else.
const NODE_BITS: u32 = 0b011;

impl NextHop {
    /// The value that a route holds.
    #[inline]
    pub const fn encode(self) -> EncodedNextHop {
        let (kind, index) = match self {
            Self::NoRoute => (0, 0),
            Self::Unreachable => (1, 0),
            Self::Node => (2, 0),
            Self::Host => (3, 0),
            Self::Endpoint(index) => (4, index),
            Self::Tunnel(index) => (5, index),
            Self::Service => (3, 1),
            Self::HostSide(index) => (6, index),
            Self::Visitor(index) => (7, index),
            Self::Forwarded => (3, 2),
            Self::Translated => (3, 3),
            Self::ManxPorts => (3, 4),
        };
        EncodedNextHop((index & INDEX) << KIND_BITS | kind)
    }

    /// The next hop that a route's value stands for. A value that [`NextHop::encode`] does not return leads nowhere.
    #[inline]
    pub const fn decode(EncodedNextHop(code): EncodedNextHop) -> Self {
        match code & KIND {
            1 => Self::Unreachable,
            2 => Self::Node,
            3 => match code >> KIND_BITS {
                0 => Self::Host,
                1 => Self::Service,
                2 => Self::Forwarded,
                3 => Self::Translated,
                4 => Self::ManxPorts,
                _ => Self::NoRoute,
            },
            4 => Self::Endpoint(code >> KIND_BITS & INDEX),
            5 => Self::Tunnel(code >> KIND_BITS & INDEX),
            6 => Self::HostSide(code >> KIND_BITS & INDEX),
            7 if code >> KIND_BITS <= INDEX => Self::Visitor(code >> KIND_BITS),
            _ => Self::NoRoute,
        }
    }
}

/// The component that packets passed before they were judged. Their replies go back through it. `T` names a tunnel: by its
/// index, or for the next process by its other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnPath<T = u32> {
    /// None: they came by the endpoint's port.
    None,
    /// The node's translation of service addresses: [`NextHop::Translated`].
    Service,
    /// The node, which forwarded them to the destination's [`Role::HostSide`].
    Node,
    /// The node, which forwarded them to [`Role::Forwarded`], and masqueraded them if they come from its own address:
    /// [`NextHop::Forwarded`].
    Forwarded,
    /// The node, which led them to [`Role::ManxPorts`]: [`NextHop::ManxPorts`].
    ManxPorts,
    /// The node at the other end of this tunnel, if they come from outside: [`NextHop::Visitor`].
    Tunnel(T),
}

impl<T> ReturnPath<T> {
    /// The same path with another name for its tunnel. `None`: `name` has none.
    pub fn renamed<N>(self, name: impl FnOnce(T) -> Option<N>) -> Option<ReturnPath<N>> {
        Some(match self {
            Self::None => ReturnPath::None,
            Self::Service => ReturnPath::Service,
            Self::Node => ReturnPath::Node,
            Self::Forwarded => ReturnPath::Forwarded,
            Self::ManxPorts => ReturnPath::ManxPorts,
            Self::Tunnel(tunnel) => ReturnPath::Tunnel(name(tunnel)?),
        })
    }
}

impl ReturnPath {
    /// The return path of packets whose flow has this next hop for their source. If that is no endpoint, the result has
    /// no meaning.
    #[inline]
    pub const fn of(source: EncodedNextHop) -> Self {
        match NextHop::decode(source) {
            NextHop::Translated => Self::Service,
            NextHop::HostSide(_) => Self::Node,
            NextHop::Forwarded => Self::Forwarded,
            NextHop::ManxPorts => Self::ManxPorts,
            NextHop::Visitor(tunnel) => Self::Tunnel(tunnel),
            _ => Self::None,
        }
    }

    /// The next hops of packets that go back by this path if routes lead by `pair`. Only packets of endpoints have such
    /// a path, packets that the node masquerades, and clients from outside. If another plugin connects the endpoints, each
    /// reaches the node and beyond by its own link, and what comes by this link goes back by it.
    #[inline]
    pub fn next_hops(self, tables: &Tables, pair: NextHopPair) -> NextHopPair {
        let source = pair.from.endpoint();
        let is_outside = matches!(pair.from, EncodedNextHop::NODE | EncodedNextHop::HOST);
        let pair = match source {
            Some(_) if self == Self::Service => {
                NextHopPair { from: EncodedNextHop::TRANSLATED, ..pair }
            }
            None if self == Self::Forwarded && pair.from == EncodedNextHop::NODE => {
                NextHopPair { from: EncodedNextHop::FORWARDED, ..pair }
            }
            None if is_outside => match self {
                Self::ManxPorts => NextHopPair { from: EncodedNextHop::MANX_PORTS, ..pair },
                Self::Tunnel(tunnel) => {
                    NextHopPair { from: NextHop::Visitor(tunnel).encode(), ..pair }
                }
                Self::None | Self::Service | Self::Node | Self::Forwarded => pair,
            },
            _ => pair,
        };
        if tables.host_sides.is_empty() {
            return pair;
        }
        let host_side = |index| NextHop::HostSide(index).encode();
        let is_beyond = |hop| matches!(NextHop::decode(hop), NextHop::Node | NextHop::Host);
        match (source, pair.to.endpoint()) {
            (Some(index), None) if is_beyond(pair.to) => {
                NextHopPair { to: host_side(index), ..pair }
            }
            (None, Some(index)) if self == Self::Node && is_beyond(pair.from) => {
                NextHopPair { from: host_side(index), ..pair }
            }
            (Some(_), Some(index)) if self == Self::Node => {
                NextHopPair { from: host_side(index), ..pair }
            }
            _ => pair,
        }
    }
}

/// The two next hops of a packet: back to its source, and on to its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHopPair {
    /// The next hop towards the source: the packet came from there.
    pub from: EncodedNextHop,
    /// The next hop towards the destination: the packet goes there.
    pub to: EncodedNextHop,
}

/// An endpoint of this node.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// The number of its attachment, by which flows know it. It is never given to another.
    pub attachment: u32,
    /// The link to it.
    pub link: Link,
    /// The chain for packets to it.
    pub ingress: ChainId,
    /// The chain for packets from it.
    pub egress: ChainId,
    /// A number, from 1, for the meaning of both chains. No other meaning has it, of this endpoint or of another one
    /// that had its addresses.
    pub revision: u32,
}

/// A tunnel to another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// The other node's address: the only outer source from which this tunnel's packets are taken.
    pub remote: Ipv4Addr,
    /// The outer header, complete except for the fields that differ between packets.
    pub outer: Outer,
    /// The link by which encapsulated packets leave; its MTU is the underlay's less the outer header.
    pub link: Link,
}

/// The link to a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The port by which packets leave.
    pub port: PortId,
    /// The largest packet, in bytes, not counting the header of the tunnel.
    pub mtu: u32,
    /// The tunnel that they are put into, an index into [`Tables::tunnels`].
    pub tunnel: Option<u32>,
}

impl Link {
    /// A link on which packets travel without a tunnel.
    pub const fn native(port: PortId, mtu: u32) -> Self {
        Self { port, mtu, tunnel: None }
    }
}

/// The role of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The port is not in these tables: everything from it is dropped.
    Closed,
    /// Packets of one endpoint.
    Endpoint(u32),
    /// Packets to one endpoint that another plugin has connected: of the node, from beyond it, and of this node's
    /// endpoints where the node forwarded them.
    HostSide(u32),
    /// Packets of the node, and, where Manx does not own the uplink and there is no port of [`Role::Forwarded`], from
    /// beyond it.
    Host,
    /// Packets that the node forwards: none is of the node itself, whatever its source.
    Forwarded,
    /// Packets from the node's translation of service addresses.
    Service,
    /// Packets to ports of the node's own addresses that are Manx's ([`ManxPorts`]).
    ManxPorts,
    /// Packets from beyond the node: the uplink, where Manx owns it.
    Uplink,
    /// Encapsulated packets of other nodes.
    Underlay,
}

/// The treatment of an established connection that policy no longer allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Established {
    /// Policy is evaluated again for its next packet, and it ends.
    #[default]
    Judge,
    /// It continues until it ends by itself, as with Calico's own dataplanes.
    Keep,
}

/// Settings of connection tracking that neither Kubernetes nor Calico specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connections {
    /// Drop a TCP packet without a flow that is no SYN, instead of deciding it as if it opened one.
    pub tcp_strict: bool,
    /// The treatment of answered connections when policy changes.
    pub established: Established,
}

/// Policy for this node's own interfaces (Calico documentation, "Host endpoints"), as far as their packets pass here,
/// and for packets of pods to the node itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostPolicy {
    /// For packets outside of tunnels, if a host endpoint governs the interface.
    pub native: Option<InterfaceChains>,
    /// For packets in tunnels, which count as another interface.
    pub tunnelled: Option<InterfaceChains>,
    /// Drop packets of a pod to its node, even if its egress policy allows it (`defaultEndpointToHostAction`).
    pub drops_to_node: bool,
    /// Changes with each change of these fields or of the chains' meaning.
    pub revision: u32,
}

/// The chains for packets of an interface of the node, by direction: in by it, and out by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceChains {
    /// For packets that are forwarded (`applyOnForward`).
    pub forward: [ChainId; 2],
    /// The other chains, which exist only where Manx owns the uplink; elsewhere the kernel carries the node's own
    /// packets.
    pub owned: Option<OwnedChains>,
}

/// The further chains of an interface that all packets of the node pass. They wait for an uplink that Manx owns: an
/// agent, which shares it with the kernel, publishes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedChains {
    /// For the traffic of the node's own processes.
    pub local: [ChainId; 2],
    /// For incoming packets before destination NAT, if there is such a policy (`preDNAT`).
    pub pre_dnat: Option<ChainId>,
    /// Before and without connection tracking, if there is such a policy (`doNotTrack`).
    pub untracked: [Option<ChainId>; 2],
}

impl HostPolicy {
    /// The chains of the interface towards `next_hop`, if it has any.
    #[inline]
    pub fn interface(&self, next_hop: NextHop) -> Option<&InterfaceChains> {
        match next_hop {
            // Packets that the node masquerades may have come in by it.
            NextHop::Host | NextHop::Forwarded => self.native.as_ref(),
            NextHop::Tunnel(_) | NextHop::Visitor(_) => self.tunnelled.as_ref(),
            NextHop::Endpoint(_)
            | NextHop::Node
            | NextHop::Service
            | NextHop::Translated
            | NextHop::ManxPorts
            | NextHop::HostSide(_)
            | NextHop::NoRoute
            | NextHop::Unreachable => None,
        }
    }

    /// The chain for packets that pass that interface in this direction, before connection tracking, if there is one.
    #[inline]
    pub fn untracked(&self, next_hop: NextHop, direction: Direction) -> Option<ChainId> {
        self.interface(next_hop)?.owned?.untracked[direction as usize]
    }

    /// Whether policy is evaluated for any packet before connection tracking.
    #[inline]
    pub fn has_untracked(&self) -> bool {
        let asks = |chains: &InterfaceChains| {
            chains.owned.is_some_and(|owned| owned.untracked.iter().any(Option::is_some))
        };
        self.native.as_ref().is_some_and(asks) || self.tunnelled.as_ref().is_some_and(asks)
    }
}

/// The port by which packets to service addresses go to the node, whose kube-proxy translates them to endpoints
/// (destination NAT), and come back to be judged and forwarded. It is a port of its own, so that no packet from the
/// world passes as translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// The link to the node by this port.
    pub link: Link,
    /// The node may take packets to these itself, so policy is asked about each before the translation.
    pub hosts: Arc<ServiceHosts>,
}

/// The ports of the node's own addresses that are Manx's: those of the way out, and those of services. Routing rules of
/// the node lead packets to them to a port of Manx's own, and the node's kernel routes what Manx sends by it with the
/// node's address.
#[derive(Debug, Clone)]
pub struct ManxPorts {
    /// The link to the node by this port.
    pub link: Link,
    /// The ports of the way out, the first and the last: they take the place of a source's port.
    pub egress: (u16, u16),
    /// The node's addresses, of IPv4 and of IPv6: by them hosts that are backends of services see clients from outside.
    pub addresses: [Option<Address>; 2],
    /// The addresses by which the world sees pods, of IPv4 and of IPv6.
    pub outgoing: [Option<Address>; 2],
    /// Whose address they take the place of: by address, [`ManxPorts::ASKS`] and [`ManxPorts::STAYS`].
    pub masquerade: Arc<PrefixMap>,
}

impl ManxPorts {
    /// The value of addresses whose packets to the world get the node's address (`natOutgoing` of their pool).
    pub const ASKS: u32 = 1;
    /// The value of addresses that see everybody's own address, as those in pools do. It is added to the other value.
    pub const STAYS: u32 = 2;

    /// The address of this one's family.
    #[inline]
    pub fn of_family(of: &[Option<Address>; 2], family: Address) -> Option<Address> {
        of[usize::from(!family.is_v4())]
    }

    /// Whether an address takes the place of sources.
    #[inline]
    pub fn has(&self, address: Address) -> bool {
        [&self.addresses, &self.outgoing]
            .iter()
            .any(|of| Self::of_family(of, address) == Some(address))
    }

    /// Whether the world sees the node's address in packets between these two.
    pub fn masquerades(&self, source: Address, destination: Address) -> bool {
        Self::masquerades_by(&self.masquerade, source, destination)
    }

    /// As [`Self::masquerades`], by the values of [`Self::masquerade`].
    pub fn masquerades_by(values: &PrefixMap, source: Address, destination: Address) -> bool {
        let value = |address: Address| match address.to_v4() {
            Some(v4) => values.lookup_v4(v4.to_bits()),
            None => values.lookup_v6(address.to_bits()),
        };
        value(source) & Self::ASKS != 0 && value(destination) & Self::STAYS == 0
    }
}

/// The endpoints of services that are hosts, not pods: address and port of each, by the service's address, protocol and
/// port.
pub type ServiceHosts = BTreeMap<(IpAddr, u8, u16), Vec<(IpAddr, u16)>>;

/// The number of tunnel indexes for each node: the kinds of encapsulation, rounded up to a power of two. So the indexes
/// of one node differ in bits of their own.
pub const TUNNELS_PER_NODE: u32 = Encapsulation::KINDS.next_power_of_two();

/// The tunnels whose packets are accepted, by the address of the other end and the encapsulation.
///
/// A hash table with four times as many places as tunnels, so that a lookup seldom reads more than one. Its hash is
/// random.
#[derive(Debug, Clone, Default)]
pub struct Peers {
    places: Box<[(u64, u32)]>,
    factor: u64,
    shift: u32,
}

impl Peers {
    /// The key of a free place.
    const FREE: u64 = u64::MAX;

    /// A peer's address and encapsulation in one number.
    #[inline]
    fn key(address: Ipv4Addr, encapsulation: Encapsulation) -> u64 {
        u64::from(encapsulation.key()) << 32 | u64::from(u32::from_ne_bytes(address.octets()))
    }

    /// The index of the tunnel of this kind whose other end is `address`.
    #[inline]
    pub fn tunnel(&self, address: Ipv4Addr, encapsulation: Encapsulation) -> Option<u32> {
        let key = Self::key(address, encapsulation);
        self.find(key)?.1
    }

    /// The place of a key, or the place for it, and the tunnel at that place. `None`: the table has no places.
    #[inline]
    fn find(&self, key: u64) -> Option<(usize, Option<u32>)> {
        let mut at = (key.wrapping_mul(self.factor) >> self.shift) as usize;
        loop {
            let (here, tunnel) = *self.places.get(at)?;
            if here == key {
                return Some((at, Some(tunnel)));
            }
            if here == Self::FREE {
                return Some((at, None));
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }
}

impl FromIterator<((Ipv4Addr, Encapsulation), u32)> for Peers {
    fn from_iter<I: IntoIterator<Item = ((Ipv4Addr, Encapsulation), u32)>>(peers: I) -> Self {
        let peers: Vec<_> = peers.into_iter().collect();
        let len = (peers.len() * 4).next_power_of_two().max(4);
        let mut places = Self {
            places: vec![(Self::FREE, 0); len].into(),
            factor: RandomState::new().hash_one(0) | 1,
            shift: u64::BITS - len.ilog2(),
        };
        for ((address, encapsulation), tunnel) in peers {
            let key = Self::key(address, encapsulation);
            if let Some((at, _)) = places.find(key) {
                places.places[at] = (key, tunnel);
            }
        }
        places
    }
}

/// Everything a decision reads.
#[derive(Debug, Clone)]
pub struct Tables {
    /// The number of these tables, from 1. Only tables that differ in [`Tables::services`] alone have the same. A flow
    /// that was checked under another version looks everything up again.
    pub version: u64,
    /// The classifier.
    pub image: Arc<Image>,
    /// Address to [`NextHop`], longest prefix first.
    pub routes: Arc<PrefixMap>,
    /// By index; an endpoint keeps its index while it lives.
    pub endpoints: Vec<Option<Endpoint>>,
    /// By index; a peer keeps its index while it is known. Tunnels to one node are side by side: see
    /// [`TUNNELS_PER_NODE`].
    pub tunnels: Arc<[Option<Tunnel>]>,
    /// The index of each peer's tunnel of each kind.
    pub peers: Peers,
    /// The address to which other nodes send tunnel packets.
    pub underlay_address: Option<Ipv4Addr>,
    /// The link to the node, if it is attached.
    pub host: Option<Link>,
    /// The link to the world, if Manx owns the uplink. `None`: the world is behind the node.
    pub uplink: Option<Link>,
    /// The port at which the node translates service addresses, if it does.
    pub service: Option<ServicePort>,
    /// The services that Manx translates, if it does.
    pub services: Option<Arc<ServiceTable>>,
    /// The node's ports that are Manx's, if it translates.
    pub manx_ports: Option<ManxPorts>,
    /// By port number.
    pub roles: Vec<Role>,
    /// The link of each endpoint to the node, by its index, where another plugin connects the endpoints. Manx stands
    /// between each and the node, and makes no hop. Empty: Manx connects them itself.
    pub host_sides: Vec<Option<Link>>,
    /// Policy for the node's own interfaces.
    pub host_policy: HostPolicy,
    /// The settings of connection tracking.
    pub connections: Connections,
    /// The source of the ICMP errors that this node originates.
    pub router_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub router_v6: Option<Ipv6Addr>,
}

impl Tables {
    /// Tables by which nothing passes.
    pub fn closed() -> Self {
        Self {
            version: 0,
            image: Arc::new(Image::default()),
            routes: Arc::new(PrefixMap::new(NextHop::NoRoute.encode().0)),
            endpoints: Vec::new(),
            tunnels: Arc::default(),
            peers: Peers::default(),
            underlay_address: None,
            host: None,
            uplink: None,
            service: None,
            services: None,
            manx_ports: None,
            roles: Vec::new(),
            host_sides: Vec::new(),
            host_policy: HostPolicy::default(),
            connections: Connections::default(),
            router_v4: None,
            router_v6: None,
        }
    }

    /// The role of `port`.
    #[inline]
    pub fn role(&self, port: PortId) -> Role {
        self.roles.get(port.0 as usize).copied().unwrap_or(Role::Closed)
    }

    /// The next hop of `address`.
    #[inline]
    pub fn next_hop(&self, address: Address) -> NextHop {
        NextHop::decode(self.encoded_next_hop(address))
    }

    /// The next hop of an address, as routes hold it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the caller may know the family of the address")]
    pub fn encoded_next_hop(&self, address: Address) -> EncodedNextHop {
        EncodedNextHop(match address.to_v4() {
            Some(v4) => self.routes.lookup_v4(v4.to_bits()),
            None => self.routes.lookup_v6(address.to_bits()),
        })
    }

    /// The identity of `address`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as Tables::encoded_next_hop")]
    pub fn identity(&self, address: Address) -> Identity {
        match address.to_v4() {
            Some(v4) => self.image.identity_v4(v4.to_bits()),
            None => self.image.identity_v6(address.to_bits()),
        }
    }

    /// Stores the next hops of all addresses of a /24 in these tables, while workers use them. `network`: the first
    /// address. A flow from or to an address whose next hop changes looks both ends up again at its next packet, and so
    /// do flows of addresses that share its counter. `false`: there is no room, and these tables are as they were. At
    /// most one thread at a time may call this.
    #[must_use]
    pub fn store_next_hops(&self, network: Ipv4Addr, next_hops: &[EncodedNextHop; 256]) -> bool {
        let addresses = (0..=255).map(|low| network.to_bits() | low);
        let differs =
            |(address, new): &(u32, &EncodedNextHop)| self.routes.lookup_v4(*address) != new.0;
        let changed: Vec<u32> =
            addresses.zip(next_hops).filter(differs).map(|(address, _)| address).collect();
        let stored = self.routes.set_24_v4(network.to_bits(), &next_hops.map(|it| it.0));
        for address in changed {
            self.image.count_change_v4(address);
        }
        stored
    }

    /// A count that grows with each change in place that may concern one of the two addresses: its identity or its next
    /// hop. The caller must read it before it looks anything up. Nothing changes in place at IPv6 addresses.
    #[inline]
    pub fn changes(&self, addresses: [u32; 2]) -> u32 {
        self.image.changes_v4(addresses)
    }

    /// The source of ICMP errors to senders behind a next hop. Senders to a port of the node get the node's address, because
    /// the node's network may drop other sources. All others get the address of the router that pods see.
    pub fn error_source(&self, back: NextHop, is_v4: bool) -> Option<Address> {
        let node = self.manx_ports.as_ref().filter(|_| back == NextHop::ManxPorts);
        let node = node.and_then(|it| it.addresses[usize::from(!is_v4)]);
        let router = || {
            let router =
                if is_v4 { self.router_v4.map(IpAddr::V4) } else { self.router_v6.map(IpAddr::V6) };
            router.map(Address::from)
        };
        node.or_else(router)
    }

    /// The endpoint with this index, if there is one.
    #[inline]
    pub fn endpoint(&self, index: u32) -> Option<&Endpoint> {
        self.endpoints.get(index as usize)?.as_ref()
    }

    /// The tunnel with this index, if there is one.
    #[inline]
    pub fn tunnel(&self, index: u32) -> Option<&Tunnel> {
        self.tunnels.get(index as usize)?.as_ref()
    }

    /// The link to `next_hop`, if there is one.
    #[inline]
    pub fn link(&self, next_hop: NextHop) -> Option<&Link> {
        match next_hop {
            NextHop::NoRoute | NextHop::Unreachable => None,
            NextHop::HostSide(index) => self.host_sides.get(index as usize)?.as_ref(),
            NextHop::Node | NextHop::Forwarded => self.host.as_ref(),
            NextHop::Host => self.uplink.as_ref().or(self.host.as_ref()),
            NextHop::Endpoint(index) => Some(&self.endpoint(index)?.link),
            NextHop::Service | NextHop::Translated => Some(&self.service.as_ref()?.link),
            NextHop::ManxPorts => Some(&self.manx_ports.as_ref()?.link),
            // Never bare, never to another node.
            NextHop::Tunnel(index) | NextHop::Visitor(index) => {
                Some(&self.tunnel(index)?.link).filter(|link| link.tunnel == Some(index))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use manx_policy_compiler::prefix_map::MAX_VALUE;

    #[test]
    fn a_route_value_means_what_was_encoded() {
        for next_hop in [
            NextHop::NoRoute,
            NextHop::Unreachable,
            NextHop::Node,
            NextHop::Host,
            NextHop::Endpoint(7),
            NextHop::Tunnel(INDEX),
            NextHop::Service,
            NextHop::Translated,
            NextHop::Forwarded,
            NextHop::ManxPorts,
            NextHop::HostSide(7),
            NextHop::Visitor(INDEX),
        ] {
            assert_eq!(NextHop::decode(next_hop.encode()), next_hop);
            assert!(next_hop.encode().0 <= MAX_VALUE, "a route can hold it");
        }
        assert_eq!(
            NextHop::decode(EncodedNextHop(u32::MAX)),
            NextHop::NoRoute,
            "a value that no next hop encodes to leads nowhere"
        );
    }

    #[test]
    fn every_peer_is_found_and_no_other_address() {
        let kinds = [
            Encapsulation::Ipip,
            Encapsulation::Vxlan { vni: 0 },
            Encapsulation::Vxlan { vni: (1 << 24) - 1 },
        ];
        for count in [0u32, 1, 3, 5000] {
            let all = (0..count).map(|n| ((Ipv4Addr::from_bits(n << 8), kinds[n as usize % 3]), n));
            let peers: Peers = all.clone().chain(all).collect();
            for n in 0..count + 10 {
                for (kind, at) in kinds.into_iter().zip(0..) {
                    let known = n < count && n % 3 == at;
                    let found = peers.tunnel(Ipv4Addr::from_bits(n << 8), kind);
                    assert_eq!(found, known.then_some(n), "{n} {kind:?} of {count}");
                }
            }
        }
        assert_eq!(Peers::default().tunnel(Ipv4Addr::LOCALHOST, Encapsulation::Ipip), None);
    }

    #[test]
    fn next_hops_are_stored_up_to_the_last_address_and_each_change_is_counted() {
        let tables = Tables::closed();
        let network = Ipv4Addr::new(255, 255, 255, 0);
        let mut next_hops = [NextHop::NoRoute.encode(); 256];
        next_hops[255] = NextHop::Host.encode();
        let counts = || [254, 255].map(|low| tables.changes([network.to_bits() | low; 2]));
        let before = counts();
        assert!(tables.store_next_hops(network, &next_hops));
        assert_eq!(tables.next_hop(Ipv4Addr::BROADCAST.into()), NextHop::Host);
        assert_eq!(tables.next_hop(Ipv4Addr::new(255, 255, 255, 254).into()), NextHop::NoRoute);
        assert_eq!(counts(), [before[0], before[1] + 2]);
    }

    /// So a flow that has the count of its last lookup never keeps a next hop from before it.
    #[test]
    fn who_sees_a_change_counted_sees_what_was_stored() {
        // Each takes room, which comes back only with the next tables.
        const STORES: u32 = 500;
        let address = Ipv4Addr::new(10, 1, 2, 7);
        let both = [address.to_bits(); 2];
        let number = |next_hop| match next_hop {
            NextHop::Tunnel(number) => number,
            other => u32::from(other != NextHop::NoRoute) * u32::MAX,
        };
        for _ in 0..40 {
            let tables = Tables::closed();
            let before = tables.changes(both);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let mut seen = 0;
                    while seen < STORES {
                        let counted = tables.changes(both).wrapping_sub(before) / 2;
                        seen = number(tables.next_hop(address.into()));
                        assert!((counted..=STORES).contains(&seen), "{seen} after {counted}");
                    }
                });
                let mut next_hops = [NextHop::NoRoute.encode(); 256];
                for stored in 1..=STORES {
                    next_hops[7] = NextHop::Tunnel(stored).encode();
                    assert!(tables.store_next_hops(Ipv4Addr::new(10, 1, 2, 0), &next_hops));
                }
                reader.join().unwrap();
            });
        }
    }

    #[test]
    fn before_the_first_publication_nothing_is_known() {
        let tables = Tables::closed();
        assert_eq!(tables.role(PortId(0)), Role::Closed);
        assert_eq!(tables.next_hop(Ipv4Addr::LOCALHOST.into()), NextHop::NoRoute);
    }
}
