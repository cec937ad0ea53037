//! The delta of addresses: the addresses whose predicate sets changed since the last image, and their new identities.
//!
//! The other deltas use it. The comments of their modules say how much time this saves.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::state::{CompileState, SPARE_IDENTITIES};
use crate::common::{Identity, Rebuild};
use crate::image::{ChangeCounters, PeerTables};
use crate::model::{Family, Model};
use crate::peers::{
    ClassMap, IdentityInterner, Member, NO_CLASS, NewClass, PredicateSet, Predicates, PrefixEdit,
};
use crate::prefix_map::{MAX_VALUE, PrefixMap, lies_in};

/// Touched prefixes are handled one by one only up to this number, and only up to a sixteenth of all prefixes. With
/// more of them, a rebuild is cheaper.
const MOST_PREFIXES: usize = 1024;

/// The touched addresses: those whose predicate sets may differ from the last image.
#[derive(Debug, Default)]
pub(crate) struct AddressDelta {
    pub(crate) hosts: BTreeSet<IpAddr>,
    /// Networks in which every address is touched.
    pub(crate) nets: BTreeSet<IpNet>,
    /// All predicates, if there are more of them than in the last image.
    pub(crate) predicates: Option<Predicates>,
}

impl AddressDelta {
    fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.nets.is_empty() && self.predicates.is_none()
    }

    /// The networks that lie in no other one.
    fn outermost(&self) -> Vec<IpNet> {
        let mut outermost: Vec<IpNet> = Vec::new();
        // A network sorts before the networks inside it.
        for net in &self.nets {
            if !outermost.last().is_some_and(|last| last.contains(net)) {
                outermost.push(*net);
            }
        }
        outermost
    }
}

/// The unfinished address tables of the next image.
struct PeersDraft {
    before: Arc<PeerTables>,
    prefixes: PrefixMap,
    predicate_sets: Vec<PredicateSet>,
    /// The classes, indexed by identity.
    classes: Vec<u32>,
    identities: usize,
    new: Vec<NewClass>,
    /// The sum of the lengths of all classes' predicate sets.
    truths: usize,
}

impl PeersDraft {
    fn new(before: &Arc<PeerTables>) -> Self {
        Self {
            before: Arc::clone(before),
            prefixes: before.prefixes.clone(),
            predicate_sets: before.class_predicate_sets.to_vec(),
            classes: before.classes.all(),
            identities: before.identities,
            new: Vec::new(),
            truths: before.class_predicate_sets.iter().map(|set| set.len()).sum(),
        }
    }

    /// The class of an address in the last image.
    fn class_before(&self, address: IpAddr) -> Option<u32> {
        let identity = self.before.prefixes.lookup(address);
        let class = self.before.classes.class(Identity(identity));
        ((class as usize) < self.before.class_predicate_sets.len()).then_some(class)
    }

    /// Adds a class with this predicate set, for an address that had another class in the last image.
    fn add_class(&mut self, set: &PredicateSet, address: IpAddr) -> u32 {
        let from = self.class_before(address);
        let other =
            from.and_then(|it| self.predicate_sets.get(it as usize)).map_or(&[][..], |it| it);
        let only = |one: &[u32], other: &[u32]| -> Vec<u32> {
            one.iter().copied().filter(|it| other.binary_search(it).is_err()).collect()
        };
        let differs = [only(set, other), only(other, set)].concat();
        self.new.push(NewClass { from, differs });
        self.predicate_sets.push(set.clone());
        self.predicate_sets.len() as u32 - 1
    }

    /// Stores the class of an identity. Returns `Err` if the identity's index is too large.
    fn classify(&mut self, identity: Identity, class: u32) -> Result<(), Rebuild> {
        let at = self.before.classes.index(identity) as usize;
        if at > MAX_VALUE as usize {
            return Err(Rebuild);
        }
        if self.classes.len() <= at + SPARE_IDENTITIES / 2 {
            self.classes.resize(at + SPARE_IDENTITIES + at / 8, NO_CLASS);
        }
        if std::mem::replace(&mut self.classes[at], class) == NO_CLASS {
            self.identities += 1;
        }
        Ok(())
    }
}

impl CompileState {
    /// Applies an edit at a single address; an edit at a larger network is added to `wider`. Touched addresses are
    /// added to `delta`.
    pub(crate) fn edit_prefix(
        &mut self,
        edit: PrefixEdit,
        wider: &mut Vec<PrefixEdit>,
        delta: &mut AddressDelta,
    ) -> Result<(), Rebuild> {
        let PrefixEdit { net, was, is } = edit;
        if net.prefix_len() == net.max_prefix_len() {
            delta.hosts.insert(net.addr());
            return self.replace_kind(net.addr(), was, is);
        }
        delta.nets.insert(net);
        wider.push(edit);
        Ok(())
    }

