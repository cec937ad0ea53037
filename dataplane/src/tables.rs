//! The tables that a worker decides by. They are one value, which is published whole.
//!
//! A worker holds one `Arc<Tables>` and takes the next one between batches, so that every packet is decided by a single
//! one. Before the first publication the worker holds [`Tables::closed`], with which every packet is dropped.
//! Identities and next hops of addresses may change in place ([`Tables::changes`]); everything else is immutable.

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

/// A port of the worker. A port keeps its number from its attachment to its detachment. Another port gets the number
/// only after no tables in use and no unread report can refer to the former port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// The next hop of an address: the way of packets to it, and so the only way by which packets from it may come in.
/// Routes hold it as an [`EncodedNextHop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NextHop {
    /// There is no route.
    NoRoute,
    /// An address in a block of this node that no endpoint has.
    Unreachable,
    /// This node itself: its own addresses, which are behind the host port.
    Node,
    /// The world, which is behind the host port or the uplink: other networks, and pods of other nodes that need no
    /// encapsulation.
    World,
    /// An endpoint of this node, with its index in [`Tables::endpoints`].
    Endpoint(u32),
    /// Another node's pods, with the tunnel's index in [`Tables::tunnels`].
    Tunnel(u32),
    /// A service address that the node translates: see [`KubeProxyPort`].
    Service,
    /// Only for a source: an endpoint of this node whose packets come back from the node's translation of service
    /// addresses. No route holds it.
    Translated,
    /// Only for a source: an address of this node in a packet that the node forwards. The node's kernel has masqueraded
    /// the sender, which is unknown. So the sender has none of the node's rights. No route holds it.
    Forwarded,
    /// Only for a packet with an address of this node and a port that belongs to Manx: the networks behind the node,
    /// and the node's own processes, by the port of [`ManxPorts`]. No route holds it.
    ManxPorts,
    /// The node and everything beyond it, by the link of one endpoint that another plugin has connected. The index is
    /// that in [`Tables::host_sides`]. No route holds it: see [`ReturnPath::next_hops`].
    HostSide(u32),
    /// Only for a source: a client from outside whose packets another node has sent on to a backend here. They come in,
    /// and replies leave, by the tunnel of that node, with this index in [`Tables::tunnels`]. Whatever the client's
    /// address is, the client has none of this node's rights. No route holds it.
    Visitor(u32),
}

/// A [`NextHop`] in one number, as routes and flows hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromZeros)]
#[repr(transparent)]
pub struct EncodedNextHop(pub u32);

impl EncodedNextHop {
    /// This node.
    pub const NODE: Self = NextHop::Node.encode();
    /// The only bit in which this node and the world differ.
    pub const NODE_OR_WORLD: u32 = NextHop::Node.encode().0 ^ NextHop::World.encode().0;
    /// A service address.
    pub const SERVICE: Self = NextHop::Service.encode();
    /// An endpoint whose packets come back from the translation of service addresses.
    pub const TRANSLATED: Self = NextHop::Translated.encode();
    /// An address of this node in a packet that the node forwards.
    pub const FORWARDED: Self = NextHop::Forwarded.encode();
    /// The world behind the node.
    pub const WORLD: Self = NextHop::World.encode();
    /// The senders behind the ports of this node that belong to Manx.
    pub const MANX_PORTS: Self = NextHop::ManxPorts.encode();
    /// The only bit in which [`NextHop::World`] and [`NextHop::Forwarded`] differ.
    pub const WORLD_OR_FORWARDED: u32 = NextHop::World.encode().0 ^ NextHop::Forwarded.encode().0;
    /// The only bit in which [`NextHop::World`] and [`NextHop::Service`] differ.
    pub const WORLD_OR_SERVICE: u32 = NextHop::World.encode().0 ^ NextHop::Service.encode().0;
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
    /// Whether it is this node, or the way to this node by an endpoint's own link.
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
    EncodedNextHop::NODE_OR_WORLD.is_power_of_two()
        && EncodedNextHop::WORLD_OR_FORWARDED.is_power_of_two()
        && EncodedNextHop::WORLD_OR_SERVICE.is_power_of_two()
        && EncodedNextHop::SERVICE_OR_TRANSLATED.is_power_of_two()
        && EncodedNextHop::TUNNEL_OR_VISITOR.is_power_of_two()
        && NextHop::HostSide(7).encode().is_of_node()
        && !NextHop::Endpoint(7).encode().is_of_node()
        && !NextHop::Visitor(7).encode().is_of_node()
);

