//! Requests for a pod, and their callers.

use std::time::Instant;

use manx_policy_compiler::model::ObjectName;
use tokio::sync::oneshot;

use crate::server::Outcome;
use manx_api::{Attach, Detach, ErrorKind, Failure, PodName, Response};
use manx_linux::netns;

/// The name of a pod in requests.
pub(super) fn pod_name(ObjectName { namespace, name }: &ObjectName) -> PodName {
    PodName { namespace: namespace.clone(), name: name.clone() }
}

/// The name of a pod in tables and objects.
pub(super) fn object_name(PodName { namespace, name }: &PodName) -> ObjectName {
    ObjectName::new(namespace, name)
}

/// The channel for the reply to a request. The channel is closed if the client has disconnected.
pub(crate) type Caller = oneshot::Sender<Outcome>;

/// A reply and the caller that gets it.
pub(crate) type PendingReply = (Caller, Response);

/// A request for a pod.
pub(crate) enum PodRequest {
    /// Attach the pod.
    Attach(Box<AttachRequest>, Caller),
    /// Detach the pod, and release its addresses.
    Detach(Box<Detach>, Caller),
}

/// A request to attach a pod.
pub(crate) struct AttachRequest {
    pub(crate) attach: Attach,
    /// The pod's namespace: the one at the request's path when the request arrived, or the one that came as a descriptor.
    pub(crate) netns: Option<netns::Identity>,
    pub(crate) maker: Maker,
    /// The time when the request fails if the pod's object has not arrived. `None`: the request has not waited for the
    /// object yet.
    pub(crate) until: Option<Instant>,
}

/// The maker of a pod's TUN or TAP device. The agent makes every veth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// A thread of the agent.
    Agent,
    /// The caller, which hands its queues over.
    Caller,
}

impl PodRequest {
    pub(super) fn pod(&self) -> ObjectName {
        let pod = match self {
            Self::Attach(request, _) => &request.attach.pod,
            Self::Detach(detach, _) => &detach.pod,
        };
        object_name(pod)
    }

    /// Whether it is an attachment whose caller has disconnected. A detachment is done even then.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self, Self::Attach(_, caller) if caller.is_closed())
    }

    /// Whether `next`, a later request for the same pod, makes this one unnecessary.
    pub(super) fn is_replaced_by(&self, next: &Self) -> bool {
        match self {
            Self::Attach(..) => self.is_abandoned(),
            Self::Detach(this, caller) => match next {
                Self::Detach(next, _) => {
                    caller.is_closed() && (next.id.is_none() || next.id == this.id)
                }
                Self::Attach(..) => false,
            },
        }
    }
}

/// The failure for an error.
pub(super) fn failure(kind: ErrorKind, error: &impl ToString) -> Failure {
    Failure { kind, message: error.to_string() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn pod() -> PodName {
        PodName { namespace: "shop".to_owned(), name: "web".to_owned() }
    }

    /// A request to attach `shop/web`, and the receiver of its reply.
    pub(in crate::node) fn attach() -> (PodRequest, oneshot::Receiver<Outcome>) {
        let (caller, waits) = oneshot::channel();
        let attach = Attach::new(pod(), "/run/netns/web", "eth0");
        let request = AttachRequest { attach, netns: None, maker: Maker::Agent, until: None };
        (PodRequest::Attach(Box::new(request), caller), waits)
    }

    /// A request to detach it, and the receiver of its reply.
    pub(in crate::node) fn detach() -> (PodRequest, oneshot::Receiver<Outcome>) {
        let (caller, waits) = oneshot::channel();
        (PodRequest::Detach(Box::new(pod().into()), caller), waits)
    }

    #[test]
    fn only_a_request_without_a_caller_gives_way_and_a_detachment_only_to_a_detachment() {
        let (later_attach, later_detach) = (attach(), detach());
        for (make, by_attach, by_detach, abandoned) in [
            (attach as fn() -> (PodRequest, oneshot::Receiver<Outcome>), true, true, true),
            (detach, false, true, false),
        ] {
            let (request, waits) = make();
            assert!(!request.is_replaced_by(&later_attach.0));
            assert!(!request.is_replaced_by(&later_detach.0));
            assert!(!request.is_abandoned());
            drop(waits);
            assert_eq!(request.is_replaced_by(&later_attach.0), by_attach);
            assert_eq!(request.is_replaced_by(&later_detach.0), by_detach);
            assert_eq!(request.is_abandoned(), abandoned);
        }
    }
}
