//! The compile state: the results of the last compilation, from which the next image is updated.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;

use super::term_index::{TermIndex, member_predicate_set};
use crate::common::Rebuild;
use crate::image::PeerTables;
use crate::model::Mark;
use crate::peers::{
    Addresses, AtomPredicates, Member, MemberKindId, MemberKinds, PodIndex, PredicateKey,
    PredicateSet, Predicates, TermsInUse,
};
use crate::resolve::{LocalName, Predicate, PredicateId, ResolveCache};
use crate::rows::PodPredicateSets;

/// A new image has room for this many more identities, plus an eighth of its own number.
pub(crate) const SPARE_IDENTITIES: usize = 256;

/// The results of the last compilation.
#[derive(Debug)]
pub(crate) struct CompileState {
    pub(crate) serial: u64,
    /// The marks of the model from which it was made.
    pub(crate) marks: [Mark; 8],
    pub(crate) peers: Arc<PeerTables>,
    pub(crate) kinds: MemberKinds,
    /// For each predicate, the number of members that match it. It is read only for port names.
    pub(crate) counts: Vec<u32>,
    pub(crate) atoms: AtomPredicates,
    pub(crate) addresses: Addresses,
    pub(crate) class_of: AHashMap<PredicateSet, u32>,
    /// The key of each predicate.
    pub(crate) predicate_keys: Vec<PredicateKey>,
    /// The resolved policies. Their vocabulary gives the numbers of predicates and port sets in this state.
    pub(crate) cache: ResolveCache,
    /// The terms that rules use for peers.
    pub(crate) in_use: TermsInUse,
    pub(crate) local: BTreeSet<LocalName>,
    /// The predicate sets of the local pods themselves.
    pub(crate) pod_predicate_sets: AHashMap<LocalName, PodPredicateSets>,
    /// The addresses of the local pods. A change at one of them needs a new image, because chains contain the predicate
    /// sets of local pods.
    pub(crate) own_addresses: BTreeSet<IpAddr>,
    /// The kinds at the single addresses that have changed since the last compilation from nothing. They replace the
    /// kinds in `addresses`.
    pub(crate) moved: BTreeMap<IpAddr, Vec<MemberKindId>>,
    /// The addresses whose kinds have changed, but whose identities in the image in use were not updated.
    pub(crate) deferred: BTreeSet<IpAddr>,
    /// The terms that rules use for peers; built at first use.
    pub(crate) peer_terms: Option<TermIndex>,
    /// The terms that rules use for either end; built at first use.
    pub(crate) near_terms: Option<TermIndex>,
    /// With more classes than this, everything is compiled from nothing, because some classes may no longer have an
    /// address.
    pub(crate) most_classes: usize,
    /// The limit for truths in the last compilation from nothing. If the truths of kinds or of classes exceed twice
    /// this limit, everything is compiled from nothing, because some endpoints may have to be left out.
    pub(crate) most_truths: usize,
    pub(crate) pods: PodIndex,
}

impl CompileState {
    /// Replaces the kind of a member at an address. Without `was` the member is added, without `is` it is removed.
    /// Returns `Err` if `was` is not there.
    pub(crate) fn replace_kind(
        &mut self,
        address: IpAddr,
        was: Option<MemberKindId>,
        is: Option<MemberKindId>,
    ) -> Result<(), Rebuild> {
        let addresses = &self.addresses;
        let here = self.moved.entry(address).or_insert_with(|| addresses.kinds_at(address));
        if let Some(was) = was {
            here.swap_remove(here.iter().position(|kind| *kind == was).ok_or(Rebuild)?);
        }
        here.extend(is);
        Ok(())
    }

    /// Updates the counts for a member whose predicates change from `before` to `after`. Returns `Err` if no member
    /// gives some port name its number any longer, because an image that is compiled from nothing would not have that
    /// number.
    pub(crate) fn count(
        &mut self,
        after: &[PredicateId],
        before: Option<&PredicateSet>,
    ) -> Result<(), Rebuild> {
        for it in after {
            self.counts[*it as usize] += 1;
        }
        for it in before.into_iter().flat_map(|set| set.iter()) {
            let count = self.counts[*it as usize].checked_sub(1).ok_or(Rebuild)?;
            let names_port =
                matches!(self.peers.predicates.all[*it as usize], Predicate::NamesPort { .. });
            if names_port && count == 0 {
                return Err(Rebuild);
            }
            self.counts[*it as usize] = count;
        }
        Ok(())
    }

    /// Returns `Err` if the truths of the kinds, or `of_others`, exceed twice the limit.
    pub(crate) fn check_truths(&self, of_others: usize) -> Result<(), Rebuild> {
        let most = self.most_truths.saturating_mul(2);
        if self.kinds.truths.max(of_others) > most { Err(Rebuild) } else { Ok(()) }
    }

    /// The predicate set of an address, and the set that it would have without endpoints. `None` for an unknown
    /// address.
    pub(crate) fn predicate_sets_at(&self, address: IpAddr) -> Option<[PredicateSet; 2]> {
        let moved = self.moved.get(&address).map(Vec::as_slice);
        let occupants = self.addresses.occupants(address.into(), moved);
        if occupants.unknown {
            return None;
        }
        let atom = occupants.atom.map(|atom| self.atoms.predicate_set(atom)).unwrap_or_default();
        Some(self.kinds.predicate_sets(&occupants.kinds, &atom))
    }

    /// The predicate set of a pod of another node. Returns `Err` if the pod gives a name to a port number that the
    /// image does not know.
    pub(crate) fn peer_predicate_set(&mut self, pod: &Member<'_>) -> Result<PredicateSet, Rebuild> {
        let Self { peer_terms, cache, in_use, peers, .. } = self;
        let port_sets = &cache.vocabulary.port_sets;
        let terms = peer_terms
            .get_or_insert_with(|| TermIndex::new(&peers.predicates.all, port_sets, in_use));
        member_predicate_set(terms, &peers.predicates, port_sets, pod)
    }

    /// The predicate set of a member that is a local endpoint or no endpoint, over the predicates that rules use for
    /// either end.
    pub(crate) fn near_predicate_set(
        &mut self,
        member: &Member<'_>,
    ) -> Result<PredicateSet, Rebuild> {
        let Self { near_terms, cache, peers, .. } = self;
        let Predicates { all, possible_ports } = &*peers.predicates;
        let port_sets = &cache.vocabulary.port_sets;
        let terms = near_terms.get_or_insert_with(|| {
            let (predicates, every_port_set) =
                (vec![true; all.len()], vec![true; possible_ports.len()]);
            TermIndex::new(all, port_sets, &TermsInUse { predicates, port_sets: every_port_set })
        });
        member_predicate_set(terms, &peers.predicates, port_sets, member)
    }
}
