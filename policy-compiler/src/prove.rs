//! Proves an image equal to a judge, cell by cell.
//!
//! Policy cannot tell apart two peers with the same pods and the same CIDRs round them, nor two ports between the same
//! boundaries. So the header space falls into finitely many atoms, and a [witness](Witnesses) of each, judged alike by
//! both sides, is a proof and not a sample. Witnesses stand on both sides of every boundary that the *model* draws and of
//! every boundary that the *image* draws, so that neither can hide one from the other.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::image::Image;
use crate::model::{
    Direction, Model, ObjectName, Peer, PortMatch, Protocol, Reason, Rule, Transport, Verdict,
};
use crate::reference::{holders, judge_holders};

/// IP protocols without ports that stand for all of them: hop-by-hop, ICMP, IP in IP, ESP, ICMPv6, reserved.
const OTHER_PROTOCOLS: [u8; 6] = [0, 1, 4, 50, 58, 255];

/// An image and a judge agree in this many cells, which are all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// Endpoint × direction × peer address × transport.
    pub cells: u64,
}

/// What a judge says: some know the reason, others only the verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// What decides; the verdict follows.
    Reason(Reason),
    /// The verdict, for whatever reason.
    Verdict(Verdict),
}

impl Expected {
    fn agrees(&self, found: &Reason, verdict: Verdict) -> bool {
        match self {
            Self::Reason(reason) => reason == found && reason.verdict() == verdict,
            Self::Verdict(expected) => *expected == verdict,
        }
    }
}

impl From<Reason> for Expected {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason)
    }
}

impl From<Verdict> for Expected {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reason(reason) => write!(f, "{:?} ({reason})", reason.verdict()),
            Self::Verdict(verdict) => write!(f, "{verdict:?}"),
        }
    }
}

/// A packet that an image and a judge decide differently.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{endpoint} {direction}, peer {peer}, {transport}: expected {expected}, found {verdict:?} ({found})"
)]
pub struct Counterexample {
    /// The local endpoint.
    pub endpoint: ObjectName,
    /// The direction.
    pub direction: Direction,
    /// The source of ingress, the destination of egress.
    pub peer: IpAddr,
    /// The rest of the packet.
    pub transport: Transport,
    /// The judge's answer.
    pub expected: Expected,
    /// The image's reason.
    pub found: Reason,
    /// The image's verdict.
    pub verdict: Verdict,
}

/// Compares `image` with the linear [reference](mod@crate::reference), reasons and verdicts.
pub fn prove(
    model: &Model,
    local: &BTreeSet<ObjectName>,
    image: &Image,
) -> Result<Proof, Box<Counterexample>> {
    let witnesses = Witnesses::of(model, local, image);
    let holders = holders(model);
    compare(local, image, &witnesses, |endpoint, direction, peer, transport| {
        let pods = holders.get(&peer).map(Vec::as_slice).unwrap_or_default();
        judge_holders(model, endpoint, direction, peer, pods, transport)
    })
}

/// Compares `image` with any judge: a function of endpoint, direction, peer address and transport.
pub fn prove_against<E: Into<Expected>>(
    model: &Model,
    local: &BTreeSet<ObjectName>,
    image: &Image,
    judge: impl Fn(&ObjectName, Direction, IpAddr, Transport) -> E,
) -> Result<Proof, Box<Counterexample>> {
    compare(local, image, &Witnesses::of(model, local, image), judge)
}

/// One witness or more for every atom of peers and of transports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Witnesses {
    /// Peers.
    pub addresses: BTreeSet<IpAddr>,
    /// Protocols and ports.
    pub transports: BTreeSet<Transport>,
}

