//! `manx policy prove`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use manx_policy_compiler::resolve::LocalName;
use serde::Serialize;

use super::assume::{Assume, Completed};
use super::manifests::{Manifests, report_invalid};
use crate::Error;
use crate::output::{self, Output};
use manx_analysis::proof::Proof;
use manx_analysis::proof::node::{NodeTables, endpoints};
use manx_api::proof::Refutation;
use manx_objects::contents::Contents;
use manx_oracle::Oracle;

/// The settings of `manx policy prove`.
#[derive(Debug, Clone, Args)]
pub struct Prove {
    /// Only the tables of this node
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub assume: Assume,
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub manifests: Manifests,
}

#[derive(Debug, Serialize)]
struct Report {
    proved: bool,
    nodes: Vec<Outcome>,
    /// The pods whose addresses are assumed, because the manifests give them none.
    assumed: Vec<String>,
}

/// The result for one node.
#[derive(Debug, Serialize)]
struct Outcome {
    /// The node; empty for pods without one.
    node: String,
    /// The size of the proof; `None` if the tables were refuted.
    #[serde(flatten)]
    proof: Option<Compared>,
    milliseconds: u128,
    refutation: Option<Box<Refutation>>,
}

/// The size of a proof.
#[derive(Debug, Serialize)]
struct Compared {
    endpoints: u64,
    cells: u64,
    questions: u64,
    peers: u64,
}

/// Proves the tables of each node. Exit code 0 if all agree with the objects, 1 if a packet is decided differently, 2
/// if that is not known.
pub fn run(prove: &Prove) -> Result<(), Error> {
    let contents = prove.manifests.read()?;
    report_invalid(&contents)?;
    let Some(completed) = prove.assume.complete(contents)? else { return Ok(()) };
    let report =
        report(&completed, prove.node.as_deref(), NodeTables::new).map_err(Error::Invalid)?;
    match prove.output {
        Output::Text => output::print(&render(&report))?,
        Output::Json => output::print_json(&report)?,
    }
    if report.proved { Ok(()) } else { Err(Error::Deviation) }
}

/// Proves the tables that `tables` makes for the endpoints of each node, or of one node.
fn report(
    completed: &Completed,
    only: Option<&str>,
    tables: impl Fn(&Contents, &str, BTreeSet<LocalName>) -> NodeTables,
) -> Result<Report, String> {
    let Completed { contents, assumed } = completed;
    let oracle = Oracle::new(&contents.objects);
    let mut nodes = endpoints(contents, &oracle);
    if let Some(only) = only {
        let known: Vec<String> = nodes.keys().cloned().collect();
        nodes = BTreeMap::from_iter(nodes.remove_entry(only));
        if nodes.is_empty() {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(format!("there is no node {only:?} in the manifests; found {known}"));
        }
    }
    if nodes.is_empty() {
        let message = "nothing to prove: no pod, no HostEndpoint and no Node in the manifests; name those that hold the cluster's";
        return Err(message.to_owned());
    }
    let mut report = Report {
        proved: true,
        nodes: Vec::new(),
        assumed: assumed.addresses.keys().map(ToString::to_string).collect(),
    };
    for (node, local) in nodes {
        let start = Instant::now();
        let bar = bar(&node);
        let tables = tables(contents, &node, local);
        let proof = tables.prove(&oracle, |done, of| {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        let (proof, refutation) = match proof {
            Ok(proof) => (Some(proof.into()), None),
            Err(refutation) => (None, Some(refutation)),
        };
        report.proved &= refutation.is_none();
        let milliseconds = start.elapsed().as_millis();
        report.nodes.push(Outcome { node, proof, milliseconds, refutation });
    }
    Ok(report)
}

/// Makes a progress bar. indicatif draws it on standard error, and only on a terminal.
fn bar(node: &str) -> ProgressBar {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("node {msg}: {wide_bar} {pos}/{len} ends") {
        bar.set_style(style);
    }
    bar.set_message(node.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

impl From<Proof> for Compared {
    fn from(Proof { endpoints, cells, questions, peers }: Proof) -> Self {
        Self { endpoints, cells, questions, peers }
    }
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    for Outcome { node, proof, refutation, .. } in &report.nodes {
        let name = if node.is_empty() { "no node".to_owned() } else { format!("node {node}") };
        // Writing to a String cannot fail.
        if let Some(Compared { endpoints, cells, questions, peers }) = proof {
            let _ = writeln!(
                text,
                "{name}: proved: {endpoints} endpoints, {cells} cells by {questions} distinct questions, {peers} peers stand for all addresses"
            );
        }
        if let Some(refutation) = refutation {
            let _ = write!(text, "{name}: WRONG: {refutation}");
        }
    }
    if !report.assumed.is_empty() {
        let _ =
            writeln!(text, "no address in the manifests, assumed: {}", report.assumed.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use manx_policy_compiler::compile::Compiler;

    use super::*;
    use manx_calculation::import::import_for;

    const OBJECTS: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.1.0/24}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.1.2.0/24}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: a}}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIP: 10.1.2.9}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, labels: {app: b}}, spec: {containers: [{name: c}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: only-80}, spec: {podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}]}}
";

    fn objects() -> Completed {
        Completed::new(Contents::from_texts([("objects.yaml", OBJECTS)]), None).unwrap()
    }

    #[test]
    fn every_node_is_proved_and_a_pod_without_a_node_is_the_first_ones() {
        let report = report(&objects(), None, NodeTables::new).unwrap();
        assert!(report.proved);
        let compared: Vec<u64> =
            report.nodes.iter().filter_map(|node| Some(node.proof.as_ref()?.endpoints)).collect();
        assert_eq!(compared, [1, 1]);
        assert_eq!(report.assumed, ["Pod default/b"]);
        insta::assert_snapshot!(render(&report), @r"
        node n1: proved: 1 endpoints, 324 cells by 168 distinct questions, 4 peers stand for all addresses
        node n2: proved: 1 endpoints, 196 cells by 98 distinct questions, 3 peers stand for all addresses
        no address in the manifests, assumed: Pod default/b
        ");
    }

    #[test]
    fn a_table_that_says_something_else_is_refuted_by_a_packet() {
        let corrupt = |contents: &Contents, node: &str, local: BTreeSet<LocalName>| {
            let mut model = import_for(contents, node).model;
            model.policies.clear();
            let image = Compiler::new().compile(&model, &local);
            NodeTables { local, image }
        };
        let report = report(&objects(), Some("n1"), corrupt).unwrap();
        assert!(!report.proved);
        insta::assert_snapshot!(render(&report), @r"
        node n1: WRONG: 0.0.0.0 -> 10.1.1.2, IPv4, TCP without ports (a later fragment)
          ingress of default/b
          tables: ALLOWED: no policy selects it for ingress
          objects: DENIED: isolated by default/only-80 for ingress, no rule allows
          tier default, order 1000000, then Deny
            default/only-80, order 1000
              ingress[0] Allow: no match: from: podSelector app=a
        no address in the manifests, assumed: Pod default/b
        ");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["nodes"][0]["refutation"]["tables"]["allowed"], true);
        assert_eq!(json["nodes"][0]["refutation"]["objects"]["allowed"], false);
    }

    #[test]
    fn a_node_that_is_not_there_is_told_with_those_that_are() {
        let error = report(&objects(), Some("n3"), NodeTables::new).unwrap_err();
        insta::assert_snapshot!(error, @r#"there is no node "n3" in the manifests; found n1, n2"#);
    }
}
