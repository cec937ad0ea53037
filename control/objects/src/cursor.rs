//! A node together with the path that led to it: what every decoder walks with, and how it reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::problem::{Cause, MOST_OF_OBJECT, Severity};
use super::tree::{Flaw, Node, Position, Value, shown};

/// One report about a field, before it is known which object it belongs to.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) at: Position,
    pub(super) field: String,
    pub(super) cause: Cause,
}

/// How many of each severity there were.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<Severity, usize>);

impl Tally {
    /// Counts one more, and returns how many of its severity there are now.
    pub fn count(&mut self, severity: Severity) -> usize {
        let count = self.0.entry(severity).or_default();
        *count += 1;
        *count
    }

    /// How many there are beyond the first `told` of a severity.
    pub fn beyond(&self, told: usize) -> impl Iterator<Item = (Severity, usize)> {
        let beyond = move |(severity, count): (&Severity, &usize)| (*severity, count - told);
        self.0.iter().filter(move |(_, count)| **count > told).map(beyond)
    }
}

/// What was found in one object. Of each severity the first [`Self::MOST`] are told and the others counted, because a small
/// object may be wrong in very many ways.
#[derive(Debug, Default)]
pub(super) struct Findings {
    reported: Vec<Finding>,
    tally: Tally,
}

impl Findings {
    /// Findings of one severity that are told.
    pub(super) const MOST: usize = MOST_OF_OBJECT;

    /// What is wrong with the document as a tree.
    pub(super) fn of_flaws(flaws: &[Flaw]) -> Self {
        let mut findings = Self::default();
        for flaw in flaws {
            findings.push(Severity::Error, || {
                (flaw.at, String::new(), Cause::Flaw(flaw.kind.to_string()))
            });
        }
        findings
    }

    pub(super) fn errors(&self) -> bool {
        self.error_count() > 0
    }

    pub(super) fn error_count(&self) -> usize {
        self.tally.0.get(&Severity::Error).copied().unwrap_or(0)
    }

    /// How many there are of any severity, told or not.
    pub(super) fn count(&self) -> usize {
        self.tally.0.values().sum()
    }

    /// Takes a finding's place, field and cause. They are not made of one that is only counted.
    fn push(&mut self, severity: Severity, finding: impl FnOnce() -> (Position, String, Cause)) {
        if self.tally.count(severity) <= Self::MOST {
            let (at, field, cause) = finding();
            self.reported.push(Finding { severity, at, field, cause });
        }
    }

    /// Those that are told, and how many more there are of the object at `at`.
    pub(super) fn reported(self, at: Position) -> impl Iterator<Item = Finding> {
        let untold = |(severity, count)| {
            let cause = Cause::Untold { count, of: "object" };
            Finding { severity, at, field: String::new(), cause }
        };
        let untold: Vec<Finding> = self.tally.beyond(Self::MOST).map(untold).collect();
        self.reported.into_iter().chain(untold)
    }
}

/// One step of a path.
#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

/// A node and how it was reached. The path costs nothing until somebody reports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub(super) node: &'a Node,
    up: Option<&'a Cursor<'a>>,
    step: Step<'a>,
}

impl<'a> Cursor<'a> {
    /// The object itself.
    pub(super) fn root(node: &'a Node) -> Self {
        Self { node, up: None, step: Step::Root }
    }

