//! What stays the same from image to image, and what does not.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;

use super::build::*;
use super::generate::{model, relabelled, some_local};
use crate::compile::Compiler;
use crate::image::{Identity, Image};
use crate::model::*;
use crate::prove::Witnesses;

fn cluster() -> Cluster {
    Cluster::default()
        .namespace("shop", &[("team", "a")])
        .pod("shop/web-1", &[("app", "web")], &["10.0.0.1", "fd00::1"])
        .pod("shop/web-2", &[("app", "web")], &["10.0.0.2"])
        .pod_with_ports("shop/db", &[("app", "db")], &["10.0.0.3"], &[("sql", Protocol::Tcp, 5432)])
        .ingress("shop/p", &[("app", "db")], vec![from(&[here(&[("app", "web")])])])
}

fn identities(image: &Image, addresses: &[&str]) -> Vec<Identity> {
    addresses.iter().map(|address| image.identity(ip(address))).collect()
}

const ADDRESSES: [&str; 5] = ["10.0.0.1", "fd00::1", "10.0.0.2", "10.0.0.3", "192.0.2.1"];

#[test]
fn replicas_share_an_identity_and_others_do_not() {
    let cluster = cluster();
    let found = identities(&cluster.image(), &ADDRESSES);
    assert_eq!(found[0], found[1], "both families of one pod");
    assert_eq!(found[0], found[2], "two replicas");
    assert_ne!(found[0], found[3]);
    assert_ne!(found[0], found[4]);
    assert!(!found.contains(&Identity::UNKNOWN));
}

#[test]
fn identities_stay_over_recompiles() {
    let (cluster, mut compiler) = (cluster(), Compiler::new());
    let first = compiler.compile(&cluster.model, &cluster.all());
    let cluster = cluster.pod("shop/new", &[("app", "new")], &["10.0.0.9"]).ingress(
        "shop/q",
        &[("app", "new")],
        vec![],
    );
    let second = compiler.compile(&cluster.model, &cluster.all());
    assert_eq!(identities(&first, &ADDRESSES), identities(&second, &ADDRESSES));
    assert_ne!(second.identity(ip("10.0.0.9")), first.identity(ip("10.0.0.9")));
}

#[test]
fn a_relabelled_pod_gets_a_new_identity_while_others_keep_theirs() {
    let (cluster, mut compiler) = (cluster(), Compiler::new());
    let before = identities(&compiler.compile(&cluster.model, &cluster.all()), &ADDRESSES);
    let model = relabelled(&cluster.model, &name("shop/web-1"));
    let after = identities(&compiler.compile(&model, &cluster.all()), &ADDRESSES);
    assert_ne!(before[0], after[0]);
    assert_eq!(after[0], after[1]);
    assert_eq!(before[2..], after[2..]);
    let back = identities(&compiler.compile(&cluster.model, &cluster.all()), &ADDRESSES);
    assert_eq!(before, back, "the old meaning has its old number");
}

#[test]
fn a_relabelled_namespace_gives_its_pods_new_identities() {
    let (cluster, mut compiler) = (cluster().pod("lab/x", &[], &["10.0.1.1"]), Compiler::new());
    let before = compiler.compile(&cluster.model, &cluster.all());
    let cluster = cluster.namespace("shop", &[("team", "b")]);
    let after = compiler.compile(&cluster.model, &cluster.all());
    assert_ne!(before.identity(ip("10.0.0.1")), after.identity(ip("10.0.0.1")));
    assert_eq!(before.identity(ip("10.0.1.1")), after.identity(ip("10.0.1.1")));
}

#[test]
fn a_reused_address_has_the_identity_of_its_new_pod() {
    let (mut cluster, mut compiler) = (cluster(), Compiler::new());
    let before = compiler.compile(&cluster.model, &cluster.all());
    cluster.model.endpoints.remove(&name("shop/db"));
    let cluster = cluster.pod("shop/web-3", &[("app", "web")], &["10.0.0.3"]);
    let after = compiler.compile(&cluster.model, &cluster.all());
    assert_ne!(before.identity(ip("10.0.0.3")), after.identity(ip("10.0.0.3")));
    assert_eq!(after.identity(ip("10.0.0.3")), after.identity(ip("10.0.0.1")));
}

#[test]
fn a_new_prefix_changes_the_identities_inside_it_and_no_others() {
    let (cluster, mut compiler) = (cluster(), Compiler::new());
    let before = identities(&compiler.compile(&cluster.model, &cluster.all()), &ADDRESSES);
    let cluster = cluster.ingress("shop/q", &[], vec![from(&[block("10.0.0.2/31", &[])])]);
    let after = identities(&compiler.compile(&cluster.model, &cluster.all()), &ADDRESSES);
    assert_eq!([before[0], before[1], before[4]], [after[0], after[1], after[4]]);
    assert_ne!(before[2], after[2]);
    assert_ne!(before[3], after[3]);
}

