//! Lists: the rules that decide for an endpoint at one stage and in one direction.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use super::policy_rules::PolicyRules;
use super::size::PricedSizes;
use super::stage::Stage;
use super::step_index::StepIndex;
use super::steps::Steps;
use super::terms::Terms;
use crate::model::{Direction, ObjectName, PolicyName};

/// The policies and profiles that decide for one endpoint, stage and direction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct List {
    /// The stage.
    pub stage: Stage,
    /// The direction.
    pub direction: Direction,
    /// The policies that select the endpoint, in order, including staged ones.
    pub policies: Vec<Arc<PolicyName>>,
    /// The profiles that follow the policies.
    pub profiles: Vec<String>,
    /// The name of the host endpoint, if the host endpoint is not valid. In this case `policies` are the policies that
    /// may select it, and their rules are not evaluated.
    pub broken_host: Option<String>,
}

/// A list, its rules, and the terms that they use.
#[derive(Debug, Clone)]
pub struct ResolvedList {
    /// The policies, in order.
    pub list: Arc<List>,
    /// Its rules.
    pub steps: Arc<Steps>,
    /// The terms that the rules use for the local end.
    pub local: Terms,
    /// The terms that the rules use for the peer.
    pub peer: Terms,
    /// A hash of everything in the list except the rules of its policies.
    pub(crate) context_hash: u64,
    /// The hash of the list's content, computed at first use.
    pub(crate) revision: OnceLock<u64>,
    /// The rules of each of its policies, in order. Lists that contain the same policy share its rules.
    pub(crate) policy_rules: Vec<Arc<PolicyRules>>,
    /// The range of the policies' rules in `steps`.
    pub(crate) policy_steps: Range<usize>,
    /// The names of the policies' tiers.
    pub(crate) tiers: Vec<String>,
    /// The sizes of its policies, for their [price](super::price).
    pub(super) priced_sizes: PricedSizes,
    /// The list that this one replaced.
    pub(crate) predecessor: Weak<ResolvedList>,
    /// Built at first use.
    pub(crate) index: OnceLock<StepIndex>,
}

/// A local endpoint: a pod, or, without a namespace, a host endpoint.
pub type LocalName = ObjectName;

/// A value for each stage and direction of an endpoint.
pub type Lists<T> = BTreeMap<(Stage, Direction), T>;

/// The lists of a set of local endpoints.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    /// For each local endpoint that is in the model, in order, the index of its list for each stage and direction.
    pub endpoints: Vec<(Arc<LocalName>, Lists<usize>)>,
    /// The distinct lists, in order of first use.
    pub lists: Vec<Arc<ResolvedList>>,
}
