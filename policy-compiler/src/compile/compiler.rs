//! Model and local endpoints to an image.
//!
//! A compiler lives as long as the dataplane that it serves: it is what keeps the numbers of identities and the counter
//! slots of decisions the same from image to image.
//!
//! **Cost**, with *E* members of the cluster, *S* distinct subjects, *P* predicates: O(E log E) for addresses, O(S·P) selector
//! matches at worst (only among those with the namespace or label that a selector requires), and for each chain as many
//! rows as its own predicates tell classes apart. Policies are looked up by namespace, never all of them.
//!
//! **Memory.** A chain whose rows do not fit the budget any more is judged rule by rule, slower and no less right;
//! [`Counts::linear`](crate::image::Counts) says how many there are.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;

use super::address_delta::AddressDelta;
use super::basis::{Basis, SPARE_IDENTITIES};
use super::pod_change::PodChange;
use crate::common::{LARGE_CLUSTER, join, join_with};
use crate::image::{Chain, ChangeCounters, Image, Path, PeerTables};
use crate::model::{Direction, Mark, Model};
use crate::peers::{
    Addresses, AtomPredicates, ClassMap, Classes, Classifier, IdentityInterner, Kinds, Members,
    NO_CLASS, PodIndex, SetPrefixes, TermsInUse, evaluate,
};
use crate::resolve::{LocalName, PolicyOrder, ResolveCache, Resolved, resolve};
use crate::rows::{Cells, Chains, ClassColumns, LocalPods, RowTables};

/// Bytes of rows and cells that an image may hold if nothing else is said.
pub const DEFAULT_BUDGET: usize = 64 << 20;

/// Makes images; keeps identities and counter slots for its life.
#[derive(Debug)]
pub struct Compiler {
    interner: IdentityInterner,
    pub(crate) tables: RowTables,
    /// How many identities the last image used.
    used: u32,
    budget: usize,
    /// Counts images.
    serial: u64,
    basis: Option<Basis>,
    order: PolicyOrder,
}

/// And for so many classes, and as many as it has.
const SPARE_CLASSES: usize = 1024;

impl Default for Compiler {
    fn default() -> Self {
        Self::new()
    }
}

impl Compiler {
    /// A compiler that has made nothing yet.
    pub fn new() -> Self {
        Self::with_budget(DEFAULT_BUDGET)
    }

    /// A compiler whose images hold at most about this many bytes of rows and cells.
    pub fn with_budget(budget: usize) -> Self {
        Self {
            interner: IdentityInterner::default(),
            tables: RowTables::default(),
            used: 0,
            budget,
            serial: 0,
            basis: None,
            order: PolicyOrder::default(),
        }
    }

    /// Forgets the decisions that have these slots and gives the slots to others. It is for the caller to know that nobody
    /// uses an image that names them, or will count by them.
    pub fn release(&mut self, slots: &BTreeSet<u32>) {
        self.tables.release(slots);
    }

    /// Makes `image` say what `model` says, in place and while others look up, if that is possible: a pod of another node
    /// with IPv4 addresses alone, of whom then is true what was true of somebody when the image was made. `image` is the
    /// last one, and `model` what it was made of, or brought up to by calls of this, but for the change. `false` where it
    /// takes a new image, which then is to be made: until that only some of the pod's addresses may have followed.
    #[must_use]
    pub fn update(&mut self, image: &Image, model: &Model, change: PodChange<'_>) -> bool {
        let standing = self.basis.as_mut();
        let done = standing.and_then(|it| it.update(&mut self.interner, image, model, change));
        if done.is_none() {
            self.basis = None;
        }
        done.is_some()
    }

    /// A pod has changed that no [`Compiler::update`] was told of: the next image is made from nothing.
    pub fn invalidate(&mut self) {
        self.basis = None;
    }