impl Witnesses {
    /// The witnesses for all that `local` may meet under `model` and `image`.
    ///
    /// Addresses: both ends of every CIDR, exception and pod address, and one off each. Where a prefix has parts with
    /// prefixes of their own, whatever is left of it ends at its own end or one off such a part; so no atom is missed.
    pub fn of(model: &Model, local: &BTreeSet<ObjectName>, image: &Image) -> Self {
        let namespaces: BTreeSet<&str> = local.iter().map(|name| name.namespace.as_str()).collect();
        let policies = namespaces.into_iter().flat_map(|namespace| model.policies_in(namespace));
        let rules: Vec<&Rule> = policies
            .flat_map(|(_, policy)| Direction::ALL.map(|direction| policy.rules(direction)))
            .flatten()
            .flatten()
            .collect();
        let mut addresses = BTreeSet::from([
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V4(Ipv4Addr::BROADCAST),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
        ]);
        let pods = model.endpoints.values().flat_map(|pod| pod.addresses.iter());
        let nets = pods.map(|address| IpNet::from(*address)).chain(blocks(&rules));
        for net in nets.chain(image.prefixes()) {
            for end in [net.network(), net.broadcast()] {
                addresses
                    .extend([Some(end), neighbour(end, -1), neighbour(end, 1)].iter().flatten());
            }
        }
        let mut ports = BTreeSet::from([0, u16::MAX]);
        for bound in port_bounds(model, &rules).into_iter().chain(image.interval_starts().to_vec())
        {
            ports.extend([bound.saturating_sub(1), bound, bound.saturating_add(1)]);
        }
        let mut transports = BTreeSet::new();
        for protocol in Protocol::ALL.map(Protocol::number) {
            let shown = ports.iter().map(|port| Some(*port));
            transports.extend(shown.chain([None]).map(|port| Transport { protocol, port }));
        }
        for protocol in OTHER_PROTOCOLS {
            // A port that means nothing must change nothing.
            transports.extend([None, Some(80)].map(|port| Transport { protocol, port }));
        }
        Self { addresses, transports }
    }
}

fn blocks<'a>(rules: &'a [&Rule]) -> impl Iterator<Item = IpNet> + 'a {
    let peers = rules.iter().flat_map(|rule| rule.peers.iter().flatten());
    peers
        .filter_map(|peer| match peer {
            Peer::Block(block) => Some(std::iter::once(block.cidr()).chain(block.except())),
            Peer::PodsHere(_) | Peer::PodsIn { .. } => None,
        })
        .flatten()
}

/// Every end of a range, and every number that any pod gives to a name that the rules use.
fn port_bounds(model: &Model, rules: &[&Rule]) -> BTreeSet<u16> {
    let mut bounds = BTreeSet::new();
    let mut names = BTreeSet::new();
    for service in rules.iter().flat_map(|rule| rule.services.iter().flatten()) {
        match &service.port {
            PortMatch::All => {}
            PortMatch::Range { first, last } => bounds.extend([*first, *last]),
            PortMatch::Named(name) => {
                names.insert(name.as_str());
            }
        }
    }
    let named = model.endpoints.values().flat_map(|pod| pod.named_ports.iter());
    bounds.extend(named.filter(|port| names.contains(port.name.as_str())).map(|port| port.port));
    bounds
}

fn neighbour(address: IpAddr, by: i8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            address.to_bits().checked_add_signed(by.into()).map(|a| Ipv4Addr::from_bits(a).into())
        }
        IpAddr::V6(address) => {
            address.to_bits().checked_add_signed(by.into()).map(|a| Ipv6Addr::from_bits(a).into())
        }
    }
}

fn compare<E: Into<Expected>>(
    local: &BTreeSet<ObjectName>,
    image: &Image,
    witnesses: &Witnesses,
    judge: impl Fn(&ObjectName, Direction, IpAddr, Transport) -> E,
) -> Result<Proof, Box<Counterexample>> {
    let mut cells = 0;
    for endpoint in local {
        for direction in Direction::ALL {
            // What an endpoint without tables meets: nothing passes.
            let unknown = Reason::Unknown(direction);
            let chain = image.chain(endpoint, direction);
            for peer in &witnesses.addresses {
                let identity = image.identity(*peer);
                for transport in &witnesses.transports {
                    let (found, verdict) = match chain {
                        Some(chain) => {
                            let path = image.path(image.classify(chain, identity, *transport));
                            (&path.reason, path.verdict)
                        }
                        None => (&unknown, Verdict::Deny),
                    };
                    let expected = judge(endpoint, direction, *peer, *transport).into();
                    if !expected.agrees(found, verdict) {
                        return Err(Box::new(Counterexample {
                            endpoint: endpoint.clone(),
                            direction,
                            peer: *peer,
                            transport: *transport,
                            expected,
                            found: found.clone(),
                            verdict,
                        }));
                    }
                    cells += 1;
                }
            }
        }
    }
    Ok(Proof { cells })
}
