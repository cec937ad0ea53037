//! Kubernetes' label selectors.
//!
//! Source: Kubernetes, "Labels and Selectors", and the API reference, `LabelSelector`.

use super::cursor::{Cursor, Findings};
use super::metadata::pairs;
use super::object::{Expression, LabelSelector, Operator};
use super::problem::Cause;
use super::syntax::{LABEL_VALUE, QUALIFIED_NAME, is_label_value, is_qualified_name};
use super::tree::Value;

/// The fields of a label selector.
pub(super) const LABEL_SELECTOR: &[&str] = &["matchLabels", "matchExpressions"];

/// Reads a label selector. Errors are in `out`; if there are any, the result must not be used.
pub(super) fn label_selector(cursor: &Cursor<'_>, out: &mut Findings) -> LabelSelector {
    if !cursor.exact(out, LABEL_SELECTOR) {
        return LabelSelector::default();
    }
    LabelSelector {
        match_labels: cursor
            .field("matchLabels")
            .map(|labels| pairs(&labels, out, true))
            .unwrap_or_default(),
        match_expressions: cursor
            .field("matchExpressions")
            .map(|expressions| expressions.items(out, expression))
            .unwrap_or_default(),
    }
}

fn expression(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Expression> {
    if !cursor.exact(out, &["key", "operator", "values"]) {
        return None;
    }
    let key = cursor.required(out, "key", QUALIFIED_NAME).and_then(|field| {
        field.parsed(out, QUALIFIED_NAME, |text| is_qualified_name(text).then(|| text.to_owned()))
    });
    let operators = "In, NotIn, Exists or DoesNotExist";
    let operator = cursor.required(out, "operator", operators).and_then(|field| {
        field.parsed(out, operators, |text| match text {
            "In" => Some(Operator::In),
            "NotIn" => Some(Operator::NotIn),
            "Exists" => Some(Operator::Exists),
            "DoesNotExist" => Some(Operator::DoesNotExist),
            _ => None,
        })
    });
    let field = cursor.field("values");
    let values = field.map(|field| {
        field.items(out, |item, out| {
            item.parsed(out, LABEL_VALUE, |text| is_label_value(text).then(|| text.to_owned()))
        })
    });
    let empty = field.is_none_or(|field| field.node.value == Value::Sequence(Vec::new()));
    match (operator, field) {
        (Some(Operator::In | Operator::NotIn), _) if empty => {
            cursor.missing(out, "values", "at least one value for In and NotIn");
        }
        (Some(Operator::Exists | Operator::DoesNotExist), Some(field)) if !empty => {
            let message = "may not be given with Exists and DoesNotExist";
            field.error(out, Cause::Conflict(message.to_owned()));
        }
        _ => {}
    }
    Some(Expression { key: key?, operator: operator?, values: values.unwrap_or_default() })
}
