//! The lines of `docs/policy-semantics.md` about manifests, each with manifests that show it: the reference and the
//! rows, over the imported text, agree with the line, and the oracle agrees in every cell of the tables.
//!
//! The policy compiler's own tests (`tests/semantics`) show order and matching line by line, without manifests;
//! `pipeline` tests packets.

mod endpoints;
mod order;
mod rules;
mod selectors;

use std::fmt::Write as _;
use std::net::IpAddr;

use manx_analysis::proof::{self, Depth};
use manx_calculation::import::{Cluster as Imported, import};
use manx_objects::contents::Contents;
use manx_objects::problem::Severity;
use manx_oracle::Oracle;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::{
    Direction, Family, ICMP, ICMPV6, ObjectName, Protocol, Reason, Transport, Verdict,
};
use manx_policy_compiler::reference::{self, Reference};
use manx_policy_compiler::resolve::Stage;

/// The endpoint is `db`. Its peers are `web` in the same namespace and `lab/web` in another; `out` is an address
/// without a member.
const PODS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: lab, labels: {team: b}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1, serviceAccountName: runner, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}, status: {podIPs: [{ip: 10.0.1.1}, {ip: 'fd00:1::1'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: n2, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}], initContainers: [{name: i, ports: [{name: dns, containerPort: 53, protocol: UDP}]}]}, status: {podIPs: [{ip: 10.0.1.2}, {ip: 'fd00:1::2'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: lab, labels: {app: web}}, spec: {nodeName: n1}, status: {podIP: 10.0.2.1}}
---
";

/// One object, with its `spec` as a flow mapping of YAML; `name` is `namespace/name`, or `name` for an object without a
/// namespace.
fn object(version: &str, kind: &str, name: &str, spec: &str) -> String {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let namespace = match namespace {
        "" => String::new(),
        namespace => format!(", namespace: {namespace}"),
    };
    format!(
        "{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}{namespace}}}, spec: {{{spec}}}}}\n---\n"
    )
}

/// A NetworkPolicy of Kubernetes.
fn kubernetes(name: &str, spec: &str) -> String {
    object("networking.k8s.io/v1", "NetworkPolicy", name, spec)
}

/// A Calico object.
fn calico(kind: &str, name: &str, spec: &str) -> String {
    object("projectcalico.org/v3", kind, name, spec)
}

/// A GlobalNetworkPolicy for `db`.
fn global(name: &str, spec: &str) -> String {
    calico("GlobalNetworkPolicy", name, &format!("selector: app == 'db', {spec}"))
}

/// A GlobalNetworkPolicy that lets one rule's traffic into `db`, and nothing else.
fn lets_in(rule: &str) -> String {
    global("p", &format!("ingress: [{{action: Allow, {rule}}}]"))
}

/// A ClusterNetworkPolicy for all pods.
fn cluster(name: &str, spec: &str) -> String {
    let spec = format!("subject: {{namespaces: {{}}}}, {spec}");
    object("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", name, &spec)
}

/// Checks manifests (the pods and `more`) against a table of lines `ENDPOINT[@STAGE] < PEER PACKET
/// = VERDICT` (`<` for ingress, `>` for egress). Endpoints and peers are pods, addresses, or `out`.
/// A packet is `tcp 80`, `udp` (a later fragment), `icmp 8/0`, `icmp6 128/0` or `proto 50`, with a
/// 6 before it for IPv6. A verdict is `allow` or `deny`, and the deciding rule may follow.
#[track_caller]
fn says(more: &str, table: &str) {
    let problems = judge(more, table);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The same for manifests with invalid objects.
#[track_caller]
fn says_of_what_is_not_valid(more: &str, table: &str) {
    assert!(!judge(more, table).is_empty(), "everything is valid: {more}");
}

/// Returns the errors in the manifests.
#[track_caller]
fn judge(more: &str, table: &str) -> Vec<String> {
    let contents = Contents::from_texts([("cluster.yaml", &*format!("{PODS}{more}"))]);
    let imported = import(&contents);
    let hosts = imported.model.host_endpoints.keys().map(|name| ObjectName::new("", name.as_str()));
    let local = imported.model.endpoints.keys().cloned().chain(hosts).collect();
    let image = Compiler::new().compile(&imported.model, &local);
    let oracle = Oracle::new(&contents.objects);
    if let Err(found) = proof::prove(&oracle, &local, &image, Depth::Distinct, |_, _| {}) {
        panic!("the oracle says something else: {found}");
    }
    let mut found = String::new();
    let mut expected = String::new();
    let lines = table.lines().map(str::trim).filter(|line| !line.is_empty());
    for line in lines {
        let (question, answer) = line.split_once(" = ").unwrap();
        let decided = asked(&imported, &image, question);
        let verdict = match decided.verdict() {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
        };
        let because = if answer.contains(':') { format!(": {decided}") } else { String::new() };
        writeln!(found, "{question} = {verdict}{because}").unwrap();
        writeln!(expected, "{line}").unwrap();
    }
    assert!(!expected.is_empty());
    assert_eq!(found, expected, "found, then expected");
    let errors = imported.problems.iter().filter(|problem| problem.severity == Severity::Error);
    errors.map(ToString::to_string).collect()
}

/// The common result of the reference and the rows.
#[track_caller]
fn asked(imported: &Imported, image: &Image, question: &str) -> Reason {
    let words: Vec<&str> = question.split_whitespace().collect();
    let [endpoint, sign, peer, packet @ ..] = &words[..] else { panic!("{question}") };
    let direction = if *sign == "<" { Direction::Ingress } else { Direction::Egress };
    let (endpoint, stage) = endpoint.split_once('@').unwrap_or((endpoint, "pod"));
    let stage = match stage {
        "pod" => Stage::Pod,
        "host" => Stage::Host,
        "forward" => Stage::Forward,
        other => panic!("{other} is no stage"),
    };
    let (packet, v4) = match packet {
        ["6", rest @ ..] => (rest, false),
        rest => (rest, peer.parse::<IpAddr>().map_or(true, |peer| peer.is_ipv4())),
    };
    let family = if v4 { Family::V4 } else { Family::V6 };
    let of_pod = |pod: &str| {
        let (namespace, name) = pod.split_once('/')?;
        let pod = imported.model.endpoints.get(&ObjectName::new(namespace, name))?;
        pod.addresses.iter().copied().find(|address| Family::from_address(*address) == family)
    };
    let outside: IpAddr =
        if v4 { [203, 0, 113, 9].into() } else { "2001:db8:9::9".parse().unwrap() };
    let peer = match *peer {
        "out" => outside,
        peer => peer.parse().ok().or_else(|| of_pod(peer)).expect("a peer with an address"),
    };
    let own = of_pod(endpoint).unwrap_or(outside);
    let transport = transport(packet);
    let (namespace, name) = endpoint.split_once('/').unwrap_or(("", endpoint));
    let endpoint = ObjectName::new(namespace, name);
    let rows = match image.chain_at(&endpoint, stage, direction) {
        None => Reason::Unknown(direction),
        Some(chain) => {
            let path = image.classify(chain, image.identity(own), image.identity(peer), transport);
            image.path(path).decision.reason.clone()
        }
    };
    let judge = Reference::new(&imported.model);
    let packet = reference::Packet { local: own, peer, transport };
    let by_reference = match judge.policies(&endpoint, stage, direction) {
        None => Reason::Unknown(direction),
        Some(policies) => judge.judge_by(&policies, &endpoint, stage, direction, &packet).reason,
    };
    assert_eq!(rows, by_reference, "{question}: rows, then the reference");
    rows
}

fn transport(words: &[&str]) -> Transport {
    let named = |word: &str| {
        Protocol::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(word))
    };
    match words {
        [kind @ ("icmp" | "icmp6"), shown] => {
            let (of, code) = shown.split_once('/').unwrap();
            let number = if *kind == "icmp" { ICMP } else { ICMPV6 };
            Transport::icmp(number, of.parse().unwrap(), code.parse().unwrap())
        }
        ["proto", number] => Transport::bare(number.parse().unwrap()),
        [protocol, port] => {
            Transport::ports(named(protocol).unwrap(), 49_152, port.parse().unwrap())
        }
        [protocol] => Transport::bare(named(protocol).unwrap().number()),
        other => panic!("{other:?} is no packet"),
    }
}
