//! The resolved rules of one policy in one direction. All lists that the policy is in share them.

use std::sync::{Arc, OnceLock};

use super::steps::Step;
use super::terms::Terms;
use crate::model::{Decision, Policy, PolicyName};

/// The rules of a policy in one direction.
#[derive(Debug)]
pub(crate) struct PolicyRules {
    pub(super) name: Arc<PolicyName>,
    pub(super) policy: Arc<Policy>,
    /// The rules, each as of tier 0.
    pub(super) steps: Box<[Step]>,
    /// What they ask of the local end and of the peer.
    pub(super) terms: [Terms; 2],
    /// What happens behind its tier's last rule, where it is the first of it that is enforced and nothing goes on.
    pub(super) isolated: Arc<Decision>,
    /// Of a staged policy: the step behind its rules, in a list where its tier denies at its end and has staged policies only.
    pub(super) tier_end: Option<Step>,
    /// Made when first needed.
    pub(super) revision: OnceLock<u64>,
}
