//! The services of a world that translates: the frontends, their backends, and their changes. The
//! oracle reads this; the nodes get a table made from it. If nodes have ports of services, there
//! are also frontends for outside clients: node ports, and load balancers' addresses, for which a
//! router may choose any node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use fastrand::Rng;
use manx_dataplane::port::memory::Frame;
use manx_dataplane::services::{
    Backend, Clients, Frontend, FrontendKey, ServiceTable, WithoutBackend,
};

use super::plan::{PODS, v4, v6};
use super::read::{FlowTuple, TransportKey, read};
use super::rewritten::put_ends;
use super::way_out::{WayOut, ported_addresses};
use crate::packet::{SCTP, TCP, UDP};

/// An address and a port.
pub type End = (IpAddr, u16);
/// The destination of a client: an address, a protocol, and a port.
pub type Asked = (IpAddr, u8, u16);

/// The addresses of services. The last one of each family has no frontends.
const ADDRESSES: [&str; 6] =
    ["10.96.0.1", "10.96.0.2", "10.96.0.9", "fd96::1", "fd96::2", "fd96::9"];
/// The addresses of load balancers, which exist if nodes have ports.
const BALANCERS: [&str; 2] = ["203.0.113.5", "203.0.113.6"];
/// Node ports.
const NODE_PORTS: [u16; 2] = [30_080, 30_053];
/// The first port of load balancers' backends. Each frontend has its own port, and nothing else
/// leads to it.
const BALANCED: u16 = 8001;
/// The ports that frontends have.
const PORTS: [u16; 3] = [80, 443, 53];
/// The ports that backends have. Policies name most of them.
const BEHIND: [u16; 6] = [80, 81, 443, 8000, 8080, 53];
/// The client ranges that frontends may have: pods, nodes, or all.
const RANGES: [(&str, u8); 7] = [
    ("10.0.0.0", 30),
    ("10.0.0.4", 30),
    ("10.244.0.0", 16),
    ("0.0.0.0", 0),
    ("fd00::", 126),
    ("fd00::4", 126),
    ("::", 0),
];
/// The protocols that frontends have.
const PROTOCOLS: [u8; 3] = [TCP, UDP, SCTP];

/// One frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFrontend {
    pub backends: Vec<End>,
    /// For UDP: the former backends, which keep their clients but get no new ones.
    pub kept: BTreeSet<End>,
    /// The seconds for which a client keeps its backend.
    pub affinity: Option<u32>,
    /// Whether clients get a refusal if there is no backend.
    pub refuses: bool,
    /// The client ranges whose new connections are accepted: an address and a number of bits.
    /// `None`: all.
    pub ranges: Option<Vec<(IpAddr, u8)>>,
    /// With `externalTrafficPolicy: Local`, the node whose backends outside clients get. `None`:
    /// backends of any node.
    pub local: Option<usize>,
}

/// The clients that a frontend serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The cluster.
    Cluster,
    /// The cluster and outside clients, at a port of this node.
    NodePort(usize),
    /// The cluster and outside clients, at a load balancer's address, whose packets may arrive at
    /// any node.
    Balancer,
}

impl PlannedFrontend {
    /// The backends that new connections of a client may get. `is_outside`: the client is outside
    /// the cluster.
    pub fn backends_for(&self, is_outside: bool) -> Vec<End> {
        let local = self.local.filter(|_| is_outside);
        let is_there = |(address, _): &&End| local.is_none_or(|node| node_of(*address) == node);
        self.backends.iter().filter(is_there).copied().collect()
    }

    /// Whether a client gets a refusal because the frontend refuses and has no backend at all. If
    /// there are backends for other clients only, its packets are dropped.
    pub fn refuses_without(&self, is_outside: bool) -> bool {
        let is_empty = self.backends_for(is_outside).is_empty();
        is_empty && self.refuses && self.backends.is_empty()
    }

