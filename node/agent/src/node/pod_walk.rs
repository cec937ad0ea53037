//! The transitions of pods between [`State`]s, and the requests that wait for them.
//!
//! A pod's requests are in the order of arrival. In [`State::Expected`] they wait for the pod's object. In a state with
//! work they wait for its end. In a state of rest they begin in the next turn of the control loop.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::Instant;

use manx_dataplane::tables::PortId;
use manx_policy_compiler::model::ObjectName;

use super::pod_request::{AttachRequest, Caller, PendingReply, PodRequest};
use super::pod_state::{
    AfterRemoval, Apart, AttachedPod, Making, Releasing, Renewing, Reserving, State,
};
use manx_api::{Attach, Reply};

struct Pod {
    state: State,
    /// The time when the state began.
    since: Instant,
    requests: VecDeque<PodRequest>,
}

/// All pods that have a state other than [`State::Nothing`], or requests.
#[derive(Default)]
pub(super) struct Pods {
    all: BTreeMap<ObjectName, Pod>,
}

impl Pods {
    /// The pod's state, if it has one.
    pub(super) fn state(&self, name: &ObjectName) -> Option<&State> {
        self.all.get(name).map(|pod| &pod.state)
    }

    /// All pods, with the times when their states began.
    pub(super) fn states(&self) -> impl Iterator<Item = (&ObjectName, &State, Instant)> {
        self.all.iter().map(|(name, pod)| (name, &pod.state, pod.since))
    }

    /// The pods that the tables contain.
    pub(super) fn attached(&self) -> impl Iterator<Item = (&ObjectName, &AttachedPod)> {
        self.all.iter().filter_map(|(name, pod)| Some((name, pod.state.attached()?)))
    }

    /// The pod of this name, if the tables contain it.
    pub(super) fn find(&self, name: &ObjectName) -> Option<&AttachedPod> {
        self.state(name)?.attached()
    }

    /// The pod with this port, if the tables contain it.
    pub(super) fn find_by_port(&self, port: PortId) -> Option<ObjectName> {
        self.attached().find(|(_, pod)| pod.has_port(port)).map(|(name, _)| name.clone())
    }

    /// Whether this is the port of a leaving pod.
    pub(super) fn is_leaving_port(&self, port: PortId) -> bool {
        let is_one = |state: &State| matches!(state, State::Leaving(pod, _) if pod.has_port(port));
        self.all.values().any(|pod| is_one(&pod.state))
    }

    /// The requested attachments without a lease: those that wait, those that reserve addresses, and those that give an
    /// attached pod another attachment id.
    pub(super) fn asked(&self) -> impl Iterator<Item = &Attach> {
        self.all.values().flat_map(|pod| {
            let under_way = match &pod.state {
                State::Reserving(reserving) => Some(&reserving.request.attach),
                State::Renewing(_, renewing) => Some(&renewing.request.attach),
                _ => None,
            };
            let waiting = pod.requests.iter().filter_map(|request| match request {
                PodRequest::Attach(request, _) => Some(&request.attach),
                PodRequest::Detach(..) => None,
            });
            under_way.into_iter().chain(waiting)
        })
    }

    /// Queues a request after the pod's current work and its earlier requests. If the pod has neither work nor earlier
    /// requests, or if these only wait for the pod's object, the request can begin at once: it is returned as the
    /// error.
    pub(super) fn queue(
        &mut self,
        name: &ObjectName,
        request: PodRequest,
    ) -> Result<(), PodRequest> {
        match self.all.get_mut(name) {
            Some(Pod { state: State::Expected(_), .. }) | None => Err(request),
            Some(Pod { state, requests, .. }) if state.is_rest() && requests.is_empty() => {
                Err(request)
            }
            Some(Pod { requests, .. }) => {
                // Callers give up and try again. Their requests must not pile up while work hangs.
                requests.retain(|earlier| !earlier.is_replaced_by(&request));
                requests.push_back(request);
                Ok(())
            }
        }
    }

    /// Queues a request before all others of a pod with work in progress, because the request was begun before them.
    pub(super) fn requeue(&mut self, name: &ObjectName, request: AttachRequest, caller: Caller) {
        if let Some(pod) = self.all.get_mut(name) {
            pod.requests.push_front(PodRequest::Attach(Box::new(request), caller));
        }
    }

