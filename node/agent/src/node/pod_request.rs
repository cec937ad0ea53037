//! What callers want of a pod, and who they are.

use std::time::Instant;

use manx_policy_compiler::model::ObjectName;
use tokio::sync::oneshot;

use crate::server::Outcome;
use manx_api::{Attach, Detach, ErrorKind, Failure, PodName, Response};
use manx_linux::netns;

/// What callers call a pod.
pub(super) fn pod_name(ObjectName { namespace, name }: &ObjectName) -> PodName {
    PodName { namespace: namespace.clone(), name: name.clone() }
}

/// What tables and objects call it.
pub(super) fn object_name(PodName { namespace, name }: &PodName) -> ObjectName {
    ObjectName::new(namespace, name)
}

/// Takes the reply to a request. A client that went away has closed it.
pub(crate) type Caller = oneshot::Sender<Outcome>;

/// A caller and the reply that it gets.
pub(crate) type Answered = (Caller, Response);

/// What a caller wants of a pod.
pub(crate) enum PodRequest {
    /// To be attached.
    Attach(Box<AttachRequest>, Caller),
    /// To be detached, and its addresses released.
    Detach(Box<Detach>, Caller),
}

/// A pod's attachment.
pub(crate) struct AttachRequest {
    pub(crate) attach: Attach,
    /// The namespace that was at the path of the request when it came, or came with it.
    pub(crate) netns: Option<netns::Identity>,
    /// Who makes a TUN or TAP device.
    pub(crate) maker: Maker,
    /// When it is given up if the pod's object has not come. `None`: it has not waited for it yet.
    pub(crate) until: Option<Instant>,
}

/// Who makes a pod's TUN or TAP device. A veth is the agent's to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// A thread of the agent.
    Agent,
    /// The process that asks, which hands its queues over.
    Caller,
}

impl PodRequest {
    /// The pod.
    pub(super) fn pod(&self) -> ObjectName {
        let pod = match self {
            Self::Attach(request, _) => &request.attach.pod,
            Self::Detach(detach, _) => &detach.pod,
        };
        object_name(pod)
    }

    /// Whether it is an attachment that no caller waits for any more. A detachment is done all the same.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self, Self::Attach(_, caller) if caller.is_closed())
    }

    /// Whether `next`, a later request for the same pod, does all that this one is still to do.
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

/// The failure of a request that has come to an error.
pub(super) fn failure(kind: ErrorKind, error: &impl ToString) -> Failure {
    Failure { kind, message: error.to_string() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn pod() -> PodName {
        PodName { namespace: "shop".to_owned(), name: "web".to_owned() }
    }

    /// To attach `shop/web`, and who waits for that.
    pub(in crate::node) fn attach() -> (PodRequest, oneshot::Receiver<Outcome>) {
        let (caller, waits) = oneshot::channel();
        let attach = Attach::new(pod(), "/run/netns/web", "eth0");
        let request = AttachRequest { attach, netns: None, maker: Maker::Agent, until: None };
        (PodRequest::Attach(Box::new(request), caller), waits)
    }

    /// To detach it.
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