/// The kind is in the low bits, so the numbers are small, and routes hold them in two bytes.
const KIND_BITS: u32 = 3;
const KIND: u32 = (1 << KIND_BITS) - 1;
const INDEX: u32 = (1 << 28) - 1;
/// In these bits, all next hops that lead to the node equal [`EncodedNextHop::NODE`], and no others do.
const NODE_BITS: u32 = 0b011;

impl NextHop {
    /// The value that a route holds.
    #[inline]
    pub const fn encode(self) -> EncodedNextHop {
        let (kind, index) = match self {
            Self::NoRoute => (0, 0),
            Self::Unreachable => (1, 0),
            Self::Node => (2, 0),
            Self::World => (3, 0),
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

    /// The next hop that a route's value stands for. An unassigned number decodes to [`NextHop::NoRoute`].
    #[inline]
    pub const fn decode(EncodedNextHop(code): EncodedNextHop) -> Self {
        match code & KIND {
            1 => Self::Unreachable,
            2 => Self::Node,
            3 => match code >> KIND_BITS {
                0 => Self::World,
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

/// The component that packets passed before policy judged them. Their replies go back through it. `T` identifies a
/// tunnel: by its index, or in a record for the next process by the address of its other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnPath<T = u32> {
    /// No component: they came in by the endpoint's port.
    None,
    /// The node's translation of service addresses: [`NextHop::Translated`].
    Service,
    /// The node, which forwarded them to the destination's [`Role::HostSide`].
    Node,
    /// The node, which forwarded them to [`Role::Forwarded`], and masqueraded them if their source is its own address:
    /// [`NextHop::Forwarded`].
    Forwarded,
    /// The node, whose routing rules sent them to [`Role::ManxPorts`]: [`NextHop::ManxPorts`].
    ManxPorts,
    /// The node at the other end of this tunnel, if the packets are from outside: [`NextHop::Visitor`].
    Tunnel(T),
}

impl<T> ReturnPath<T> {
    /// The same path with another identifier for its tunnel. Returns `None` if `name` returns none.
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
    /// The return path of packets whose flow has this next hop as its source. The result has a meaning only for an
    /// endpoint's flow, a masqueraded flow or a client from outside.
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

    /// The next hops of packets whose replies go back by this path. `pair` are the next hops according to the routes.
    /// Only packets of endpoints, packets that the node masquerades, and packets of clients from outside have such a
    /// path. If another plugin connects the endpoints, each endpoint reaches the node and beyond by its own link, and
    /// replies go back by the link by which packets came.
    #[inline]
    pub fn next_hops(self, tables: &Tables, pair: NextHopPair) -> NextHopPair {
        let source = pair.from.endpoint();
        let is_outside = matches!(pair.from, EncodedNextHop::NODE | EncodedNextHop::WORLD);
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
        let is_beyond = |hop| matches!(NextHop::decode(hop), NextHop::Node | NextHop::World);
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
    /// The next hop towards the source, from which the packet came.
    pub from: EncodedNextHop,
    /// The next hop towards the destination, to which the packet goes.
    pub to: EncodedNextHop,
}

/// An endpoint of this node.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// The number of its attachment, by which flows recognize the endpoint. No other attachment ever gets it.
    pub attachment: u32,
    /// The link to it.
    pub link: Link,
    /// The chain for packets to it.
    pub ingress: ChainId,
    /// The chain for packets from it.
    pub egress: ChainId,
    /// A number from 1 on that identifies what both chains mean now. The number is a new one whenever their meaning
    /// changes, and when another endpoint gets the addresses.
    pub revision: u32,
}

/// A tunnel to another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// The other node's address: the only outer source that this tunnel's packets may have.
    pub remote: Ipv4Addr,
    /// The outer header, complete except for the fields that differ between packets.
    pub outer: Outer,
    /// The link by which encapsulated packets leave. Its MTU is that of the underlay minus the outer header.
    pub link: Link,
}

/// The link to a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The port by which packets leave.
    pub port: PortId,
    /// The size of the largest packet in bytes, without the header of the tunnel.
    pub mtu: u32,
    /// The index in [`Tables::tunnels`] of the tunnel into which packets are put, if there is one.
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
    /// The port carries packets of one endpoint.
    Endpoint(u32),
    /// The port carries packets to one endpoint that another plugin has connected: from the node, from beyond it, and
    /// from this node's endpoints if the node forwarded them.
    HostSide(u32),
    /// The port carries packets of the node. If Manx does not own the uplink and no port has [`Role::Forwarded`], it
    /// also carries packets from beyond the node.
    Host,
    /// The port carries packets that the node forwards. None of them is the node's own, whatever its source is.
    Forwarded,
    /// The port carries packets from the node's translation of service addresses.
    Service,
    /// The port carries packets to ports of the node's own addresses that belong to Manx ([`ManxPorts`]).
    ManxPorts,
    /// The port carries packets from beyond the node: it is the uplink, if Manx owns it.
    Uplink,
    /// The port carries encapsulated packets of other nodes.
    Underlay,
}

/// What happens to an established connection that policy no longer allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Established {
    /// Policy is evaluated again for its next packet, and the connection ends.
    #[default]
    Judge,
    /// The connection continues until it ends by itself, as with Calico's own dataplanes.
    Keep,
}

/// Settings of connection tracking that neither Kubernetes nor Calico specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackingSettings {
    /// Whether a TCP packet that has no flow and is no SYN is dropped. Otherwise it is decided as if it opened a flow.
    pub tcp_strict: bool,
    /// What happens to answered connections when policy changes.
    pub established: Established,
}

/// Policy for this node's own interfaces (Calico documentation, "Host endpoints"), as far as their packets pass through
/// Manx, and for packets of pods to the node itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostPolicy {
    /// The chains for packets outside of tunnels, if a host endpoint governs the interface.
    pub native: Option<InterfaceChains>,
    /// The chains for packets in tunnels, which count as another interface.
    pub tunnelled: Option<InterfaceChains>,
    /// Whether packets of a pod to its node are dropped even if its egress policy allows them
    /// (`defaultEndpointToHostAction`).
    pub drops_to_node: bool,
    /// A number that changes with each change of these fields or of the chains' meaning.
    pub revision: u32,
}

