use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::super::{Cluster, import};
use super::Unheld;
use manx_objects::contents::Contents;
use manx_policy_compiler::model::ObjectName;

/// Two nodes with a block each, a pool that contains both blocks, and a pool in which no node has a block.
const NODES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.244.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.0/16}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: q}, spec: {cidr: 172.18.0.0/16}}
";

/// A pod's name, metadata, spec and status.
type Text<'a> = (&'a str, &'a str, &'a str, &'a str);

fn objects(pods: &[Text<'_>]) -> Cluster {
    let pod = |(name, metadata, spec, status): &Text<'_>| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: a, {metadata}}}, spec: {{{spec}}}, \
             status: {{{status}}}}}\n"
        )
    };
    let pods: String = pods.iter().map(pod).collect();
    import(&Contents::from_texts([("nodes.yaml", NODES), ("pods.yaml", &pods)]))
}

fn noted(addresses: &str) -> String {
    format!("annotations: {{cni.projectcalico.org/podIPs: '{addresses}'}}")
}

/// Returns each endpoint with its addresses.
fn endpoints(cluster: &Cluster) -> BTreeMap<String, String> {
    let endpoints = cluster.model.endpoints.iter();
    let text = |addresses: Vec<String>| addresses.join(" ");
    endpoints
        .map(|(name, pod)| {
            (name.name.clone(), text(pod.addresses.iter().map(IpAddr::to_string).collect()))
        })
        .collect()
}

