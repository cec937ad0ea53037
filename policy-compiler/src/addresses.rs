//! The addresses of a cluster, each with its identity.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::identity::{Holders, Interner, Key, SubjectId};
use crate::image::Identity;
use crate::model::Model;
use crate::prefix_map::PrefixMap;
use crate::resolve::Predicate;

/// Subjects, ascending, by the number of their namespace.
pub(crate) type ByNamespace = BTreeMap<u32, Vec<SubjectId>>;

/// The addresses of the cluster and their identities.
pub(crate) struct Addresses {
    /// Every prefix with an identity of its own, ascending; pods' addresses are prefixes of full length.
    pub(crate) entries: Vec<(IpNet, Identity)>,
    /// The identity of every address that no prefix contains.
    pub(crate) default: Identity,
    /// The distinct identities in order of first appearance, the default first.
    pub(crate) keys: Vec<(Identity, Key)>,
    /// The subjects in use, by namespace.
    pub(crate) subjects: ByNamespace,
}

impl Addresses {
    pub(crate) fn assign(interner: &mut Interner, model: &Model, predicates: &[Predicate]) -> Self {
        let (mut holders, subjects) = subjects(interner, model);
        holders.sort_unstable();
        holders.dedup();
        let prefixes = prefixes_in_use(predicates);
        let atoms = PrefixMap::build(0, prefixes.iter().copied().zip(1..));
        let atom = |address| {
            let at = (atoms.lookup(address) as usize).checked_sub(1);
            at.and_then(|at| prefixes.get(at)).copied()
        };
        let mut identities = Vec::with_capacity(prefixes.len() + holders.len());
        for net in &prefixes {
            identities.push((*net, Key { holders: Holders::Nobody, atom: Some(*net) }));
        }
        let mut several = Vec::new();
        for same in holders.chunk_by(|a, b| a.0 == b.0) {
            several.clear();
            several.extend(same.iter().map(|(_, subject)| *subject));
            if let Some((address, _)) = same.first() {
                let key = Key { holders: Holders::of(&several), atom: atom(*address) };
                identities.push((IpNet::from(*address), key));
            }
        }
        // A prefix in use of full length and a pod with that address: the pod, which is behind it, stands.
        identities.sort_by_key(|(net, _)| *net);
        identities.reverse();
        identities.dedup_by_key(|(net, _)| *net);
        identities.reverse();
        let default_key = Key { holders: Holders::Nobody, atom: None };
        let default = interner.identity(default_key.clone());
        let mut keys = vec![(default, default_key)];
        let mut seen = vec![false; interner.span() + identities.len() + 1];
        let mut entries = Vec::with_capacity(identities.len());
        for (net, key) in identities {
            let identity = interner.identity(key.clone());
            entries.push((net, identity));
            let seen = seen.get_mut(identity.0.wrapping_sub(interner.first) as usize);
            if let Some(seen) = seen.filter(|seen| !**seen) {
                *seen = true;
                keys.push((identity, key));
            }
        }
        Self { entries, default, keys, subjects }
    }
}

/// Every (address, subject) of the cluster, and the subjects of each namespace.
fn subjects(interner: &mut Interner, model: &Model) -> (Vec<(IpAddr, SubjectId)>, ByNamespace) {
    let mut holders = Vec::with_capacity(model.endpoints.len());
    let mut subjects = ByNamespace::new();
    let mut current: Option<(&str, u32)> = None;
    for (name, endpoint) in &model.endpoints {
        let namespace = match current {
            Some((same, namespace)) if same == name.namespace => namespace,
            _ => interner.namespace(&name.namespace, model.namespace_labels(&name.namespace)),
        };
        current = Some((&name.namespace, namespace));
        let subject = interner.subject(namespace, endpoint);
        subjects.entry(namespace).or_default().push(subject);
        holders.extend(endpoint.addresses.iter().map(|address| (*address, subject)));
    }
    for subjects in subjects.values_mut() {
        subjects.sort_unstable();
        subjects.dedup();
    }
    (holders, subjects)
}

/// The CIDRs and exceptions of all blocks, ascending.
fn prefixes_in_use(predicates: &[Predicate]) -> Vec<IpNet> {
    let mut prefixes = BTreeSet::new();
    for predicate in predicates {
        if let Predicate::Block(block) = predicate {
            prefixes.insert(block.cidr());
            prefixes.extend(block.except());
        }
    }
    prefixes.into_iter().collect()
}
