//! Proves an image equal to a judge, cell by cell: a [witness](crate::witness) of every atom, judged alike by both sides,
//! is a proof and not a sample.
//!
//! The atoms are those of the judge and of the image together, so that neither can hide a boundary from the other. Each
//! distinct question is asked once: ends and peers that the judge cannot tell apart, and that the image looks up in the same
//! place, are one. [`prove`] compares with the linear [reference](mod@crate::reference), [`prove_by`] with any judge.

mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::image::{ChainId, Identity, Image, LINEAR, Path};
use crate::model::{
    Decision, Direction, Family, Model, Noted, Reason, RuleName, Transport, Verdict,
};
use crate::reference::Reference;
use crate::resolve::{LocalName, Stage};
use crate::witness::{Atoms, Bounds, Witnesses};

/// Judges packets at local endpoints, and tells what it looks at when it does.
///
/// The law, on which a proof rests: ends of one [`Key`](Self::Key) and peers of one [`AddressClass`](Self::AddressClass) are judged alike,
/// and so are all packets between the [bounds](Self::bounds) and all peers between the [atoms](Self::atoms).
pub trait Judge {
    /// An endpoint at a stage and in a direction.
    type LocalEnd;
    /// What it looks at of an end that uses one of its addresses.
    type Key: Ord;
    /// What it looks at of a peer.
    type AddressClass: Ord;

    /// The end; it may be one that the judge does not know.
    fn local_end(&self, endpoint: &LocalName, stage: Stage, direction: Direction)
    -> Self::LocalEnd;
    /// The addresses of the end; `peers` stand for all addresses, where it may be any.
    fn addresses(&self, end: &Self::LocalEnd, peers: &Witnesses) -> BTreeSet<IpAddr>;
    /// Where peers change for these ends.
    fn atoms(&self, ends: &[&Self::LocalEnd]) -> Atoms;
    /// Where packets change for this end.
    fn bounds(&self, end: &Self::LocalEnd) -> Bounds;
    /// What it looks at of the end.
    fn key(&self, end: &Self::LocalEnd, local: IpAddr) -> Self::Key;
    /// What it looks at of a peer that the end meets.
    fn address_class(&self, end: &Self::LocalEnd, peer: IpAddr) -> Self::AddressClass;
    /// What it says of these packets between the two, one answer each.
    fn judge(
        &self,
        end: &Self::LocalEnd,
        local: IpAddr,
        peer: IpAddr,
        transports: &[Transport],
    ) -> Vec<Expected>;
}

/// An image and a judge agree in this many cells, which are all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof {
    /// Local endpoints.
    pub endpoints: u64,
    /// Endpoint × stage × direction × own address × peer × packet.
    pub cells: u64,
    /// The distinct questions among them, which were asked.
    pub questions: u64,
    /// The peers that stand for all addresses.
    pub peers: u64,
}

/// What a judge says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// What decides and everything that is met on the way.
    Decision(Decision),
    /// What decides, what is met on the way of what is enforced, and what staged policies would have done.
    Among {
        /// Any of these: of several policies that deny, none of which can be evaluated, nobody says which. None: tables
        /// have no word for it, and are wrong whatever they say.
        reasons: Vec<Reason>,
        /// In order.
        through: Vec<RuleName>,
        /// In order.
        staged: Vec<Noted>,
    },
}

impl Expected {
    /// The verdict; none if tables have no word for what decides.
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Decision(decision) => Some(decision.reason.verdict()),
            Self::Among { reasons, .. } => reasons.first().map(Reason::verdict),
        }
    }

    /// Whether a path says the same. Chains that are judged rule by rule do not note what they meet.
    fn agrees(&self, path: &Path, linear: bool) -> bool {
        match self {
            Self::Decision(decision) => {
                path.verdict == decision.reason.verdict()
                    && path.decision.reason == decision.reason
                    && (linear || path.decision.noted == decision.noted)
            }
            Self::Among { reasons, through, staged } => {
                let noted = |is_staged: bool| {
                    let all = path.decision.noted.iter();
                    all.filter(move |it| it.policy().kind.staged() == is_staged)
                };
                let met = noted(false).map(Noted::rule).eq(through.iter().map(Some));
                path.verdict == path.decision.reason.verdict()
                    && reasons.contains(&path.decision.reason)
                    && (linear || (met && noted(true).eq(staged)))
            }
        }
    }
}

