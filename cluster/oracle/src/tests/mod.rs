//! For every line of the semantics that the oracle implements, there is a test with a corresponding
//! name.

mod cluster;
mod cluster_policies;
mod explain;
mod host;
mod invalid;
mod kubernetes;
mod manifests;
mod rules;
mod selector_differential;
mod selectors;
mod service_backends;
mod subjects;
mod tiers;
