//! Chains and local endpoints, as an image describes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::ChainId;
use crate::model::Direction;
use crate::resolve::{List, PredicateId, Stage};

/// In the place of a row: the chain is judged rule by rule.
pub(crate) const LINEAR: u32 = u32::MAX;

/// What is true of a local endpoint's IPv4 and of its IPv6 address.
pub type LocalPredicateSets = [Arc<[PredicateId]>; 2];

/// Everything about the local end that decides: the list of its policies and what is true of itself. Endpoints that agree
/// in all of that share one chain; two pods with one list of policies and `http` = 80 and 8080 do not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The policies.
    pub list: Arc<List>,
    /// Of what the policies ask of the local end, what is true of it: of its IPv4 and of its IPv6 address. `None` where
    /// that is not the same for all of its addresses of one family.
    pub local: Option<LocalPredicateSets>,
}

/// A local endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalEndpoint {
    pub(crate) chains: BTreeMap<(Stage, Direction), ChainId>,
    pub(crate) revision: u64,
}
