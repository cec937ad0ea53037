//! The cost of checking a large cluster's policies, and of explaining connections with them. It starts from the text of
//! a dump of 1,450 pods and 14,000 policies.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use manx_analysis::check;
use manx_analysis::explain::Explainer;
use manx_api::explain::{ExplainRequest, PacketSpec};
use manx_objects::contents::Contents;

use super::steps::{Steps, StepsRow};
use crate::error::{Error, Failure};
use crate::run::{ListedRow, Run, Settings};

const SECTION: &str = "Questions";

const NAMESPACES: usize = 70;
const NODES: usize = 20;
const PODS: usize = 1_450;
const POLICIES: usize = 14_000;
/// The number of different orders.
const ORDERS: usize = 100;
/// The pattern of the pods whose connections are explained: 10 pods, so 90 pairs.
const PATTERN: &str = "n0/p?";
const PAIRS: usize = 90;

/// A row: a question, and the cluster to which the question refers.
struct Question {
    row: StepsRow,
    /// Of each 100 policies, the number that are Calico policies with an order.
    ordered: usize,
    /// Whether the nodes have podCIDRs and the cluster has a pool.
    blocks: bool,
    ask: fn(&str) -> Result<Steps, Failure>,
}

const QUESTIONS: [Question; 4] = [
    Question {
        row: StepsRow {
            name: "check",
            section: SECTION,
            description: "the check of 14,000 NetworkPolicies and 1,450 pods",
            estimate: Duration::from_secs(5),
            goal: Duration::from_secs(1),
        },
        ordered: 0,
        blocks: true,
        ask: check_all,
    },
    Question {
        row: StepsRow {
            name: "check-ordered",
            section: SECTION,
            description: "the same, and half of them are Calico's, of distinct ports and nets",
            estimate: Duration::from_secs(5),
            goal: Duration::from_secs(1),
        },
        ordered: 50,
        blocks: true,
        ask: check_all,
    },
    Question {
        row: StepsRow {
            name: "explain",
            section: SECTION,
            description: "90 connections explained by 14,000 NetworkPolicies",
            estimate: Duration::from_secs(10),
            goal: Duration::from_secs(2),
        },
        ordered: 0,
        blocks: true,
        ask: explain_pattern,
    },
    Question {
        row: StepsRow {
            name: "explain-bare",
            section: SECTION,
            description: "the same without podCIDRs and pools",
            estimate: Duration::from_secs(10),
            goal: Duration::from_secs(2),
        },
        ordered: 0,
        blocks: false,
        ask: explain_pattern,
    },
];

/// The rows of this section.
pub fn rows(_: &Settings) -> Vec<ListedRow> {
    QUESTIONS.iter().map(|question| question.row.listed()).collect()
}

pub fn measure(run: &mut Run) -> Result<(), Error> {
    for Question { row, ordered, blocks, ask } in &QUESTIONS {
        if run.wants(row.name) {
            let text = dump(*ordered, *blocks);
            row.measure(run, || ask(&text))?;
        }
    }
    Ok(())
}

fn check_all(text: &str) -> Result<Steps, Failure> {
    let start = Instant::now();
    let contents = Contents::from_texts([("dump.json", text)]);
    let read = start.elapsed();
    let start = Instant::now();
    let found = check::problems(&contents);
    let checked = start.elapsed();
    // The whole dump must be valid, and nothing of it may be left out.
    match contents.problems.iter().chain(&found).next() {
        Some(problem) => Err(format!("the dump is not as it should be: {problem}").into()),
        None => Ok(vec![("read", read), ("checked", checked)]),
    }
}

fn explain_pattern(text: &str) -> Result<Steps, Failure> {
    let start = Instant::now();
    let mut contents = Contents::from_texts([("dump.json", text)]);
    let read = start.elapsed();
    let start = Instant::now();
    let assumed = manx_assume::complete(&mut contents, manx_assume::Options::default())?;
    let explainer = Explainer::new(&contents, &assumed.addresses, "eth0");
    let made = start.elapsed();
    let start = Instant::now();
    let packet = PacketSpec::Protocol(6, Some(8080));
    let mut pairs = 0;
    for from in explainer.ends(PATTERN)? {
        for asked in explainer.connections(&from, PATTERN, packet)?.asked {
            if asked.from == asked.to {
                continue;
            }
            let request = ExplainRequest {
                from: asked.from,
                to: asked.to,
                packet,
                source_port: 49152,
                ipv6: false,
                uplink: None,
                routes: false,
            };
            explainer.explain(&request)?;
            pairs += 1;
        }
    }
    let answered = start.elapsed();
    if pairs == PAIRS {
        Ok(vec![("read", read), ("prepared", made), ("answered", answered)])
    } else {
        Err(format!("{PATTERN} has {pairs} pairs, expected {PAIRS}").into())
    }
}

