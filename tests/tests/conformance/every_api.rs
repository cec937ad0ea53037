//! Policies of every API, from text to verdict: the oracle, which reads the objects, and the reference, which reads the
//! imported model, agree on every packet; and the rows agree with the reference.
//!
//! The clusters are small and dense: few labels, so that selectors meet; addresses that sets and pods share; invalid
//! objects.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use manx_analysis::proof::{self, Depth};
use manx_calculation::import::import;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, ObjectKey, calico};
use manx_oracle::{
    Direction as Side, Oracle, Packet, Party, RuleName as OracleRule, Staged, VerdictReason,
};
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::{
    Action, Direction, Noted, ObjectName, PolicyKind, PolicyName, Protocol, Reason, RuleName,
    Transport, Verdict,
};
use manx_policy_compiler::reference::{self, Reference};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::{all_local, config, counting_runner};

/// The number of clusters for each of `PROPTEST_CASES`; the clusters are small.
const CLUSTERS: u32 = 4;

/// Pods, the same in every cluster: namespace, name, last part of their addresses, labels, service account, port
/// `http`.
const PODS: [(&str, &str, u8, &str, &str, u16); 5] = [
    ("a", "one", 1, "{app: p, role: r}", "s", 80),
    ("a", "two", 2, "{app: q}", "default", 81),
    ("b", "three", 3, "{app: p}", "s", 80),
    ("b", "four", 4, "{}", "t", 81),
    ("c", "five", 5, "{role: r, app: q}", "default", 80),
];
const NAMESPACES: [(&str, &str); 2] = [("a", "{team: x}"), ("b", "{team: z, role: r}")];
const ACCOUNTS: [(&str, &str, &str); 2] = [("a", "s", "{role: r}"), ("b", "s", "{}")];

/// The rest of a cluster: a document each.
const SURROUNDINGS: &str = "
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: g, labels: {app: p}}, spec: {nets: [192.0.2.0/24, 10.0.0.5, 'fd00::5']}}
---
{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: nets, namespace: a, labels: {app: q}}, spec: {nets: [192.0.2.0/25, '2001:db8::/32']}}
---
{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {app: q}}, spec: {node: n1, interfaceName: eth0, expectedIPs: [172.16.0.1], profiles: [p, kns.a], ports: [{name: http, protocol: TCP, port: 81}]}}
---
{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {name: p}, spec: {labelsToApply: {role: r}, ingress: [{action: Allow}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: w1, namespace: a, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.3]}], ports: [{port: 80}, {port: 53, protocol: UDP}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: w2, namespace: a, labels: {kubernetes.io/service-name: web}}, addressType: IPv6, endpoints: [{addresses: ['fd00::4']}], ports: [{protocol: TCP}]}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone: a}}, spec: {podCIDRs: [10.1.0.0/24, 'fd00:1::/64']}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}, {type: ExternalIP, address: 192.0.2.10}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {zone: b}}, spec: {podCIDR: 10.2.0.0/30}, status: {addresses: [{type: InternalIP, address: 172.16.0.2}, {type: InternalIP, address: 'fd00::7'}]}}
---
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: early}, spec: {order: 10}}
---
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: lenient}, spec: {defaultAction: Pass}}
---
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: late}, spec: {order: 2000000}}
---
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: utmost}, spec: {order: 1.7976931348623157e308}}
";

/// Invalid objects; a cluster has some of them.
const BROKEN: [&str; 7] = [
    "{apiVersion: v1, kind: Node, metadata: {name: bad, labels: {zone: a}}, spec: {podCIDR: 5}}",
    "{apiVersion: v1, kind: Pod, metadata: {name: bad, namespace: a}, spec: {nodeName: 5}, status: {podIP: 10.0.0.9}}",
    "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: bad, labels: {app: q}}, spec: {nets: [x]}}",
    "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: bad, namespace: b}, addressType: x}",
    "{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: wrong}, spec: {order: x}}",
    "{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: bad}, spec: {node: 5}}",
    "{apiVersion: v1, kind: ServiceAccount, metadata: {name: t, namespace: b, labels: {a: 5}}}",
];

