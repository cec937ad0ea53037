//! A selector's expression, and its evaluation over labels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha224};

use super::labels::LabelSource;

impl LabelSource for BTreeMap<String, String> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

/// A predicate over labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(Arc<Node>);

/// A selector's expression.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node {
    All,
    Has(String),
    Compare { key: String, how: Comparison, value: String },
    Among { key: String, values: BTreeSet<String>, negated: bool },
    Not(Selector),
    And(Vec<Selector>),
    Or(Vec<Selector>),
}

/// A comparison with one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Contains,
    StartsWith,
    EndsWith,
}

impl Comparison {
    const fn text(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Contains => "contains",
            Self::StartsWith => "starts with",
            Self::EndsWith => "ends with",
        }
    }

    /// If the label is absent, `!=` is true and every other comparison is false.
    pub(crate) fn holds(self, found: Option<&str>, value: &str) -> bool {
        match self {
            Self::Equal => found == Some(value),
            Self::NotEqual => found != Some(value),
            Self::Contains => found.is_some_and(|found| found.contains(value)),
            Self::StartsWith => found.is_some_and(|found| found.starts_with(value)),
            Self::EndsWith => found.is_some_and(|found| found.ends_with(value)),
        }
    }
}

impl From<Node> for Selector {
    fn from(node: Node) -> Self {
        Self(Arc::new(node))
    }
}

impl Selector {
    /// The selector `all()`, which matches any labels, even none.
    pub fn all() -> Self {
        Node::All.into()
    }

    /// Whether it is written as [`all`](Self::all).
    pub(crate) fn is_all(&self) -> bool {
        matches!(*self.0, Node::All)
    }

    /// The selector `key == "value"`.
    pub fn equals(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self::compare(key.into(), Comparison::Equal, value.into())
    }

    pub(super) fn compare(key: String, how: Comparison, value: String) -> Self {
        Node::Compare { key, how, value }.into()
    }

    /// The selector `key in {"value", …}`.
    pub fn is_in(key: impl Into<String>, values: impl IntoIterator<Item = String>) -> Self {
        let values = values.into_iter().collect();
        Node::Among { key: key.into(), values, negated: false }.into()
    }

    /// The selector `key not in {"value", …}`. It also matches if the label is absent.
    pub fn not_in(key: impl Into<String>, values: impl IntoIterator<Item = String>) -> Self {
        let values = values.into_iter().collect();
        Node::Among { key: key.into(), values, negated: true }.into()
    }

    /// The selector `has(key)`.
    pub fn has(key: impl Into<String>) -> Self {
        Node::Has(key.into()).into()
    }

    /// The selector `!has(key)`.
    pub fn not_has(key: impl Into<String>) -> Self {
        Self::has(key).negated()
    }

    /// The negation. The negation of a negation is the selector itself.
    pub(super) fn negated(self) -> Self {
        match &*self.0 {
            Node::Not(one) => one.clone(),
            _ => Node::Not(self).into(),
        }
    }

    /// A selector that matches if all of these match. It is `all()` if there are none, and the selector itself if there
    /// is one.
    pub fn and(all: impl IntoIterator<Item = Self>) -> Self {
        let mut all: Vec<Self> = all.into_iter().filter(|one| *one.0 != Node::All).collect();
        match (all.pop(), all.is_empty()) {
            (None, _) => Self::all(),
            (Some(one), true) => one,
            (Some(last), false) => {
                all.push(last);
                Node::And(all).into()
            }
        }
    }

    /// The same selector with a prefix before each key, and with `everything` in place of `all()`.
    pub(super) fn replaced(&self, prefix: &str, everything: &Self) -> Self {
        let key = |key: &str| format!("{prefix}{key}");
        let each = |all: &[Self]| all.iter().map(|one| one.replaced(prefix, everything)).collect();
        match &*self.0 {
            Node::All => return everything.clone(),
            Node::Has(name) => Node::Has(key(name)),
            Node::Compare { key: name, how, value } => {
                Node::Compare { key: key(name), how: *how, value: value.clone() }
            }
            Node::Among { key: name, values, negated } => {
                Node::Among { key: key(name), values: values.clone(), negated: *negated }
            }
            Node::Not(one) => return one.replaced(prefix, everything).negated(),
            Node::And(all) => Node::And(each(all)),
            Node::Or(all) => Node::Or(each(all)),
        }
        .into()
    }

    pub(crate) fn node(&self) -> &Node {
        &self.0
    }

    /// Calico's id of the selector, which is part of the names of Calico's IP sets. It is `s:` and then the SHA-224 of
    /// `s:` and the canonical form, in base64 for URLs without padding (RFC 4648, section 5). The source is Calico's
    /// selector parser, `UniqueID`. Selectors with the same canonical form have the same id.
    pub fn id(&self) -> String {
        let hash = Sha224::new_with_prefix("s:").chain_update(self.to_string()).finalize();
        format!("s:{}", URL_SAFE_NO_PAD.encode(hash))
    }

