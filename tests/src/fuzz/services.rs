//! The services of a world that translates: which frontends there are, with which backends, and how they change. The
//! oracle reads this; the nodes get a table made of it.

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
use crate::packet::{SCTP, TCP, UDP};

/// An address and a port.
pub type End = (IpAddr, u16);
/// What a client asks for: an address, a protocol, and a port.
pub type Asked = (IpAddr, u8, u16);

/// The addresses of services. The last one of each family has no frontends.
const ADDRESSES: [&str; 6] =
    ["10.96.0.1", "10.96.0.2", "10.96.0.9", "fd96::1", "fd96::2", "fd96::9"];
/// The ports that frontends have.
const PORTS: [u16; 3] = [80, 443, 53];
/// The ports that backends have. Policies name most of them.
const BEHIND: [u16; 6] = [80, 81, 443, 8000, 8080, 53];
/// The ranges of clients that frontends may have: of pods, of nodes, and of all.
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
    /// For UDP: the ends that were backends before, and keep their clients without getting new ones.
    pub kept: BTreeSet<End>,
    /// The seconds for which a client keeps its backend.
    pub affinity: Option<u32>,
    /// Whether clients are told that there is no backend.
    pub refuses: bool,
    /// The ranges of clients whose new connections are taken: an address and a number of bits. `None`: all.
    pub ranges: Option<Vec<(IpAddr, u8)>>,
}

impl PlannedFrontend {
    /// Whether new connections of this client are taken.
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
    /// A frontend has come or gone.
    Frontend,
    /// An address of backends exists no more.
    Gone,
    /// It exists again.
    Back,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Services {
    /// All addresses of services.
    pub addresses: Vec<IpAddr>,
    pub frontends: BTreeMap<Asked, PlannedFrontend>,
    /// The addresses that backends may have.
    existing: BTreeSet<IpAddr>,
}

impl Services {
    pub fn new(rng: &mut Rng) -> Self {
        let addresses: Vec<IpAddr> = ADDRESSES.iter().map(|it| it.parse().unwrap()).collect();
        let existing = (0..PODS).flat_map(|at| [v4(at), v6(at)]).collect();
        let mut services = Self { addresses, frontends: BTreeMap::new(), existing };
        for asked in services.possible() {
            if rng.u8(..4) > 0 {
                let frontend = services.frontend(rng, asked.0);
                services.frontends.insert(asked, frontend);
            }
        }
        services
    }

    /// All frontends that there may be.
    fn possible(&self) -> Vec<Asked> {
        let with_frontends = self.addresses.iter().enumerate().filter(|(at, _)| at % 3 < 2);
        let of_address = |address: IpAddr| {
            PROTOCOLS.into_iter().flat_map(move |upper| PORTS.map(|port| (address, upper, port)))
        };
        with_frontends.flat_map(|(_, address)| of_address(*address)).collect()
    }

    fn frontend(&self, rng: &mut Rng, address: IpAddr) -> PlannedFrontend {
        let of_family = self.existing.iter().filter(|it| it.is_ipv4() == address.is_ipv4());
        let of_family: Vec<IpAddr> = of_family.copied().collect();
        let count = [0, 1, 1, 2, 2, 3, 4][rng.usize(..7)];
        let mut backends = BTreeSet::new();
        for _ in 0..count.min(of_family.len()) {
            backends.insert((
                of_family[rng.usize(..of_family.len())],
                BEHIND[rng.usize(..BEHIND.len())],
            ));
        }
        PlannedFrontend {
            backends: backends.into_iter().collect(),
            kept: BTreeSet::new(),
            affinity: (rng.u8(..4) == 0).then(|| rng.u32(5..60)),
            refuses: rng.u8(..4) > 0,
            ranges: (rng.u8(..6) == 0).then(|| {
                let range = |(address, len): (&str, u8)| (address.parse().unwrap(), len);
                (0..rng.usize(1..4)).map(|_| range(RANGES[rng.usize(..RANGES.len())])).collect()
            }),
        }
    }

    pub fn is_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Whether connections to a frontend keep this backend: those of UDP while it is one of the service's, ready or not,
    /// others while its address exists.
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
                let mut frontend = self.frontend(rng, asked.0);
                if let Some(before) = self.frontends.get(&asked).filter(|_| asked.1 == UDP) {
                    let had = before.backends.iter().chain(&before.kept).copied();
                    frontend.kept = had.filter(|_| rng.bool()).collect();
                }
                self.frontends.insert(asked, frontend);
                ServiceChange::Backends
            }
            3 => {
                if self.frontends.remove(&asked).is_none() {
                    let frontend = self.frontend(rng, asked.0);
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

    /// Brings a table to this state. If it `lies`, it does not know every second address that exists.
    pub fn write(&self, table: &mut ServiceTable, lies: bool) {
        for (at, asked) in self.possible().into_iter().enumerate() {
            let (address, protocol, port) = asked;
            let key = FrontendKey { address: address.into(), protocol, port };
            let frontend = self.frontends.get(&asked).map(|planned| {
                let backend =
                    |(address, port): &End| Backend { address: (*address).into(), port: *port };
                let backends = planned.backends.iter().map(backend).collect();
                let all: BTreeSet<Backend> =
                    planned.backends.iter().chain(&planned.kept).map(backend).collect();
                let is_udp = protocol == UDP;
                let range =
                    |(address, len): &(IpAddr, u8)| format!("{address}/{len}").parse().unwrap();
                let clients = planned.ranges.as_ref().map_or(Clients::All, |ranges| {
                    Clients::of(&ranges.iter().map(range).collect::<Vec<_>>())
                });
                let without_backend =
                    if planned.refuses { WithoutBackend::Refuse } else { WithoutBackend::Drop };
                Arc::new(Frontend {
                    id: at as u64,
                    backends,
                    all_backends: all.into_iter().filter(|_| is_udp).collect(),
                    affinity: planned.affinity,
                    without_backend,
                    clients,
                    ..Frontend::default()
                })
            });
            table.set_frontend(key, frontend);
        }
        for at in 0..PODS {
            for address in [v4(at), v6(at)] {
                table.set_address(address.into(), self.exists(address) && !(lies && at % 2 == 0));
            }
        }
    }

    /// Takes the service's address from an answer, as if it were not translated back: it comes from a backend.
    pub fn undo(&self, Frame { bytes, offload }: &mut Frame) {
        let Some(read) = read(bytes) else { return };
        let TransportKey::Ports(port, _) = read.tuple.transport else { return };
        let frontend = self.frontends.get(&(read.tuple.source, read.tuple.upper, port));
        let Some((source, _)) = frontend.and_then(|it| it.backends.first()) else { return };
        let tuple = FlowTuple { source: *source, ..read.tuple };
        // A packet that has another form stays as it is.
        let _ = put_ends(bytes, &read, &tuple, (offload.checksum.is_partial(), false), &[]);
    }

    /// The frontends, a line for each, and the addresses that backends cannot have.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for (asked, frontend) in &self.frontends {
            let _ = writeln!(text, "{asked:?}: {frontend:?}");
        }
        let all = (0..PODS).flat_map(|at| [v4(at), v6(at)]);
        let gone: Vec<IpAddr> = all.filter(|it| !self.exists(*it)).collect();
        if !self.frontends.is_empty() {
            let _ = writeln!(text, "gone: {gone:?}");
        }
        text
    }

    /// The manifests of the services. They name the addresses only.
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