    /// Whether new connections of this client are accepted.
    pub fn takes(&self, client: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let has = |(address, len): &(IpAddr, u8)| {
            let differing = bits(*address) ^ bits(client);
            address.is_ipv4() == client.is_ipv4() && differing.leading_zeros() >= u32::from(*len)
        };
        self.ranges.as_ref().is_none_or(|ranges| ranges.iter().any(has))
    }
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServiceChange {
    /// A frontend has got other backends, or none.
    Backends,
    /// A frontend was added or removed.
    Frontend,
    /// An address of backends no longer exists.
    Gone,
    /// It exists again.
    Back,
}

/// The deliberate errors of a table.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lies {
    /// The table lacks every second existing address.
    pub gone: bool,
    /// The table leads outside clients to backends of all nodes.
    pub local: bool,
    /// A load balancer's new connections get only the last backend.
    pub choice: bool,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Services {
    /// All addresses of services.
    pub addresses: Vec<IpAddr>,
    pub frontends: BTreeMap<Asked, PlannedFrontend>,
    /// The addresses of backends that exist.
    existing: BTreeSet<IpAddr>,
    /// The ports of the nodes that belong to Manx, if there are any.
    pub way_out: Option<WayOut>,
}

/// The node to which services assign an address of a backend.
fn node_of(address: IpAddr) -> usize {
    (0..PODS).find(|at| [v4(*at), v6(*at)].contains(&address)).unwrap_or_default() % 2
}

impl Services {
    pub fn new(rng: &mut Rng, has_ports: bool) -> Self {
        let mut addresses: Vec<IpAddr> = ADDRESSES.iter().map(|it| it.parse().unwrap()).collect();
        let balancers = BALANCERS.iter().filter(|_| has_ports);
        addresses.extend(balancers.map(|it| it.parse::<IpAddr>().unwrap()));
        let existing = (0..PODS).flat_map(|at| [v4(at), v6(at)]).collect();
        let way_out = has_ports.then(|| WayOut::new(rng));
        let mut services = Self { addresses, frontends: BTreeMap::new(), existing, way_out };
        for asked in services.possible() {
            if rng.u8(..4) > 0 {
                let frontend = services.frontend(rng, &asked);
                services.frontends.insert(asked, frontend);
            }
        }
        services
    }

    /// All possible frontends.
    fn possible(&self) -> Vec<Asked> {
        let with_frontends =
            self.addresses[..ADDRESSES.len()].iter().enumerate().filter(|(at, _)| at % 3 < 2);
        let of_address = |address: IpAddr, ports: &'static [u16]| {
            let of_upper = move |upper| ports.iter().map(move |port| (address, upper, *port));
            PROTOCOLS.into_iter().flat_map(of_upper)
        };
        let mut possible: Vec<Asked> =
            with_frontends.flat_map(|(_, address)| of_address(*address, &PORTS)).collect();
        for address in &self.addresses[ADDRESSES.len()..] {
            possible.extend(of_address(*address, &PORTS[..1]));
        }
        let of_nodes = (0..2).filter(|_| self.way_out.is_some()).flat_map(ported_addresses);
        possible.extend(of_nodes.flat_map(|address| of_address(address, &NODE_PORTS)));
        possible
    }

    /// The clients that a frontend serves, if it exists.
    pub fn reach(&self, (address, upper, port): &Asked) -> Option<Reach> {
        let node = (0..2).find(|node| ported_addresses(*node).contains(address));
        match node {
            Some(node) => {
                let is_port = self.way_out.is_some() && NODE_PORTS.contains(port);
                (is_port && PROTOCOLS.contains(upper)).then_some(Reach::NodePort(node))
            }
            None if self.addresses.iter().skip(ADDRESSES.len()).any(|it| it == address) => {
                Some(Reach::Balancer)
            }
            None => self.is_address(*address).then_some(Reach::Cluster),
        }
    }

    /// Whether a frontend leads outside clients to backends on any node. At a backend's node,
    /// clients that the other node sends there are called visitors.
    pub fn takes_visitors(&self, asked: &Asked) -> bool {
        let is_outside = !matches!(self.reach(asked), None | Some(Reach::Cluster));
        let is_local = |it: &PlannedFrontend| it.local.is_some();
        is_outside && self.frontends.get(asked).is_some_and(|it| !is_local(it))
    }

    /// Whether any frontend leads visitors to this end.
    pub fn leads_visitors(&self, upper: u8, end: &End) -> bool {
        let leads = |(asked, frontend): (&Asked, &PlannedFrontend)| {
            asked.1 == upper
                && (frontend.backends.contains(end) || frontend.kept.contains(end))
                && self.takes_visitors(asked)
        };
        self.frontends.iter().any(leads)
    }

