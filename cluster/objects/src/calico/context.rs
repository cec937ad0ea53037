//! Facts that both sides of a rule share: the direction, whether the object has a namespace, and the address family.

use super::super::object::PolicyType;

/// The place of a rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    pub(super) direction: PolicyType,
    /// Whether the rule's object has a namespace. If it has one, a service name without a namespace is looked up there.
    pub(super) namespaced: bool,
}

/// The address family that the fields of a rule require.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) version: Option<u8>,
    pub(super) nets: Option<u8>,
}