const SELECTORS: [&str; 16] = [
    "all()",
    "app == 'p'",
    "app != 'p'",
    "has(app)",
    "!has(role)",
    "app in {'p', 'q'}",
    "app not in {'q'}",
    "app starts with 'p' || role == 'r'",
    "!app == 'q' && has(role)",
    "pcns.team == 'x'",
    "pcsa.role == 'r'",
    "projectcalico.org/namespace == 'a'",
    "projectcalico.org/orchestrator == 'k8s'",
    "projectcalico.org/serviceaccount == 's'",
    "nothing == 'nobody'",
    "!all()",
];
const OF_NAMESPACES: [&str; 8] = [
    "all()",
    "global()",
    "team == 'x'",
    "!has(team)",
    "all() && team != 'x'",
    "!all() || has(role)",
    "kubernetes.io/metadata.name in {'b', 'c'}",
    "projectcalico.org/name == 'a'",
];
const OF_ACCOUNTS: [&str; 5] =
    ["all()", "role == 'r'", "!has(role)", "role != 'r'", "projectcalico.org/name == 'default'"];
const NETS_V4: [&str; 5] =
    ["10.0.0.0/30", "10.0.0.4/30", "192.0.2.0/26", "0.0.0.0/0", "172.16.0.1/32"];
const NETS_V6: [&str; 3] = ["fd00::/126", "2001:db8::/48", "::/0"];
const PORTS: [&str; 6] = ["80", "'79:81'", "'50:60000'", "http", "dns", "1"];

/// A quoted field, or an absent one.
fn maybe(key: &'static str, values: &'static [&'static str]) -> BoxedStrategy<String> {
    prop_oneof![
        7 => Just(String::new()),
        1 => select(values).prop_map(move |value| format!("{key}: \"{value}\", ")),
    ]
    .boxed()
}

/// A list of one or two values, or an absent one; always absent if there are no values.
fn list(key: &'static str, values: &'static [&'static str], weight: u32) -> BoxedStrategy<String> {
    if values.is_empty() {
        return Just(String::new()).boxed();
    }
    prop_oneof![
        9 => Just(String::new()),
        weight => prop::collection::vec(select(values), 1..3).prop_map(move |values| {
            let values: Vec<_> =
                values.iter().map(|v| if v.contains('/') { format!("'{v}'") } else { (*v).to_owned() }).collect();
            format!("{key}: [{}], ", values.join(", "))
        }),
    ]
    .boxed()
}

/// One side of a Calico rule: `v4` is the family of its nets, `ports` are its possible ports.
fn entity(v4: bool, ports: &'static [&'static str], service: bool) -> BoxedStrategy<String> {
    let nets: &'static [&'static str] = if v4 { &NETS_V4 } else { &NETS_V6 };
    let not_nets: &'static [&'static str] =
        if v4 { &["10.0.0.0/31", "192.0.2.0/27"] } else { &["fd00::4/127"] };
    let accounts = prop_oneof![
        16 => Just(String::new()),
        1 => (select(&["s", "default"][..]), maybe("selector", &OF_ACCOUNTS))
            .prop_map(|(name, selector)| format!("serviceAccounts: {{names: [{name}], {selector}}}, ")),
        1 => maybe("selector", &OF_ACCOUNTS).prop_map(|selector| format!("serviceAccounts: {{{selector}}}, ")),
    ];
    let selecting = (
        list("nets", nets, 2),
        list("notNets", not_nets, 1),
        maybe("selector", &SELECTORS),
        maybe("notSelector", &SELECTORS),
        maybe("namespaceSelector", &OF_NAMESPACES),
        accounts,
        list("ports", ports, 2),
        list("notPorts", ports, 1),
    )
        .prop_map(|(nets, not_nets, selector, not, namespaces, accounts, ports, not_ports)| {
            format!("{nets}{not_nets}{selector}{not}{namespaces}{accounts}{ports}{not_ports}")
        });
    if !service {
        return selecting.boxed();
    }
    let services = select(
        &["{name: web, namespace: a}", "{name: none, namespace: a}", "{name: web, namespace: b}"][..],
    );
    prop_oneof![6 => selecting, 1 => services.prop_map(|service| format!("services: {service}"))]
        .boxed()
}

