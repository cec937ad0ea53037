//! A rig shows the properties of its input: its pods have the addresses in the input, and the
//! oracle gives the same verdicts on the objects that the rig's agents read as on the input.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use manx_api::PodName;
use manx_assume::Options;
use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::Object;
use manx_oracle::{Oracle, Packet, Party};
use manx_rig::plan::Plan;
use manx_rig::plan::input::{self, Input};
use manx_rig::world::slices;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, TestRunner};

/// Addresses in the block of either node, in a block of no node, and outside of the pool; and no
/// address.
const ADDRESSES: [&str; 10] = [
    "",
    "podIP: 10.1.1.5",
    "podIP: 10.1.1.6",
    "podIP: 10.1.2.5",
    "podIP: 10.1.2.6",
    "podIP: 10.1.9.5",
    "podIP: 10.77.0.5",
    "podIP: 192.0.2.77",
    "podIPs: [{ip: 10.1.1.7}, {ip: 'fd00:77::7'}]",
    "podIPs: [{ip: 10.77.0.7}, {ip: 'fd00:1::7'}]",
];

const NODES: [&str; 2] = [
    "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.1.1.0/24, 'fd00:1::/64']}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: 'fd00:aa::2'}]}}",
    "{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.1.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}, {type: InternalIP, address: 'fd00:aa::3'}]}}",
];

/// Policies that name addresses, nets, labels and services, and the objects that they name.
const RULES: [&str; 9] = [
    "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.1.0.0/16, ipipMode: Always}}",
    "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: one}, spec: {podSelector: {matchLabels: {app: a0}}, ingress: [{from: [{ipBlock: {cidr: 10.1.1.5/32}}, {ipBlock: {cidr: 10.77.0.5/32}}]}]}}",
    "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: net}, spec: {podSelector: {matchLabels: {app: a1}}, ingress: [{from: [{ipBlock: {cidr: 10.1.0.0/16, except: [10.1.2.0/24]}}]}]}}",
    "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: out}, spec: {podSelector: {matchLabels: {app: a2}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.1.9.0/24}}, {ipBlock: {cidr: 'fd00:77::/64'}}]}]}}",
    "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: pods}, spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: a0}}}], ports: [{port: 80}]}]}}",
    "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: a1}, ports: [{port: 80}]}}",
    "{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: svc}, spec: {selector: app == 'a0', types: [Egress], egress: [{action: Allow, destination: {services: {name: web}}}]}}",
    "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: some, labels: {set: x}}, spec: {nets: [10.1.1.0/29, 192.0.2.0/24]}}",
    "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: sets}, spec: {order: 1, selector: \"app in {'a1', 'a2'}\", types: [Ingress], ingress: [{action: Deny, source: {selector: set == 'x'}}, {action: Allow}]}}",
];

fn pod(index: usize, address: &str, node: &str) -> String {
    let node = if node.is_empty() { String::new() } else { format!("nodeName: {node}, ") };
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: p{index}, labels: {{app: a{}}}}}, spec: {{{node}containers: [{{name: c, ports: [{{containerPort: 80}}]}}]}}, status: {{{address}}}}}",
        index % 3
    )
}

fn cluster() -> impl Strategy<Value = String> {
    let addresses = Just(ADDRESSES.to_vec()).prop_shuffle();
    let nodes = vec(select(&["", "n1", "n2"][..]), 2..6);
    let places = (addresses, nodes)
        .prop_map(|(addresses, nodes)| addresses.into_iter().zip(nodes).collect::<Vec<_>>());
    (subsequence(&NODES[..], 0..=2), places, subsequence(&RULES[..], 0..=RULES.len())).prop_map(
        |(nodes, places, rules)| {
            let pods = places.iter().enumerate().map(|(at, (ip, node))| pod(at, ip, node));
            let all = nodes.into_iter().chain(rules).map(ToOwned::to_owned).chain(pods);
            all.collect::<Vec<_>>().join("\n---\n")
        },
    )
}

/// The objects as the rig's agents read them when all pods are attached.
fn as_read(input: &Input, plan: &Plan) -> Contents {
    let mut objects = input.objects.clone();
    for (name, pod) in &plan.pods {
        objects.place(name, &pod.node, &pod.addresses);
    }
    let (more, stale) = slices::endpoint_slices(&objects);
    objects.0.extend(more.0);
    objects.0.retain(|key, _| !stale.contains(key));
    objects.contents()
}

/// The addresses that the text itself gives its pods.
fn given(text: &str) -> BTreeMap<PodName, Vec<IpAddr>> {
    let contents = Contents::from_texts([("input.yaml", text)]);
    let pods = contents.objects.iter().filter_map(|(key, stored)| match &stored.state {
        State::Valid(object) => match &**object {
            Object::Pod(pod) => {
                let name = PodName { namespace: key.namespace.clone(), name: key.name.clone() };
                let one = pod.pod_ip.filter(|_| pod.pod_ips.is_empty());
                Some((name, pod.pod_ips.iter().copied().chain(one).collect()))
            }
            _ => None,
        },
        State::Invalid(_) => None,
    });
    pods.filter(|(_, addresses): &(_, Vec<IpAddr>)| !addresses.is_empty()).collect()
}

#[test]
fn the_oracle_says_of_the_rig_what_it_says_of_the_input() {
    let (built, refused) = (Cell::new(0), Cell::new(0));
    let law = |text: String| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("input.yaml");
        fs::write(&file, &text).unwrap();
        let input = input::read(&file, false, Options::default()).unwrap();
        let completed = input.objects.contents();
        let Ok(plan) = Plan::make(&completed, &input.settings) else {
            refused.set(refused.get() + 1);
            return Ok(());
        };
        built.set(built.get() + 1);
        for (name, addresses) in given(&text) {
            prop_assert_eq!(&plan.pods[&name].addresses, &addresses, "{}", name);
        }
        let read = as_read(&input, &plan);
        let [of_input, of_rig] = [&completed, &read].map(|it| Oracle::new(&it.objects));
        let parties: Vec<Party> = of_input.pods().collect();
        prop_assert_eq!(&of_rig.pods().collect::<Vec<_>>(), &parties);
        for from in &parties {
            let alike = |to: &&Party| to.address().is_ipv4() == from.address().is_ipv4();
            for to in parties.iter().filter(alike) {
                for packet in
                    [(6, 80), (6, 9), (17, 53)].map(|(it, port)| Packet::to_port(it, Some(port)))
                {
                    let [input, rig] =
                        [&of_input, &of_rig].map(|it| it.judge(from, to, packet).allowed());
                    prop_assert_eq!(input, rig, "{} -> {}", from, to);
                }
            }
        }
        Ok(())
    };
    let config = Config { cases: 256, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&cluster(), law).unwrap();
    let (built, refused) = (built.get(), refused.get());
    assert!(built > 4 * refused, "{built} built, {refused} refused");
}