    fn path(&self) -> String {
        let mut path = self.up.map(Self::path).unwrap_or_default();
        match self.step {
            Step::Root => {}
            // A key with dots of its own (labels, annotations) would read as several fields.
            Step::Key(key) if key.contains(['.', '/']) => {
                let _ = write!(path, "[{:?}]", shown(key));
            }
            Step::Key(key) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&shown(key));
            }
            Step::Index(index) => {
                let _ = write!(path, "[{index}]");
            }
        }
        path
    }

    /// Reports an error here.
    pub(super) fn error(&self, out: &mut Findings, cause: Cause) {
        out.push(Severity::Error, || (self.node.at, self.path(), cause));
    }

    /// Reports that something here has no effect, or another than its author may expect.
    pub(super) fn warning(&self, out: &mut Findings, cause: Cause) {
        self.warning_at(out, self.node.at, cause);
    }

    /// Reports that what stands here excludes something that stands elsewhere.
    pub(super) fn conflict(&self, out: &mut Findings, message: impl Into<String>) {
        self.error(out, Cause::Conflict(message.into()));
    }

    /// Reports that something else was expected here.
    pub(super) fn expected(&self, out: &mut Findings, expected: impl Into<String>) {
        let cause =
            Cause::Unexpected { found: self.node.value.describe(), expected: expected.into() };
        self.error(out, cause);
    }

    /// Reports that `found`, at a place of its own (a key), should be something else.
    pub(super) fn error_at(&self, out: &mut Findings, at: Position, found: &str, expected: &str) {
        let cause = Cause::Unexpected { found: found.to_owned(), expected: expected.to_owned() };
        out.push(Severity::Error, || (at, self.path(), cause));
    }

    /// Reports that the field `key` of this mapping is missing.
    pub(super) fn missing(&self, out: &mut Findings, key: &str, expected: &str) {
        let child = Cursor { node: self.node, up: Some(self), step: Step::Key(key) };
        child.error(out, Cause::Missing { expected: expected.to_owned() });
    }

    /// The field `key`; null is absent, as it is to the API server.
    pub(super) fn field<'b>(&'b self, key: &'b str) -> Option<Cursor<'b>> {
        let node = self.node.get(key)?;
        (node.value != Value::Null).then_some(Cursor { node, up: Some(self), step: Step::Key(key) })
    }

    /// The field `key`, or a report that it is missing.
    pub(super) fn required<'b>(
        &'b self,
        out: &mut Findings,
        key: &'b str,
        expected: &str,
    ) -> Option<Cursor<'b>> {
        let field = self.field(key);
        if field.is_none() {
            self.missing(out, key, expected);
        }
        field
    }

    /// Whether this is a mapping; if not, says so. Its fields other than `read` are warned of, unless they are among
    /// `ignored`: fields that the API has and Manx has no use for.
    pub(super) fn mapping(&self, out: &mut Findings, read: &[&str], ignored: &[&str]) -> bool {
        self.fields(out, Severity::Warning, &[read, ignored].concat())
    }

    /// Whether this is a mapping; if not, says so. Fields other than `read` are errors: where a field restricts, one that
    /// is misspelled and passed over leaves open what its author believes closed.
    pub(super) fn exact(&self, out: &mut Findings, read: &[&str]) -> bool {
        self.fields(out, Severity::Error, read)
    }

    fn fields(&self, out: &mut Findings, severity: Severity, known: &[&str]) -> bool {
        let Value::Mapping(entries) = &self.node.value else {
            self.expected(out, "a mapping");
            return false;
        };
        for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let child = Cursor { node: &entry.node, up: Some(self), step: Step::Key(&entry.key) };
            out.push(severity, || {
                let similar = similar(&entry.key, known).map(str::to_owned);
                (entry.at, child.path(), Cause::UnknownField { similar })
            });
        }
        true
    }

    /// The fields that are not among `known` and not null, each with the position of its key.
    pub(super) fn others<'b>(
        &'b self,
        known: &'b [&str],
    ) -> impl Iterator<Item = (Cursor<'b>, Position)> {
        let entries = match &self.node.value {
            Value::Mapping(entries) => entries.as_slice(),
            _ => &[],
        };
        entries
            .iter()
            .filter(|entry| !known.contains(&entry.key.as_str()) && entry.node.value != Value::Null)
            .map(move |entry| {
                let step = Step::Key(&entry.key);
                (Cursor { node: &entry.node, up: Some(self), step }, entry.at)
            })
    }

    /// Reports that `found`, at a place of its own (a key), has no effect, or another than its author may expect.
    pub(super) fn warning_at(&self, out: &mut Findings, at: Position, cause: Cause) {
        out.push(Severity::Warning, || (at, self.path(), cause));
    }

    /// What `each` makes of every item of a list; what is not a list is reported and gives nothing.
    pub(super) fn items<T>(
        &self,
        out: &mut Findings,
        mut each: impl FnMut(&Cursor<'_>, &mut Findings) -> Option<T>,
    ) -> Vec<T> {
        let Value::Sequence(nodes) = &self.node.value else {
            self.expected(out, "a list");
            return Vec::new();
        };
        nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| {
                each(&Cursor { node, up: Some(self), step: Step::Index(index) }, out)
            })
            .collect()
    }

    /// As [`items`](Self::items), of which each may be in the list once.
    pub(super) fn distinct<T: Ord + Clone>(
        &self,
        out: &mut Findings,
        mut each: impl FnMut(&Cursor<'_>, &mut Findings) -> Option<T>,
    ) -> Vec<T> {
        let mut seen = BTreeSet::new();
        self.items(out, |item, out| {
            let one = each(item, out)?;
            if !seen.insert(one.clone()) {
                item.conflict(out, "is in the list already");
            }
            Some(one)
        })
    }

    /// What `each` makes of every key and value of a mapping.
    pub(super) fn entries(
        &self,
        out: &mut Findings,
        mut each: impl FnMut(&str, Position, &Cursor<'_>, &mut Findings),
    ) {
        let Value::Mapping(entries) = &self.node.value else {
            self.expected(out, "a mapping");
            return;
        };
        for entry in entries {
            let child = Cursor { node: &entry.node, up: Some(self), step: Step::Key(&entry.key) };
            each(&entry.key, entry.at, &child, out);
        }
    }

    /// A string, or a report.
    pub(super) fn string(&self, out: &mut Findings, expected: &str) -> Option<&'a str> {
        match &self.node.value {
            Value::String(text) => Some(text),
            Value::Boolean(_) | Value::Integer(_) | Value::Float(_) => {
                self.expected(out, format!("{expected} (text like this needs quotes)"));
                None
            }
            _ => {
                self.expected(out, expected);
                None
            }
        }
    }

    /// A whole number within `range`, or a report.
    pub(super) fn integer<T: TryFrom<i128>>(
        &self,
        out: &mut Findings,
        expected: &str,
        range: RangeInclusive<i128>,
    ) -> Option<T> {
        let number = match &self.node.value {
            Value::Integer(number) if range.contains(number) => T::try_from(*number).ok(),
            _ => None,
        };
        if number.is_none() {
            self.expected(out, expected);
        }
        number
    }

    /// A string that is not empty; an empty one is absent, as it is to APIs that leave empty strings out.
    pub(super) fn filled(&self, out: &mut Findings, expected: &str) -> Option<&'a str> {
        self.string(out, expected).filter(|text| !text.is_empty())
    }

    /// Whether this holds nothing: an empty string, list or mapping, or null.
    pub(super) fn is_empty(&self) -> bool {
        match &self.node.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Sequence(nodes) => nodes.is_empty(),
            Value::Mapping(entries) => entries.is_empty(),
            _ => false,
        }
    }

    /// A boolean, or a report.
    pub(super) fn boolean(&self, out: &mut Findings) -> Option<bool> {
        let Value::Boolean(truth) = self.node.value else {
            self.expected(out, "true or false");
            return None;
        };
        Some(truth)
    }

    /// A string that `parse` accepts, or a report.
    pub(super) fn parsed<T>(
        &self,
        out: &mut Findings,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.string(out, expected)?;
        let value = parse(text);
        if value.is_none() {
            self.expected(out, expected);
        }
        value
    }
}

/// The one of `known` that is spelled most like `key`, if any is.
fn similar<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let most = |other: &str| key.len().max(other.len()) / 3;
    // Each byte that one is longer is an edit: what cannot be near is not compared.
    let near = known.iter().filter(|other| key.len().abs_diff(other.len()) <= most(other));
    let (distance, best) = near.map(|other| (edits_apart(key, other), *other)).min()?;
    (distance <= most(best)).then_some(best)
}

/// How many bytes to insert, remove or replace to make one text of another, in any case (Levenshtein).
pub(super) fn edits_apart(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_ascii_lowercase().into_bytes(), b.to_ascii_lowercase().into_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