fn calico_rule(ingress: bool) -> BoxedStrategy<String> {
    let protocol = select(&["", "", "TCP", "TCP", "UDP", "ICMP", "47"][..]);
    let action =
        select(&["Allow", "Deny", "Pass", "Log", "allow", "next-tier", "Deny", "ALLOW"][..]);
    (action, protocol, any::<bool>(), 0_u8..20)
        .prop_flat_map(move |(action, protocol, v4, extra)| {
            let ports: &'static [&'static str] = match protocol {
                "TCP" | "UDP" => &PORTS,
                "" => &PORTS[3..5],
                _ => &[],
            };
            let extra = match (extra, protocol) {
                (0, "") => "notProtocol: UDP, ",
                (1, "ICMP") => "icmp: {type: 8}, ",
                (2, "ICMP") => "icmp: {}, ",
                (3 | 10..12, "ICMP" | "") => "notICMP: {type: 8, code: 0}, ",
                (4, _) if v4 => "ipVersion: 4, ",
                (4, "" | "TCP" | "UDP") => "ipVersion: 6, ",
                (5..8, "" | "TCP") if ingress && action == "Allow" => "http: {methods: [GET]}, ",
                _ => "",
            };
            let protocol =
                if protocol.is_empty() { String::new() } else { format!("protocol: {protocol}, ") };
            (entity(v4, ports, ingress), entity(v4, ports, !ingress)).prop_map(
                move |(source, destination)| {
                    format!(
                        "{{action: {action}, {protocol}{extra}source: {{{source}}}, destination: {{{destination}}}}}"
                    )
                },
            )
        })
        .boxed()
}

fn rules(key: &'static str, rule: BoxedStrategy<String>) -> impl Strategy<Value = String> {
    prop::collection::vec(rule, 0..5).prop_map(move |rules| {
        if rules.is_empty() { String::new() } else { format!("{key}: [{}], ", rules.join(", ")) }
    })
}

fn calico_policy() -> BoxedStrategy<String> {
    let kind = select(
        &[
            "NetworkPolicy",
            "GlobalNetworkPolicy",
            "StagedNetworkPolicy",
            "StagedGlobalNetworkPolicy",
        ][..],
    );
    let tier = select(
        &["default", "early", "late", "lenient", "utmost", "absent", "default", "wrong"][..],
    );
    let types =
        select(&["", "types: [Ingress], ", "types: [Egress], ", "types: [Ingress, Egress], "][..]);
    (
        kind,
        0_u8..100,
        tier,
        prop_oneof![Just(String::new()), (0_u8..3).prop_map(|order| format!("order: {order}, "))],
        (maybe("selector", &SELECTORS[..10]), maybe("namespaceSelector", &["all()", "team == 'x'", "!has(team)"]), maybe("serviceAccountSelector", &OF_ACCOUNTS)),
        types,
        rules("ingress", calico_rule(true)),
        rules("egress", calico_rule(false)),
        0_u8..24,
    )
        .prop_map(|(kind, name, tier, order, (selector, namespaces, accounts), types, ingress, egress, extra)| {
            let global = kind.contains("Global");
            let namespace = if global { "" } else { ", namespace: a" };
            let namespaces = if global { namespaces.as_str() } else { "" };
            let mut more = String::new();
            if kind.starts_with("Staged") && extra < 3 {
                more.push_str("stagedAction: Ignore, ");
            } else if global && extra == 3 {
                more.push_str("applyOnForward: true, doNotTrack: true, ");
            } else if global && extra == 4 {
                more.push_str("applyOnForward: true, ");
            } else if extra == 5 {
                more.push_str("order: broken, ");
            }
            let order = if extra == 5 { "" } else { order.as_str() };
            format!(
                "{{apiVersion: projectcalico.org/v3, kind: {kind}, metadata: {{name: p{name}{namespace}}}, spec: \
                 {{tier: {tier}, {order}{selector}{namespaces}{accounts}{types}{more}{ingress}{egress}}}}}"
            )
        })
        .boxed()
}

