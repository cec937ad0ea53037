//! Decides which object has an address, protocol and port: among the objects that claim it, the one
//! with the first precedence.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use manx_dataplane::services::{Frontend, FrontendKey};
use manx_objects::object::ObjectKey;

use crate::services::omission::Omission;
use crate::services::rank::Precedence;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// For each key (an address, a protocol and a port): the claims, each with its frontend, in
    /// order of precedence.
    of_keys: BTreeMap<FrontendKey, Vec<(Precedence, Arc<Frontend>)>>,
    /// The keys that several objects claim.
    contested: BTreeSet<FrontendKey>,
}

impl Claims {
    /// Returns the claim to which a key belongs, which is the first one.
    pub(super) fn first(&self, key: &FrontendKey) -> Option<&(Precedence, Arc<Frontend>)> {
        self.of_keys.get(key)?.first()
    }

    /// Returns, for each key with the same address as this one, the precedence of the claim to
    /// which it belongs.
    pub(super) fn at_address(&self, key: &FrontendKey) -> impl Iterator<Item = &Precedence> {
        let first = FrontendKey { protocol: 0, port: 0, ..*key };
        let last = FrontendKey { protocol: u8::MAX, port: u16::MAX, ..*key };
        let claims = self.of_keys.range(first..=last);
        claims.filter_map(|(_, claims)| claims.first().map(|(precedence, _)| precedence))
    }

    pub(super) fn add(
        &mut self,
        key: FrontendKey,
        precedence: Precedence,
        frontend: Arc<Frontend>,
    ) {
        let claims = self.of_keys.entry(key).or_insert_with(|| Vec::with_capacity(1));
        let at = claims.partition_point(|(other, _)| *other < precedence);
        claims.insert(at, (precedence, frontend));
        if claims.len() > 1 {
            self.contested.insert(key);
        }
    }

    pub(super) fn remove(&mut self, key: &FrontendKey, of: &ObjectKey) {
        let Some(claims) = self.of_keys.get_mut(key) else { return };
        claims.retain(|(precedence, _)| *precedence.rank.object != *of);
        if claims.len() < 2 {
            self.contested.remove(key);
        }
        if claims.is_empty() {
            self.of_keys.remove(key);
        }
    }

    /// Returns the claims whose key belongs to another claim, each with its object.
    pub(super) fn beaten(&self) -> impl Iterator<Item = (&ObjectKey, Omission)> {
        self.contested.iter().flat_map(|key| {
            let claims = self.of_keys.get(key).map_or(&[][..], Vec::as_slice);
            let objects = claims.iter().map(|(precedence, _)| &*precedence.rank.object);
            let first = objects.clone().next().cloned();
            let others = objects.skip(1).zip(first.into_iter().cycle());
            others.map(|(object, by)| (object, Omission::Taken { key: *key, by }))
        })
    }
}
