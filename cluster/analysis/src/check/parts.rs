//! The parts of a selector: what each part requires, and which parts an object does not match.

use manx_policy_compiler::model::{
    NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, SERVICE_ACCOUNT, SERVICE_ACCOUNT_PREFIX,
};
use manx_policy_compiler::selector::{LabelSource, Selector};

/// The maximum number of values or names that a message lists.
const LISTED: usize = 5;
/// The maximum number of parts that a message lists, among those that an object does not match.
const LACKS: usize = 3;

/// One part of a selector. An object matches the selector if and only if it matches all parts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Part<'s>(pub(super) &'s Selector);

/// Which object has the label of a key: the member itself, its namespace or its service account.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Own,
    Namespace,
    Account,
    /// The key is not a label but the name of the service account.
    AccountName,
}

impl Whose {
    /// Returns which object has the label of a key, and the key without the prefix for that object.
    fn from_key(key: &str) -> (Self, &str) {
        if let Some(key) = key.strip_prefix(NAMESPACE_PREFIX) {
            (Self::Namespace, key)
        } else if let Some(key) = key.strip_prefix(SERVICE_ACCOUNT_PREFIX) {
            (Self::Account, key)
        } else if key == SERVICE_ACCOUNT {
            (Self::AccountName, key)
        } else {
            (Self::Own, key)
        }
    }
}

/// A label that a part requires.
pub(super) struct Wanted<'s> {
    /// The key as a selector contains it, which may have a prefix for the namespace or the service account.
    pub(super) seen: &'s str,
    /// The key as the labels of the object contain it, without such a prefix.
    pub(super) key: &'s str,
    /// The values that the label may have. If the list is empty, any value matches.
    pub(super) values: Vec<&'s str>,
}

impl<'s> Part<'s> {
    /// Returns the parts of a selector.
    pub(super) fn all(selector: &'s Selector) -> Vec<Self> {
        selector.conjuncts().into_iter().map(Self).collect()
    }

    /// Returns whether the part requires a label of the object, of its namespace or of its service account.
    pub(super) fn asks_for_label(self) -> bool {
        !self.is_of_place() && !self.0.required_labels().is_empty()
    }

    /// Returns whether the part requires a label of the object itself.
    pub(super) fn is_of_own_label(self) -> bool {
        self.asks_for_label() && self.whose() == Whose::Own
    }

    /// Returns whether the part concerns only where an object is and what it is: its namespace, and whether it is a
    /// pod.
    pub(super) fn is_of_place(self) -> bool {
        let keys = self.0.keys();
        !keys.is_empty() && keys.iter().all(|key| [NAMESPACE, ORCHESTRATOR].contains(key))
    }

    /// Returns which object has the labels of this part.
    pub(super) fn whose(self) -> Whose {
        self.0.keys().first().map_or(Whose::Own, |key| Whose::from_key(key).0)
    }