#[test]
fn identities_no_policy_tells_apart_are_one_class() {
    let counts = cluster().image().counts();
    assert_eq!(counts.identities, 3, "web, db, nobody");
    assert_eq!(counts.classes, 2, "web of shop, anybody else");
    assert_eq!(counts.chains, 3, "db's ingress; everybody's egress; web's ingress");
}

#[test]
fn a_revision_moves_with_what_concerns_its_endpoint_and_with_nothing_else() {
    let base = cluster();
    let before = base.image();
    let changed = |cluster: &Cluster| -> Vec<&'static str> {
        let image = cluster.image();
        ["shop/web-1", "shop/db"]
            .into_iter()
            .filter(|pod| image.revision(&name(pod)) != before.revision(&name(pod)))
            .collect()
    };
    assert!(changed(&base).is_empty());
    assert!(changed(&cluster().pod("shop/new", &[], &["10.0.0.9"])).is_empty(), "another pod");
    assert!(changed(&cluster().namespace("lab", &[])).is_empty(), "another namespace");
    assert!(changed(&cluster().ingress("lab/p", &[], vec![])).is_empty(), "a foreign policy");
    assert!(changed(&cluster().ingress("shop/q", &[("app", "z")], vec![])).is_empty());
    let other_rule = vec![on(&[port(80)])];
    assert_eq!(changed(&cluster().ingress("shop/p", &[("app", "db")], other_rule)), ["shop/db"]);
    assert_eq!(changed(&cluster().egress("shop/q", &[("app", "web")], vec![])), ["shop/web-1"]);
    assert_eq!(changed(&cluster().invalid("shop/q", select(&[("app", "db")]))), ["shop/db"]);
}

#[test]
fn a_revision_moves_with_the_numbers_of_port_names_in_use() {
    let with = |ports: &[(&str, Protocol, u16)], rule_name| {
        let cluster = Cluster::default()
            .pod_with_ports("shop/s", &[], &["10.0.0.1"], ports)
            .ingress("shop/p", &[], vec![on(&[named(rule_name)])]);
        cluster.image().revision(&name("shop/s"))
    };
    let (one, two) = ([("http", Protocol::Tcp, 80)], [("http", Protocol::Tcp, 8080)]);
    assert_ne!(with(&one, "http"), with(&two, "http"));
    assert_eq!(with(&one, "sql"), with(&two, "sql"), "a name that no rule uses");
}

#[test]
fn a_counter_slot_belongs_to_one_reason_for_the_compilers_life() {
    let (cluster, mut compiler) = (cluster(), Compiler::new());
    let slots = |image: &Image| -> BTreeMap<Reason, u32> {
        image.paths().iter().map(|path| (path.reason.clone(), path.slot)).collect()
    };
    let first = slots(&compiler.compile(&cluster.model, &cluster.all()));
    let other =
        Cluster::default().pod("a/a", &[], &["10.0.0.1"]).ingress("a/a", &[], vec![on(&[port(1)])]);
    let second = slots(&compiler.compile(&other.model, &other.all()));
    let image = compiler.compile(&cluster.model, &cluster.all());
    assert_eq!(slots(&image), first);
    for (reason, slot) in first.iter().chain(&second) {
        assert!(*slot < image.slots());
        for (other, same) in first.iter().chain(&second) {
            assert_eq!(slot == same, reason == other);
        }
    }
}

#[test]
fn before_any_compilation_nothing_passes() {
    let image = Image::default();
    assert_eq!(image.identity(ip("10.0.0.1")), Identity::UNKNOWN);
    assert_eq!(image.chain(&name("shop/web-1"), Direction::Egress), None);
    for path in image.paths() {
        assert_eq!(path.verdict, Verdict::Deny);
    }
}

/// Everything that policy may ever ask of an address, as text.
fn meaning(model: &Model, address: IpAddr) -> Vec<String> {
    let pods = model.endpoints.iter().filter(|(_, pod)| pod.addresses.contains(&address));
    let mut subjects: Vec<String> = pods
        .map(|(name, pod)| {
            let labels = model.namespaces.get(&name.namespace).cloned().unwrap_or_default();
            format!("{} {labels:?} {:?} {:?}", name.namespace, pod.labels, pod.named_ports)
        })
        .collect();
    subjects.sort();
    subjects.dedup();
    subjects
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn an_identity_never_changes_its_meaning(models in prop::collection::vec(model(), 1..5)) {
        let mut compiler = Compiler::new();
        let mut meanings: BTreeMap<Identity, Vec<String>> = BTreeMap::new();
        for model in &models {
            let local = some_local(model);
            let image = compiler.compile(model, &local);
            for address in Witnesses::of(model, &local, &image).addresses {
                let meaning = meaning(model, address);
                let identity = image.identity(address);
                prop_assert_ne!(identity, Identity::UNKNOWN);
                let known = meanings.entry(identity).or_insert_with(|| meaning.clone());
                prop_assert_eq!(&*known, &meaning, "{:?} at {}", identity, address);
            }
        }
    }
}