const LABELS: [&str; 5] = [
    "{}",
    "{matchLabels: {app: p}}",
    "{matchExpressions: [{key: app, operator: NotIn, values: [p]}]}",
    "{matchExpressions: [{key: role, operator: Exists}]}",
    "{matchLabels: {team: x}}",
];

fn labels() -> impl Strategy<Value = &'static str> {
    select(&LABELS[..])
}

fn pods() -> BoxedStrategy<String> {
    prop_oneof![
        labels().prop_map(|labels| format!("namespaces: {labels}")),
        (labels(), labels()).prop_map(|(namespaces, pods)| {
            format!("pods: {{namespaceSelector: {namespaces}, podSelector: {pods}}}")
        }),
    ]
    .boxed()
}

fn cluster_rule(key: &'static str) -> BoxedStrategy<String> {
    let peers = if key == "to" {
        prop_oneof![
            4 => pods(),
            2 => Just("networks: [10.0.0.0/30, '2001:db8::/32']".to_owned()),
            1 => select(&[
                "nodes: {}",
                "nodes: {matchLabels: {zone: a}}",
                "nodes: {matchLabels: {zone: none}}",
                "nodes: {matchExpressions: [{key: zone, operator: NotIn, values: [a]}]}",
            ][..]).prop_map(ToOwned::to_owned),
        ]
        .boxed()
    } else {
        pods()
    };
    let protocols = prop::collection::vec(
        select(
            &[
                "tcp: {destinationPort: {number: 80}}",
                "tcp: {destinationPort: {range: {start: 79, end: 81}}}",
                "udp: {destinationPort: {number: 53}}",
                "udp: {}",
                "destinationNamedPort: http",
                "icmp: {}",
            ][..],
        ),
        0..3,
    );
    (select(&["Accept", "Deny", "Pass"][..]), prop::collection::vec(peers, 1..3), protocols)
        .prop_map(move |(action, peers, mut protocols)| {
            if peers.iter().any(|peer| peer.contains("networks") || peer.contains("nodes")) {
                protocols.retain(|protocol| !protocol.contains("Named"));
            }
            let peers: Vec<_> = peers.iter().map(|peer| format!("{{{peer}}}")).collect();
            let protocols: Vec<_> = protocols.iter().map(|it| format!("{{{it}}}")).collect();
            let protocols = if protocols.is_empty() {
                String::new()
            } else {
                format!(", protocols: [{}]", protocols.join(", "))
            };
            format!("{{action: {action}, {key}: [{}]{protocols}}}", peers.join(", "))
        })
        .boxed()
}

fn cluster_policy() -> BoxedStrategy<String> {
    (
        prop_oneof![9 => Just("Admin"), 9 => Just("Baseline"), 1 => Just("Broken")],
        0_u8..100,
        0_u8..2,
        pods(),
        rules("ingress", cluster_rule("from")),
        rules("egress", cluster_rule("to")),
    )
        .prop_map(|(tier, name, priority, subject, ingress, egress)| {
            format!(
                "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: c{name}}}, \
                 spec: {{tier: {tier}, priority: {priority}, subject: {{{subject}}}, {ingress}{egress}}}}}"
            )
        })
        .boxed()
}

fn kubernetes_policy() -> BoxedStrategy<String> {
    (
        select(&["networking.k8s.io/v1 NetworkPolicy", "projectcalico.org/v3 StagedKubernetesNetworkPolicy"][..]),
        select(&["a", "b"][..]),
        0_u8..100,
        labels(),
        labels(),
        select(&["", ", ports: [{port: http}, {port: 53, protocol: UDP}]"][..]),
    )
        .prop_map(|(kind, namespace, name, subject, peer, ports)| {
            let (version, kind) = kind.split_once(' ').unwrap();
            format!(
                "{{apiVersion: {version}, kind: {kind}, metadata: {{name: k{name}, namespace: {namespace}}}, spec: {{podSelector: {subject}, \
                 ingress: [{{from: [{{podSelector: {peer}}}]{ports}}}], egress: [{{to: [{{namespaceSelector: {peer}}}]{ports}}}]}}}}"
            )
        })
        .boxed()
}