    /// Returns the label that the part requires, if it requires one and nothing else.
    pub(super) fn label(self) -> Option<Wanted<'s>> {
        let (seen, values) = self.0.required_labels().pop()?;
        let is_it = match values.as_deref() {
            None => *self.0 == Selector::has(seen),
            Some(values) => {
                let all = values.iter().map(|&value| value.to_owned());
                *self.0 == Selector::is_in(seen, all)
                    || matches!(values, [one] if *self.0 == Selector::equals(seen, *one))
            }
        };
        let (key, values) = (Whose::from_key(seen).1, values.unwrap_or_default());
        is_it.then_some(Wanted { seen, key, values })
    }

    /// Returns the requirement as text: `app=web|db`, `app`, or an expression. For labels of other objects, words such
    /// as `namespace label` come first.
    pub(super) fn wanted(self) -> String {
        let before = match self.whose() {
            Whose::Own => "",
            Whose::Namespace => "namespace label ",
            Whose::Account => "service account label ",
            Whose::AccountName => "service account ",
        };
        format!("{before}{}", self.text())
    }

    /// Returns the requirement as text, without the words about the object that has the label.
    pub(super) fn text(self) -> String {
        match self.label() {
            Some(Wanted { values, .. }) if self.whose() == Whose::AccountName => {
                listed(values, "|")
            }
            Some(Wanted { key, values, .. }) if values.is_empty() => key.to_owned(),
            Some(Wanted { key, values, .. }) => format!("{key}={}", listed(values, "|")),
            None => {
                let text = self.0.to_string();
                let text = text.replace(NAMESPACE_PREFIX, "").replace(SERVICE_ACCOUNT_PREFIX, "");
                format!("`{text}`")
            }
        }
    }

    /// Returns a sentence about why an object does not match the part.
    fn lack(self, labels: &impl LabelSource) -> String {
        let Some(Wanted { seen, key, .. }) = self.label() else {
            return format!("it does not fit {}", self.wanted());
        };
        let (whose, value) = (self.whose(), labels.label(seen));
        let it = match whose {
            Whose::Namespace if labels.label(NAMESPACE).is_none() => {
                return "it has no namespace".to_owned();
            }
            Whose::Namespace => "its namespace",
            Whose::Account => "its service account",
            Whose::Own | Whose::AccountName => "it",
        };
        match value {
            Some(name) if whose == Whose::AccountName => format!("it has service account {name}"),
            None if whose == Whose::AccountName => "it has no service account".to_owned(),
            Some(value) => format!("{it} has {key}={value}"),
            None => format!("{it} has no label {key}"),
        }
    }
}

/// The object that matches the most parts, and the parts that it does not match.
pub(super) struct Nearest<'o, 's, M, L> {
    pub(super) object: M,
    labels: &'o L,
    pub(super) lacking: Vec<Part<'s>>,
}

impl<'o, 's, M, L: LabelSource> Nearest<'o, 's, M, L> {
    /// Returns the first object among those that match the most parts. Returns `None` if none of them matches a part.
    pub(super) fn among(
        parts: &[Part<'s>],
        objects: impl Iterator<Item = (M, &'o L)>,
    ) -> Option<Self> {
        let lacks = |labels: &L| parts.iter().filter(|part| !part.0.matches(labels)).count();
        let (least, object, labels) = objects
            .map(|(object, labels)| (lacks(labels), object, labels))
            .min_by_key(|(lacks, ..)| *lacks)?;
        let lacking = parts.iter().copied().filter(|part| !part.0.matches(labels)).collect();
        (least < parts.len()).then_some(Self { object, labels, lacking })
    }

    /// Returns a text about how nearly the object matches: `without a=b pod x fits; it has a=c`.
    pub(super) fn text(&self, title: &str) -> String {
        let lack = |part: &Part<'_>| part.lack(self.labels);
        if let [one] = &self.lacking[..] {
            return format!("without {} {title} fits; {}", one.wanted(), lack(one));
        }
        let wanted = |part: &Part<'_>| match part.label() {
            Some(label) if self.labels.label(label.seen).is_some() => {
                format!("{}, not {}", lack(part), part.text())
            }
            _ => lack(part),
        };
        let more = if self.lacking.len() > LACKS { "; ..." } else { "" };
        let lacks: Vec<String> = self.lacking.iter().take(LACKS).map(wanted).collect();
        format!("the nearest is {title}: {}{more}", lacks.join("; "))
    }
}

/// Joins the first texts of a list for a message.
pub(super) fn listed<T: AsRef<str>>(all: impl IntoIterator<Item = T>, separator: &str) -> String {
    let mut all = all.into_iter();
    let first: Vec<T> = all.by_ref().take(LISTED).collect();
    let first: Vec<&str> = first.iter().map(AsRef::as_ref).collect();
    let more = if all.next().is_some() { format!("{separator}...") } else { String::new() };
    first.join(separator) + &more
}
