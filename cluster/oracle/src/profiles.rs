//! Profiles: the rules that apply if no policy decided.

use std::collections::{BTreeMap, BTreeSet};

use super::direction::Direction;
use super::prepare::Preparer;
use super::rules::Rule;
use manx_objects::contents::Stored;
use manx_objects::object::{Object, ObjectKey};

/// The profiles that objects define, and those that need no object.
#[derive(Debug)]
pub(super) struct Profiles {
    defined: BTreeMap<String, Defined>,
    namespaces: BTreeSet<String>,
}

#[derive(Debug)]
struct Defined {
    ingress: Vec<Rule>,
    egress: Vec<Rule>,
}

/// The meaning of a profile's name.
pub(super) enum Profile<'a> {
    /// The profile allows everything in both directions.
    Open,
    /// The profile of a service account, which has labels but no rules.
    Empty,
    /// The profile's rules, in order.
    Rules(&'a [Rule]),
    /// The profile does not exist or is invalid, so it denies.
    Missing,
}

impl Profiles {
    /// Reads the profiles. A profile with a rule that cannot be evaluated counts as invalid.
    pub(super) fn new(objects: &BTreeMap<ObjectKey, Stored>, preparer: &Preparer<'_>) -> Self {
        let mut defined = BTreeMap::new();
        for (key, stored) in objects {
            if let Some(Object::Profile(wire)) = stored.state.valid() {
                let rules = |listed: &[_]| -> Result<Vec<Rule>, _> {
                    let rules = listed.iter().enumerate();
                    rules.map(|(index, rule)| preparer.calico(index, rule, None)).collect()
                };
                if let (Ok(ingress), Ok(egress)) = (rules(&wire.ingress), rules(&wire.egress)) {
                    defined.insert(key.name.clone(), Defined { ingress, egress });
                }
            }
        }
        Self { defined, namespaces: preparer.members.namespaces.clone() }
    }

    /// Returns the profile with this name. Calico makes one for every namespace and every service
    /// account, and `projectcalico-default-allow`.
    pub(super) fn find(&self, name: &str, direction: Direction) -> Profile<'_> {
        if name == "projectcalico-default-allow" {
            return Profile::Open;
        }
        if let Some(namespace) = name.strip_prefix("kns.") {
            let known = self.namespaces.contains(namespace);
            return if known { Profile::Open } else { Profile::Missing };
        }
        if name.starts_with("ksa.") {
            return Profile::Empty;
        }
        match (self.defined.get(name), direction) {
            (Some(profile), Direction::Ingress) => Profile::Rules(&profile.ingress),
            (Some(profile), Direction::Egress) => Profile::Rules(&profile.egress),
            (None, _) => Profile::Missing,
        }
    }
}
