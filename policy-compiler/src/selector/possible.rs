//! Whether a selector may match labels that are partly known.

use super::expression::{Comparison, Node, Selector};
use super::labels::LabelSource;

impl Selector {
    /// Whether the selector may match an object that has `labels`, and possibly other labels. `may_be` is called for a
    /// label that is not in `labels`. Without a value, it returns whether the object may have the label. With a value,
    /// it returns whether the label may have this value. If the result is `false`, the selector certainly does not
    /// match.
    pub fn may_match_with(
        &self,
        labels: &impl LabelSource,
        may_be: &impl Fn(&str, Option<&str>) -> bool,
    ) -> bool {
        self.outcomes(labels, may_be).0
    }

    /// Whether the selector may be true, and whether it may be false.
    fn outcomes(
        &self,
        labels: &impl LabelSource,
        may_be: &impl Fn(&str, Option<&str>) -> bool,
    ) -> (bool, bool) {
        let key = match self.node() {
            Node::All => return (true, false),
            Node::Not(one) => {
                let (is_true, is_false) = one.outcomes(labels, may_be);
                return (is_false, is_true);
            }
            Node::And(all) => {
                let each = all.iter().map(|one| one.outcomes(labels, may_be));
                return each.fold((true, false), |all, one| (all.0 && one.0, all.1 || one.1));
            }
            Node::Or(all) => {
                let each = all.iter().map(|one| one.outcomes(labels, may_be));
                return each.fold((false, true), |all, one| (all.0 || one.0, all.1 && one.1));
            }
            Node::Has(key) | Node::Compare { key, .. } | Node::Among { key, .. } => key,
        };
        if labels.label(key).is_some() || !may_be(key, None) {
            let holds = self.matches(labels);
            return (holds, !holds);
        }
        match self.node() {
            Node::Compare { how: Comparison::Equal, value, .. } => (may_be(key, Some(value)), true),
            Node::Compare { how: Comparison::NotEqual, value, .. } => {
                (true, may_be(key, Some(value)))
            }
            Node::Among { values, negated, .. } => {
                let any = values.iter().any(|value| may_be(key, Some(value)));
                (any || *negated, any || !*negated)
            }
            _ => (true, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_label_that_is_not_known_may_have_each_value_that_it_may_have() {
        let labels = BTreeMap::from([("app".to_owned(), "db".to_owned())]);
        let may_be = |key: &str, value: Option<&str>| match key {
            "hash" => true,
            "pod" => value.is_none_or(|value| value == "db-0"),
            _ => false,
        };
        let may_match =
            |text: &str| Selector::parse(text).unwrap().may_match_with(&labels, &may_be);
        for possible in [
            "hash == 'x'",
            "has(hash)",
            "hash starts with 'x'",
            "hash != 'x'",
            "!(hash in {'x', 'y'})",
            "app == 'db' && hash in {'x'}",
            "app == 'web' || hash == 'x'",
            "pod == 'db-0'",
            "pod in {'db-0', 'db-1'}",
            "pod not in {'db-0'}",
            "!(pod == 'db-0')",
            "pod starts with 'db-'",
            "!has(tier)",
        ] {
            assert!(may_match(possible), "{possible}");
        }
        for impossible in [
            "app == 'web' && hash == 'x'",
            "pod == 'db-1'",
            "!(pod != 'db-1')",
            "pod in {'db-1', 'db-2'}",
            "has(tier)",
            "tier == 'x' || app == 'web'",
            "!(app == 'db')",
        ] {
            assert!(!may_match(impossible), "{impossible}");
        }
    }
}