    /// Takes the requests of pods at rest, and removes pods that have nothing on the node.
    pub(super) fn take_ready(&mut self) -> Vec<PodRequest> {
        let at_rest = self.all.values_mut().filter(|pod| pod.state.is_rest());
        let ready = at_rest.flat_map(|pod| pod.requests.drain(..)).collect();
        self.all.retain(|_, pod| !matches!(pod.state, State::Nothing));
        ready
    }

    /// Nothing or apart → expected: an attachment waits for the pod's object.
    pub(super) fn expect(&mut self, name: &ObjectName, request: AttachRequest, caller: Caller) {
        self.change(name, |state| match state {
            State::Apart(apart) => State::Expected(Some(apart)),
            State::Expected(before) => State::Expected(before),
            _ => State::Expected(None),
        });
        if let Some(pod) = self.all.get_mut(name) {
            pod.requests.push_back(PodRequest::Attach(Box::new(request), caller));
        }
    }

    /// The pods whose attachments wait for their object.
    pub(super) fn expected(&self) -> Vec<ObjectName> {
        let is_expected = |pod: &Pod| matches!(pod.state, State::Expected(_));
        self.all.iter().filter(|(_, pod)| is_expected(pod)).map(|(name, _)| name.clone()).collect()
    }

    /// Removes the attachments that no longer wait for the pod's object, and returns their callers. Expected → as before,
    /// if no attachment is left.
    pub(super) fn expire(
        &mut self,
        name: &ObjectName,
        is_expired: impl Fn(&AttachRequest, &Caller) -> bool,
    ) -> Vec<Caller> {
        let Some(Pod { state: State::Expected(_), requests, .. }) = self.all.get_mut(name) else {
            return Vec::new();
        };
        let mut expired = Vec::new();
        for request in mem::take(requests) {
            match request {
                PodRequest::Attach(request, caller) if is_expired(&request, &caller) => {
                    expired.push(caller);
                }
                waits => requests.push_back(waits),
            }
        }
        if requests.is_empty() {
            self.arrive(name);
        }
        expired
    }

    /// Expected → as before: the pod's object has arrived, and its requests are next.
    pub(super) fn arrive(&mut self, name: &ObjectName) {
        self.change(name, |state| match state {
            State::Expected(before) => State::at_rest(before),
            other => other,
        });
    }

    /// Nothing or apart → reserving.
    pub(super) fn begin_reserving(
        &mut self,
        name: &ObjectName,
        request: AttachRequest,
        caller: Caller,
    ) {
        self.begin(name, |before| {
            let before = match before {
                State::Apart(apart) => Some(apart),
                _ => None,
            };
            State::Reserving(Box::new(Reserving { request, caller, before }))
        });
    }

    /// Reserving → as before.
    pub(super) fn end_reserving(&mut self, name: &ObjectName) -> Option<Reserving> {
        self.end(name, |state| match state {
            State::Reserving(mut reserving) => {
                (State::at_rest(reserving.before.take()), Some(*reserving))
            }
            other => (other, None),
        })
    }

    /// Attached → renewing: an attachment of the same device is repeated.
    pub(super) fn begin_renewing(
        &mut self,
        name: &ObjectName,
        request: AttachRequest,
        (caller, found): (Caller, Reply),
    ) {
        let renewing = Box::new(Renewing { request, caller, found, then: None });
        self.change(name, |state| match state {
            State::Attached(pod) => State::Renewing(pod, renewing),
            other => other,
        });
    }

    /// Renewing → attached.
    pub(super) fn end_renewing(&mut self, name: &ObjectName) -> Option<Renewing> {
        self.end(name, |state| match state {
            State::Renewing(pod, renewing) => (State::Attached(pod), Some(*renewing)),
            other => (other, None),
        })
    }

    /// Nothing or apart → making: it has addresses.
    pub(super) fn begin_making(&mut self, name: &ObjectName, making: Making) {
        self.begin(name, |_| State::Making(Box::new(making)));
    }

    /// Making → nothing. The caller then sets it to another state: attached, removing or releasing.
    pub(super) fn end_making(&mut self, name: &ObjectName) -> Option<Making> {
        self.end(name, |state| match state {
            State::Making(making) => (State::Nothing, Some(*making)),
            other => (other, None),
        })
    }

    /// Nothing → attached: it has a device and a port.
    pub(super) fn attach(&mut self, name: &ObjectName, pod: AttachedPod) {
        self.begin(name, |_| State::Attached(pod));
    }

