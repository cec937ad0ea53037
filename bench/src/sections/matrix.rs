//! The cost of the matrix of a whole cluster, starting from the text of 5,000 pods and 1,000 policies.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use manx_analysis::matrix::{Filter, Matrix, View};
use manx_objects::contents::Contents;

use super::steps::{Steps, StepsRow};
use crate::error::{Error, Failure};
use crate::run::{ListedRow, Run, Settings};

const ROW: StepsRow = StepsRow {
    name: "matrix",
    section: "The matrix",
    description: "who reaches whom among 5,000 pods with 1,000 policies",
    estimate: Duration::from_secs(6),
    goal: Duration::from_secs(2),
};

const NAMESPACES: usize = 50;
const POLICIES: usize = 20;
const WORKLOADS: usize = 20;
/// The number of pods of a workload.
const PODS: usize = 5;
const NODES: usize = 20;

/// The row of this section.
pub fn rows(_: &Settings) -> Vec<ListedRow> {
    vec![ROW.listed()]
}

pub fn measure(run: &mut Run) -> Result<(), Error> {
    let text = manifests();
    ROW.measure(run, || who_reaches_whom(&text))
}

fn who_reaches_whom(text: &str) -> Result<Steps, Failure> {
    let start = Instant::now();
    let contents = Contents::from_texts([("cluster.yaml", text)]);
    let read = start.elapsed();
    if !contents.problems.is_empty() {
        let problems = &contents.problems;
        return Err(format!("the manifests are not as they should be: {problems:?}").into());
    }
    let start = Instant::now();
    let matrix = Matrix::new(&contents);
    let made = start.elapsed();
    let start = Instant::now();
    let filter = Filter::default();
    let (blocks, _) = View::new(&matrix, &filter).blocks(false);
    let grouped = start.elapsed();
    if blocks.len() < WORKLOADS || matrix.pods != NAMESPACES * WORKLOADS * PODS {
        let (pods, found) = (matrix.pods, blocks.len());
        return Err(format!("{pods} pods in {found} different rows: not the cluster").into());
    }
    Ok(vec![("read", read), ("every pair", made), ("equal rows put together", grouped)])
}

/// The manifests. Each namespace has 20 workloads of 5 pods and a policy that denies everything for all of them.
/// Further policies admit traffic from the next workload of the namespace, and from a tier of another team's
/// namespaces.
fn manifests() -> String {
    let pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: pool}, spec: {cidr: 10.0.0.0/16}}\n";
    let mut text = pool.to_owned();
    for node in 0..NODES {
        let block = Ipv4Addr::from_bits(0x0a00_0000 + (node * 1024) as u32);
        object(
            &mut text,
            "v1",
            "Node",
            &format!("name: node-{node}"),
            &format!(
                "spec: {{podCIDR: {block}/22}}, status: {{addresses: [{{type: InternalIP, address: 172.16.0.{}}}]}}",
                node + 1
            ),
        );
    }
    for namespace in 0..NAMESPACES {
        let team = namespace % 40;
        object(
            &mut text,
            "v1",
            "Namespace",
            &format!("name: ns-{namespace}, labels: {{team: t{team}}}"),
            "spec: {}",
        );
        for at in 0..WORKLOADS * PODS {
            pod(&mut text, namespace, at);
        }
        for at in 0..POLICIES {
            policy(&mut text, namespace, at);
        }
    }
    text
}

fn pod(text: &mut String, namespace: usize, at: usize) {
    let (index, app) = (namespace * WORKLOADS * PODS + at, at / PODS);
    let (node, number) = (index % NODES, index / NODES);
    let address = Ipv4Addr::from_bits(0x0a00_0002 + (node * 1024 + number) as u32);
    let metadata = format!(
        "name: app-{app}-{at}, namespace: ns-{namespace}, labels: {{app: app-{app}, tier: t{}}}, \
         ownerReferences: [{{kind: StatefulSet, name: app-{app}, controller: true}}]",
        app % 3
    );
    let rest = format!(
        "spec: {{nodeName: node-{node}, containers: [{{name: c, ports: [{{name: http, containerPort: 8080}}]}}]}}, status: {{podIP: {address}}}"
    );
    object(text, "v1", "Pod", &metadata, &rest);
}

fn policy(text: &mut String, namespace: usize, at: usize) {
    let spec = if at == 0 {
        "podSelector: {}".to_owned()
    } else {
        format!(
            "podSelector: {{matchLabels: {{app: app-{at}}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: app-{}}}}}}}, \
             {{namespaceSelector: {{matchLabels: {{team: t{}}}}}, podSelector: {{matchLabels: {{tier: t1}}}}}}], \
             ports: [{{port: http}}, {{port: 9000}}]}}]",
            (at + 1) % WORKLOADS,
            (namespace + at) % 40
        )
    };
    let metadata = format!("name: p-{at}, namespace: ns-{namespace}");
    object(text, "networking.k8s.io/v1", "NetworkPolicy", &metadata, &format!("spec: {{{spec}}}"));
}

fn object(text: &mut String, version: &str, kind: &str, metadata: &str, rest: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "---\n{{apiVersion: {version}, kind: {kind}, metadata: {{{metadata}}}, {rest}}}"
    );
}