    fn frontend(&self, rng: &mut Rng, asked: &Asked) -> PlannedFrontend {
        let (address, reach) = (asked.0, self.reach(asked));
        let of_family = self.existing.iter().filter(|it| it.is_ipv4() == address.is_ipv4());
        let of_family: Vec<IpAddr> = of_family.copied().collect();
        let count = [0, 1, 1, 2, 2, 3, 4][rng.usize(..7)];
        let mut backends = BTreeSet::new();
        for _ in 0..count.min(of_family.len()) {
            let port = match reach {
                Some(Reach::Balancer) => self.balanced(asked),
                _ => BEHIND[rng.usize(..BEHIND.len())],
            };
            backends.insert((of_family[rng.usize(..of_family.len())], port));
        }
        let local = match reach {
            Some(Reach::NodePort(node)) if rng.bool() => Some(node),
            _ => None,
        };
        PlannedFrontend {
            backends: backends.into_iter().collect(),
            kept: BTreeSet::new(),
            affinity: (rng.u8(..4) == 0).then(|| rng.u32(5..60)),
            refuses: rng.u8(..4) > 0,
            ranges: (rng.u8(..6) == 0).then(|| {
                let range = |(address, len): (&str, u8)| (address.parse().unwrap(), len);
                (0..rng.usize(1..4)).map(|_| range(RANGES[rng.usize(..RANGES.len())])).collect()
            }),
            local,
        }
    }

    /// The port of the backends of a load balancer's frontend.
    fn balanced(&self, (address, upper, _): &Asked) -> u16 {
        let at = self.addresses.iter().position(|it| it == address).unwrap_or_default();
        let of = PROTOCOLS.iter().position(|it| it == upper).unwrap_or_default();
        BALANCED + (at * PROTOCOLS.len() + of) as u16
    }

    pub fn is_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Whether connections to a frontend keep this backend: UDP, while it is one of the service's
    /// backends, ready or not; other protocols, while its address exists.
    pub fn keeps(&self, asked: &Asked, end: &End) -> bool {
        let has = |it: &PlannedFrontend| it.backends.contains(end) || it.kept.contains(end);
        let is_of_service = || self.frontends.get(asked).is_some_and(has);
        self.exists(end.0) && (asked.1 != UDP || is_of_service())
    }

    /// Whether an address of backends exists.
    fn exists(&self, address: IpAddr) -> bool {
        self.existing.contains(&address)
    }

    /// Makes a random change.
    pub fn change(&mut self, rng: &mut Rng) -> ServiceChange {
        let possible = self.possible();
        let asked = possible[rng.usize(..possible.len())];
        match rng.u8(..8) {
            0..3 => {
                let mut frontend = self.frontend(rng, &asked);
                if let Some(before) = self.frontends.get(&asked).filter(|_| asked.1 == UDP) {
                    let had = before.backends.iter().chain(&before.kept).copied();
                    frontend.kept = had.filter(|_| rng.bool()).collect();
                }
                self.frontends.insert(asked, frontend);
                ServiceChange::Backends
            }
            3 => {
                if self.frontends.remove(&asked).is_none() {
                    let frontend = self.frontend(rng, &asked);
                    self.frontends.insert(asked, frontend);
                }
                ServiceChange::Frontend
            }
            4..6 => {
                let of: Vec<IpAddr> = self.existing.iter().copied().collect();
                if let Some(gone) = of.get(rng.usize(..of.len().max(1))) {
                    self.existing.remove(gone);
                    for frontend in self.frontends.values_mut() {
                        frontend.backends.retain(|(address, _)| address != gone);
                        frontend.kept.retain(|(address, _)| address != gone);
                    }
                }
                ServiceChange::Gone
            }
            _ => {
                let all = (0..PODS).flat_map(|at| [v4(at), v6(at)]);
                let away: Vec<IpAddr> = all.filter(|it| !self.existing.contains(it)).collect();
                if !away.is_empty() {
                    self.existing.insert(away[rng.usize(..away.len())]);
                }
                ServiceChange::Back
            }
        }
    }

