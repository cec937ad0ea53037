//! The resolved rules of one policy in one direction. All lists that contain the policy share them.

use std::sync::{Arc, OnceLock};

use super::steps::Step;
use super::terms::Terms;
use crate::model::{Decision, Policy, PolicyName};

/// The rules of a policy in one direction.
#[derive(Debug)]
pub(crate) struct PolicyRules {
    pub(super) name: Arc<PolicyName>,
    pub(super) policy: Arc<Policy>,
    /// The rules as steps. Their tier is 0 until a list copies them.
    pub(super) steps: Box<[Step]>,
    /// The terms that the rules use for the local end and for the peer.
    pub(super) terms: [Terms; 2],
    /// The size of the rules, for their [price](super::price).
    pub(super) size: usize,
    /// The decision at the end of the tier. It is used in a list in which the tier's default action is Deny and the
    /// policy is the first enforced one of the tier.
    pub(super) isolated: Arc<Decision>,
    /// For a staged policy, the step after its rules. It is used in a list in which the tier's default action is Deny
    /// and all policies of the tier are staged.
    pub(super) tier_end: Option<Step>,
    /// Computed at first use.
    pub(super) revision: OnceLock<u64>,
}
