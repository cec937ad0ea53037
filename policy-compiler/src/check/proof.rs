//! Proves, cell by cell, that an image and a judge make the same decisions. An atom is a set of packets that neither
//! side distinguishes. There is a [witness](super::Witnesses) for every atom, so the comparison is a proof and not a
//! sample.
//!
//! The atoms are those of the judge and the image together, so that neither can hide a boundary from the other. A
//! comparison is not repeated: if the judge does not distinguish two ends or two peers, and the image looks them up in
//! the same place, only the first is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::judge::{Expected, Judge};
use super::witness::Witnesses;
use crate::common::{ChainId, Identity};
use crate::image::{Image, LINEAR, Path};
use crate::model::{Decision, Direction, Family, Transport, Verdict};
use crate::resolve::{LocalName, Stage};

/// A successful proof that an image and a judge agree in all cells, as counts of what it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof {
    /// The number of local endpoints.
    pub endpoints: u64,
    /// The number of cells: endpoint × stage × direction × own address × peer × packet.
    pub cells: u64,
    /// The number of comparisons that were made. One comparison may cover many cells.
    pub questions: u64,
    /// The number of peer addresses that were compared: at least one from each group of addresses that are treated in
    /// the same way.
    pub peers: u64,
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
    /// The source for ingress, the destination for egress.
    pub peer: IpAddr,
    /// The rest of the packet.
    pub transport: Transport,
    /// The judge's answer.
    pub expected: Expected,
    /// The image's reason, and the rules that it notes before.
    pub found: Expected,
    /// The image's verdict.
    pub verdict: Verdict,
}

/// The extent of a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// One comparison is made for all peers that neither the judge nor the image distinguishes.
    Distinct,
    /// A comparison is made for every peer of every end.
    Every,
}

/// Compares `image` with any judge. `progress` is called with the number of ends that are done and the total number.
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

/// An endpoint at a stage and in a direction, and the image's chain for it.
struct Side<'a, E> {
    endpoint: &'a LocalName,
    stage: Stage,
    direction: Direction,
    end: E,
    chain: Option<ChainId>,
}

/// The part of a local end's address that the image uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LocalKey {
    Unknown,
    /// None: the rows of the chain already include the local end.
    Known,
    /// The identity, for a chain that is evaluated rule by rule.
    Identity(Identity),
}

/// The place where the image looks up a peer's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PeerKey {
    Nowhere,
    Row(u32),
    /// The class of the peer, for a chain that is evaluated rule by rule.
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

    /// Compares the decisions for one local address of `side` and all peers. Returns the number of cells.
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
        // The path for an endpoint without tables: nothing passes.
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
