//! The compiler, which builds an image from a model and the local endpoints.
//!
//! A compiler lives as long as the dataplane that it serves. It keeps the numbers of identities and the counter slots
//! of decisions the same from image to image.
//!
//! **Cost**, with *E* members of the cluster, *S* distinct selectors and *P* predicates: addresses cost O(E log E), and
//! there are at worst O(S·P) selector matches. A selector is matched only with members that have the namespace or label
//! that it requires. A chain has one row for each set of classes that its own predicates do not distinguish. Policies
//! are looked up by namespace and by a label that they require, so no lookup reads all policies. The number of tests of
//! rules for the rows of one chain is bounded, where each alternative of a rule counts as a rule. The bound is four
//! million, plus 16 for each rule, for each predicate that a rule has for peers, and for each predicate of a row. All
//! chains of a node together may take four times the bound of the largest chain. [`Compiler::looks`] is the number of
//! tests so far.
//!
//! The compiler also counts how often a predicate is true of a member or of an address, and counts the rules of
//! policies that have a namespace. Both counts are bounded. If the policies of a node exceed one of the bounds, some
//! namespaces get no tables for their local endpoints ([`Compiler::left_out`]).
//!
//! **Memory and time.** A chain whose rows exceed the budget of bytes or of tests is evaluated rule by rule, which is
//! slower but gives the same verdicts. [`Counts::linear`](crate::image::Counts) is the number of such chains. The most
//! expensive chains come last. Each of them may take half of the remaining budget of bytes. So they take nothing from
//! the other chains.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::{Arc, OnceLock};

use ahash::AHashMap;

use super::address_delta::AddressDelta;
use super::closed_namespaces::{ClosedNamespaces, SHARE};
use super::pod_change::PodChange;
use super::state::{CompileState, SPARE_IDENTITIES};
use crate::common::{LARGE_CLUSTER, Rebuild, join, join_with};
use crate::image::{Chain, ChangeCounters, Image, Path, PeerTables};
use crate::model::{Direction, Model};
use crate::peers::{
    Addresses, AtomPredicates, ClassMap, Classes, Classifier, IdentityInterner, MemberKinds,
    MemberPredicates, Members, NO_CLASS, PodIndex, PredicateSet, Predicates, SetPrefixes,
    TermsInUse, TooMany, Truths, evaluate, most_truths,
};
use crate::prefix_map::PrefixMap;
use crate::resolve::{LocalName, PolicyOrder, ResolveCache, Resolved, resolve};
use crate::rows::{Cells, Chains, ClassColumns, LocalPods, NewChain, RowBuilder, RowTables};

/// The default for the number of bytes of rows and cells that an image may hold.
pub const DEFAULT_BUDGET: usize = 64 << 20;

/// Builds images. Identities and counter slots keep their meaning from one image to the next.
#[derive(Debug)]
pub struct Compiler {
    interner: IdentityInterner,
    pub(crate) tables: RowTables,
    /// The number of identities in use after the last compilation from nothing.
    used: u32,
    budget: usize,
    /// The number of images that were built so far.
    serial: u64,
    state: Option<CompileState>,
    order: PolicyOrder,
    pub(crate) closed_namespaces: ClosedNamespaces,
}

/// When the number of classes has grown to twice the original number plus this, everything is compiled from nothing.
const SPARE_CLASSES: usize = 1024;

impl Default for Compiler {
    fn default() -> Self {
        Self::new()
    }
}

impl Compiler {
    /// Creates a compiler without a last image.
    pub fn new() -> Self {
        Self::with_budget(DEFAULT_BUDGET)
    }

    /// Creates a compiler whose images hold at most about this many bytes of rows and cells.
    pub fn with_budget(budget: usize) -> Self {
        Self {
            interner: IdentityInterner::default(),
            tables: RowTables::default(),
            used: 0,
            budget,
            serial: 0,
            state: None,
            order: PolicyOrder::default(),
            closed_namespaces: ClosedNamespaces::default(),
        }
    }

    /// Forgets the decisions that have these slots, and frees the slots for other decisions. The caller ensures that no
    /// image with these slots is in use, and that no thread increments their counters any longer.
    pub fn release(&mut self, slots: &BTreeSet<u32>) {
        self.tables.release(slots);
    }

