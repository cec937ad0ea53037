//! Label selectors.

use super::pairs::Pairs;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    pub match_labels: Pairs,
    pub match_expressions: Vec<Expression>,
}

/// `matchExpressions[]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    pub key: String,
    pub operator: Operator,
    /// `values`: at least one for In and `NotIn`, none for the others.
    pub values: Vec<String>,
}

/// `matchExpressions[].operator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}
