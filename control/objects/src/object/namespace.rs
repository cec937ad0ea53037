//! What groups pods: namespaces and service accounts.

use super::pairs::Pairs;

/// A namespace. Its labels always contain `kubernetes.io/metadata.name`, as the API server ensures, whatever the
/// manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// The labels.
    pub labels: Pairs,
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// The labels.
    pub labels: Pairs,
}
