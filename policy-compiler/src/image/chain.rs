//! Chains and local endpoints, as an image describes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::ChainId;
use crate::model::Direction;
use crate::resolve::{List, PredicateId, Stage};

/// The cell of a chain without rows: it is evaluated rule by rule.
pub(crate) const LINEAR: u32 = u32::MAX;

/// The predicate sets of a local endpoint's IPv4 address and of its IPv6 address.
pub type LocalPredicateSets = [Arc<[PredicateId]>; 2];

/// A chain: the list of policies of a local end, and the end's predicate sets. Endpoints with equal lists and predicate
/// sets share one chain. Two pods with the same policies have different chains if one gives the name `http` to port 80
/// and the other to port 8080.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The policies.
    pub list: Arc<List>,
    /// The predicates that the policies use for the local end and that are true of it. `None` if different predicates
    /// are true of two addresses of one family.
    pub local: Option<LocalPredicateSets>,
}

/// A local endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalEndpoint {
    pub(crate) chains: BTreeMap<(Stage, Direction), ChainId>,
    pub(crate) revision: u64,
}
