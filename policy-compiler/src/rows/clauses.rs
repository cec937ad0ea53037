//! The clauses of a chain: the alternatives of its rules, with an index by the predicates that a clause requires of the
//! peer or excludes.

use ahash::AHashMap;

use super::match_set::{Alternative, CompactMatch, MatchSets, PeerAlternative, alternatives};
use super::painter::parts;
use super::plan::PlannedChain;
use super::work::Work;
use crate::common::Grouped;
use crate::model::Family;
use crate::peers::{AddressFacts, Predicates};
use crate::resolve::{PredicateId, ResolvedList};

/// One alternative of a step.
pub(super) struct Clause<'a> {
    pub(super) step: u32,
    matches: ClauseMatch<'a>,
    /// The index of its group in [`Clauses::groups`]: the clauses that test the same parts of a row.
    pub(super) group: u32,
}

enum ClauseMatch<'a> {
    /// One match set for every peer.
    Fixed(CompactMatch),
    /// The match set depends on the peer's ports.
    PerPeer(PeerAlternative<'a>),
}

/// The clauses of a chain for the peers of one family. Each predicate has a *rank*: its position in the order in which
/// the walk enters predicates.
pub(super) struct Clauses<'a> {
    pub(super) all: Vec<Clause<'a>>,
    /// For each rank, the clauses that require the predicate. `excluding` holds the clauses that exclude it.
    pub(super) wanting: Grouped,
    pub(super) excluding: Grouped,
    /// For each rank, whether the predicate belongs to a port set, so that it determines ports of a peer.
    pub(super) of_ports: Vec<bool>,
    /// Whether any clause tests the peer's ports.
    pub(super) looks_at_ports: bool,
    /// For each group of clauses, the parts of a row that its clauses test: see [`parts`].
    pub(super) groups: Vec<u16>,
}

impl<'a> Clauses<'a> {
    /// Finds the clauses for the peers of a family. `ranked` are the predicates in order of rank. Returns `None` if
    /// this takes more work than is left.
    pub(super) fn new(
        chain: &PlannedChain<'a>,
        family: Family,
        ranked: &[PredicateId],
        predicates: &Predicates,
        match_sets: &mut MatchSets,
        work: &mut Work,
    ) -> Option<Self> {
        let ports = &predicates.possible_ports;
        let local = &chain.local[family as usize];
        let local = AddressFacts { predicates: local, family, possible_ports: ports };
        let mut draft = Draft { ranks: AHashMap::with_capacity(ranked.len()), ..Draft::default() };
        draft.ranks.extend(ranked.iter().copied().zip(0u32..));
        let list: &'a ResolvedList = chain.list;
        for (step, at) in list.steps.steps.iter().zip(0..) {
            if !step.rule.families[family as usize] {
                continue;
            }
            let mut found = Vec::new();
            alternatives(&step.rule, list.list.direction, &local, match_sets, |way| {
                found.push(way);
            });
            for way in found {
                draft.add_alternative(at, way, match_sets, work)?;
            }
        }
        let Draft { ranks, all, wanting, excluding, looks_at_ports, groups } = draft;
        let sets = list.peer.port_sets.iter().filter_map(|set| ports.get(*set as usize));
        let mut of_ports = vec![false; ranked.len()];
        for (_, _, predicate) in sets.flat_map(|ports| ports.iter()) {
            if let Some(rank) = ranks.get(predicate) {
                of_ports[*rank as usize] = true;
            }
        }
        Some(Self {
            all,
            wanting: Grouped::from_pairs(ranked.len(), wanting.iter().copied()),
            excluding: Grouped::from_pairs(ranked.len(), excluding.iter().copied()),
            of_ports,
            looks_at_ports,
            groups,
        })
    }
}

/// The clauses so far, and the predicates that they require or exclude.
#[derive(Default)]
struct Draft<'a> {
    /// The rank of each predicate that is true of the peers of some row.
    ranks: AHashMap<PredicateId, u32>,
    all: Vec<Clause<'a>>,
    /// The ranks of predicates, each with the number of a clause that requires it.
    wanting: Vec<(u32, u32)>,
    /// The ranks of predicates, each with the number of a clause that excludes it.
    excluding: Vec<(u32, u32)>,
    looks_at_ports: bool,
    groups: Vec<u16>,
}

impl<'a> Draft<'a> {
    /// Adds the clause of one alternative of a step, unless no peer can match it. Returns `None` if this takes more
    /// work than is left.
    fn add_alternative(
        &mut self,
        step: u32,
        way: Alternative<'a>,
        match_sets: &MatchSets,
        work: &mut Work,
    ) -> Option<()> {
        let number = self.all.len() as u32;
        let entity = match &way {
            Alternative::Fixed(..) => None,
            Alternative::Where(entity, _) => Some(*entity),
            Alternative::PerPeer(way) => Some(way.peer),
        };
        // A predicate without a rank is true of no peer here. So a clause that requires it never matches, and excluding
        // it makes no difference.
        let rank = |predicate: &PredicateId| self.ranks.get(predicate).copied();
        let wanted = match (&way, entity) {
            (Alternative::Fixed(wanted, _), _) => wanted.as_slice(),
            (_, Some(entity)) => &*entity.wanted,
            (_, None) => &[],
        };
        let Some(wanted) = wanted.iter().map(rank).collect::<Option<Vec<u32>>>() else {
            return Some(());
        };
        self.wanting.extend(wanted.into_iter().map(|rank| (rank, number)));
        let unwanted = entity.map_or(&[][..], |entity| &entity.unwanted);
        self.excluding.extend(unwanted.iter().filter_map(|it| Some((rank(it)?, number))));
        work.spend(1 + unwanted.len())?;
        let (matches, looks_at) = match way {
            Alternative::Fixed(_, claim) | Alternative::Where(_, claim) => {
                (ClauseMatch::Fixed(claim), parts(claim, match_sets))
            }
            Alternative::PerPeer(way) => {
                self.looks_at_ports = true;
                (ClauseMatch::PerPeer(way), u16::MAX)
            }
        };
        let group = self.groups.iter().position(|group| *group == looks_at);
        let group = group.unwrap_or_else(|| {
            self.groups.push(looks_at);
            self.groups.len() - 1
        });
        self.all.push(Clause { step, matches, group: group as u32 });
        Some(())
    }
}

impl Clause<'_> {
    /// The cost of testing the clause at a peer, in units of [`Work`].
    pub(super) fn steps(&self) -> usize {
        match &self.matches {
            ClauseMatch::Fixed(_) => 1,
            ClauseMatch::PerPeer(way) => 1 + way.ports(),
        }
    }

    /// The packets that the clause matches at a peer. `None` if there are none. The caller has checked the predicates
    /// that the clause requires or excludes.
    pub(super) fn claim(
        &self,
        peer: &AddressFacts<'_>,
        match_sets: &mut MatchSets,
    ) -> Option<CompactMatch> {
        match &self.matches {
            ClauseMatch::Fixed(claim) => Some(*claim),
            ClauseMatch::PerPeer(way) => way.match_peer(peer, match_sets),
        }
    }
}
