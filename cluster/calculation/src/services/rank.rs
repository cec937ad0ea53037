//! The order of objects that compete for the same address and port, or for the same bounded resource.

use std::sync::Arc;

use manx_objects::object::{Created, Kind, ObjectKey};
use manx_policy_compiler::model::ObjectName;

/// The rank of an object among those with the same address, protocol and port, or among those that share a bound. The
/// smallest rank comes first. A Service comes before a pod, because it has a node port on all nodes, and a pod is on
/// one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) is_pod: bool,
    is_of_unknown_age: bool,
    created: Option<Created>,
    pub(super) object: Arc<ObjectKey>,
}

impl Rank {
    pub(super) fn new(object: &Arc<ObjectKey>, created: Option<Created>) -> Arc<Self> {
        Arc::new(Self {
            is_pod: object.kind == Kind::Pod,
            is_of_unknown_age: created.is_none(),
            created,
            object: Arc::clone(object),
        })
    }
}

/// The order of claims to an address, or to a port of an address. The smallest comes first. A claim by `externalIPs`
/// comes after all others, whatever its age. Otherwise the author of a Service could name addresses that Kubernetes or
/// a load balancer will later assign to others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence {
    pub(super) is_external_ip: bool,
    pub(super) rank: Arc<Rank>,
}

impl Precedence {
    /// Returns the name of the object that has the claim.
    pub(super) fn name(&self) -> ObjectName {
        ObjectName::new(&self.rank.object.namespace, &self.rank.object.name)
    }
}
