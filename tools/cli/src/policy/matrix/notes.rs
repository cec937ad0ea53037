//! The notes of a matrix: sentences that hold for all pairs, and the parties that are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use manx_analysis::matrix::{MOST_ASKED_NETS, MOST_NETS, Matrix, PartyKind};
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{Kind, Object, ObjectKey, Owner};
use manx_objects::{State, few};

/// The most names in one sentence.
const MOST: usize = 5;

pub(super) fn notes(matrix: &Matrix, assumed: &BTreeMap<ObjectKey, Vec<IpAddr>>) -> Vec<String> {
    let mut notes = vec![
        "Policy of pods only. A pod always reaches itself. Replies pass if the request does."
            .to_owned(),
    ];
    if matrix.has_host_endpoints {
        notes.push(
            "There are HostEndpoints, which may drop more: manx policy explain tells what they do."
                .to_owned(),
        );
    }
    let outside = matrix.parties.iter().find_map(|party| match &party.kind {
        PartyKind::Outside(addresses) => Some(addresses),
        _ => None,
    });
    match outside {
        Some(addresses) => {
            let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            notes.push(format!(
                "outside: an address that no object names, asked as {}.",
                addresses.join(" and ")
            ));
        }
        None => notes.push("outside: left out, because the objects name every address.".to_owned()),
    }
    if matrix.looks_at_source_ports() {
        notes.push(format!(
            "Some rules look at source ports: this is what passes from port {}.",
            Matrix::source_port()
        ));
    }
    if let Some(count) = matrix.too_many_nets {
        notes.push(format!(
            "Policies tell {count} kinds of nets apart, more than {MOST_NETS}: here are those that --from and --to ask for \
             by a net or address, {MOST_ASKED_NETS} at most."
        ));
    }
    for (why, pods) in left_out(matrix) {
        notes.push(format!("Not in the matrix, {why}: {}.", few(&pods, MOST)));
    }
    let assumed: Vec<String> = assumed.keys().map(ToString::to_string).collect();
    if !assumed.is_empty() {
        notes.push(format!("No address in the manifests, assumed: {}.", few(&assumed, MOST)));
    }
    notes
}

/// The pods that are not in the matrix, by the reason.
fn left_out(matrix: &Matrix) -> BTreeMap<&'static str, Vec<String>> {
    let mut by_reason: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for pod in &matrix.left_out {
        by_reason.entry(pod.why).or_default().push(pod.pod.to_string());
    }
    by_reason
}

/// The message if the matrix has no pod. It names the kinds that the manifests have instead.
pub(super) fn no_pods(matrix: &Matrix, contents: &Contents) -> String {
    let workloads =
        contents.objects.iter().filter(|(key, _)| matches!(key.kind, Kind::Workload(_)));
    let (valid, broken): (Vec<_>, Vec<_>) =
        workloads.partition(|(_, stored)| matches!(stored.state, State::Valid(_)));
    let with_pods: BTreeSet<(&str, Owner)> = contents
        .of_kind(Kind::Pod)
        .filter_map(|(pod, _)| Some((pod.namespace.as_str(), contents.workload(pod)?)))
        .collect();
    let has_pods = |key: &ObjectKey| {
        let own = Owner { kind: key.kind.name().to_owned(), name: key.name.clone() };
        with_pods.contains(&(key.namespace.as_str(), own))
    };
    let is_owned = |key: &ObjectKey| match contents.valid(key) {
        Some(Object::Workload(workload)) => workload.owner.is_some(),
        _ => false,
    };
    let empty = valid.iter().filter(|(key, _)| !has_pods(key) && !is_owned(key));
    let names = |(key, _): &(&ObjectKey, &Stored)| key.to_string();
    let mut found: Vec<String> = Vec::new();
    let mut tell = |what: &str, names: &[String], why: &str| {
        if !names.is_empty() {
            let what = if names.len() == 1 { what.to_owned() } else { format!("{what}s") };
            found.push(format!("{} {what} ({}): {why}.", names.len(), few(names, MOST)));
        }
    };
    for (why, pods) in left_out(matrix) {
        tell("pod", &pods, why);
    }
    let none_known = "not valid, so it is not known which pods it has";
    tell("workload", &broken.iter().map(names).collect::<Vec<_>>(), none_known);
    let none_wanted = "has no pod: scaled to 0, suspended, ended, or no node is selected";
    tell("workload", &empty.map(names).collect::<Vec<_>>(), none_wanted);
    if found.is_empty() {
        return "nothing to show: there is no pod in the manifests; name the ones that hold pods or workloads"
            .to_owned();
    }
    let is_broken = |stored: &Stored| matches!(stored.state, State::Invalid(_));
    if contents.objects.values().any(is_broken) {
        found.push("See the errors.".to_owned());
    }
    format!("nothing to show: no pod of the manifests counts. {}", found.join(" "))
}
