//! `manx policy check`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use serde::Serialize;

use super::Manifests;
use crate::Error;
use crate::output::{self, Output};
use manx_analysis::references;
use manx_calculation::import::overlapping_pools;
use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::Kind;
use manx_objects::problem::{Cause, Problem, Severity};

/// The settings of `manx policy check`.
#[derive(Debug, Clone, Args)]
pub struct Check {
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub manifests: Manifests,
}

/// Prints the problems. Exit code 0 if there are none, or only warnings; otherwise 2.
pub fn run(check: &Check) -> Result<(), Error> {
    let report = Report::new(&check.manifests.read());
    match check.output {
        Output::Text => output::print(&report.text())?,
        Output::Json => output::print_json(&report)?,
    }
    if report.errors == 0 { Ok(()) } else { Err(Error::Refused) }
}

/// The output.
#[derive(Debug, Serialize)]
struct Report {
    files: usize,
    /// The number of objects of each kind.
    objects: Vec<Count>,
    invalid: usize,
    errors: usize,
    warnings: usize,
    problems: Vec<ProblemReport>,
}

/// The objects of a kind.
#[derive(Debug, Serialize)]
struct Count {
    kind: &'static str,
    api_version: &'static str,
    objects: usize,
}

/// A problem, for programs.
#[derive(Debug, Serialize)]
struct ProblemReport {
    severity: &'static str,
    file: String,
    line: Option<usize>,
    column: Option<usize>,
    document: Option<usize>,
    object: Option<Object>,
    field: String,
    message: String,
    found: Option<String>,
    expected: Option<String>,
    help: Option<String>,
    source: Option<String>,
    /// The text for people.
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Serialize)]
struct Object {
    kind: &'static str,
    api_version: &'static str,
    namespace: String,
    name: String,
}

impl Report {
    fn new(contents: &Contents) -> Self {
        let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
        for key in contents.objects.keys() {
            *counts.entry(key.kind).or_default() += 1;
        }
        let invalid = contents.objects.values();
        let invalid = invalid.filter(|stored| matches!(stored.state, State::Invalid(_))).count();
        let mut problems = contents.problems.clone();
        problems.extend(overlapping_pools(contents));
        problems.extend(references::undefined(contents));
        let hosts = contents.of_kind(Kind::HostEndpoint);
        let hosts = hosts.filter(|(_, stored)| matches!(stored.state, State::Valid(_)));
        problems.extend(hosts.map(|(key, stored)| Problem::of_host_endpoint(key, &stored.place)));
        let of = |severity| problems.iter().filter(|problem| problem.severity == severity).count();
        Self {
            files: contents.texts,
            objects: counts
                .into_iter()
                .map(|(kind, objects)| Count {
                    kind: kind.name(),
                    api_version: kind.api_versions()[0],
                    objects,
                })
                .collect(),
            invalid,
            errors: of(Severity::Error),
            warnings: of(Severity::Warning),
            problems: problems.iter().map(ProblemReport::new).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for problem in &self.problems {
            text.push_str(&problem.text);
            text.push_str("\n\n");
        }
        text.push_str(&self.summary());
        text
    }

    /// A line with the numbers of everything.
    fn summary(&self) -> String {
        let count = |number: usize, word: &str| {
            format!("{number} {word}{}", if number == 1 { "" } else { "s" })
        };
        let objects = self.objects.iter().map(|count| count.objects).sum();
        let mut line = format!("{}, {}", count(self.files, "file"), count(objects, "object"));
        let kinds: Vec<_> = self
            .objects
            .iter()
            .map(|count| {
                let calicos = Kind::CalicoNetworkPolicy;
                let is_calicos =
                    (count.kind, count.api_version) == (calicos.name(), calicos.api_versions()[0]);
                let calicos = if is_calicos { "Calico " } else { "" };
                format!("{} {calicos}{}", count.objects, count.kind)
            })
            .collect();
        if !kinds.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(line, " ({})", kinds.join(", "));
        }
        let _ = writeln!(
            line,
            ": {} invalid, {}, {}",
            self.invalid,
            count(self.errors, "error"),
            count(self.warnings, "warning")
        );
        line
    }
}

impl ProblemReport {
    fn new(problem: &Problem) -> Self {
        let help = problem.help();
        let mut text = problem.to_string();
        if let Some(help) = &help {
            let gutter = problem.place.at.map_or(1, |at| at.line.to_string().len());
            // Writing to a String cannot fail.
            let _ = write!(text, "\n{:gutter$} = help: {help}", "");
        }
        let (found, expected) = match &problem.cause {
            Cause::Unexpected { found, expected } => (Some(found.clone()), Some(expected.clone())),
            Cause::Missing { expected } => (None, Some(expected.clone())),
            _ => (None, None),
        };
        Self {
            severity: match problem.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            },
            file: problem.place.file.to_string(),
            line: problem.place.at.map(|at| at.line),
            column: problem.place.at.map(|at| at.column),
            document: (problem.place.document > 0).then_some(problem.place.document),
            object: problem.object.as_ref().map(|key| Object {
                kind: key.kind.name(),
                api_version: key.kind.api_versions()[0],
                namespace: key.namespace.clone(),
                name: key.name.clone(),
            }),
            field: problem.field.clone(),
            message: problem.cause.to_string(),
            found,
            expected,
            help,
            source: problem.line.clone(),
            text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: deny-egress}
spec:
  tier: security
  selectr: app == 'web'
  egress:
  - action: Deny
    destination: {nets: [10.0.0.1], ports: [80]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: allow}
spec: {tier: security, ingress: [{action: Allow}]}
";

    #[test]
    fn a_report_shows_each_problem_in_its_line_with_what_follows() {
        let report =
            Report::new(&Contents::from_texts([("policies/all.yaml", TEXT), ("b.yaml", "{")]));
        insta::assert_snapshot!(report.text());
        assert_eq!((report.errors, report.invalid), (3, 1));
    }

    #[test]
    fn a_report_is_json_for_programs() {
        let report = Report::new(&Contents::from_texts([("all.yaml", TEXT)]));
        insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap());
    }

    #[test]
    fn what_is_not_enforced_of_a_host_endpoints_policy_is_a_warning() {
        let text = "{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h}, spec: {node: n1, interfaceName: eth0}}";
        let report = Report::new(&Contents::from_texts([("a.yaml", text)]));
        assert_eq!((report.errors, report.warnings), (0, 1));
        assert!(report.text().contains("NOT ENFORCED"), "{}", report.text());
    }

    #[test]
    fn nothing_to_say_is_one_line() {
        let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
        let report = Report::new(&Contents::from_texts([("a.yaml", text)]));
        assert_eq!(
            report.text(),
            "1 file, 1 object (1 Namespace): 0 invalid, 0 errors, 0 warnings\n"
        );
    }
}
