//! Which pod has an address that several pods' objects name, or that an annotation names. The
//! import and the oracle share no code for this, and must agree.

use std::collections::BTreeSet;
use std::net::IpAddr;

use manx_calculation::import::import;
use manx_objects::contents::Contents;
use manx_oracle::{Oracle, Party};
use proptest::prelude::*;
use proptest::sample::select;

const ADDRESSES: [&str; 14] = [
    // Addresses of n1's block and of n2's, in both families.
    "10.1.0.5",
    "10.1.0.6",
    "10.2.0.2",
    "fd00:1::5",
    // An address of the node, the first and the last of a block, and an address of another node.
    "10.1.0.1",
    "10.1.0.0",
    "10.1.0.255",
    "10.2.0.0",
    "10.2.0.1",
    "10.9.0.9",
    // A borrowed address, one of the world, and addresses that no pod can have.
    "10.9.0.5",
    "fd00:9::5",
    "192.0.2.5",
    "169.254.0.5",
];

fn addresses() -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(select(&ADDRESSES[..]), 1..4)
}

/// A pod's metadata without its name, its spec and its status.
fn pod() -> impl Strategy<Value = String> {
    let annotation = select(
        &[
            "cni.projectcalico.org/podIPs",
            "cni.projectcalico.org/podIPs",
            "cni.projectcalico.org/podIP",
            "vpc.amazonaws.com/pod-ips",
        ][..],
    );
    let noted = prop::option::weighted(0.7, (annotation, addresses(), prop::bool::weighted(0.1)));
    let emptied = select(&["", "", "", "cni.projectcalico.org/podIP: '', "][..]);
    let metadata = select(
        &[
            "",
            "",
            "creationTimestamp: '2026-01-01T00:00:01Z', ",
            "creationTimestamp: '2026-01-01T00:00:02Z', ",
            "deletionTimestamp: x, ",
        ][..],
    );
    let node = select(
        &[
            "nodeName: n1",
            "nodeName: n1",
            "nodeName: n2",
            "nodeName: n3",
            "",
            "nodeName: n1, hostNetwork: true",
        ][..],
    );
    let reported = prop::option::weighted(0.4, addresses());
    let phase = select(&["Running", "Running", "Pending", "Succeeded"][..]);
    ((noted, emptied, metadata), (node, reported, phase)).prop_map(
        |((noted, emptied, metadata), (node, reported, phase))| {
            let noted = noted.map_or(String::new(), |(name, addresses, is_illegal)| {
                let illegal = if is_illegal { ",x" } else { "" };
                format!("{name}: '{}{illegal}'", addresses.join(","))
            });
            // A key may occur only once.
            let emptied = if noted.contains("podIP:") { "" } else { emptied };
            let reported = reported.map_or(String::new(), |all| {
                let all: Vec<String> = all.iter().map(|ip| format!("{{ip: '{ip}'}}")).collect();
                format!(", podIPs: [{}]", all.join(", "))
            });
            format!(
                "{metadata}annotations: {{{emptied}{noted}}}}}, spec: {{{node}}}, status: {{phase: {phase}{reported}}}}}"
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_import_and_the_oracle_give_each_address_to_the_same_pod(
        pods in prop::collection::vec(pod(), 1..6),
        is_pooled in prop::bool::weighted(0.8),
    ) {
        let mut text = String::from(
            "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.1.0.0/24, 'fd00:1::/64']}, status: {addresses: [{type: InternalIP, address: 10.9.0.9}]}}\n---\n\
             {apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.2.0.0/30}}\n",
        );
        if is_pooled {
            text += "---\n{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.0.0.0/8}}\n";
            text += "---\n{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: q}, spec: {cidr: 'fd00::/16'}}\n";
            text += "---\n{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: r}, spec: {cidr: 169.254.0.0/16}}\n";
        }
        for (number, pod) in pods.iter().enumerate() {
            text += &format!("---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{number}, namespace: a, {pod}\n");
        }
        let contents = Contents::from_texts([("all.yaml", text.as_str())]);
        let imported = import(&contents);
        let oracle = Oracle::new(&contents.objects);
        let by_import: BTreeSet<(String, IpAddr)> = imported
            .model
            .endpoints
            .iter()
            .flat_map(|(name, pod)| pod.addresses.iter().map(|ip| (name.to_string(), *ip)))
            .collect();
        let by_oracle = oracle.pods().filter_map(|pod| match pod {
            Party::Pod { namespace, name, address } => Some((format!("{namespace}/{name}"), address)),
            _ => None,
        });
        let by_oracle: BTreeSet<(String, IpAddr)> = by_oracle.collect();
        prop_assert_eq!(&by_import, &by_oracle, "{}", text);
        // For a pod that is always denied the oracle returns the largest number.
        let closed = oracle.all_occupants().into_iter().filter(|(_, number)| *number == u32::MAX);
        let closed: BTreeSet<IpAddr> = closed.map(|(net, _)| net.addr()).collect();
        prop_assert_eq!(&*imported.model.unknown, &closed, "{}", text);
        // Each address belongs to one pod.
        let mut each = BTreeSet::new();
        prop_assert!(by_import.iter().all(|(_, address)| each.insert(*address)), "{}", text);
    }
}