    /// Brings a table to this state, except for its deliberate `lies`.
    pub fn write(&self, table: &mut ServiceTable, lies: Lies) {
        for (at, asked) in self.possible().into_iter().enumerate() {
            let (address, protocol, port) = asked;
            let key = FrontendKey { address: address.into(), protocol, port };
            let frontend = self.frontends.get(&asked).map(|planned| {
                let backend =
                    |(address, port): &End| Backend { address: (*address).into(), port: *port };
                let is_known = |(at, _): &(usize, &End)| {
                    let is_last = at + 1 == planned.backends.len();
                    !lies.choice || is_last || self.reach(&asked) != Some(Reach::Balancer)
                };
                let backends = planned.backends.iter().enumerate().filter(is_known);
                let backends = backends.map(|(_, end)| backend(end)).collect();
                let all: BTreeSet<Backend> =
                    planned.backends.iter().chain(&planned.kept).map(backend).collect();
                let takes_visitors = self.takes_visitors(&asked);
                let has_all = protocol == UDP || takes_visitors;
                let range =
                    |(address, len): &(IpAddr, u8)| format!("{address}/{len}").parse().unwrap();
                let clients = planned.ranges.as_ref().map_or(Clients::All, |ranges| {
                    Clients::of(&ranges.iter().map(range).collect::<Vec<_>>())
                });
                let without_backend =
                    if planned.refuses { WithoutBackend::Refuse } else { WithoutBackend::Drop };
                let mut made = Frontend {
                    id: at as u64,
                    backends,
                    all_backends: all.into_iter().filter(|_| has_all).collect(),
                    takes_visitors,
                    affinity: planned.affinity,
                    without_backend,
                    clients,
                    ..Frontend::default()
                };
                if planned.local.is_some() && !lies.local {
                    let backends: Box<[Backend]> =
                        planned.backends_for(true).iter().map(backend).collect();
                    let without_backend = if planned.refuses_without(true) {
                        WithoutBackend::Refuse
                    } else {
                        WithoutBackend::Drop
                    };
                    let outside = Frontend { backends, without_backend, ..made.clone() };
                    made.for_outside = Some(outside.into());
                }
                Arc::new(made)
            });
            table.set_frontend(key, frontend);
        }
        for at in 0..PODS {
            for address in [v4(at), v6(at)] {
                table.set_address(
                    address.into(),
                    self.exists(address) && !(lies.gone && at % 2 == 0),
                );
            }
        }
    }

    /// Replaces the service's address in an answer by a backend's, as if the answer were not
    /// translated back.
    pub fn undo(&self, Frame { bytes, offload }: &mut Frame) {
        let Some(read) = read(bytes) else { return };
        let TransportKey::Ports(port, _) = read.tuple.transport else { return };
        let frontend = self.frontends.get(&(read.tuple.source, read.tuple.upper, port));
        let Some((source, _)) = frontend.and_then(|it| it.backends.first()) else { return };
        let tuple = FlowTuple { source: *source, ..read.tuple };
        // A packet of another form stays unchanged.
        let _ = put_ends(bytes, &read, &tuple, (offload.checksum.is_partial(), false), &[]);
    }

    /// Gives packets to the world the same port of the way out, as if their connections shared it.
    pub fn share_port(&self, Frame { bytes, offload }: &mut Frame) {
        let (Some(read), Some(way_out)) = (read(bytes), &self.way_out) else { return };
        let TransportKey::Ports(from, to) = read.tuple.transport else { return };
        if way_out.has_port(from) {
            let transport = TransportKey::Ports(way_out.egress.0, to);
            let tuple = FlowTuple { transport, ..read.tuple };
            // A packet of another form stays unchanged.
            let _ = put_ends(bytes, &read, &tuple, (offload.checksum.is_partial(), false), &[]);
        }
    }

    /// Whether a packet opens a connection to the world.
    pub fn opens(&self, frame: &Frame) -> bool {
        let (Some(read), Some(way_out)) = (read(&frame.bytes), &self.way_out) else { return false };
        let TransportKey::Ports(from, _) = read.tuple.transport else { return false };
        read.opens() && way_out.has_port(from) && frame.offload.segmentation.is_none()
    }

    /// The frontends, one per line, and the addresses that backends cannot have.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for (asked, frontend) in &self.frontends {
            let _ = writeln!(text, "{asked:?}: {frontend:?}");
        }
        let all = (0..PODS).flat_map(|at| [v4(at), v6(at)]);
        let gone: Vec<IpAddr> = all.filter(|it| !self.exists(*it)).collect();
        if !self.frontends.is_empty() {
            let _ = writeln!(text, "gone: {gone:?}");
            let _ = writeln!(text, "the way out: {:?}", self.way_out);
        }
        text
    }

    /// The manifests of the services. They contain only the addresses.
    pub fn manifests(&self) -> String {
        let mut text = String::new();
        for (at, address) in self.addresses.iter().enumerate() {
            let _ = write!(
                text,
                "---\n{{apiVersion: v1, kind: Service, metadata: {{name: service-{at}, namespace: shop}}, spec: {{clusterIPs: [\"{address}\"], ports: [{{port: 80}}]}}}}\n"
            );
        }
        text
    }
}
