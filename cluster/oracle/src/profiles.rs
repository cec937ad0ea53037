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

/// The profile that a name refers to.
pub(super) enum Profile<'a> {
    /// The profile allows everything in both directions.
    Open,
    /// The profile of a service account: it has labels and no rules.
    Empty,
    /// The profile's rules, in order.
    Rules(&'a [Rule]),
    /// The profile does not exist or is not valid: deny.
    Missing,
}

impl Profiles {
    /// A profile with a rule that cannot be evaluated counts as not valid.
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

    /// The profile of this name. Calico makes one for every namespace and every service account,
    /// and `projectcalico-default-allow`.
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
