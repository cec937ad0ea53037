//! Proves an image equal to a judge, cell by cell: a [witness](crate::witness) of every atom, judged alike by both sides,
//! is a proof and not a sample.
//!
//! [`prove`] compares with the linear [reference](mod@crate::reference), reasons and verdicts, and asks each distinct
//! question once: peers that no term of an endpoint's rules tells apart, and that the image leads to the same row, are one.
//! [`prove_against`] compares with any judge and leaves nothing out, if it is asked to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::image::{Image, Path};
use crate::model::{Decision, Direction, Family, Model, Policy, Reason, Transport, Verdict};
use crate::reference::{Packet, Policies, Reference, Signature};
use crate::resolve::{LocalName, Stage};
use crate::witness::{Bounds, Peers};

/// An image and a judge agree in this many cells, which are all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// Endpoint × direction × peer × transport.
    pub cells: u64,
    /// The peers that stand for all addresses.
    pub peers: u64,
}

/// What a judge says: some know all, some the reason, others only the verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// What decides and what is met on the way.
    Decision(Decision),
    /// The verdict, for whatever reason.
    Verdict(Verdict),
}

impl Expected {
    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Decision(decision) => decision.reason.verdict(),
            Self::Verdict(verdict) => *verdict,
        }
    }
}

impl From<Decision> for Expected {
    fn from(decision: Decision) -> Self {
        Self::Decision(decision)
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
            Self::Decision(decision) => {
                write!(f, "{:?} ({})", decision.reason.verdict(), decision.reason)?;
                let noted = decision.noted.iter();
                noted.into_iter().try_for_each(|noted| write!(f, ", after {}", noted.rule))
            }
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
    pub endpoint: LocalName,
    /// Its stage.
    pub stage: Stage,
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

/// A packet at an endpoint.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    /// The local endpoint.
    pub endpoint: &'a LocalName,
    /// The stage.
    pub stage: Stage,
    /// The direction.
    pub direction: Direction,
    /// The packet.
    pub packet: Packet,
}

/// How much a proof asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Each question once: peers that no term of the rules tells apart, by the reference, are one.
    Distinct,
    /// Every peer of every endpoint.
    Every,
}

/// Compares `image` with the linear reference.
pub fn prove(
    model: &Model,
    local: &BTreeSet<LocalName>,
    image: &Image,
) -> Result<Proof, Box<Counterexample>> {
    let reference = Reference::new(model);
    let walk = Walk { model, reference: &reference, image, depth: Depth::Distinct };
    walk.over(local, |policies, at| match policies {
        Some(policies) => {
            let At { endpoint, stage, direction, packet } = at;
            reference.judge_by(policies, endpoint, stage, direction, &packet).into()
        }
        None => Decision::from(Reason::Unknown(at.direction)).into(),
    })
}

