//! The order of objects that want the same.

use std::sync::Arc;

use manx_objects::object::{Created, Kind, ObjectKey};
use manx_policy_compiler::model::ObjectName;

/// The rank of an object among those that have the same address, protocol and port, or that have a bound together. The
/// smallest comes first. A Service has a node port on all nodes, so it comes before the pods of one.
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

/// The order of claims on an address, or on a port there: the smallest comes first. One of `externalIPs` comes after all
/// others, whatever its age: who writes a Service could otherwise name the addresses that Kubernetes or a load balancer
/// will give to others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence {
    pub(super) is_external_ip: bool,
    pub(super) rank: Arc<Rank>,
}

impl Precedence {
    /// The name of the object that has the claim.
    pub(super) fn name(&self) -> ObjectName {
        ObjectName::new(&self.rank.object.namespace, &self.rank.object.name)
    }
}