    /// The tables by which the `local` endpoints are judged: pods, and, without a namespace, host endpoints. Names that the
    /// model does not have get none.
    ///
    /// What the last image says of addresses is used again where nothing that it rests on has [changed](crate::model::Tracked): between
    /// the two there may only be policies, tiers, failsafe ports and network sets, and changes that [`update`](Self::update)
    /// made; and of what no policy had asked they may ask selectors and CIDRs alone.
    pub fn compile(&mut self, model: &Model, local: &BTreeSet<LocalName>) -> Image {
        let marks = model.marks();
        let standing = self.basis.take();
        let standing = standing.filter(|it| it.can_update_to(&marks) && it.local == *local);
        let again = standing.and_then(|mut standing| {
            let mut touched = AddressDelta::default();
            standing.apply_set_delta(model, &mut touched)?;
            let resolved = resolve(model, local, &mut standing.cache, &mut self.order, true);
            let vocabulary = &standing.cache.vocabulary;
            let peers = TermsInUse::of_peers(&resolved, vocabulary);
            let asked = TermsInUse::of_either_end(&resolved, vocabulary);
            standing.apply_predicate_delta(
                &mut self.interner,
                model,
                &peers,
                &asked,
                &mut touched,
            )?;
            let new = standing.apply_address_delta(&mut self.interner, model, touched)?;
            self.tables.add_classes(&new, &standing.peers.predicates);
            Some((resolved, asked, standing, None))
        });
        let (resolved, asked, mut standing, by_truth) = again.unwrap_or_else(|| {
            let mut kept = ResolveCache::default();
            let is_large = model.endpoints.len() + model.network_sets.len() >= LARGE_CLUSTER;
            let policies = || resolve(model, local, &mut kept, &mut self.order, false);
            let held = || {
                let members = Members::from_model(model);
                let of_sets = SetPrefixes::from_members(&members);
                (members, of_sets)
            };
            let (resolved, held) = join(is_large, policies, held);
            let asked = TermsInUse::of_either_end(&resolved, &kept.vocabulary);
            self.interner.forget_if_sparse(self.used);
            self.tables.forget();
            let interner = &mut self.interner;
            let stand = || compile_peers(interner, model, local, marks, &resolved, kept, held);
            let ((standing, by_truth), ()) =
                join_with(is_large, stand, &mut self.tables, |tables| {
                    if is_large {
                        tables.precompute(&resolved.lists);
                    }
                });
            self.used = standing.peers.identities as u32;
            (resolved, asked, standing, by_truth)
        });
        let peers = Arc::clone(&standing.peers);
        let chains = Chains::new(&resolved, &peers.predicates, &standing.pod_predicate_sets);
        let Cells { all: cells, linear } =
            self.tables.build(self.budget, &resolved, &peers, &chains, by_truth);
        self.serial += 1;
        standing.serial = self.serial;
        self.basis = Some(standing);
        Image {
            in_use: peers.predicates.in_use(&asked),
            peers,
            endpoints: chains.endpoints,
            chains: chains
                .all
                .into_iter()
                .map(|made| Chain {
                    list: Arc::clone(&resolved.lists[made.list].list),
                    local: made.local,
                })
                .collect(),
            cells: cells.into(),
            linear,
            lines: self.tables.builder.rows.lines.clone(),
            paths: self.tables.builder.paths.shared(),
            no_path: Path::unknown(Direction::Ingress),
            slots: self.tables.builder.paths.slots(),
            serial: self.serial,
        }
    }
}

/// What there is to say of all addresses, given who holds them, and the classes by what is true of them.
fn compile_peers(
    interner: &mut IdentityInterner,
    model: &Model,
    local: &BTreeSet<LocalName>,
    marks: [Mark; 8],
    resolved: &Resolved,
    mut kept: ResolveCache,
    (members, of_sets): (Members<'_>, SetPrefixes),
) -> (Basis, Option<ClassColumns>) {
    let mut asked = TermsInUse::of_peers(resolved, &kept.vocabulary);
    let (predicates, truths) = evaluate(&kept.vocabulary, &asked, &members, local);
    // What will be asked has numbers behind those of answers.
    let answers = &predicates.all[kept.vocabulary.predicates.len()..];
    kept.vocabulary.predicates.extend_from_slice(answers);
    asked.predicates.resize(predicates.all.len(), false);
    let atoms = AtomPredicates::new(&predicates.all);
    let (kinds, of_members) = Kinds::from_members(&members, &truths);
    let addresses = Addresses::new(model, &members, of_sets, &of_members, &atoms);
    let said = interner.predicate_keys_of_all(&predicates.all);
    let mut classifying = Classifier::new(interner, &kinds, &atoms, &said);
    let mut identified = addresses.identities(&mut classifying);
    let classes = || {
        let classes = classifying.finish();
        let by_truth = ClassColumns::new(&classes.predicate_sets, predicates.all.len());
        (classes, by_truth)
    };
    let is_large = identified.len() >= LARGE_CLUSTER;
    let ((classes, by_truth), prefixes) =
        join_with(is_large, classes, &mut identified, |it| take(it).into_prefix_map());
    let Classes {
        predicate_sets: class_truths,
        first,
        mut of_identity,
        by_predicate_set: known,
        identities,
    } = classes;
    let ends = LocalPods {
        model,
        members: &members,
        member_predicates: &truths,
        kinds: &kinds,
        atoms: &atoms,
        addresses: &addresses,
        prefixes: &prefixes,
    };
    let pod_truths = ends.all(local);
    let most_classes = class_truths.len() * 2 + SPARE_CLASSES;
    let spare = SPARE_IDENTITIES + of_identity.len() / 8;
    of_identity.resize(of_identity.len() + spare, NO_CLASS);
    let own = local.iter().filter_map(|name| model.endpoints.get(name));
    let standing = Basis {
        serial: 0,
        marks,
        own_addresses: own.flat_map(|pod| pod.addresses.iter().copied()).collect(),
        counts: truths.counts(predicates.all.len()),
        peers: Arc::new(PeerTables {
            prefixes,
            changes: ChangeCounters::default(),
            classes: ClassMap::new(first, &of_identity),
            class_predicate_sets: class_truths.into(),
            predicates: Arc::new(predicates),
            identities,
        }),
        kinds,
        atoms,
        addresses,
        class_of: known,
        predicate_keys: said,
        cache: kept,
        in_use: asked,
        local: local.clone(),
        pod_predicate_sets: pod_truths,
        moved: BTreeMap::new(),
        peer_terms: None,
        near_terms: None,
        most_classes,
        pods: PodIndex::default(),
    };
    (standing, by_truth)
}