/// A cluster as text. A name may occur twice: then neither definition counts, which is a case of its own.
pub(super) fn cluster() -> impl Strategy<Value = String> {
    let policies = prop::collection::vec(
        prop_oneof![9 => calico_policy(), 2 => cluster_policy(), 1 => kubernetes_policy()],
        1..7,
    );
    let broken = prop::collection::vec(any::<prop::sample::Index>(), 1..3);
    (policies, broken, prop::bool::weighted(0.3)).prop_map(|(policies, broken, spare)| {
        let mut text = SURROUNDINGS.to_owned();
        for (name, labels) in NAMESPACES {
            let _ = write!(text, "---\n{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {labels}}}}}\n");
        }
        for (namespace, name, labels) in ACCOUNTS {
            let _ = write!(
                text,
                "---\n{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}, namespace: {namespace}, labels: {labels}}}}}\n"
            );
        }
        for (namespace, name, ip, labels, account, port) in PODS {
            let _ = write!(
                text,
                "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {labels}}}, \
                 spec: {{serviceAccountName: {account}, containers: [{{name: c, ports: [{{name: http, containerPort: {port}}}, \
                 {{name: dns, containerPort: 53, protocol: UDP}}]}}]}}, \
                 status: {{podIPs: [{{ip: 10.0.0.{ip}}}, {{ip: 'fd00::{ip}'}}]}}}}\n"
            );
        }
        if spare {
            for index in broken {
                let _ = write!(text, "---\n{}\n", index.get(&BROKEN));
            }
        }
        for policy in policies {
            let _ = write!(text, "---\n{policy}\n");
        }
        text
    })
}

const PEERS: [&str; 19] = [
    "10.1.0.1",
    "10.1.0.2",
    "10.2.0.1",
    "172.16.0.2",
    "192.0.2.10",
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "10.0.0.4",
    "10.0.0.5",
    "10.0.0.9",
    "192.0.2.1",
    "192.0.2.200",
    "172.16.0.1",
    "203.0.113.1",
    "fd00::1",
    "fd00::4",
    "2001:db8::1",
    "2001:db9::1",
];

/// The packets, in the types of the oracle and of the model.
fn packets(v4: bool) -> Vec<(Packet, Transport)> {
    let mut packets = Vec::new();
    for (protocol, port) in [(6, 80), (6, 81), (6, 1), (17, 53), (17, 80), (132, 80)] {
        let of = Protocol::from_number(protocol).unwrap();
        packets.push((
            Packet::to_port(protocol, Some(port)),
            Transport::ports(of, Packet::EPHEMERAL, port),
        ));
    }
    let icmp = if v4 { 1 } else { 58 };
    for (kind, code) in [(8, 0), (8, 1), (3, 3)] {
        packets.push((Packet::icmp(icmp, kind, code), Transport::icmp(icmp, kind, code)));
    }
    // Another protocol, and later fragments.
    for protocol in [47, 6, 17, icmp] {
        packets.push((Packet::bare(protocol), Transport::bare(protocol)));
    }
    packets
}

fn policy_kind(kind: Kind) -> PolicyKind {
    match kind {
        Kind::ClusterNetworkPolicy => PolicyKind::Cluster,
        Kind::CalicoNetworkPolicy => PolicyKind::Calico,
        Kind::GlobalNetworkPolicy => PolicyKind::Global,
        Kind::StagedKubernetesNetworkPolicy => PolicyKind::StagedKubernetes,
        Kind::StagedNetworkPolicy => PolicyKind::StagedCalico,
        Kind::StagedGlobalNetworkPolicy => PolicyKind::StagedGlobal,
        _ => PolicyKind::Kubernetes,
    }
}

fn policy_name(key: &ObjectKey) -> PolicyName {
    PolicyName::new(policy_kind(key.kind), &key.namespace, &key.name)
}

fn rule_name(rule: &OracleRule) -> RuleName {
    RuleName {
        policy: policy_name(&rule.policy).into(),
        direction: direction_of(rule.direction),
        index: u32::try_from(rule.index).unwrap(),
    }
}