    /// Whether the selector matches labels. It allocates nothing.
    pub fn matches(&self, labels: &impl LabelSource) -> bool {
        match &*self.0 {
            Node::All => true,
            Node::Has(key) => labels.label(key).is_some(),
            Node::Compare { key, how, value } => how.holds(labels.label(key), value),
            Node::Among { key, values, negated } => {
                labels.label(key).is_some_and(|found| values.contains(found)) != *negated
            }
            Node::Not(one) => !one.matches(labels),
            Node::And(all) => all.iter().all(|one| one.matches(labels)),
            Node::Or(all) => all.iter().any(|one| one.matches(labels)),
        }
    }

    /// The values that the label `wanted` can have if the selector matches. `None`: it can have any value or be absent.
    pub fn required_values(&self, wanted: &str) -> Option<Vec<&str>> {
        match &*self.0 {
            Node::Compare { key, how: Comparison::Equal, value } if key == wanted => {
                Some(vec![value])
            }
            Node::Among { key, values, negated: false } if key == wanted => {
                Some(values.iter().map(String::as_str).collect())
            }
            Node::And(all) => all.iter().find_map(|one| one.required_values(wanted)),
            Node::Or(all) => {
                let each: Option<Vec<_>> =
                    all.iter().map(|one| one.required_values(wanted)).collect();
                let values: BTreeSet<&str> = each?.into_iter().flatten().collect();
                Some(values.into_iter().collect())
            }
            _ => None,
        }
    }

    /// Whether the selector may match labels in which `wanted` has one of the values that `may_be` accepts. The result
    /// may be `true` for a selector that cannot match, but it is `false` only for such a selector.
    pub(crate) fn may_match(&self, wanted: &str, may_be: &impl Fn(&str) -> bool) -> bool {
        match &*self.0 {
            Node::Compare { key, how: Comparison::Equal, value } if key == wanted => may_be(value),
            Node::Among { key, values, negated: false } if key == wanted => {
                values.iter().any(|value| may_be(value))
            }
            Node::And(all) => all.iter().all(|one| one.may_match(wanted, may_be)),
            Node::Or(all) => all.iter().any(|one| one.may_match(wanted, may_be)),
            _ => true,
        }
    }

    /// The parts of this selector. The selector matches if all of them match. No part is itself a conjunction. `all()`
    /// has no parts.
    pub fn conjuncts(&self) -> Vec<&Self> {
        match &*self.0 {
            Node::All => Vec::new(),
            Node::And(all) => all.iter().flat_map(Self::conjuncts).collect(),
            _ => vec![self],
        }
    }

    /// The keys that the selector uses: no other label affects whether it matches.
    pub fn keys(&self) -> BTreeSet<&str> {
        match &*self.0 {
            Node::All => BTreeSet::new(),
            Node::Has(key) | Node::Compare { key, .. } | Node::Among { key, .. } => {
                BTreeSet::from([key.as_str()])
            }
            Node::Not(one) => one.keys(),
            Node::And(all) | Node::Or(all) => all.iter().flat_map(Self::keys).collect(),
        }
    }

    /// The labels that must be present if the selector matches, each with its possible values if the selector states
    /// them.
    pub fn required_labels(&self) -> Vec<(&str, Option<Vec<&str>>)> {
        match &*self.0 {
            Node::Compare { how: Comparison::NotEqual, .. } => Vec::new(),
            Node::Compare { key, .. } | Node::Among { key, negated: false, .. } => {
                vec![(key, self.required_values(key))]
            }
            Node::Has(key) => vec![(key, None)],
            Node::And(all) => all.iter().flat_map(Self::required_labels).collect(),
            Node::Or(all) => {
                let keys = all.first().map(Self::required_labels).unwrap_or_default();
                let of_all = |(key, _)| Some((key, Some(self.required_values(key)?)));
                keys.into_iter().filter_map(of_all).collect()
            }
            Node::All | Node::Among { .. } | Node::Not(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Selector {
    /// The canonical form, which is also Calico's. Sets are sorted and have no duplicates. A value is in `"`, or in `'`
    /// if it contains `"`. A single term has no parentheses, so that `!(!has(a))` becomes `!!has(a)`. If this text is
    /// parsed again, the result is `has(a)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |value: &str| {
            let quote = if value.contains('"') { '\'' } else { '"' };
            format!("{quote}{value}{quote}")
        };
        let joined = |f: &mut fmt::Formatter<'_>, all: &[Self], operator: &str| {
            f.write_str("(")?;
            for (index, one) in all.iter().enumerate() {
                if index > 0 {
                    f.write_str(operator)?;
                }
                one.fmt(f)?;
            }
            f.write_str(")")
        };
        match &*self.0 {
            Node::All => f.write_str("all()"),
            Node::Has(key) => write!(f, "has({key})"),
            Node::Compare { key, how, value } => {
                write!(f, "{key} {} {}", how.text(), quoted(value))
            }
            Node::Among { key, values, negated } => {
                let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
                let operator = if *negated { "not in" } else { "in" };
                write!(f, "{key} {operator} {{{}}}", values.join(", "))
            }
            Node::Not(one) => write!(f, "!{one}"),
            Node::And(all) => joined(f, all, " && "),
            Node::Or(all) => joined(f, all, " || "),
        }
    }
}
