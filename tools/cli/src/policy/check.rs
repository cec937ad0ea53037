//! `manx policy check`.

mod sarif;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::manifests::Manifests;
use crate::Error;
use crate::output;
use manx_datastore::Read;
use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::Kind;
use manx_objects::problem::{Cause, Problem, Severity};
use manx_objects::{State, locate};
use manx_rig::plan::settings::file::FILE;

/// The settings of `manx policy check`.
#[derive(Debug, Clone, Args)]
pub struct Check {
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Form,
    /// Exit with 2 also for warnings
    #[arg(long)]
    pub strict: bool,
    /// Leave out the warnings or notes with this code (may be repeated)
    #[arg(long, value_name = "CODE", value_parser = allowable)]
    pub allow: Vec<Code>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub manifests: Manifests,
}

/// The form of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Form {
    /// Lines for people
    #[default]
    Text,
    /// JSON for programs
    Json,
    /// SARIF 2.1.0, for code review
    Sarif,
}

/// Parses the name of a code, which must be a warning's or a note's.
fn allowable(name: &str) -> Result<Code, String> {
    match Code::from_name(name) {
        Some(code) if code.severity() != Severity::Error => Ok(code),
        Some(code) => {
            Err(format!("{code} is an error, and only warnings and notes can be left out"))
        }
        None => {
            Err("expected a code such as separate-peers, as in warning[separate-peers]".to_owned())
        }
    }
}

/// Prints the problems. Exit code 0 if there are none, or only warnings and not `strict`; otherwise 2.
pub fn run(check: &Check) -> Result<(), Error> {
    let read = check.manifests.read_with_texts()?;
    let mut problems = problems(&read);
    problems.retain(|problem| !check.allow.contains(&problem.code()));
    let report = Report::new(&read.contents, &problems);
    match check.output {
        Form::Text => output::print(&report.text())?,
        Form::Json => output::print_json(&report)?,
        Form::Sarif => output::print(&output::json(&sarif::log(&problems))?)?,
    }
    let fine = report.errors == 0 && (report.warnings == 0 || !check.strict);
    if fine { Ok(()) } else { Err(Error::Refused) }
}

/// All problems, errors first.
fn problems(read: &Read) -> Vec<Problem> {
    let contents = &read.contents;
    let mut of_all = manx_analysis::check::problems(contents);
    let mut by_file: BTreeMap<Arc<str>, Vec<&mut Problem>> = BTreeMap::new();
    for problem in &mut of_all {
        by_file.entry(Arc::clone(&problem.place.file)).or_default().push(problem);
    }
    for (file, problems) in by_file {
        if let Some(text) = read.texts.get(&*file) {
            locate(text, problems);
        }
    }
    let mut problems = [contents.problems.as_slice(), &of_all].concat();
    problems.retain(|problem| !is_of_rig(problem));
    problems.sort_by_key(|problem| problem.severity);
    problems
}

/// Whether the problem is only that `rig.yaml`, the file with a rig's settings, holds no object.
fn is_of_rig(problem: &Problem) -> bool {
    let file = Path::new(&*problem.place.file).file_name();
    problem.code() == Code::SkippedDocument && file.is_some_and(|name| name == FILE)
}

#[derive(Debug, Serialize)]
struct Report {
    files: usize,
    /// The number of objects of each kind.
    objects: Vec<Count>,
    invalid: usize,
    errors: usize,
    warnings: usize,
    notes: usize,
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
    code: &'static str,
    file: String,
    line: Option<usize>,
    column: Option<usize>,
    document: Option<usize>,
    object: Option<Object>,
    field: String,
    message: String,
    found: Option<String>,
    expected: Option<String>,
    help: Option<&'static str>,
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
    fn new(contents: &Contents, problems: &[Problem]) -> Self {
        let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
        for key in contents.objects.keys() {
            *counts.entry(key.kind).or_default() += 1;
        }
        let invalid = contents.objects.values();
        let invalid = invalid.filter(|stored| matches!(stored.state, State::Invalid(_))).count();
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
            notes: of(Severity::Note),
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

    /// A line with the numbers of files, objects and problems.
    fn summary(&self) -> String {
        let count = |number: usize, word: &str| {
            format!("{number} {word}{}", if number == 1 { "" } else { "s" })
        };
        let objects = self.objects.iter().map(|count| count.objects).sum();
        let files = (self.files > 0).then(|| format!("{}, ", count(self.files, "file")));
        let mut line = files.unwrap_or_default() + &count(objects, "object");
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
        let notes = (self.notes > 0).then(|| format!(", {}", count(self.notes, "note")));
        let _ = writeln!(
            line,
            ": {} invalid, {}, {}{}",
            self.invalid,
            count(self.errors, "error"),
            count(self.warnings, "warning"),
            notes.unwrap_or_default()
        );
        line
    }
}

impl ProblemReport {
    fn new(problem: &Problem) -> Self {
        let help = problem.help();
        let mut text = problem.to_string();
        if let Some(help) = help {
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
            code: problem.code().name(),
            severity: match problem.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
                Severity::Note => "note",
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
mod tests;