    /// Stores a pod's change in `image` in place, while other threads look up addresses. `image` is the last image.
    /// `model` is the model from which `image` was compiled, with this change and all earlier ones applied. A change
    /// can be stored if the pod is on another node and has only IPv4 addresses, and if its predicate set already has a
    /// class in this image. Returns `false` if a new image is needed. Until that image exists, the change may be
    /// visible at only some of the pod's addresses, and further changes are not stored.
    #[must_use]
    pub fn update(&mut self, image: &Image, model: &Model, change: PodChange<'_>) -> bool {
        if self.closed_namespaces.left_out.contains(change.name) {
            self.state = None;
        }
        let Some(state) = &mut self.state else { return false };
        let done = state.update(&mut self.interner, image, model, change);
        if done.is_err() {
            self.state = None;
        }
        done.unwrap_or(false)
    }

    /// Records a pod's change for the next image, and does not change the image in use. Use this if an earlier change
    /// already needs a new image. `model` is the same as in [`update`](Self::update).
    pub fn defer(&mut self, model: &Model, change: PodChange<'_>) {
        if self.closed_namespaces.left_out.contains(change.name) {
            self.state = None;
        }
        let Some(state) = &mut self.state else { return };
        if state.defer(model, change).is_err() {
            self.state = None;
        }
    }

    /// The local endpoints that the last image leaves out, because the policies of their namespaces have too many
    /// truths or rules. Nothing passes for these endpoints.
    pub fn left_out(&self) -> &BTreeSet<LocalName> {
        &self.closed_namespaces.left_out
    }

    /// The work for all rows so far, as the number of tests of rules and of their predicates. This part of the work
    /// grows fastest with the size of the policies.
    pub fn looks(&self) -> u64 {
        self.tables.builder.looks
    }

    /// Builds the tables of the `local` endpoints: pods and, without a namespace, host endpoints. A name that is not in
    /// the model gets no tables.
    ///
    /// The address tables of the last image are reused if none of their inputs has [changed](crate::model::Tracked).
    /// They can be reused if only the following has changed since that image. Policies, tiers, failsafe ports and
    /// network sets may have changed in any way. Pods may have changed only by [`update`](Self::update) and
    /// [`defer`](Self::defer). Local endpoints may have been added or removed only if they are pods. Only selectors and
    /// CIDRs may have come into use as predicates.
    pub fn compile(&mut self, model: &Model, local: &BTreeSet<LocalName>) -> Image {
        let admitted = self.closed_namespaces.admitted(model, local);
        let draft = match self.compile_delta(model, &admitted) {
            Ok(draft) => draft,
            Err(Rebuild) => self.compile_anew(model, local),
        };
        self.image(draft)
    }

    /// Updates the compile state to a model.
    fn compile_delta(
        &mut self,
        model: &Model,
        local: &BTreeSet<LocalName>,
    ) -> Result<Draft, Rebuild> {
        let mut state = self.state.take().ok_or(Rebuild)?;
        if !state.can_update_to(&model.marks()) {
            return Err(Rebuild);
        }
        let mut delta =
            AddressDelta { hosts: take(&mut state.deferred), ..AddressDelta::default() };
        state.apply_local_delta(model, local, &mut delta)?;
        state.apply_set_delta(model, &mut delta)?;
        let resolved = resolve(model, local, &mut state.cache, &mut self.order, true);
        if self.closed_namespaces.is_too_dear(model, &resolved) {
            return Err(Rebuild);
        }
        let vocabulary = &state.cache.vocabulary;
        let of_peers = TermsInUse::of_peers(&resolved, vocabulary);
        let in_use = TermsInUse::of_either_end(&resolved, vocabulary);
        state.apply_predicate_delta(&mut self.interner, model, &of_peers, &in_use, &mut delta)?;
        let new = state.apply_address_delta(&mut self.interner, model, delta)?;
        self.tables.add_classes(&new, &state.peers.predicates);
        Ok(Draft { resolved, in_use, state, columns: None })
    }

