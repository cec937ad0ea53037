//! The basis: what the last image rests on, and what the next one takes over from it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ahash::AHashMap;

use super::term_index::TermIndex;
use crate::image::PeerTables;
use crate::model::Mark;
use crate::peers::{
    Addresses, AtomPredicates, KindId, Kinds, PodIndex, PredicateKey, PredicateSet, TermsInUse,
};
use crate::resolve::{LocalName, ResolveCache};
use crate::rows::PodPredicateSets;

/// An image has room for this many identities to come, and an eighth of those that it has.
pub(crate) const SPARE_IDENTITIES: usize = 256;

/// What the last image rests on.
#[derive(Debug)]
pub(crate) struct Basis {
    pub(crate) serial: u64,
    /// What it was made of, or brought up to.
    pub(crate) marks: [Mark; 8],
    pub(crate) peers: Arc<PeerTables>,
    pub(crate) kinds: Kinds,
    /// By predicate of how many pods and hosts it is true; of port names it is read.
    pub(crate) counts: Vec<u32>,
    pub(crate) atoms: AtomPredicates,
    pub(crate) addresses: Addresses,
    pub(crate) class_of: AHashMap<PredicateSet, u32>,
    /// By predicate what it says.
    pub(crate) predicate_keys: Vec<PredicateKey>,
    /// What policies say, in the numbers of all the rest.
    pub(crate) cache: ResolveCache,
    /// What was asked of those who are not local endpoints.
    pub(crate) in_use: TermsInUse,
    pub(crate) local: BTreeSet<LocalName>,
    /// What is true of the local pods themselves.
    pub(crate) pod_predicate_sets: AHashMap<LocalName, PodPredicateSets>,
    /// The local pods' addresses: what is true there of the local end is part of its chains.
    pub(crate) own_addresses: BTreeSet<IpAddr>,
    /// The kinds at addresses that have changed since, in the place of those in `addresses`.
    pub(crate) moved: BTreeMap<Ipv4Addr, Vec<KindId>>,
    /// What is asked of peers; made when first needed, as the next.
    pub(crate) peer_terms: Option<TermIndex>,
    /// All that is asked of anybody.
    pub(crate) near_terms: Option<TermIndex>,
    /// With more classes than these all is made anew: some may be nobody's any more.
    pub(crate) most_classes: usize,
    pub(crate) pods: PodIndex,
}
