//! Requests for pods, and the results of work for pods.
//!
//! Attaching has three steps. First the allocator reserves addresses. Then a thread that may block makes the device
//! ([`PodWork`](crate::pod_work::PodWork)), or the caller makes it and hands its queues over. Last the control loop makes
//! the device a port and settles, so that the tables contain the pod. The caller gets its reply after that, so the pod's
//! policy is in force. If the tables were refuted (`--verify-tables`), no packets pass the pod. Detaching takes the steps
//! in reverse. Work for different pods runs at the same time. Requests for one pod run one after the other, in the order of
//! arrival. A request that fails leaves no device, and no address unless a lease could not be written.

use std::panic::resume_unwind;

use manx_policy_compiler::model::ObjectName;

use super::Agent;
use super::attachments::WorkResult;
use super::pod_request::PodRequest;
use crate::pod_work::Completed;

impl Agent {
    /// Begins a request, or queues it if there is work in progress for the same pod.
    pub(super) fn submit(&mut self, request: PodRequest) {
        let name = request.pod();
        match self.attachments.pods.queue(&name, request) {
            Ok(()) => {}
            Err(PodRequest::Attach(request, caller)) => self.begin_attach(&name, *request, caller),
            Err(PodRequest::Detach(detach, caller)) => self.detach(&name, &detach, caller),
        }
    }

    /// Begins the queued requests of pods without work in progress. Returns whether there were any.
    pub(crate) fn submit_ready(&mut self) -> bool {
        let ready = self.attachments.pods.take_ready();
        let any = !ready.is_empty();
        for request in ready.into_iter().filter(|request| !request.is_abandoned()) {
            self.submit(request);
        }
        any
    }

    /// Takes the results of work, and moves the pods to their next states.
    pub(crate) fn take_results(
        &mut self,
        completed: impl IntoIterator<Item = Completed<WorkResult>>,
    ) {
        for Completed { pod, result } in completed {
            // After a panic the state of a device is unknown, so the agent ends.
            let done = result.unwrap_or_else(|panic| resume_unwind(panic));
            if self.take_result(&pod, done).is_none() {
                tracing::error!(%pod, "work has ended that is not the pod's: a fault of this program");
            }
        }
    }

    /// Takes the result of one piece of work. Returns `None` if the result does not belong to the pod's state.
    fn take_result(&mut self, pod: &ObjectName, done: WorkResult) -> Option<()> {
        match done {
            WorkResult::Reserved(reserved) => self.end_reserving(pod, reserved),
            WorkResult::Renewed(reserved) => self.end_renewing(pod, reserved),
            WorkResult::Made(made) => self.end_making(pod, None, made),
            WorkResult::HandedOver(caller, made) => self.end_making(pod, Some(caller), made),
            WorkResult::NotHandedOver => self.abandon_making(pod),
            WorkResult::Removed => self.end_removing(pod),
            WorkResult::Released(released) => self.end_releasing(pod, released),
        }
    }
}