fn direction_of(side: Side) -> Direction {
    match side {
        Side::Ingress => Direction::Ingress,
        Side::Egress => Direction::Egress,
    }
}

/// The effect that a staged policy would have had, in the words of the model.
fn noted(staged: &Staged) -> Noted {
    match staged {
        Staged::Rule(rule, action) => {
            let action = match action {
                calico::Action::Allow => Action::Allow,
                calico::Action::Deny => Action::Deny,
                calico::Action::Pass => Action::Pass,
                calico::Action::Log => Action::Log,
            };
            Noted::Rule(rule_name(rule), action)
        }
        Staged::TierEnd(side, policy) => {
            Noted::TierEnd(direction_of(*side), policy_name(policy).into())
        }
    }
}

/// The oracle's reason in the words of the model. If several policies are not valid, either side may name any of them.
fn reason(why: &VerdictReason, reference: &Reason, direction: Direction) -> Reason {
    match why {
        VerdictReason::DefaultProfile(_) => Reason::NotIsolated(direction),
        VerdictReason::InvalidPeer => Reason::Unknown(direction),
        VerdictReason::InvalidPolicies(policies) => {
            let named = policies.iter().map(|key| Reason::Broken(direction, policy_name(key)));
            let mut named: Vec<Reason> = named.collect();
            let at = named.iter().position(|reason| reason == reference).unwrap_or(0);
            named.swap_remove(at)
        }
        VerdictReason::TierEnd { policies, .. } => {
            Reason::Isolated(direction, policy_name(&policies[0]))
        }
        VerdictReason::Rule { rule, allowed } => {
            Reason::Rule(rule_name(rule), if *allowed { Verdict::Allow } else { Verdict::Deny })
        }
        other => panic!("{other:?} is no reason at a pod"),
    }
}

/// Everything that judges the packets of one cluster.
struct Judges<'a> {
    /// The problems of the import and the manifests, for a failure.
    text: &'a str,
    oracle: &'a Oracle,
    reference: &'a Reference<'a>,
    image: &'a Image,
}

impl Judges<'_> {
    /// Checks that all judges give the same decision about a packet of a pod. Returns the kinds of
    /// the deciding rules.
    fn agree(
        &self,
        local: &Party,
        peer: IpAddr,
        asked: Packet,
        transport: Transport,
        direction: Direction,
    ) -> Result<Vec<&'static str>, TestCaseError> {
        let Self { text, .. } = self;
        let Party::Pod { namespace, name, address } = local else { return Ok(Vec::new()) };
        let pod = ObjectName::new(namespace, name);
        let other = Party::Address(peer);
        let (from, to) = match direction {
            Direction::Egress => (local, &other),
            Direction::Ingress => (&other, local),
        };
        let judgement = self.oracle.judge(from, to, asked);
        let verdict = match direction {
            Direction::Egress => judgement.egress,
            Direction::Ingress => judgement.ingress,
        };
        let packet = reference::Packet { local: *address, peer, transport };
        let decision = self.reference.judge(&pod, direction, &packet);
        let (staged, enforced): (Vec<_>, Vec<_>) =
            decision.noted.iter().cloned().partition(|noted| noted.policy().kind.staged());
        let by_oracle = self.oracle.staged(from, to, asked);
        let by_oracle = by_oracle.iter().map(noted);
        prop_assert_eq!(by_oracle.collect::<Vec<_>>(), &staged[..], "staged: {}", text);
        let through: Vec<RuleName> = verdict.through.iter().map(rule_name).collect();
        prop_assert!(
            enforced.iter().map(Noted::rule).eq(through.iter().map(Some)),
            "noted: {:?}, {through:?}: {text}",
            decision.noted
        );
        let reference = decision.reason;
        prop_assert_eq!(
            &reason(&verdict.why, &reference, direction),
            &reference,
            "oracle, reference: {} {} {} {:?}\n{}",
            direction,
            pod,
            peer,
            transport,
            text
        );
        let chain = self.image.chain(&pod, direction).unwrap();
        let (own, its) = (self.image.identity(*address), self.image.identity(peer));
        let path = self.image.classify(chain, own, its, transport);
        prop_assert_eq!(&self.image.path(path).decision.reason, &reference, "rows: {}", text);
        let kind = match &reference {
            Reason::NotIsolated(_) => "profile",
            Reason::Rule(rule, _) => rule.policy.kind.name(),
            Reason::Isolated(..) => "tier end",
            Reason::Broken(..) => "broken",
            _ => "unknown",
        };
        let ends = staged.iter().any(|noted| noted.rule().is_none());
        Ok([kind].into_iter().chain(ends.then_some("staged tier end")).collect())
    }
}