impl From<Decision> for Expected {
    fn from(decision: Decision) -> Self {
        Self::Decision(decision)
    }
}

impl fmt::Display for Expected {
    /// What decides, and after what.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reasons, through, noted): (&[Reason], &[RuleName], &[Noted]) = match self {
            Self::Decision(Decision { reason, noted }) => {
                (std::slice::from_ref(reason), &[], noted)
            }
            Self::Among { reasons, through, staged } => (reasons, through, staged),
        };
        let reasons: Vec<String> = reasons.iter().map(Reason::to_string).collect();
        f.write_str(&reasons.join(" or "))?;
        through.iter().try_for_each(|rule| write!(f, ", after {rule}"))?;
        noted.iter().try_for_each(|noted| write!(f, ", after {noted}"))
    }
}

/// A packet that an image and a judge decide differently.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{endpoint} {direction}, peer {peer}, {transport}: expected {} ({expected}), found {verdict:?} ({found})",
    .expected.verdict().map_or_else(|| "neither".to_owned(), |verdict| format!("{verdict:?}"))
)]
pub struct Counterexample {
    /// The local endpoint.
    pub endpoint: LocalName,
    /// Its stage.
    pub stage: Stage,
    /// The direction.
    pub direction: Direction,
    /// The endpoint's own address.
    pub local: IpAddr,
    /// The source of ingress, the destination of egress.
    pub peer: IpAddr,
    /// The rest of the packet.
    pub transport: Transport,
    /// The judge's answer.
    pub expected: Expected,
    /// The image's reason and what it notes on the way.
    pub found: Expected,
    /// The image's verdict.
    pub verdict: Verdict,
}

/// How much a proof asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Each question once.
    Distinct,
    /// Every peer of every end.
    Every,
}

/// Compares `image` with the linear reference.
pub fn prove(
    model: &Model,
    local: &BTreeSet<LocalName>,
    image: &Image,
) -> Result<Proof, Box<Counterexample>> {
    prove_by(&Reference::new(model), local, image, Depth::Distinct, |_, _| {})
}

/// Compares `image` with any judge. `progress` is told how many ends are done, of how many.
pub fn prove_by<J: Judge>(
    judge: &J,
    local: &BTreeSet<LocalName>,
    image: &Image,
    depth: Depth,
    mut progress: impl FnMut(usize, usize),
) -> Result<Proof, Box<Counterexample>> {
    let mut sides = Vec::new();
    for endpoint in local {
        let stages: &[Stage] =
            if endpoint.namespace.is_empty() { &Stage::OF_HOST } else { &[Stage::Pod] };
        for stage in stages.iter().copied() {
            for direction in Direction::ALL {
                let end = judge.local_end(endpoint, stage, direction);
                let chain = image.chain_at(endpoint, stage, direction);
                sides.push(Side { endpoint, stage, direction, end, chain });
            }
        }
    }
    let ends: Vec<&J::LocalEnd> = sides.iter().map(|side| &side.end).collect();
    let peers = Witnesses::new(&judge.atoms(&ends), image);
    let walk = Prover { judge, image, depth, peers: &peers };
    let mut proof = Proof {
        endpoints: local.len() as u64,
        peers: peers.iter().count() as u64,
        ..Proof::default()
    };
    let mut proved: BTreeMap<_, u64> = BTreeMap::new();
    for (done, side) in sides.iter().enumerate() {
        progress(done, sides.len());
        for own in judge.addresses(&side.end, &peers) {
            let place =
                (side.chain, side.direction, Family::from_address(own), walk.own(side, own));
            let key = (place, judge.key(&side.end, own));
            let known = proved.get(&key).copied().filter(|_| depth == Depth::Distinct);
            let cells = match known {
                Some(cells) => cells,
                None => walk.prove_address(side, own, &mut proof.questions)?,
            };
            proof.cells += cells;
            proved.insert(key, cells);
        }
    }
    progress(sides.len(), sides.len());
    Ok(proof)
}

