//! Calico's selector language: predicates over labels.
//!
//! ```text
//! selector   = alternative
//! alternative = conjunction { "||" conjunction }
//! conjunction = term { "&&" term }
//! term       = { "!" } ( "(" alternative ")" | "has(" key ")" | "all()" | key operator )
//! operator   = "==" text | "!=" text | "contains" text | "starts with" text | "ends with" text
//!            | "in" set | "not in" set
//! ```
//!
//! The sources are Calico's documentation, "Selectors" of the NetworkPolicy resource, and Calico's own parser where the
//! documentation is silent. `global()` must stand alone, and is allowed only in a namespace selector
//! ([`Selector::parse_namespace`]).
//!
//! A selector is a value: two texts with the same canonical form are equal.

mod expression;
mod labels;
mod parse;
mod possible;

#[cfg(test)]
mod tests;

pub use expression::Selector;
pub(crate) use expression::{Comparison, Node};
pub(crate) use labels::is_reserved;
pub use labels::{
    KUBERNETES, LabelSource, Labels, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, SERVICE_ACCOUNT,
    SERVICE_ACCOUNT_PREFIX,
};
pub use parse::SelectorError;