/// The dump in the form that `kubectl get -o json` prints: one list.
fn dump(ordered: usize, blocks: bool) -> String {
    let mut items = Vec::new();
    for namespace in 0..NAMESPACES {
        let labels = format!(
            r#""kubernetes.io/metadata.name": "n{namespace}", "team": "t{}""#,
            namespace % 20
        );
        items.push(object(
            "v1",
            "Namespace",
            &format!(r#""name": "n{namespace}", "labels": {{{labels}}}"#),
            r#""spec": {}"#,
        ));
    }
    if blocks {
        items.push(object(
            "projectcalico.org/v3",
            "IPPool",
            r#""name": "pool""#,
            r#""spec": {"cidr": "10.64.0.0/10"}"#,
        ));
    }
    items.extend((0..NODES).map(|number| node(number, blocks)));
    items.extend((0..PODS).map(pod));
    items.extend((0..POLICIES).map(|number| {
        if number * 100 / POLICIES < ordered { ordered_policy(number) } else { policy(number) }
    }));
    format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{}]}}"#, items.join(", "))
}

fn object(version: &str, kind: &str, metadata: &str, rest: &str) -> String {
    format!(
        r#"{{"apiVersion": "{version}", "kind": "{kind}", "metadata": {{{metadata}}}, {rest}}}"#
    )
}

fn node(number: usize, blocks: bool) -> String {
    let cidr = format!("10.{}.0.0/16", 64 + number);
    let spec = if blocks {
        format!(r#""podCIDR": "{cidr}", "podCIDRs": ["{cidr}"]"#)
    } else {
        String::new()
    };
    let address = format!("10.0.0.{}", number + 1);
    let status = format!(r#"{{"addresses": [{{"type": "InternalIP", "address": "{address}"}}]}}"#);
    let rest = format!(r#""spec": {{{spec}}}, "status": {status}"#);
    object("v1", "Node", &format!(r#""name": "node-{number}""#), &rest)
}

fn pod(number: usize) -> String {
    let (node, namespace) = (number % NODES, number % NAMESPACES);
    let in_namespace = number / NAMESPACES;
    let address = format!("10.{}.{}.{}", 64 + node, number / 250, number % 250 + 1);
    let labels =
        format!(r#""app": "a{}", "tier": "{}""#, in_namespace % 5, ["web", "db"][in_namespace % 2]);
    let container =
        r#"{"name": "c", "image": "x", "ports": [{"containerPort": 8080, "name": "http"}]}"#;
    object(
        "v1",
        "Pod",
        &format!(
            r#""name": "p{in_namespace}", "namespace": "n{namespace}", "labels": {{{labels}}}"#
        ),
        &format!(
            r#""spec": {{"nodeName": "node-{node}", "containers": [{container}]}}, "status": {{"phase": "Running", "podIP": "{address}", "podIPs": [{{"ip": "{address}"}}]}}"#
        ),
    )
}

/// A policy that admits two groups of pods, and allows traffic to a block and to DNS.
fn policy(number: usize) -> String {
    let mut spec = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        spec,
        r#""podSelector": {{"matchLabels": {{"app": "a{}"}}}}, "policyTypes": ["Ingress", "Egress"], "#,
        number % 5
    );
    let _ = write!(
        spec,
        r#""ingress": [{{"from": [{{"podSelector": {{"matchLabels": {{"tier": "web"}}}}}}, {{"podSelector": {{"matchLabels": {{"tier": "db"}}}}, "namespaceSelector": {{"matchLabels": {{"team": "t{}"}}}}}}], "ports": [{{"port": 8080, "protocol": "TCP"}}]}}], "#,
        number % 20
    );
    let _ = write!(
        spec,
        r#""egress": [{{"to": [{{"ipBlock": {{"cidr": "172.{}.0.0/16"}}}}]}}, {{"to": [{{"namespaceSelector": {{}}}}], "ports": [{{"port": 53, "protocol": "UDP"}}]}}]"#,
        number % 200
    );
    let metadata = format!(r#""name": "k{number}", "namespace": "n{}""#, number % NAMESPACES);
    object("networking.k8s.io/v1", "NetworkPolicy", &metadata, &format!(r#""spec": {{{spec}}}"#))
}

/// A Calico policy that allows one port and denies a block.
fn ordered_policy(number: usize) -> String {
    let allow = format!(
        r#"{{"action": "Allow", "protocol": "TCP", "source": {{"selector": "tier == 'web'"}}, "destination": {{"ports": [{}]}}}}"#,
        1_000 + number
    );
    let deny = format!(
        r#"{{"action": "Deny", "source": {{"nets": ["172.{}.{}.0/24"]}}}}"#,
        number % 200,
        number % 250
    );
    let metadata =
        format!(r#""name": "default.c{number}", "namespace": "n{}""#, number % NAMESPACES);
    let spec = format!(
        r#""spec": {{"order": {}, "selector": "app == 'a{}'", "types": ["Ingress"], "ingress": [{allow}, {deny}]}}"#,
        number % ORDERS,
        number % 5
    );
    object("projectcalico.org/v3", "NetworkPolicy", &metadata, &spec)
}