/// An endpoint at a stage and in a direction, and the chain by which the image judges it.
struct Side<'a, E> {
    endpoint: &'a LocalName,
    stage: Stage,
    direction: Direction,
    end: E,
    chain: Option<ChainId>,
}

/// What the image looks at of an address of the local end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LocalKey {
    Unknown,
    /// It is not looked at.
    Known,
    /// It takes part rule by rule.
    Identity(Identity),
}

/// Where the image looks a peer's packets up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PeerKey {
    Nowhere,
    Row(u32),
    /// Judged rule by rule, as one of this class.
    Class(usize),
}

struct Prover<'a, J> {
    judge: &'a J,
    image: &'a Image,
    depth: Depth,
    peers: &'a Witnesses,
}

impl<J: Judge> Prover<'_, J> {
    fn own(&self, side: &Side<'_, J::LocalEnd>, address: IpAddr) -> LocalKey {
        let identity = self.image.identity(address);
        if identity == Identity::UNKNOWN {
            LocalKey::Unknown
        } else if side.chain.is_some_and(|chain| self.image.is_linear(chain)) {
            LocalKey::Identity(identity)
        } else {
            LocalKey::Known
        }
    }

    fn place(&self, chain: Option<ChainId>, peer: IpAddr) -> PeerKey {
        let class = self.image.class(self.image.identity(peer));
        let Some((chain, class)) = chain.zip(class) else { return PeerKey::Nowhere };
        match self.image.cell(chain, class) {
            None => PeerKey::Nowhere,
            Some(LINEAR) => PeerKey::Class(class),
            Some(row) => PeerKey::Row(row),
        }
    }

    /// One address of one side against all peers; returns how many cells that are.
    fn prove_address(
        &self,
        side: &Side<'_, J::LocalEnd>,
        own: IpAddr,
        questions: &mut u64,
    ) -> Result<u64, Box<Counterexample>> {
        let family = Family::from_address(own);
        let bounds = self.judge.bounds(&side.end);
        let mut transports: BTreeMap<PeerKey, Vec<Transport>> = BTreeMap::new();
        let mut asked: BTreeSet<(PeerKey, J::AddressClass)> = BTreeSet::new();
        let mut cells = 0;
        for peer in self.peers.iter().filter(|peer| Family::from_address(*peer) == family) {
            let place = self.place(side.chain, peer);
            let transports = transports
                .entry(place)
                .or_insert_with(|| bounds.transports(self.image, side.chain, peer));
            cells += transports.len() as u64;
            if self.depth == Depth::Every
                || asked.insert((place, self.judge.address_class(&side.end, peer)))
            {
                *questions += transports.len() as u64;
                self.compare(side, own, peer, transports)?;
            }
        }
        Ok(cells)
    }

    fn compare(
        &self,
        side: &Side<'_, J::LocalEnd>,
        own: IpAddr,
        peer: IpAddr,
        transports: &[Transport],
    ) -> Result<(), Box<Counterexample>> {
        let image = self.image;
        let (local, other) = (image.identity(own), image.identity(peer));
        // What an endpoint without tables meets: nothing passes.
        let unknown = Path::unknown(side.direction);
        let linear = side.chain.is_some_and(|chain| image.is_linear(chain));
        let answers = self.judge.judge(&side.end, own, peer, transports);
        for (transport, expected) in transports.iter().zip(answers) {
            let path = side.chain.map_or(&unknown, |chain| {
                image.path(image.classify(chain, local, other, *transport))
            });
            if !expected.agrees(path, linear) {
                return Err(Box::new(Counterexample {
                    endpoint: side.endpoint.clone(),
                    stage: side.stage,
                    direction: side.direction,
                    local: own,
                    peer,
                    transport: *transport,
                    expected,
                    found: Expected::Decision(Decision {
                        reason: path.decision.reason.clone(),
                        noted: path.decision.noted.clone(),
                    }),
                    verdict: path.verdict,
                }));
            }
        }
        Ok(())
    }
}