    /// Gives the touched addresses their new identities, and gives the local pods among them their new predicate sets.
    /// Returns the added classes.
    pub(crate) fn apply_address_delta(
        &mut self,
        interner: &mut IdentityInterner,
        model: &Model,
        mut delta: AddressDelta,
    ) -> Result<Vec<NewClass>, Rebuild> {
        if delta.is_empty() {
            self.update_local_pods(model, |_| false)?;
            return Ok(Vec::new());
        }
        let mut draft = PeersDraft::new(&self.peers);
        let outermost = delta.outermost();
        let mut entries = Vec::new();
        let mut left = MOST_PREFIXES + self.addresses.len() / 16;
        for net in &outermost {
            let parts = self.parts(*net, left)?;
            left -= parts.len();
            for part in parts {
                entries.push((part, self.identify(interner, &mut draft, part)?.0));
            }
        }
        for host in &delta.hosts {
            if lies_in(&outermost, *host) {
                continue;
            }
            left = left.checked_sub(1).ok_or(Rebuild)?;
            let host = IpNet::from(*host);
            entries.push((host, self.identify(interner, &mut draft, host)?.0));
        }
        entries.sort_unstable();
        if !draft.prefixes.replace(&outermost, &entries) {
            return Err(Rebuild);
        }
        if draft.predicate_sets.len() > self.most_classes {
            return Err(Rebuild);
        }
        let PeersDraft { before, prefixes, predicate_sets: sets, classes, identities, new, .. } =
            draft;
        let predicates = delta.predicates.take().map(Arc::new);
        self.peers = Arc::new(PeerTables {
            prefixes,
            changes: ChangeCounters::default(),
            classes: ClassMap::new(before.classes.first(), &classes),
            class_predicate_sets: sets.into(),
            predicates: predicates.unwrap_or_else(|| Arc::clone(&before.predicates)),
            identities,
        });
        let is_touched =
            |address: &IpAddr| delta.hosts.contains(address) || lies_in(&outermost, *address);
        self.update_local_pods(model, is_touched)?;
        Ok(new)
    }

    /// A network and all prefixes in it, outer ones before inner ones. Returns `Err` if there are more than `most`.
    fn parts(&self, net: IpNet, most: usize) -> Result<BTreeSet<IpNet>, Rebuild> {
        let mut parts = BTreeSet::from([net]);
        // The list has at most `most + 1` entries, and a prefix may occur several times. So the number of entries, not
        // of prefixes, shows whether the list is complete.
        let inside = self.addresses.prefixes_in(net, most + 1);
        if inside.len() > most {
            return Err(Rebuild);
        }
        parts.extend(inside);
        let moved = self.moved.range(net.network()..=net.broadcast());
        parts.extend(moved.map(|(host, _)| IpNet::from(*host)).take(most + 1));
        if parts.len() > most { Err(Rebuild) } else { Ok(parts) }
    }

    /// Determines the identity of the addresses of a prefix that lie in no smaller prefix.
    fn identify(
        &mut self,
        interner: &mut IdentityInterner,
        draft: &mut PeersDraft,
        net: IpNet,
    ) -> Result<Identity, Rebuild> {
        let moved =
            self.moved.get(&net.addr()).filter(|_| net.prefix_len() == net.max_prefix_len());
        let occupants = self.addresses.occupants(net, moved.map(Vec::as_slice));
        if occupants.unknown {
            return Ok(Identity::UNKNOWN);
        }
        let atom = occupants.atom.map(|atom| self.atoms.predicate_set(atom)).unwrap_or_default();
        let [set, around] = self.kinds.predicate_sets(&occupants.kinds, &atom);
        let class = if let Some(class) = self.class_of.get(&set) {
            *class
        } else {
            draft.truths += set.len();
            self.check_truths(draft.truths)?;
            let class = draft.add_class(&set, net.addr());
            self.class_of.insert(set.clone(), class);
            class
        };
        let identity = interner.identity([&set, &around], &self.predicate_keys);
        if identity == Identity::UNKNOWN {
            return Err(Rebuild);
        }
        draft.classify(identity, class)?;
        Ok(identity)
    }

    /// Updates the predicate sets of the touched local pods, and computes the predicate sets of new local pods.
    fn update_local_pods(
        &mut self,
        model: &Model,
        is_touched: impl Fn(&IpAddr) -> bool,
    ) -> Result<(), Rebuild> {
        let Self { local, pod_predicate_sets: known, .. } = &*self;
        let wanted =
            local.iter().filter_map(|name| Some((name.clone(), model.endpoints.get(name)?)));
        let wanted = wanted.filter(|(name, pod)| {
            !known.contains_key(name) || pod.addresses.iter().any(&is_touched)
        });
        for (name, pod) in wanted.collect::<Vec<_>>() {
            let own = self.near_predicate_set(&Member::pod(model, &name, pod))?;
            let mut sets = Vec::with_capacity(pod.addresses.len());
            for address in &pod.addresses {
                let identity = Identity(self.peers.prefixes.lookup(*address));
                if identity == Identity::UNKNOWN {
                    continue;
                }
                let moved = self.moved.get(address).map(Vec::as_slice);
                let occupants = self.addresses.occupants(IpNet::from(*address), moved);
                let atom =
                    occupants.atom.map(|atom| self.atoms.predicate_set(atom)).unwrap_or_default();
                let set = self.kinds.local_predicate_set(&own, &occupants.kinds, &atom);
                sets.push((Family::from_address(*address), identity, set));
            }
            self.pod_predicate_sets.insert(name, sets);
        }
        Ok(())
    }
}
