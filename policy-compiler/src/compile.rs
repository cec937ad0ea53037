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

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;

use ahash::AHashMap;

use crate::addresses::Addresses;
use crate::chains::{Chains, LocalEnds};
use crate::classes::{Classes, Classifying, Kinds};
use crate::identity::Interner;
use crate::image::{Chain, Identity, Image, NO_CLASS};
use crate::members::Members;
use crate::model::Model;
use crate::predicates::{AskedOfPeers, AtomTruths, evaluate};
use crate::prefix_map::PrefixMap;
use crate::resolve::{LocalName, resolve};
use crate::rows::Tables;
use crate::slots::Slots;
use crate::update::{PodChange, Standing};

/// Bytes of rows and cells that an image may hold if nothing else is said.
pub const DEFAULT_BUDGET: usize = 64 << 20;

/// Makes images; keeps identities and counter slots for its life.
#[derive(Debug)]
pub struct Compiler {
    interner: Interner,
    slots: Slots,
    /// How many identities the last image used.
    used: u32,
    budget: usize,
    /// Counts images.
    serial: u64,
    standing: Option<Standing>,
}

/// An image has room for this many identities to come, and an eighth of those that it has.
const SPARE_IDENTITIES: usize = 256;

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
        let (interner, slots) = (Interner::default(), Slots::default());
        Self { interner, slots, used: 0, budget, serial: 0, standing: None }
    }

    /// Forgets the decisions that have these slots and gives the slots to others. It is for the caller to know that nobody
    /// uses an image that names them, or will count by them.
    pub fn release(&mut self, slots: &BTreeSet<u32>) {
        self.slots.release(slots);
    }

    /// Makes `image` say what `model` says, in place and while others look up, if that is possible: a pod of another node
    /// with IPv4 addresses alone, of whom then is true what was true of somebody when the image was made. `image` is the
    /// last one, and `model` what it was made of, or brought up to by calls of this, but for the change. `false` where it
    /// takes a new image, which then is to be made: until that only some of the pod's addresses may have followed.
    #[must_use]
    pub fn update(&mut self, image: &Image, model: &Model, change: PodChange<'_>) -> bool {
        let standing = self.standing.as_mut();
        let done = standing.and_then(|it| it.update(&mut self.interner, image, model, change));
        if done.is_none() {
            self.standing = None;
        }
        done.is_some()
    }

    /// The tables by which the `local` endpoints are judged: pods, and, without a namespace, host endpoints. Names that the
    /// model does not have get none.
    pub fn compile(&mut self, model: &Model, local: &BTreeSet<LocalName>) -> Image {
        self.interner.forget_if_sparse(self.used);
        let resolved = resolve(model, local);
        let members = Members::of(model);
        let asked = AskedOfPeers::by(&resolved);
        let (predicates, truths) = evaluate(&resolved, &asked, &members, local);
        let atoms = AtomTruths::new(&predicates.all);
        let (kinds, of_members) = Kinds::of_members(&members, &truths);
        let addresses = Addresses::of(model, &members, &of_members, &atoms);
        let said = self.interner.said(&predicates.all);
        let mut classifying = Classifying::new(&mut self.interner, &kinds, &atoms, &said);
        let entries = addresses.identities(&mut classifying);
        let classes = classifying.classes();
        let prefixes = PrefixMap::build(
            Identity::UNKNOWN.0,
            entries.iter().map(|(net, identity)| (*net, identity.0)),
        );
        let ends = LocalEnds {
            model,
            members: &members,
            truths: &truths,
            kinds: &kinds,
            atoms: &atoms,
            addresses: &addresses,
            prefixes: &prefixes,
        };
        let chains = Chains::of(&resolved, &predicates, &ends);
        let tables =
            Tables::build(&mut self.slots, self.budget, &resolved, &predicates, &classes, &chains);
        self.used = classes.identities as u32;
        let Tables { cells, paths, linear, rows, intervals, by_source, .. } = tables;
        let slots = self.slots.end();
        let Classes { truths: class_truths, first, mut of_identity, known, .. } = classes;
        let spare = SPARE_IDENTITIES + of_identity.len() / 8;
        of_identity.resize(of_identity.len() + spare, NO_CLASS);
        self.serial += 1;
        let own = local.iter().filter_map(|name| model.endpoints.get(name));
        self.standing = Some(Standing {
            serial: self.serial,
            own: own.flat_map(|pod| pod.addresses.iter().copied()).collect(),
            counts: truths.counts(predicates.all.len()),
            kinds,
            atoms,
            addresses,
            class_of: known,
            said,
            questions: resolved.questions,
            asked,
            local: local.clone(),
            moved: AHashMap::new(),
            by_namespace: None,
        });
        Image {
            prefixes,
            endpoints: chains.endpoints,
            first_identity: first,
            classes: of_identity.into_iter().map(AtomicU32::new).collect(),
            class_truths: class_truths.into(),
            predicates: predicates.all.into(),
            answers: predicates.answers.into(),
            chains: chains
                .all
                .into_iter()
                .map(|made| Chain {
                    list: resolved.lists[made.list].list.clone(),
                    local: made.local,
                })
                .collect(),
            cells: cells.into(),
            linear,
            rows: rows.into(),
            intervals: intervals.into(),
            by_source: by_source.into(),
            paths: paths.into(),
            slots,
            identity_count: self.used as usize,
            serial: self.serial,
            ..Image::default()
        }
    }
}
