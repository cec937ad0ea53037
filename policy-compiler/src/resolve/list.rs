//! Lists: the rules that decide for an endpoint at one stage and in one direction.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use super::policy_rules::PolicyRules;
use super::stage::Stage;
use super::step_index::StepIndex;
use super::steps::Steps;
use super::terms::Terms;
use crate::model::{Direction, ObjectName, PolicyName};

/// What decides for one endpoint, stage and direction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct List {
    /// The stage.
    pub stage: Stage,
    /// The direction.
    pub direction: Direction,
    /// The policies that select the endpoint, in order, the staged ones among them.
    pub policies: Vec<Arc<PolicyName>>,
    /// The profiles behind them.
    pub profiles: Vec<String>,
    /// The host endpoint, if it is not valid: its policies are then those that it may have, and their rules are not asked.
    pub broken_host: Option<String>,
}

/// A list, its rules, and what they ask.
#[derive(Debug, Clone)]
pub struct ResolvedList {
    /// What it is.
    pub list: Arc<List>,
    /// Its rules.
    pub steps: Arc<Steps>,
    /// What they ask of the local end.
    pub local: Terms,
    /// What they ask of the peer.
    pub peer: Terms,
    /// A hash of all that its policies say but their rules.
    pub(crate) context_hash: u64,
    /// Made when first needed.
    pub(crate) revision: OnceLock<u64>,
    /// The rules of each of its policies, in order; other lists of the same policies share them. What else it says is in `around`.
    pub(crate) policy_rules: Vec<Arc<PolicyRules>>,
    /// Where they stand among `steps`.
    pub(crate) policy_steps: Range<usize>,
    /// The names of the policies' tiers.
    pub(crate) tiers: Vec<String>,
    /// The list in whose place it came.
    pub(crate) predecessor: Weak<ResolvedList>,
    /// Made when first needed.
    pub(crate) index: OnceLock<StepIndex>,
}

/// A local endpoint: a pod, or, without a namespace, a host endpoint.
pub type LocalName = ObjectName;

/// Something of an endpoint's for each stage and direction.
pub type Lists<T> = BTreeMap<(Stage, Direction), T>;

/// What a set of local endpoints needs of the policies.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    /// For each local endpoint that the model has, in order, the index of its list for each stage and direction.
    pub endpoints: Vec<(Arc<LocalName>, Lists<usize>)>,
    /// The distinct lists, in order of first use.
    pub lists: Vec<Arc<ResolvedList>>,
}
