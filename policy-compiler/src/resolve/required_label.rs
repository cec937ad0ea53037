//! Policies by a label that they require: an endpoint is compared with those whose label it has, and with those that
//! require none.

use ahash::AHashMap;

use crate::model::LabelView;
use crate::selector::{Selector, is_reserved};

/// See the module. Each policy is a `P`.
#[derive(Debug)]
pub(super) struct ByRequiredLabel<P> {
    /// By key and value; no list is empty. A policy for which several values will do is at each of them.
    labelled: AHashMap<String, AHashMap<String, Vec<P>>>,
    others: Vec<P>,
}

impl<P> Default for ByRequiredLabel<P> {
    fn default() -> Self {
        Self { labelled: AHashMap::new(), others: Vec::new() }
    }
}

/// The first label that a selector requires of the endpoint itself, and its values, if there is one.
fn required(selector: &Selector) -> Option<(&str, Vec<&str>)> {
    let mut labels = selector.required_labels().into_iter();
    labels.find_map(|(key, values)| Some((key, values.filter(|_| !is_reserved(key))?)))
}

impl<P> ByRequiredLabel<P> {
    /// All lists.
    pub(super) fn lists_mut(&mut self) -> impl Iterator<Item = &mut Vec<P>> {
        self.labelled.values_mut().flat_map(|it| it.values_mut()).chain([&mut self.others])
    }

    /// Edits the lists that a policy with this selector belongs to.
    pub(super) fn edit(&mut self, selector: &Selector, mut edit: impl FnMut(&mut Vec<P>)) {
        let Some((key, values)) = required(selector) else { return edit(&mut self.others) };
        let by_value = self.labelled.entry(key.to_owned()).or_default();
        for value in values {
            let list = by_value.entry(value.to_owned()).or_default();
            edit(list);
            if list.is_empty() {
                by_value.remove(value);
            }
        }
        if by_value.is_empty() {
            self.labelled.remove(key);
        }
    }

    /// Those that may select an endpoint, some perhaps twice.
    pub(super) fn candidates(&self, view: &LabelView<'_>) -> impl Iterator<Item = &P> {
        let labels = view.own_labels();
        let lists = labels.filter_map(|(key, value)| self.labelled.get(key)?.get(value));
        lists.flatten().chain(&self.others)
    }
}
