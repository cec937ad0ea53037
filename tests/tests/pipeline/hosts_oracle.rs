//! A node that owns its uplink passes through its interfaces exactly what the oracle allows, with generated policies of
//! every hook.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use manx_oracle::{Crossing, Direction, Oracle, Packet};
use manx_tests::fabric::{Fabric, HOST, NODES, UNDERLAY, UPLINK, pod};
use manx_tests::packet::{TCP, Tuple};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

const A: &str = "10.1.0.1";
const OUTSIDE: &str = "192.0.2.1";
const PORTS: [u16; 5] = [80, 81, 82, 22, 6443];

const HOOKS: [&str; 4] = [
    "",
    "applyOnForward: true, ",
    "preDNAT: true, applyOnForward: true, ",
    "doNotTrack: true, applyOnForward: true, ",
];

fn rule() -> impl Strategy<Value = String> {
    let ports = select(&["80", "81", "22", "6443", "80, 81", "'1:65535'"][..]);
    (select(&["Allow", "Deny", "Pass", "Log"][..]), ports).prop_map(|(action, ports)| {
        format!("{{action: {action}, protocol: TCP, destination: {{ports: [{ports}]}}}}")
    })
}

fn policy() -> impl Strategy<Value = String> {
    let rules = || prop::collection::vec(rule(), 0..3).prop_map(|rules| rules.join(", "));
    let tier = select(&["default", "default", "first", "missing"][..]);
    let types = select(&["Ingress", "Egress", "Ingress, Egress"][..]);
    (select(&HOOKS[..]), tier, 0_u8..4, types, rules(), rules()).prop_map(
        |(hook, tier, order, types, ingress, egress)| {
            // Before destination NAT there is only ingress.
            let (types, egress) =
                if hook.contains("preDNAT") { ("Ingress", String::new()) } else { (types, egress) };
            let of = |name: &str, rules: &str| match types.contains(name) && !rules.is_empty() {
                true => format!(", {}: [{rules}]", name.to_lowercase()),
                false => String::new(),
            };
            format!(
                "tier: {tier}, order: {order}, {hook}types: [{types}]{}{}",
                of("Ingress", &ingress),
                of("Egress", &egress)
            )
        },
    )
}

fn cluster() -> impl Strategy<Value = String> {
    let profiles = select(&["[]", "[open]", "[absent]"][..]);
    (prop::collection::vec(policy(), 0..6), profiles).prop_map(|(policies, profiles)| {
        let mut text = pod("shop/a", 0, "{app: a}", &[A]);
        let mut object = |kind: &str, name: &str, spec: &str| {
            let _ = write!(
                text,
                "---\n{{apiVersion: projectcalico.org/v3, kind: {kind}, metadata: {{name: {name}, labels: {{role: node}}}}, spec: {{{spec}}}}}\n"
            );
        };
        object("Tier", "first", "order: 1, defaultAction: Pass");
        object("Profile", "open", "ingress: [{action: Allow}], egress: [{action: Deny}]");
        let host = format!("node: {}, interfaceName: eth0, profiles: {profiles}", NODES[0]);
        object("HostEndpoint", "eth0", &host);
        for (index, policy) in policies.iter().enumerate() {
            let spec = format!("selector: role == 'node', {policy}");
            object("GlobalNetworkPolicy", &format!("p{index}"), &spec);
        }
        text
    })
}

#[test]
fn what_passes_an_interface_that_is_owned_is_what_the_oracle_lets_pass_it() {
    let node = UNDERLAY[0].to_string();
    let seen: RefCell<BTreeMap<(bool, bool, bool), u32>> = RefCell::default();
    let config = Config { cases: 96, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&cluster(), |text| {
        let mut fabric = Fabric::with_uplinks(&text);
        prop_assert!(fabric.contents.in_sync);
        let oracle = Oracle::new(&fabric.contents.objects);
        let (_, a) = fabric.port("shop/a");
        for port in PORTS {
            for (entrance, from, to, direction, forwarded) in [
                (UPLINK, OUTSIDE, node.as_str(), Direction::Ingress, false),
                (HOST, node.as_str(), OUTSIDE, Direction::Egress, false),
                (UPLINK, OUTSIDE, A, Direction::Ingress, true),
                (a, A, OUTSIDE, Direction::Egress, true),
            ] {
                let address = |text: &str| text.parse::<IpAddr>().unwrap();
                let verdict = oracle.judge_host(&Crossing {
                    node: NODES[0],
                    interface: "eth0",
                    addresses: &[],
                    direction,
                    forwarded,
                    source: address(from),
                    destination: address(to),
                    packet: Packet::to_port(TCP, Some(port)),
                    original: None,
                });
                let packet = Tuple::new(from, to, TCP, port).opening();
                let passes = !fabric.send_at(0, entrance, &packet).is_empty();
                prop_assert_eq!(
                    passes,
                    verdict.allows(),
                    "{} -> {} port {}: {}\n{}",
                    from,
                    to,
                    port,
                    verdict,
                    text
                );
                let ingress = direction == Direction::Ingress;
                *seen.borrow_mut().entry((ingress, forwarded, passes)).or_default() += 1;
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    println!("{seen:?}");
    assert!(seen.len() == 8 && seen.values().all(|count| *count > 20), "{seen:?}");
}
