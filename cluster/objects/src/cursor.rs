//! A node together with its path. Every decoder moves a cursor through the tree and reports problems with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::code::Code;
use super::problem::{Cause, MOST_OF_OBJECT, Severity};
use super::tree::{Entry, Flaw, Node, Position, Value, shown};

/// A problem of a field, before the identity of the field's object is known.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) at: Position,
    pub(super) field: String,
    pub(super) cause: Cause,
}

/// The number of findings of each severity.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<Severity, usize>);

impl Tally {
    /// Counts one more finding. Returns how many of that severity have been counted, this one included.
    pub fn count(&mut self, severity: Severity) -> usize {
        let count = self.0.entry(severity).or_default();
        *count += 1;
        *count
    }

    /// Returns, for each severity with more than `told` findings, how many exceed `told`.
    pub fn beyond(&self, told: usize) -> impl Iterator<Item = (Severity, usize)> {
        let beyond = move |(severity, count): (&Severity, &usize)| (*severity, count - told);
        self.0.iter().filter(move |(_, count)| **count > told).map(beyond)
    }
}

/// The findings of one object. The first [`Self::MOST`] of each severity are reported. The others are only counted,
/// because a small object may have very many errors.
#[derive(Debug, Default)]
pub(super) struct Findings {
    reported: Vec<Finding>,
    tally: Tally,
}

impl Findings {
    /// The maximum number of findings of one severity that are reported.
    pub(super) const MOST: usize = MOST_OF_OBJECT;

    /// Returns the findings for the flaws of the document as a tree.
    pub(super) fn of_flaws(flaws: &[Flaw]) -> Self {
        let mut findings = Self::default();
        for flaw in flaws {
            findings
                .push(Severity::Error, || (flaw.at, String::new(), Cause::Flaw(flaw.kind.clone())));
        }
        findings
    }

    pub(super) fn errors(&self) -> bool {
        self.error_count() > 0
    }

    pub(super) fn error_count(&self) -> usize {
        self.tally.0.get(&Severity::Error).copied().unwrap_or(0)
    }

    /// Returns the number of findings of any severity, reported or not.
    pub(super) fn count(&self) -> usize {
        self.tally.0.values().sum()
    }

    /// Adds a finding: its place, field and cause. `finding` is called only if the finding is reported.
    fn push(&mut self, severity: Severity, finding: impl FnOnce() -> (Position, String, Cause)) {
        if self.tally.count(severity) <= Self::MOST {
            let (at, field, cause) = finding();
            self.reported.push(Finding { severity, at, field, cause });
        }
    }

    /// Returns the findings to report and, for each severity, the number of findings that are left out. `at` is the
    /// place of the object.
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

/// A node and its path. The text of the path is built only when a problem is reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub(super) node: &'a Node<'a>,
    up: Option<&'a Cursor<'a>>,
    step: Step<'a>,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at the object itself.
    pub(super) fn root(node: &'a Node<'a>) -> Self {
        Self { node, up: None, step: Step::Root }
    }

    fn path(&self) -> String {
        let mut path = self.up.map(Self::path).unwrap_or_default();
        match self.step {
            Step::Root => {}
            // A key with dots (of a label or annotation) would look like several fields.
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

    /// Reports that this value has no effect, or an effect that its author may not expect.
    pub(super) fn warning(&self, out: &mut Findings, cause: Cause) {
        self.warning_at(out, self.node.at, cause);
    }

    /// Reports a warning with this code and this message.
    pub(super) fn told(&self, out: &mut Findings, code: Code, message: impl Into<String>) {
        self.warning(out, Cause::told(code, message));
    }

    /// Reports that this value and another field exclude each other.
    pub(super) fn conflict(&self, out: &mut Findings, message: impl Into<String>) {
        self.error(out, Cause::Conflict(message.into()));
    }

    /// Reports that something else was expected here.
    pub(super) fn expected(&self, out: &mut Findings, expected: impl Into<String>) {
        let cause =
            Cause::Unexpected { found: self.node.value.describe(), expected: expected.into() };
        self.error(out, cause);
    }

    /// Reports that `found`, which has a position of its own (such as a key), should be something else.
    pub(super) fn error_at(&self, out: &mut Findings, at: Position, found: &str, expected: &str) {
        let cause = Cause::Unexpected { found: found.to_owned(), expected: expected.to_owned() };
        out.push(Severity::Error, || (at, self.path(), cause));
    }

    /// Reports that the field `key` of this mapping is missing.
    pub(super) fn missing(&self, out: &mut Findings, key: &str, expected: &str) {
        let child = Cursor { node: self.node, up: Some(self), step: Step::Key(key) };
        child.error(out, Cause::Missing { expected: expected.to_owned() });
    }

    /// Returns the field `key`. A null value counts as absent, as in the API server.
    pub(super) fn field<'b>(&'b self, key: &'b str) -> Option<Cursor<'b>> {
        let node = self.node.get(key)?;
        (node.value != Value::Null).then_some(Cursor { node, up: Some(self), step: Step::Key(key) })
    }

    /// Returns the field `key`. If the field is absent, the cursor has the field's name and the position of this
    /// mapping.
    pub(super) fn absent<'b>(&'b self, key: &'b str) -> Cursor<'b> {
        let node = self.node.get(key).unwrap_or(self.node);
        Cursor { node, up: Some(self), step: Step::Key(key) }
    }

    /// Returns the item of a list at an index.
    pub(super) fn item(&self, index: usize) -> Option<Cursor<'_>> {
        let Value::Sequence(nodes) = &self.node.value else { return None };
        let node = nodes.get(index)?;
        Some(Cursor { node, up: Some(self), step: Step::Index(index) })
    }

    /// Returns the field `key`, and reports an error if the field is missing.
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

    /// Returns whether this is a mapping, and reports an error if it is not. Fields that are neither in `read` nor in
    /// `ignored` cause a warning. `ignored` lists the fields of the API that Manx does not use.
    pub(super) fn mapping(&self, out: &mut Findings, read: &[&str], ignored: &[&str]) -> bool {
        self.fields(out, Severity::Warning, [read, ignored])
    }

    /// Returns whether this is a mapping, and reports an error if it is not. Fields that are not in `read` are errors:
    /// if a misspelled restriction were ignored, traffic would pass that its author believes denied.
    pub(super) fn exact(&self, out: &mut Findings, read: &[&str]) -> bool {
        self.fields(out, Severity::Error, [read, &[]])
    }

    fn fields(&self, out: &mut Findings, severity: Severity, known: [&[&str]; 2]) -> bool {
        let Value::Mapping(entries) = &self.node.value else {
            self.expected(out, "a mapping");
            return false;
        };
        let is_known = |entry: &&Entry<'_>| known.iter().any(|it| it.contains(&&*entry.key));
        for entry in entries.iter().filter(|entry| !is_known(entry)) {
            let child = Cursor { node: &entry.node, up: Some(self), step: Step::Key(&entry.key) };
            out.push(severity, || {
                let similar = similar(&entry.key, &known.concat()).map(str::to_owned);
                (entry.at, child.path(), Cause::UnknownField { similar })
            });
        }
        true
    }

    /// Warns that the kind does not have the field whose key is at `at`.
    pub(super) fn unknown<'k>(
        &self,
        out: &mut Findings,
        at: Position,
        known: impl FnOnce() -> Vec<&'k str>,
    ) {
        out.push(Severity::Warning, || {
            let similar = match self.step {
                Step::Key(key) => similar(key, &known()).map(str::to_owned),
                Step::Root | Step::Index(_) => None,
            };
            (at, self.path(), Cause::UnknownField { similar })
        });
    }

