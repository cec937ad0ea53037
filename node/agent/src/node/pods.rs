//! Requests for pods, and the work for them that has ended.
//!
//! Attaching has three steps. The control loop has addresses reserved; a thread that may block makes the device
//! ([`PodWork`](crate::pod_work::PodWork)), or the caller makes it and hands its queues over; the control loop takes the
//! device as a port, and settles: tables name the pod. The caller gets its reply after that, so the pod's policy is in
//! force; if the tables were refuted (`--verify-tables`), nothing passes the pod. Detaching goes the other way round.
//! Work for many pods runs at once; requests for one pod run one after the other, in order of arrival. What fails leaves
//! no device, and no address unless a lease could not be written.

use std::panic::resume_unwind;

use manx_policy_compiler::model::ObjectName;

use super::Agent;
use super::attachments::Done;
use super::pod_request::PodRequest;
use crate::pod_work::Completed;

impl Agent {
    /// Does what is asked for, now or after what is under way for the same pod.
    pub(super) fn submit(&mut self, request: PodRequest) {
        let name = request.pod();
        match self.attachments.pods.queue(&name, request) {
            Ok(()) => {}
            Err(PodRequest::Attach(request, caller)) => self.begin_attach(&name, *request, caller),
            Err(PodRequest::Detach(detach, caller)) => self.detach(&name, &detach, caller),
        }
    }

    /// Begins the requests that have waited and wait no longer. Returns whether there were any.
    pub(crate) fn begin_ready(&mut self) -> bool {
        let ready = self.attachments.pods.take_ready();
        let any = !ready.is_empty();
        for request in ready.into_iter().filter(|request| !request.is_abandoned()) {
            self.submit(request);
        }
        any
    }

    /// Work has ended: pods go on to their next states.
    pub(crate) fn commit(&mut self, completed: impl IntoIterator<Item = Completed<Done>>) {
        for Completed { pod, result } in completed {
            // An agent that does not know what has become of a device ends.
            let done = result.unwrap_or_else(|panic| resume_unwind(panic));
            if self.go_on(&pod, done).is_none() {
                tracing::error!(%pod, "work has ended that is not the pod's: a fault of this program");
            }
        }
    }

    /// `None`: the pod's state has no such end.
    fn go_on(&mut self, pod: &ObjectName, done: Done) -> Option<()> {
        match done {
            Done::Reserved(reserved) => self.end_reserving(pod, reserved),
            Done::Renewed(reserved) => self.end_renewing(pod, reserved),
            Done::Made(made) => self.end_making(pod, None, made),
            Done::HandedOver(caller, made) => self.end_making(pod, Some(caller), made),
            Done::NotHandedOver => self.end_making_without(pod),
            Done::Removed => self.end_removing(pod),
            Done::Released(released) => self.end_releasing(pod, released),
        }
    }
}