#[test]
fn oracle_reference_and_rows_agree_on_policies_of_every_api() {
    let seen: RefCell<BTreeMap<&str, u32>> = RefCell::default();
    let cases = config(1).cases * CLUSTERS;
    let result = counting_runner(Config { cases, ..config(1) }).run(&cluster(), |text| {
        let contents = Contents::from_texts([("cluster.yaml", text.as_str())]);
        prop_assert!(contents.in_sync, "{:?}", contents.problems);
        let imported = import(&contents);
        let oracle = Oracle::new(&contents.objects);
        let judge = Reference::new(&imported.model);
        let image = Compiler::new().compile(&imported.model, &all_local(&imported));
        let parties: Vec<Party> = oracle.pods().collect();
        prop_assert_eq!(
            parties.len(),
            imported.model.endpoints.values().map(|pod| pod.addresses.len()).sum::<usize>()
        );
        let problems = imported.problems.iter().map(manx_objects::problem::Problem::summary);
        let text = format!("{:#?}{text}", problems.collect::<Vec<_>>());
        let judges = Judges { text: &text, oracle: &oracle, reference: &judge, image: &image };
        for local in &parties {
            let Party::Pod { address, .. } = local else { continue };
            let peers = PEERS.map(|peer| peer.parse::<IpAddr>().unwrap());
            for peer in peers.into_iter().filter(|peer| peer != address) {
                if peer.is_ipv4() != address.is_ipv4() {
                    continue;
                }
                for (packet, transport) in packets(peer.is_ipv4()) {
                    for direction in Direction::ALL {
                        let kinds = judges.agree(local, peer, packet, transport, direction)?;
                        for kind in kinds {
                            *seen.borrow_mut().entry(kind).or_default() += 1;
                        }
                    }
                }
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    println!("{seen:?}");
    for kind in [
        "profile",
        "tier end",
        "staged tier end",
        "broken",
        "unknown",
        "NetworkPolicy",
        "GlobalNetworkPolicy",
        "KubernetesNetworkPolicy",
        "KubernetesClusterNetworkPolicy",
    ] {
        assert!(
            seen.get(kind).is_some_and(|count| *count > 100),
            "{kind} decided too little: {seen:?}"
        );
    }
}

/// Pods and host endpoints: each distinct comparison is made once. Cases that the oracle claims to
/// be equal are compared again.
#[test]
fn tables_of_policies_of_every_api_are_proved_by_the_oracle() {
    let result = TestRunner::new(config(2)).run(&cluster(), |text| {
        let contents = Contents::from_texts([("cluster.yaml", text.as_str())]);
        let imported = import(&contents);
        let oracle = Oracle::new(&contents.objects);
        let hosts = imported.model.host_endpoints.keys().map(|name| ObjectName::new("", name));
        let local: BTreeSet<_> = all_local(&imported).into_iter().chain(hosts).collect();
        let image = Compiler::new().compile(&imported.model, &local);
        let linear = Compiler::with_budget(0).compile(&imported.model, &local);
        let cases = [
            (&image, Depth::Distinct, "distinct"),
            (&image, Depth::Every, "every"),
            (&linear, Depth::Distinct, "rule by rule"),
        ];
        for (image, depth, name) in cases {
            if let Err(refutation) = proof::prove(&oracle, &local, image, depth, |_, _| {}) {
                return Err(TestCaseError::fail(format!("{name}: {refutation}\n{text}")));
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
