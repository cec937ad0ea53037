//! The directions of policy.

/// `spec.policyTypes[]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyType {
    Ingress,
    Egress,
}
