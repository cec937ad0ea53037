//! Finds `nodes` entries of cluster-wide policies that match no Node.
//!
//! Nothing is reported if the input has no Node, or if the labels of a Node are not known.

use std::collections::{BTreeMap, BTreeSet};

use manx_calculation::import::{Node, label_selector};
use manx_objects::State;
use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::cluster::{ClusterMatch, ClusterPeer};
use manx_objects::object::{Kind, LabelSelector, Object};
use manx_policy_compiler::selector::LabelSource as _;

use super::parts::{Nearest, Part};
use super::report::Report;
use super::scene::Scene;

/// Reports each `nodes` entry that matches no Node.
pub(super) fn check<'a>(contents: &'a Contents, scene: &Scene<'a>, report: &mut Report<'a>) {
    let nodes = scene.nodes();
    let mut all = contents.of_kind(Kind::Node);
    if nodes.is_empty() || all.any(|(_, it)| matches!(it.state, State::Invalid(_))) {
        return;
    }
    for (key, object) in contents.all_valid() {
        let Object::ClusterNetworkPolicy(policy) = object else { continue };
        for (index, rule) in policy.egress.iter().enumerate() {
            let ClusterMatch::Of { peers, .. } = &rule.matches else { continue };
            for (at, peer) in peers.iter().enumerate() {
                if let ClusterPeer::Nodes(labels) = peer
                    && let Some(why) = why_none(labels, nodes)
                {
                    let field = format!("spec.egress[{index}].to[{at}].nodes");
                    let message = format!("matches nothing: {why}");
                    report.tell(key, &field, Code::NodesMatchNothing, message);
                }
            }
        }
    }
}

/// Returns the reason why no node with an address has matching labels. Returns `None` if there is
/// such a node.
fn why_none(labels: &LabelSelector, nodes: &BTreeMap<String, Node>) -> Option<String> {
    let selector = label_selector(labels);
    let fitting: Vec<(&String, &Node)> =
        nodes.iter().filter(|(_, node)| selector.matches(&node.labels)).collect();
    if fitting.iter().any(|(_, node)| !node.addresses.is_empty()) {
        return None;
    }
    if let Some((name, _)) = fitting.first() {
        return Some(format!("Node {name} has these labels and no address"));
    }
    for (label, values) in selector.required_labels() {
        let has: BTreeSet<&str> =
            nodes.values().filter_map(|node| node.labels.label(label)).collect();
        let fits = values.as_ref().is_none_or(|values| values.iter().any(|it| has.contains(it)));
        if fits && !has.is_empty() {
            continue;
        }
        let wanted = values.map(|values| format!("={}", values.join("|"))).unwrap_or_default();
        let there = Vec::from_iter(has).join(", ");
        let there =
            if there.is_empty() { there } else { format!(" (the values of Nodes: {there})") };
        return Some(format!("no Node has the label {label}{wanted}{there}"));
    }
    let nearest = Nearest::among(
        &Part::all(&selector),
        nodes.iter().map(|(name, node)| (name.as_str(), &node.labels)),
    );
    let near = nearest.map(|it| format!("; {}", it.text(&format!("Node {}", it.object))));
    Some(format!("no Node fits all of it{}", near.unwrap_or_default()))
}