    /// Returns the fields that are neither in `known` nor null, each with the position of its key.
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
            .filter(|entry| !known.contains(&&*entry.key) && entry.node.value != Value::Null)
            .map(move |entry| {
                let step = Step::Key(&entry.key);
                (Cursor { node: &entry.node, up: Some(self), step }, entry.at)
            })
    }

    /// Reports that `found`, which has a position of its own (such as a key), has no effect, or an effect that its
    /// author may not expect.
    pub(super) fn warning_at(&self, out: &mut Findings, at: Position, cause: Cause) {
        out.push(Severity::Warning, || (at, self.path(), cause));
    }

    /// Returns the results of `each` for the items of a list. If this is not a list, reports an error and returns an
    /// empty list.
    pub(super) fn items<T>(
        &self,
        out: &mut Findings,
        mut each: impl FnMut(&Cursor<'_>, &mut Findings) -> Option<T>,
    ) -> Vec<T> {
        let Value::Sequence(nodes) = &self.node.value else {
            self.expected(out, "a list");
            return Vec::new();
        };
        let items = nodes.iter().enumerate().filter_map(|(index, node)| {
            each(&Cursor { node, up: Some(self), step: Step::Index(index) }, out)
        });
        let mut items: Vec<T> = items.collect();
        // This saves memory: very many lists have one item, and a growing list begins with room for four.
        items.shrink_to_fit();
        items
    }

    /// Like [`items`](Self::items), but also reports an item that occurs twice.
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

    /// Calls `each` for every key and value of a mapping.
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

    /// Returns the string, and reports an error if this is something else.
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

    /// Returns the whole number, and reports an error if the value is not a whole number within `range`.
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

    /// Returns a string that is not empty. An empty string counts as absent, because some APIs write absent strings in
    /// this way.
    pub(super) fn filled(&self, out: &mut Findings, expected: &str) -> Option<&'a str> {
        self.string(out, expected).filter(|text| !text.is_empty())
    }

    /// Returns whether this is empty: an empty string, list or mapping, or null.
    pub(super) fn is_empty(&self) -> bool {
        match &self.node.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Sequence(nodes) => nodes.is_empty(),
            Value::Mapping(entries) => entries.is_empty(),
            _ => false,
        }
    }

    /// Returns the boolean, and reports an error if this is something else.
    pub(super) fn boolean(&self, out: &mut Findings) -> Option<bool> {
        let Value::Boolean(truth) = self.node.value else {
            self.expected(out, "true or false");
            return None;
        };
        Some(truth)
    }

    /// Returns the result of `parse` for a string, and reports an error if there is no result.
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

/// Returns the text in `known` that is most similar to `key`, if one is similar enough.
fn similar<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let most = |other: &str| key.len().max(other.len()) / 3;
    // Each byte by which the lengths differ costs an edit, so texts of very different lengths are not compared.
    let near = known.iter().filter(|other| key.len().abs_diff(other.len()) <= most(other));
    let (distance, best) = near.map(|other| (edits_apart(key, other), *other)).min()?;
    (distance <= most(best)).then_some(best)
}

/// Returns the number of bytes to insert, remove or replace to turn one text into the other, ignoring case
/// (Levenshtein).
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
