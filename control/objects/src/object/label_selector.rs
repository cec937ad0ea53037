//! Label selectors.

use super::pairs::Pairs;

/// A label selector.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    /// `matchLabels`.
    pub match_labels: Pairs,
    /// `matchExpressions`.
    pub match_expressions: Vec<Expression>,
}

/// `matchExpressions[]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    /// `key`.
    pub key: String,
    /// `operator`.
    pub operator: Operator,
    /// `values`: at least one for In and `NotIn`, none for the others.
    pub values: Vec<String>,
}

/// `matchExpressions[].operator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `In`.
    In,
    /// `NotIn`.
    NotIn,
    /// `Exists`.
    Exists,
    /// `DoesNotExist`.
    DoesNotExist,
}
