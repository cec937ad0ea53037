//! The rigs in `fixtures/rigs/` are manifests without errors, and each is worth running.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use manx_calculation::import;
use manx_datastore::Store;
use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, ObjectKey};

/// Every rig, by its folder.
const RIGS: [&str; 16] = [
    "admin-baseline",
    "cross-subnet",
    "default-deny",
    "dual-stack",
    "gitops",
    "host-endpoints",
    "namespaces",
    "network-sets",
    "no-overlay",
    "services",
    "staged",
    "ten-nodes",
    "three-tier",
    "tiers",
    "vxlan",
    "way-out",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/rigs")
}

/// Reads a rig as its nodes do; `rig.yaml` is not one of the cluster's objects.
fn load(rig: &str) -> Contents {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(folder().join(rig)).unwrap().map(Result::unwrap) {
        if file.file_name() != "rig.yaml" {
            fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
    }
    let mut contents = Store::load(copy.path());
    let assumed = manx_assume::complete(&mut contents, manx_assume::Options::default()).unwrap();
    // The other rigs leave out the addresses of their pods, and perhaps where they run.
    let is_made_up = |key: &ObjectKey| !matches!(key.kind, Kind::Pod | Kind::EndpointSlice);
    assert_eq!(assumed.manifests.keys().any(is_made_up), rig == "gitops", "{rig}: {assumed:?}");
    contents
}

#[test]
fn every_folder_is_a_rig_of_the_list() {
    let found: BTreeSet<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, RIGS.map(str::to_owned).into());
}

#[test]
fn no_rig_has_a_problem() {
    for rig in RIGS {
        let cluster = import::import(&load(rig));
        // The tests of manx policy check list the rigs in which peers stand beside each other on purpose.
        let problems = cluster.problems.iter().filter(|it| it.code() != Code::SeparatePeers);
        let problems: Vec<String> = problems.map(ToString::to_string).collect();
        if rig == "host-endpoints" {
            // The only reported problems are policies that a node cannot enforce because it shares its uplink with the
            // kernel.
            assert!(
                !problems.is_empty() && problems.iter().all(|it| it.contains("NOT ENFORCED")),
                "{problems:#?}"
            );
        } else {
            assert!(problems.is_empty(), "{rig}: {}", problems.join("\n"));
        }
        assert!(cluster.in_sync, "{rig}");
    }
}

#[test]
fn every_rig_has_nodes_to_cross_pods_to_ask_and_policies_in_force() {
    for rig in RIGS {
        let cluster = import::import(&load(rig));
        assert!(cluster.nodes.len() >= 2, "{rig}: one node crosses no underlay");
        assert!(!cluster.pools.is_empty(), "{rig}: no pool says how to cross it");
        assert!(!cluster.model.policies.is_empty(), "{rig}: no policy");
    }
}