/// Compares `image` with any judge of a packet at an endpoint.
pub fn prove_against<E: Into<Expected>>(
    model: &Model,
    local: &BTreeSet<LocalName>,
    image: &Image,
    depth: Depth,
    judge: impl Fn(At<'_>) -> E,
) -> Result<Proof, Box<Counterexample>> {
    let reference = Reference::new(model);
    let walk = Walk { model, reference: &reference, image, depth };
    walk.over(local, |_, at| judge(at).into())
}

struct Walk<'a, 'm> {
    model: &'m Model,
    reference: &'a Reference<'m>,
    image: &'a Image,
    depth: Depth,
}

impl<'m> Walk<'_, 'm> {
    fn over(
        &self,
        local: &BTreeSet<LocalName>,
        judge: impl Fn(Option<&Policies<'m>>, At<'_>) -> Expected,
    ) -> Result<Proof, Box<Counterexample>> {
        let mut sides = Vec::new();
        let mut in_use: BTreeMap<_, &Policy> = BTreeMap::new();
        for endpoint in local {
            let stages: &[Stage] =
                if endpoint.namespace.is_empty() { &Stage::OF_HOST } else { &[Stage::Pod] };
            for stage in stages {
                for direction in Direction::ALL {
                    let policies = self.reference.policies(endpoint, *stage, direction);
                    in_use.extend(policies.iter().flatten().copied());
                    sides.push((endpoint, *stage, direction, policies));
                }
            }
        }
        let all: Vec<&Policy> = in_use.into_values().collect();
        let peers = Peers::of(self.model, self.image, &all);
        let mut proof = Proof { cells: 0, peers: peers.iter().count() as u64 };
        for (endpoint, stage, direction, policies) in &sides {
            let side = Side { endpoint, stage: *stage, direction: *direction };
            proof.cells += self.side(side, policies.as_ref(), &peers, &judge)?;
        }
        Ok(proof)
    }

    fn side(
        &self,
        side: Side<'_>,
        policies: Option<&Policies<'m>>,
        peers: &Peers,
        judge: &impl Fn(Option<&Policies<'m>>, At<'_>) -> Expected,
    ) -> Result<u64, Box<Counterexample>> {
        let Side { endpoint, stage, direction } = side;
        let chain = self.image.chain_at(endpoint, stage, direction);
        let of_policies: Vec<&Policy> =
            policies.into_iter().flatten().map(|(_, policy)| *policy).collect();
        let bounds = Bounds::of(self.model, &of_policies);
        let mut asked: BTreeSet<(Family, Option<u32>, Option<Signature>)> = BTreeSet::new();
        let mut cells = 0;
        for peer in peers.iter() {
            let family = Family::of(peer);
            if self.depth == Depth::Distinct {
                let class = self.image.class(self.image.identity(peer));
                let row = chain.zip(class).and_then(|(chain, class)| self.image.cell(chain, class));
                let signature = policies
                    .map(|it| self.reference.signature(it, endpoint, stage, direction, peer));
                if !asked.insert((family, row, signature)) {
                    continue;
                }
            }
            let transports = bounds.transports(self.image, chain, peer);
            for local in self.own_addresses(endpoint, family) {
                let own = self.image.identity(local);
                let identity = self.image.identity(peer);
                for transport in &transports {
                    let packet = Packet { local, peer, transport: *transport };
                    let at = At { endpoint, stage, direction, packet };
                    let expected = judge(policies, at);
                    // What an endpoint without tables meets: nothing passes.
                    let unknown = Path::unknown(direction);
                    let path = chain.map_or(&unknown, |chain| {
                        self.image.path(self.image.classify(chain, own, identity, *transport))
                    });
                    let linear = chain.is_some_and(|chain| self.image.is_linear(chain));
                    let agrees = path.verdict == expected.verdict()
                        && match &expected {
                            Expected::Decision(decision) => {
                                path.reason == decision.reason
                                    && (linear || path.noted == decision.noted)
                            }
                            Expected::Verdict(_) => true,
                        };
                    if !agrees {
                        return Err(Box::new(Counterexample {
                            endpoint: endpoint.clone(),
                            stage,
                            direction,
                            peer,
                            transport: *transport,
                            expected,
                            found: path.reason.clone(),
                            verdict: path.verdict,
                        }));
                    }
                    cells += 1;
                }
            }
        }
        Ok(cells)
    }

    /// The local end's addresses of a family; without one it has no packets of the family.
    fn own_addresses(&self, endpoint: &LocalName, family: Family) -> Vec<IpAddr> {
        let pod = self.model.endpoints.get(endpoint).map(|pod| &pod.addresses);
        let host = self.model.host_endpoints.get(&endpoint.name).map(|host| &host.addresses);
        let addresses = pod.or(host).into_iter().flatten().copied();
        addresses.filter(|address| Family::of(*address) == family).collect()
    }
}

#[derive(Clone, Copy)]
struct Side<'a> {
    endpoint: &'a LocalName,
    stage: Stage,
    direction: Direction,
}
