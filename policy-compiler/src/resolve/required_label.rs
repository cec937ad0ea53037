//! Policies, grouped by a label that they require. An endpoint is compared only with policies whose required label it
//! has, and with policies that require none.

use ahash::AHashMap;

use crate::model::LabelView;
use crate::selector::{Comparison, Node, Selector, is_reserved};

/// A policy that accepts at most this number of values of a label is found by each value. A policy that accepts more
/// values is found by the key alone.
const MOST_VALUES: usize = 64;

/// Policies by a required label. Each policy is a value of type `P`.
#[derive(Debug)]
pub(super) struct ByRequiredLabel<P> {
    labelled: AHashMap<String, OfKey<P>>,
    others: Vec<P>,
}

/// The policies that require a label with this key.
#[derive(Debug)]
struct OfKey<P> {
    /// The policies by the value that they require. No list is empty. A policy that accepts several values is in the
    /// list of each of them.
    by_value: AHashMap<String, Vec<P>>,
    /// The policies that may accept any value.
    any_value: Vec<P>,
}

impl<P> Default for ByRequiredLabel<P> {
    fn default() -> Self {
        Self { labelled: AHashMap::new(), others: Vec::new() }
    }
}

impl<P> Default for OfKey<P> {
    fn default() -> Self {
        Self { by_value: AHashMap::new(), any_value: Vec::new() }
    }
}

/// A key of the endpoint's own labels that a selector requires, with the accepted values if these are few. This reads
/// the selector once and does not evaluate it.
fn required(selector: &Selector) -> Option<(&str, Option<Vec<&str>>)> {
    let mut by_key = None;
    for conjunct in selector.conjuncts() {
        let (key, values) = match conjunct.node() {
            Node::Compare { key, how: Comparison::Equal, value } => (key, Some(vec![&**value])),
            Node::Among { key, values, negated: false } if values.len() <= MOST_VALUES => {
                (key, Some(values.iter().map(String::as_str).collect()))
            }
            Node::Among { key, negated: false, .. } | Node::Has(key) => (key, None),
            _ => continue,
        };
        if is_reserved(key) {
            continue;
        }
        if values.is_some() {
            return Some((key, values));
        }
        by_key = by_key.or(Some((key.as_str(), None)));
    }
    by_key
}

impl<P> ByRequiredLabel<P> {
    /// All lists.
    pub(super) fn lists_mut(&mut self) -> impl Iterator<Item = &mut Vec<P>> {
        let labelled = self.labelled.values_mut();
        let of_keys = labelled.flat_map(|it| it.by_value.values_mut().chain([&mut it.any_value]));
        of_keys.chain([&mut self.others])
    }

    /// Edits the lists that contain a policy with this selector.
    pub(super) fn edit(&mut self, selector: &Selector, mut edit: impl FnMut(&mut Vec<P>)) {
        let Some((key, values)) = required(selector) else { return edit(&mut self.others) };
        let of_key = self.labelled.entry(key.to_owned()).or_default();
        match values {
            None => edit(&mut of_key.any_value),
            Some(values) => {
                for value in values {
                    let list = of_key.by_value.entry(value.to_owned()).or_default();
                    edit(list);
                    if list.is_empty() {
                        of_key.by_value.remove(value);
                    }
                }
            }
        }
        if of_key.by_value.is_empty() && of_key.any_value.is_empty() {
            self.labelled.remove(key);
        }
    }

    /// The policies that may select an endpoint; some may occur twice.
    pub(super) fn candidates(&self, view: &LabelView<'_>) -> impl Iterator<Item = &P> {
        let of_labels = view.own_labels().flat_map(|(key, value)| {
            let of_key = self.labelled.get(key);
            let by_value = of_key.and_then(|it| it.by_value.get(value));
            by_value.into_iter().chain(of_key.map(|it| &it.any_value))
        });
        of_labels.flatten().chain(&self.others)
    }
}