#[track_caller]
fn check<const N: usize>(pods: &[Text<'_>], expected: [(&str, &str); N]) -> Cluster {
    let cluster = objects(pods);
    let expected: BTreeMap<String, String> =
        expected.map(|(name, has)| (name.to_owned(), has.to_owned())).into();
    assert_eq!(endpoints(&cluster), expected);
    cluster
}

fn unheld(cluster: &Cluster) -> Vec<String> {
    let text = |((address, pod), why): ((IpAddr, ObjectName), Unheld)| match why {
        Unheld::Held(other) => format!("{address} of {} is {}'s", pod.name, other.name),
        Unheld::OutOfPlace => format!("{address} of {} is out of place", pod.name),
    };
    cluster.unheld().into_iter().map(text).collect()
}

const N1: &str = "nodeName: n1";
const N2: &str = "nodeName: n2";

#[test]
fn an_annotation_names_nothing_that_another_pod_has_and_takes_nothing_from_it() {
    let decoy = noted("10.244.1.5,fd00::5");
    for (name, metadata, spec) in [("a-decoy", &*decoy, N1), ("z-decoy", &*decoy, N2)] {
        let cluster = check(
            &[("victim", "", N1, "podIP: 10.244.1.5"), (name, metadata, spec, "phase: Pending")],
            [("victim", "10.244.1.5")],
        );
        assert!(cluster.borrowed.is_empty());
        assert!(unheld(&cluster)[0].ends_with("is victim's"), "{:?}", unheld(&cluster));
    }
}

#[test]
fn an_annotation_counts_for_addresses_of_its_pods_node_and_of_pools_alone() {
    for (addresses, spec, has) in [
        ("10.244.1.5", N1, Some("10.244.1.5")),
        ("10.244.1.5,10.244.1.6", N1, Some("10.244.1.5")),
        // These addresses are borrowed.
        ("10.244.9.5", N1, Some("10.244.9.5")),
        ("10.244.1.5", N2, Some("10.244.1.5")),
        // These addresses are: outside the cluster; of a node; a node's own, in its block (twice); the network
        // addresses of two blocks; a broadcast address; loopback.
        ("192.0.2.53", N1, None),
        ("172.18.0.3", N1, None),
        ("10.244.2.1", N1, None),
        ("10.244.1.1", N1, None),
        ("10.244.1.0", N1, None),
        ("10.244.2.0", N1, None),
        ("10.244.1.255", N1, None),
        ("127.0.0.1", N1, None),
        // These pods have no node, or name a node that does not exist.
        ("10.244.1.5", "", None),
        ("10.244.1.5", "nodeName: n9", None),
    ] {
        let cluster = objects(&[("web", &noted(addresses), spec, "phase: Pending")]);
        let found = endpoints(&cluster);
        assert_eq!(found.get("web").map(String::as_str), has, "{addresses} {spec}");
        let is_told = unheld(&cluster).iter().any(|line| line.ends_with("is out of place"));
        assert_eq!(is_told, has.is_none() && [N1, N2].contains(&spec), "{addresses} {spec}");
    }
}

#[test]
fn an_address_outside_of_pools_that_an_annotation_names_is_no_route_anywhere() {
    let cluster = objects(&[("decoy", &noted("192.0.2.53"), N1, "phase: Pending")]);
    assert!(cluster.borrowed.is_empty());
    for node in ["n1", "n2"] {
        let seen = crate::topology::topology(&cluster, node, &BTreeMap::new()).unwrap();
        let address: IpAddr = "192.0.2.53".parse().unwrap();
        assert_eq!(seen.route(address).1, crate::topology::Route::World);
        let problems: Vec<String> = seen.problems().collect();
        insta::allow_duplicates! {
            insta::assert_snapshot!(problems.join("\n"), @"addresses not routed, because only annotations name them, and they lie in no pod CIDR of the pod's node and in no IPPool, or are a node's: 192.0.2.53 of Pod a/decoy; remove the annotation, which is the CNI plugin's to write");
        }
    }
}

#[test]
fn of_several_pods_the_reported_one_of_the_node_and_the_first_has_an_address() {
    const AT: &str = "podIP: 10.244.1.5";
    let noted = noted("10.244.1.5");
    let [older, younger] =
        ["1", "2"].map(|last| format!("creationTimestamp: '2026-01-01T00:00:0{last}Z'"));
    let noted_older = format!("{noted}, {older}");
    let leaving = "deletionTimestamp: '2026-01-01T00:00:00Z'";
    // In each pair, the first pod has the address and the second one does not, independently of their order by name.
    for [best, other] in [
        [("", N1, AT), (&*noted_older, N1, "")],
        [("", N2, AT), (&*noted_older, N1, "")],
        [("", N1, AT), (leaving, N1, AT)],
        [(leaving, N1, AT), (&*noted_older, N1, "")],
        [("", N1, AT), (&*older, N2, AT)],
        [(&*older, N1, AT), (&*younger, N1, AT)],
        [(&*younger, N1, AT), ("", N1, AT)],
        [(&*noted_older, N1, ""), (&*noted, N1, "")],
    ] {
        for names in [["a", "b"], ["b", "a"]] {
            let pods = [(names[0], best), (names[1], other)]
                .map(|(name, (metadata, spec, status))| (name, metadata, spec, status));
            let cluster = check(&pods, [(names[0], "10.244.1.5")]);
            let told = [format!("10.244.1.5 of {} is {}'s", names[1], names[0])];
            assert_eq!(unheld(&cluster), told);
        }
    }
    let alike = [("b", "", N1, AT), ("a", "", N1, AT)];
    check(&alike, [("a", "10.244.1.5")]);
}

#[test]
fn a_pod_that_is_not_valid_closes_what_kubelet_reported_of_it_and_nothing_of_others() {
    let unknown = |pods: &[Text<'_>]| -> BTreeSet<String> {
        let cluster = objects(pods);
        cluster.model.unknown.iter().map(IpAddr::to_string).collect()
    };
    let illegal = noted("10.244.1.5,10.244.1.6,192.0.2.53,172.18.0.2,10.244.2.1,x");
    let closed = |addresses: &[&str]| addresses.iter().map(|it| (*it).to_owned()).collect();
    // An address that no pod can have is not closed.
    assert_eq!(unknown(&[("decoy", &illegal, "", "")]), closed(&["10.244.1.5", "10.244.1.6"]));
    // An address stays with another pod that has it, or whose plugin has just written it into an annotation.
    let others = [
        ("one", "", N1, "podIP: 10.244.1.5"),
        ("two", &*noted("10.244.1.6"), N1, "phase: Pending"),
        ("decoy", &*illegal, "", ""),
    ];
    assert_eq!(unknown(&others), closed(&[]));
    assert_eq!(endpoints(&objects(&others)).len(), 2);
    let labels = "labels: {a: '!'}";
    assert_eq!(unknown(&[("web", labels, N1, "podIP: 192.0.2.9")]), closed(&["192.0.2.9"]));
}

#[test]
fn what_annotations_name_is_reported_of_nobody() {
    let all = (2..255).map(|last| format!("10.244.1.{last}")).collect::<Vec<_>>().join(",");
    let all = noted(&all);
    let text = format!(
        "{NODES}---\n{{apiVersion: v1, kind: Pod, metadata: {{name: decoy, namespace: a, {all}}}, spec: {{nodeName: n2}}}}\n\
         ---\n{{apiVersion: v1, kind: Pod, metadata: {{name: web, namespace: a}}, spec: {{{N1}}}, status: {{podIP: 10.244.1.9}}}}\n"
    );
    let contents = Contents::from_texts([("all.yaml", text.as_str())]);
    let cluster = import(&contents);
    let reported = cluster.reported(&contents);
    let reported: Vec<String> = reported.map(|(address, pod)| format!("{address} {pod}")).collect();
    assert_eq!(reported, ["10.244.1.9 a/web"]);
}

#[test]
fn many_pods_that_name_one_address_cost_as_much_as_they_are() {
    let names: Vec<String> = (0..3000).map(|number| format!("decoy-{number:04}")).collect();
    let noted = noted("10.244.1.5");
    let decoys = names.iter().map(|name| (name.as_str(), noted.as_str(), N1, "phase: Pending"));
    let mut pods: Vec<Text<'_>> = decoys.collect();
    pods.push(("victim", "", N1, "podIP: 10.244.1.5"));
    let cluster = check(&pods, [("victim", "10.244.1.5")]);
    assert_eq!(unheld(&cluster).len(), 3000);
}
