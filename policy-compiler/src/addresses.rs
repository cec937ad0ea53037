//! The addresses of a cluster, each with its identity.

use ahash::AHashMap;
use ipnet::IpNet;

use crate::identity::{Holders, Interner, Key};
use crate::image::Identity;
use crate::members::Members;
use crate::model::Model;
use crate::predicates::{AtomTruths, Truth};
use crate::subject::SubjectId;

/// The addresses of the cluster and their identities.
pub(crate) struct Addresses {
    /// Every prefix with an identity of its own, ascending; hosts' addresses are prefixes of full length. Together they
    /// hold every address.
    pub(crate) entries: Vec<(IpNet, Identity)>,
    /// The distinct identities in order of first appearance.
    pub(crate) keys: Vec<(Identity, Key)>,
}

/// What stands at a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Atom,
    Subject(SubjectId),
    Unknown,
}

impl Addresses {
    pub(crate) fn assign(
        interner: &mut Interner,
        model: &Model,
        members: &Members,
        truths: &AHashMap<SubjectId, Truth>,
        atoms: &AtomTruths,
    ) -> Self {
        let mut items: Vec<(IpNet, Item)> = Vec::with_capacity(members.hosts.len());
        items.extend(atoms.prefixes().map(|net| (net, Item::Atom)));
        let hosts = members.hosts.iter();
        items.extend(hosts.map(|(address, id)| (IpNet::from(*address), Item::Subject(*id))));
        // A set that no policy here can tell from nobody has no part.
        for (id, set) in members.sets.iter().filter(|(id, _)| truths.contains_key(id)) {
            items.extend(set.nets.iter().map(|net| (net.trunc(), Item::Subject(*id))));
        }
        items.extend(model.unknown.iter().map(|address| (IpNet::from(*address), Item::Unknown)));
        items.sort_unstable();
        items.dedup();

        let mut identities: Vec<(IpNet, Identity)> = Vec::with_capacity(items.len());
        let mut keys: Vec<(Identity, Key)> = Vec::new();
        let mut seen: Vec<bool> = Vec::new();
        let mut around: Vec<(IpNet, Key)> = Vec::new();
        let nobody = Key { holders: Holders::Nobody, atom: None };
        let mut several: Vec<SubjectId> = Vec::new();
        for same in items.chunk_by(|a, b| a.0 == b.0) {
            let Some((net, last)) = same.last().copied() else { continue };
            while around.last().is_some_and(|(outer, _)| !outer.contains(&net)) {
                around.pop();
            }
            if last == Item::Unknown {
                identities.push((net, Identity::UNKNOWN));
                continue;
            }
            let outer = around.last().map_or(&nobody, |(_, key)| key);
            several.clear();
            several.extend_from_slice(outer.holders.subjects());
            several.extend(same.iter().filter_map(|(_, item)| match item {
                Item::Subject(id) => Some(*id),
                Item::Atom | Item::Unknown => None,
            }));
            several.sort_unstable();
            several.dedup();
            let atom = if same.iter().any(|(_, item)| *item == Item::Atom) {
                Some(net)
            } else {
                outer.atom
            };
            let key = Key { holders: Holders::of(&several), atom };
            let identity = interner.identity(key.clone());
            identities.push((net, identity));
            let at = identity.0.wrapping_sub(interner.first) as usize;
            if seen.len() <= at {
                seen.resize(at + 1, false);
            }
            if !std::mem::replace(&mut seen[at], true) {
                keys.push((identity, key.clone()));
            }
            if net.prefix_len() < net.max_prefix_len() {
                around.push((net, key));
            }
        }
        Self { entries: identities, keys }
    }
}