    /// Compiles everything from nothing, without the endpoints whose policies exceed a bound.
    fn compile_anew(&mut self, model: &Model, local: &BTreeSet<LocalName>) -> Draft {
        let mut share = SHARE;
        if self.closed_namespaces.is_closing() {
            self.closed_namespaces.review(model, local);
            share = share.saturating_pow(4);
        }
        // `share` grows until no namespace gets any truths, and then `most` is unlimited. So the loop ends. The
        // policies of the node's own endpoints have no limit.
        loop {
            let admitted = self.closed_namespaces.admitted(model, local).into_owned();
            let most = if share == usize::MAX { usize::MAX } else { most_truths(model) };
            match self.compile_all(model, &admitted, most) {
                Ok(draft) => return draft,
                Err(Exceeded::Price) => self.closed_namespaces.decide(model, local, share),
                Err(Exceeded::Truths) => {
                    self.closed_namespaces.bounds_truths = true;
                    self.closed_namespaces.decide(model, local, share);
                    share = share.saturating_pow(4);
                }
            }
        }
    }

    /// Compiles everything, with two threads for a large cluster.
    fn compile_all(
        &mut self,
        model: &Model,
        local: &BTreeSet<LocalName>,
        most: usize,
    ) -> Result<Draft, Exceeded> {
        let mut cache = ResolveCache::default();
        let is_large = model.endpoints.len() + model.network_sets.len() >= LARGE_CLUSTER;
        let policies = || resolve(model, local, &mut cache, &mut self.order, false);
        let members = || {
            let members = Members::from_model(model);
            let of_sets = SetPrefixes::from_members(&members);
            (members, of_sets)
        };
        let (resolved, members) = join(is_large, policies, members);
        if self.closed_namespaces.is_too_dear(model, &resolved) {
            return Err(Exceeded::Price);
        }
        let in_use = TermsInUse::of_either_end(&resolved, &cache.vocabulary);
        self.interner.forget_if_sparse(self.used);
        self.tables.forget();
        let taken = self.interner.taken();
        let interner = &mut self.interner;
        let peers = || compile_peers(interner, (model, local, most), &resolved, cache, members);
        let precompute = |tables: &mut RowTables| {
            if is_large {
                tables.precompute(&resolved.lists);
            }
        };
        let (peers, ()) = join_with(is_large, peers, &mut self.tables, precompute);
        let (state, columns) = peers.map_err(|TooMany| {
            self.interner.forget(taken);
            Exceeded::Truths
        })?;
        self.used = state.peers.identities as u32;
        Ok(Draft { resolved, in_use, state, columns })
    }

    /// Builds chains and rows on top of the address tables.
    fn image(&mut self, Draft { resolved, in_use, mut state, columns }: Draft) -> Image {
        let peers = Arc::clone(&state.peers);
        let chains = Chains::new(&resolved, &peers.predicates, &state.pod_predicate_sets);
        let Cells { all: cells, linear } =
            self.tables.build(self.budget, &resolved, &peers, &chains, columns);
        self.serial += 1;
        state.serial = self.serial;
        self.state = Some(state);
        let RowBuilder { rows, paths, .. } = &mut self.tables.builder;
        let describe = |chain: NewChain| Chain {
            list: Arc::clone(&resolved.lists[chain.list].list),
            local: chain.local,
        };
        Image {
            in_use: peers.predicates.in_use(&in_use),
            peers,
            endpoints: chains.endpoints,
            chains: chains.all.into_iter().map(describe).collect(),
            cells: cells.into(),
            linear,
            lines: rows.lines.clone(),
            paths: paths.shared(),
            no_path: Path::unknown(Direction::Ingress),
            slots: paths.slots(),
            alike: OnceLock::new(),
            serial: self.serial,
        }
    }
}

/// A bound that policies exceed.
enum Exceeded {
    /// The number of truths.
    Truths,
    /// The estimated cost to compile the rules of policies that have a namespace (`resolve/price.rs`).
    Price,
}

/// The inputs for an image's chains and rows.
struct Draft {
    resolved: Resolved,
    /// The terms that rules use for either end.
    in_use: TermsInUse,
    state: CompileState,
    /// The classes of each predicate, if they are known already.
    columns: Option<ClassColumns>,
}

