//! Every line of the semantics that the oracle decides is a test that is named after it.

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
