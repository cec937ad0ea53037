//! The order of tiers and of the policies in them.

use std::collections::{BTreeMap, BTreeSet};

use super::built_in::BUILT_IN;
use super::policies::Policy;
use manx_objects::contents::Stored;
use manx_objects::object::calico::{Action, Order};
use manx_objects::object::{Kind, Object, ObjectKey};

/// A tier that has policies.
#[derive(Debug)]
pub(super) struct Tier {
    pub(super) name: String,
    /// The order. A tier without an order comes after every tier with one.
    pub(super) order: Option<f64>,
    /// Whether policies name the tier but no object defines it. Such a tier comes after all defined tiers.
    pub(super) missing: bool,
    /// Whether a packet that no rule decided continues to the next tier; otherwise it is denied.
    pub(super) passes: bool,
    /// The tier's policies in order, including the staged ones.
    pub(super) policies: Vec<usize>,
}

/// Returns the tiers that policies name, in order, with their policies in order.
pub(super) fn arrange(objects: &BTreeMap<ObjectKey, Stored>, policies: &[Policy]) -> Vec<Tier> {
    let named: BTreeSet<&str> = policies.iter().map(|policy| policy.tier.as_str()).collect();
    let mut tiers: Vec<Tier> = named
        .into_iter()
        .map(|name| {
            let mut tier = define(objects, name);
            tier.policies =
                (0..policies.len()).filter(|index| policies[*index].tier == name).collect();
            // Policies are sorted by order and then by name. The second sort is stable, so policies
            // with the same order stay sorted by name.
            tier.policies.sort_by_cached_key(|index| tie(&policies[*index].key));
            tier.policies.sort_by(|a, b| policies[*a].order.total_cmp(&policies[*b].order));
            tier
        })
        .collect();
    tiers.sort_by(|a, b| {
        let ordered = |tier: &Tier| (tier.missing, tier.order.is_none());
        ordered(a)
            .cmp(&ordered(b))
            .then_with(|| a.order.unwrap_or(0.0).total_cmp(&b.order.unwrap_or(0.0)))
            .then_with(|| a.name.cmp(&b.name))
    });
    tiers
}

fn define(objects: &BTreeMap<ObjectKey, Stored>, name: &str) -> Tier {
    let tier = |order, missing, passes| Tier {
        name: name.to_owned(),
        order,
        missing,
        passes,
        policies: Vec::new(),
    };
    for (built_in, order, passes) in BUILT_IN {
        if built_in == name {
            return tier(Some(order), false, passes);
        }
    }
    let stored = objects.get(&ObjectKey::new(Kind::Tier, "", name));
    let object = stored.and_then(|stored| stored.state.valid());
    if let Some(Object::Tier(wire)) = object {
        let passes = wire.default_action == Some(Action::Pass);
        return tier(wire.order.map(Order::value), false, passes);
    }
    tier(None, true, false)
}

/// Returns the key that sorts policies with the same order: "name/namespace/kind", with Calico's
/// names of the kinds.
fn tie(key: &ObjectKey) -> String {
    let kind = match key.kind {
        Kind::NetworkPolicy => "KubernetesNetworkPolicy",
        Kind::ClusterNetworkPolicy => "KubernetesClusterNetworkPolicy",
        Kind::AdminNetworkPolicy => "KubernetesAdminNetworkPolicy",
        Kind::BaselineAdminNetworkPolicy => "KubernetesBaselineAdminNetworkPolicy",
        kind => kind.name(),
    };
    format!("{}/{}/{kind}", key.name, key.namespace)
}