    /// Nothing → apart.
    pub(super) fn set_apart(&mut self, name: &ObjectName, apart: Apart) {
        self.begin(name, |_| State::Apart(apart));
    }

    /// Attached → leaving. A renewing pod does this when the renewal has ended. If the tables do not contain the pod, this
    /// returns the rest of the detachment.
    pub(super) fn begin_leaving(
        &mut self,
        name: &ObjectName,
        after: AfterRemoval,
    ) -> Option<AfterRemoval> {
        match self.all.get_mut(name).map(|pod| &mut pod.state) {
            Some(State::Renewing(_, renewing)) => renewing.then = Some(after),
            Some(State::Attached(_)) => self.change(name, |state| match state {
                State::Attached(pod) => State::Leaving(pod, after),
                other => other,
            }),
            _ => return Some(after),
        }
        None
    }

    /// Leaving → nothing, for all leaving pods: no tables contain them any more. The caller then sets them to removing.
    pub(super) fn end_leaving(&mut self) -> Vec<(ObjectName, AttachedPod, AfterRemoval)> {
        let is_leaving = |pod: &Pod| matches!(pod.state, State::Leaving(..));
        let leaving = self.all.iter().filter(|(_, pod)| is_leaving(pod));
        let leaving: Vec<ObjectName> = leaving.map(|(name, _)| name.clone()).collect();
        let end = |name: ObjectName| {
            let (pod, after) = self.end(&name, |state| match state {
                State::Leaving(pod, after) => (State::Nothing, Some((pod, after))),
                other => (other, None),
            })?;
            Some((name, pod, after))
        };
        leaving.into_iter().filter_map(end).collect()
    }

    /// Nothing → removing.
    pub(super) fn begin_removing(&mut self, name: &ObjectName, after: AfterRemoval) {
        self.begin(name, |_| State::Removing(after));
    }

    /// Removing → nothing. The caller then sets it to another state: releasing or apart.
    pub(super) fn end_removing(&mut self, name: &ObjectName) -> Option<AfterRemoval> {
        self.end(name, |state| match state {
            State::Removing(after) => (State::Nothing, Some(after)),
            other => (other, None),
        })
    }

    /// Nothing, apart or expected → releasing. Attachments that wait for the pod's object wait for the release first.
    pub(super) fn begin_releasing(&mut self, name: &ObjectName, reply: Option<PendingReply>) {
        self.begin(name, |_| State::Releasing(Releasing { reply }));
    }

    /// Releasing → nothing, or apart if it failed.
    pub(super) fn end_releasing(
        &mut self,
        name: &ObjectName,
        failed: Option<String>,
    ) -> Option<Releasing> {
        self.end(name, |state| match state {
            State::Releasing(releasing) => {
                (State::at_rest(failed.map(Apart::Stuck)), Some(releasing))
            }
            other => (other, None),
        })
    }

    /// Changes from a state without work to the next.
    fn begin(&mut self, name: &ObjectName, next: impl FnOnce(State) -> State) {
        self.change(name, |before| {
            let may_begin = matches!(before, State::Nothing | State::Apart(_) | State::Expected(_));
            debug_assert!(may_begin, "{name}: {:?}", before.describe());
            if !may_begin {
                tracing::error!(%name, state = before.describe(), "work for a pod began beside other work for it");
            }
            next(before)
        });
    }

    /// Changes from a state with work to the next. Returns the data of the work that has ended.
    fn end<T>(
        &mut self,
        name: &ObjectName,
        next: impl FnOnce(State) -> (State, Option<T>),
    ) -> Option<T> {
        let mut ended = None;
        self.change(name, |before| {
            let (state, what) = next(before);
            ended = what;
            state
        });
        ended
    }

    /// Changes the state, and records the time.
    fn change(&mut self, name: &ObjectName, next: impl FnOnce(State) -> State) {
        let now = Instant::now();
        let new = || Pod { state: State::Nothing, since: now, requests: VecDeque::new() };
        let pod = match self.all.get_mut(name) {
            Some(pod) => pod,
            None => self.all.entry(name.clone()).or_insert_with(new),
        };
        let before = mem::discriminant(&pod.state);
        pod.state = next(mem::replace(&mut pod.state, State::Nothing));
        if mem::discriminant(&pod.state) != before {
            pod.since = now;
        }
    }
}

#[cfg(test)]
mod tests;
