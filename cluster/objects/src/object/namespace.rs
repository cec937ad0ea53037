//! Groups of pods: namespaces and service accounts.

use super::pairs::Pairs;

/// A namespace. Its labels always contain `kubernetes.io/metadata.name`, because the API server sets this label,
/// whatever the manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    pub labels: Pairs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    pub labels: Pairs,
}