/// The chains for packets that pass an interface of the node, by direction: incoming and outgoing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceChains {
    /// The chains for forwarded packets (`applyOnForward`).
    pub forward: [ChainId; 2],
    /// The other chains, which exist only if Manx owns the uplink. Otherwise the kernel carries the node's own packets.
    pub owned: Option<OwnedChains>,
}

/// The further chains of an interface that all packets of the node pass through. They are for an uplink that Manx owns.
/// An agent shares the uplink with the kernel, so it publishes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedChains {
    /// The chains for the traffic of the node's own processes.
    pub local: [ChainId; 2],
    /// The chain for incoming packets before destination NAT, if there is such a policy (`preDNAT`).
    pub pre_dnat: Option<ChainId>,
    /// The chains that are evaluated before connection tracking and without it, if there is such a policy
    /// (`doNotTrack`).
    pub untracked: [Option<ChainId>; 2],
}

impl HostPolicy {
    /// The chains of the interface towards `next_hop`, if it has any.
    #[inline]
    pub fn interface(&self, next_hop: NextHop) -> Option<&InterfaceChains> {
        match next_hop {
            // Packets that the node masquerades may have come in by this interface.
            NextHop::World | NextHop::Forwarded => self.native.as_ref(),
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

    /// The chain for packets that pass the interface towards `next_hop` in this direction, before connection tracking,
    /// if there is one.
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

/// The port by which packets to service addresses go to the node. The node's kube-proxy translates them to endpoints
/// (destination NAT), and they come back by the same port to be judged and forwarded. It is a separate port, so that no
/// packet from the world passes as a translated one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeProxyPort {
    /// The link to the node by this port.
    pub link: Link,
    /// The endpoints of services that are hosts. The node may deliver such packets without returning them, so policy
    /// judges each before the translation.
    pub hosts: Arc<ServiceHosts>,
}

/// The ports of the node's own addresses that belong to Manx: those for masquerading, and those of services. Routing
/// rules of the node lead packets to these ports to a device of Manx, and the node's kernel routes the packets that
/// Manx sends there with the node's address.
#[derive(Debug, Clone)]
pub struct ManxPorts {
    /// The link to the node by this port.
    pub link: Link,
    /// The first and the last of the source ports for flows that leave with the node's address.
    pub egress: (u16, u16),
    /// The node's addresses, for IPv4 and IPv6. If a service sends a client from outside to a backend that is a host,
    /// one of these addresses replaces the client's.
    pub addresses: [Option<Address>; 2],
    /// The addresses that replace those of pods in packets to the world, for IPv4 and IPv6.
    pub outgoing: [Option<Address>; 2],
    /// Which sources are replaced: for each address, the sum of [`ManxPorts::ASKS`] and [`ManxPorts::STAYS`] as far as
    /// they apply.
    pub masquerade: Arc<PrefixMap>,
}

impl ManxPorts {
    /// The value of addresses that are replaced in packets to the world (`natOutgoing` of their pool).
    pub const ASKS: u32 = 1;
    /// The value of destinations for which sources are not replaced, such as addresses in pools. An address that has
    /// both values holds their sum.
    pub const STAYS: u32 = 2;

    /// The address in `of` that has the same family as `family`.
    #[inline]
    pub fn of_family(of: &[Option<Address>; 2], family: Address) -> Option<Address> {
        of[usize::from(!family.is_v4())]
    }

    /// Whether this address may replace a source.
    #[inline]
    pub fn has(&self, address: Address) -> bool {
        [&self.addresses, &self.outgoing]
            .iter()
            .any(|of| Self::of_family(of, address) == Some(address))
    }

    /// Whether the node's address replaces the source in packets between these two.
    pub fn masquerades(&self, source: Address, destination: Address) -> bool {
        Self::masquerades_by(&self.masquerade, source, destination)
    }

    /// Like [`Self::masquerades`], from the values of [`Self::masquerade`].
    pub fn masquerades_by(values: &PrefixMap, source: Address, destination: Address) -> bool {
        let value = |address: Address| match address.to_v4() {
            Some(v4) => values.lookup_v4(v4.to_bits()),
            None => values.lookup_v6(address.to_bits()),
        };
        value(source) & Self::ASKS != 0 && value(destination) & Self::STAYS == 0
    }
}

/// The endpoints of services that are hosts, not pods. The key is the service's address, protocol and port, and the
/// value is the address and port of each endpoint.
pub type ServiceHosts = BTreeMap<(IpAddr, u8, u16), Vec<(IpAddr, u16)>>;

/// The number of tunnel indexes for each node: the number of kinds of encapsulation, rounded up to a power of two. So
/// the indexes of one node differ only in bits of their own.
pub const TUNNELS_PER_NODE: u32 = Encapsulation::KINDS.next_power_of_two();

/// The tunnels whose packets are accepted, found by the address of the other end and the encapsulation.
///
/// This is a hash table with four times as many places as tunnels, so a lookup rarely reads more than one place. Its
/// hash is random.
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

    /// The place where a key is or would be, and the tunnel at that place. `None`: the table has no places.
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

/// Everything that a decision reads.
#[derive(Debug, Clone)]
pub struct Tables {
    /// The number of these tables, from 1 on. Tables have the same number only if they differ in [`Tables::services`]
    /// alone. For a flow that was checked under another version, everything is looked up again.
    pub version: u64,
    /// The classifier.
    pub image: Arc<Image>,
    /// The [`NextHop`] of each address, by longest prefix match.
    pub routes: Arc<PrefixMap>,
    /// Indexed by endpoint; an endpoint keeps its index while it exists.
    pub endpoints: Vec<Option<Endpoint>>,
    /// Indexed by tunnel; a peer keeps its indexes while it is known. The tunnels to one node have adjacent indexes:
    /// see [`TUNNELS_PER_NODE`].
    pub tunnels: Arc<[Option<Tunnel>]>,
    /// The index of the tunnel of each kind to each peer.
    pub peers: Peers,
    /// The address to which other nodes send tunnel packets.
    pub underlay_address: Option<Ipv4Addr>,
    /// The link to the node, if it is attached.
    pub host: Option<Link>,
    /// The link to the world, if Manx owns the uplink. `None`: the world is behind the node.
    pub uplink: Option<Link>,
    /// The port at which the node translates service addresses, if the node does that.
    pub kube_proxy_port: Option<KubeProxyPort>,
    /// The services that Manx translates, if Manx does that.
    pub services: Option<Arc<ServiceTable>>,
    /// The node's ports that belong to Manx, if Manx translates.
    pub manx_ports: Option<ManxPorts>,
    /// The roles of ports, by port number.
    pub roles: Vec<Role>,
    /// The link from each endpoint to the node, by the endpoint's index, if another plugin connects the endpoints. Then
    /// Manx stands between each endpoint and the node, and does not count as a hop. If this is empty, Manx connects the
    /// endpoints itself.
    pub host_sides: Vec<Option<Link>>,
    /// Policy for the node's own interfaces.
    pub host_policy: HostPolicy,
    /// The settings of connection tracking.
    pub connections: TrackingSettings,
    /// The source address of the ICMP errors that this node originates.
    pub router_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub router_v6: Option<Ipv6Addr>,
}

impl Tables {
    /// Tables with which every packet is dropped.
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
            kube_proxy_port: None,
            services: None,
            manx_ports: None,
            roles: Vec::new(),
            host_sides: Vec::new(),
            host_policy: HostPolicy::default(),
            connections: TrackingSettings::default(),
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

    /// Stores the next hops of all addresses of a /24 in these tables, while workers use them. `network` is the first
    /// address. A flow from or to an address whose next hop changes looks up both ends again at its next packet. So do
    /// flows of addresses that share its counter. Returns `false` if there is no room; then these tables are unchanged.
    /// At most one thread at a time may call this.
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

    /// A count that grows with each change in place that may concern one of the two addresses, in its identity or its
    /// next hop. The caller must read it before it looks up anything. IPv6 addresses do not change in place.
    #[inline]
    pub fn changes(&self, addresses: [u32; 2]) -> u32 {
        self.image.changes_v4(addresses)
    }

    /// The source of ICMP errors to senders at a next hop. Senders to a port of the node get errors from the node's
    /// address, because the node's network may drop other sources. All others get errors from the address of the router
    /// that pods see.
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
            NextHop::World => self.uplink.as_ref().or(self.host.as_ref()),
            NextHop::Endpoint(index) => Some(&self.endpoint(index)?.link),
            NextHop::Service | NextHop::Translated => Some(&self.kube_proxy_port.as_ref()?.link),
            NextHop::ManxPorts => Some(&self.manx_ports.as_ref()?.link),
            // Packets in a tunnel never leave without it, and never go to another node.
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
            NextHop::World,
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
        next_hops[255] = NextHop::World.encode();
        let counts = || [254, 255].map(|low| tables.changes([network.to_bits() | low; 2]));
        let before = counts();
        assert!(tables.store_next_hops(network, &next_hops));
        assert_eq!(tables.next_hop(Ipv4Addr::BROADCAST.into()), NextHop::World);
        assert_eq!(tables.next_hop(Ipv4Addr::new(255, 255, 255, 254).into()), NextHop::NoRoute);
        assert_eq!(counts(), [before[0], before[1] + 2]);
    }

    /// So a flow whose count is still that of its last lookup never keeps a next hop from before that lookup.
    #[test]
    fn who_sees_a_change_counted_sees_what_was_stored() {
        // Each store takes room, which becomes free only with the next tables.
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
