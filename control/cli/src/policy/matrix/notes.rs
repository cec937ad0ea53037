//! What holds of all pairs, and what is not in the matrix.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_analysis::matrix::{MOST_NETS, Matrix, PartyKind};
use manx_objects::few;
use manx_objects::object::ObjectKey;

/// The most names in one sentence.
const MOST: usize = 5;

/// The sentences.
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
            "Policies tell {count} kinds of nets apart, more than {MOST_NETS}: they are left out. manx policy explain \
             answers for addresses."
        ));
    }
    let mut left_out: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in &matrix.left_out {
        left_out.entry(pod.why).or_default().push(pod.pod.to_string());
    }
    for (why, pods) in left_out {
        notes.push(format!("Not in the matrix, {why}: {}.", few(&pods, MOST)));
    }
    let assumed: Vec<String> = assumed.keys().map(ToString::to_string).collect();
    if !assumed.is_empty() {
        notes.push(format!("No address in the manifests, assumed: {}.", few(&assumed, MOST)));
    }
    notes
}