/// Computes the compile state from the members. Also returns the classes of each predicate.
fn compile_peers(
    interner: &mut IdentityInterner,
    (model, local, most): (&Model, &BTreeSet<LocalName>, usize),
    resolved: &Resolved,
    mut cache: ResolveCache,
    (members, of_sets): (Members<'_>, SetPrefixes),
) -> Result<(CompileState, Option<ClassColumns>), TooMany> {
    let mut truths = Truths::new(most);
    let (predicates, member_predicates, in_use) =
        evaluate_members(resolved, &mut cache, &members, local, &mut truths)?;
    let atoms = AtomPredicates::new(&predicates.all);
    let (kinds, of_members) = MemberKinds::from_members(&members, &member_predicates);
    let addresses = Addresses::new(model, &members, of_sets, &of_members, &atoms);
    let predicate_keys = interner.predicate_keys_of_all(&predicates.all);
    let mut classifier = Classifier::new(interner, &kinds, &atoms, &predicate_keys, &mut truths);
    let mut identities = addresses.identities(&mut classifier)?;
    let finish_classes = || finish_classes(classifier, predicates.all.len());
    let is_large = identities.len() >= LARGE_CLUSTER;
    let ((classes, columns), prefixes) =
        join_with(is_large, finish_classes, &mut identities, |it| take(it).into_prefix_map());
    let pod_predicate_sets = LocalPods {
        model,
        members: &members,
        member_predicates: &member_predicates,
        kinds: &kinds,
        atoms: &atoms,
        addresses: &addresses,
        prefixes: &prefixes,
    }
    .all(local);
    let (peers, class_of) = peer_tables(predicates, prefixes, classes);
    let own_pods = local.iter().filter_map(|name| model.endpoints.get(name));
    let state = CompileState {
        serial: 0,
        marks: model.marks(),
        own_addresses: own_pods.flat_map(|pod| pod.addresses.iter().copied()).collect(),
        counts: member_predicates.counts(peers.predicates.all.len()),
        most_truths: most,
        most_classes: peers.class_predicate_sets.len() * 2 + SPARE_CLASSES,
        class_of,
        peers: Arc::new(peers),
        kinds,
        atoms,
        addresses,
        predicate_keys,
        cache,
        in_use,
        local: local.clone(),
        pod_predicate_sets,
        moved: BTreeMap::new(),
        deferred: BTreeSet::new(),
        peer_terms: None,
        near_terms: None,
        pods: PodIndex::default(),
    };
    Ok((state, columns))
}

/// Evaluates the predicates for all members. Also returns the terms that rules use for peers.
fn evaluate_members(
    resolved: &Resolved,
    cache: &mut ResolveCache,
    members: &Members<'_>,
    local: &BTreeSet<LocalName>,
    truths: &mut Truths,
) -> Result<(Predicates, MemberPredicates, TermsInUse), TooMany> {
    let mut in_use = TermsInUse::of_peers(resolved, &cache.vocabulary);
    let (predicates, of_members) = evaluate(&cache.vocabulary, &in_use, members, local, truths)?;
    // In `all`, the predicates for ports of port sets come after the predicates of the vocabulary. They are added to
    // the vocabulary, so that predicates that come into use later get higher numbers.
    let of_port_sets = &predicates.all[cache.vocabulary.predicates.len()..];
    cache.vocabulary.predicates.extend_from_slice(of_port_sets);
    in_use.predicates.resize(predicates.all.len(), false);
    Ok((predicates, of_members, in_use))
}

/// Finishes the classes. Also returns the classes of each predicate, or `None` if a class has no family.
fn finish_classes(
    classifier: Classifier<'_>,
    predicates: usize,
) -> (Classes, Option<ClassColumns>) {
    let classes = classifier.finish();
    let columns = ClassColumns::new(&classes.predicate_sets, predicates);
    (classes, columns)
}

/// Builds the address tables, with room for new identities, and returns the classes by predicate set.
fn peer_tables(
    predicates: Predicates,
    prefixes: PrefixMap,
    mut classes: Classes,
) -> (PeerTables, AHashMap<PredicateSet, u32>) {
    let spare = SPARE_IDENTITIES + classes.of_identity.len() / 8;
    classes.of_identity.resize(classes.of_identity.len() + spare, NO_CLASS);
    let tables = PeerTables {
        prefixes,
        changes: ChangeCounters::default(),
        classes: ClassMap::new(classes.first, &classes.of_identity),
        class_predicate_sets: classes.predicate_sets.into(),
        predicates: Arc::new(predicates),
        identities: classes.identities,
    };
    (tables, classes.by_predicate_set)
}
