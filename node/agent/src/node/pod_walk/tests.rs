use std::collections::BTreeSet;

use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;
use crate::node::pod_request::tests::{attach, detach};
use crate::node::pod_state::{ToRelease, Unleased};
use crate::server::Outcome;
use manx_api::{AttachmentId, Device, Sandbox};
use manx_calculation::calc::LocalPod;
use manx_devices::device::AgentNamespace;
use manx_devices::pod_device::PodDevice;
use manx_linux::testing::namespaces_allowed;

fn name() -> ObjectName {
    ObjectName::new("shop", "web")
}

/// A request to attach, identified by a number.
fn numbered(number: usize) -> (AttachRequest, Caller, oneshot::Receiver<Outcome>) {
    let (PodRequest::Attach(mut request, caller), waits) = attach() else { panic!("it attaches") };
    request.attach.netns = number.to_string().into();
    (*request, caller, waits)
}

fn number(attach: &Attach) -> usize {
    attach.netns.to_str().unwrap().parse().unwrap()
}

/// A pod's device, which no longer exists; `None` if this environment can make none.
fn device() -> Option<PodDevice> {
    let agent = namespaces_allowed().then(|| AgentNamespace::create().unwrap())?;
    let pod = manx_devices::testing::Pod::new(&["10.0.0.1"]);
    Some(pod.attach(&agent, Device::Veth).unwrap().0)
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A request arrives.
    Ask,
    /// The control loop makes a turn.
    Turn,
    /// The work ends, with success or not.
    End(bool),
    /// The pod's port is lost, and it releases its addresses or not.
    Lose(bool),
    /// The pod's object appears or disappears.
    Object(bool),
    /// The pod is detached while attachments wait.
    Overtake,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Ask),
        3 => Just(Step::Turn),
        3 => any::<bool>().prop_map(Step::End),
        1 => any::<bool>().prop_map(Step::Lose),
        1 => any::<bool>().prop_map(Step::Object),
        1 => Just(Step::Overtake),
    ];
    prop::collection::vec(step, 0..60)
}

/// A pod. If it has no device, every attachment fails after its reservation.
#[derive(Default)]
struct Walk {
    pods: Pods,
    device: Option<PodDevice>,
    is_known: bool,
    asked: usize,
    /// The work and requests that have ended, in order.
    ended: Vec<usize>,
    expired: BTreeSet<usize>,
    waits: Vec<oneshot::Receiver<Outcome>>,
}

impl Walk {
    /// Like [`Agent::submit`](crate::node::Agent).
    fn submit(&mut self, request: PodRequest) {
        let Err(PodRequest::Attach(request, caller)) = self.pods.queue(&name(), request) else {
            return;
        };
        if self.pods.find(&name()).is_some() {
            self.pods.begin_renewing(&name(), *request, (caller, Reply::Ready));
        } else if self.is_known {
            self.pods.begin_reserving(&name(), *request, caller);
        } else {
            self.pods.expect(&name(), *request, caller);
        }
    }

    /// Begins the detachment of the pod, which the tables contain.
    fn leave(&mut self, after: AfterRemoval) {
        assert!(self.pods.begin_leaving(&name(), after).is_none());
    }

    /// Ends the pod's work.
    fn end(&mut self, well: bool) {
        if let Some(Reserving { request, .. }) = self.pods.end_reserving(&name()) {
            self.ended.push(number(&request.attach));
            match (well, self.device.clone()) {
                (true, Some(device)) => self.pods.attach(&name(), attached(device)),
                (true, None) => self.pods.begin_releasing(&name(), None),
                (false, _) => {}
            }
        } else if let Some(renewing) = self.pods.end_renewing(&name()) {
            // Like [`Agent::end_renewing`](crate::node::Agent).
            match renewing.then {
                None => self.ended.push(number(&renewing.request.attach)),
                Some(after) => {
                    self.leave(after);
                    self.pods.requeue(&name(), renewing.request, renewing.caller);
                }
            }
        } else if let Some(AfterRemoval { to_release, reply }) = self.pods.end_removing(&name()) {
            match to_release {
                Some(_) => self.pods.begin_releasing(&name(), reply),
                None => self.pods.set_apart(&name(), Apart::Lost),
            }
        } else {
            let failed = (!well).then(|| "the disk is full".to_owned());
            let _ = self.pods.end_releasing(&name(), failed);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask => {
                let (request, caller, waits) = numbered(self.asked);
                self.asked += 1;
                self.waits.push(waits);
                self.submit(PodRequest::Attach(Box::new(request), caller));
            }
            Step::Turn => {
                for request in self.pods.take_ready() {
                    self.submit(request);
                }
                for (name, _, after) in self.pods.end_leaving() {
                    self.pods.begin_removing(&name, after);
                }
            }
            Step::End(well) => self.end(well),
            Step::Lose(to_release) => {
                let to_release = to_release.then_some(ToRelease::Lease);
                if self.pods.find(&name()).is_some() {
                    self.leave(AfterRemoval { to_release, reply: None });
                }
            }
            Step::Object(is_known) => {
                self.is_known = is_known;
                if is_known {
                    self.pods.arrive(&name());
                }
            }
            Step::Overtake => {
                let expired = std::cell::RefCell::new(Vec::new());
                self.pods.expire(&name(), |request, _| {
                    let number = number(&request.attach);
                    let is_even = number.is_multiple_of(2);
                    expired.borrow_mut().extend(is_even.then_some(number));
                    is_even
                });
                self.expired.extend(expired.into_inner());
            }
        }
    }
}

/// A pod with this device.
fn attached(device: PodDevice) -> AttachedPod {
    let (port, mtu) = (PortId(10), device.mtu());
    let local = LocalPod { index: 0, attachment: 1, port, host: None, addresses: Vec::new(), mtu };
    AttachedPod { device, local }
}

thread_local! {
    static DEVICE: Option<PodDevice> = device();
}

proptest! {
    #[test]
    fn requests_of_a_pod_come_in_order_and_none_is_lost(steps in steps()) {
        let mut walk = Walk { device: DEVICE.with(Clone::clone), ..Walk::default() };
        for step in steps {
            walk.step(step);
            // Every request that has not ended may be detached, so it must be found.
            let found: Vec<usize> = walk.pods.asked().map(number).collect();
            let has_ended = |it: &usize| walk.ended.contains(it) || walk.expired.contains(it);
            let expected: Vec<usize> = (0..walk.asked).filter(|it| !has_ended(it)).collect();
            prop_assert_eq!(&found, &expected);
            if let Some(State::Expected(_)) = walk.pods.state(&name()) {
                prop_assert!(!found.is_empty(), "nobody waits for its object");
            }
        }
        walk.step(Step::Object(true));
        for _ in 0..3 * walk.asked + 3 {
            walk.step(Step::Turn);
            walk.step(Step::End(true));
        }
        let expected: Vec<usize> =
            (0..walk.asked).filter(|it| !walk.expired.contains(it)).collect();
        prop_assert_eq!(walk.ended, expected);
        walk.pods.take_ready();
        let is_over = walk.pods.state(&name()).is_none_or(State::is_rest);
        prop_assert!(is_over, "nothing is under way for ever");
    }
}

#[test]
fn a_pod_that_was_refused_is_refused_until_it_has_addresses_or_none() {
    let sandbox = Sandbox { network: "manx".to_owned(), container: "1".to_owned() };
    let id = AttachmentId { sandbox, interface: "eth0".to_owned() };
    let reason = || "it has another MTU".to_owned();
    let unleased = Unleased { reason: reason(), id: Some(id.clone()) };
    for (apart, id) in [(Apart::Refused(reason()), None), (Apart::Unleased(unleased), Some(id))] {
        let mut pods = Pods::default();
        let refused = |pods: &Pods| {
            let state = pods.state(&name())?;
            Some((state.refused()?.to_owned(), state.unleased().cloned()))
        };
        let expected = Some((reason(), id));
        pods.set_apart(&name(), apart);
        assert_eq!(refused(&pods), expected);
        let (request, caller, _waits) = numbered(0);
        pods.expect(&name(), request, caller);
        assert_eq!(refused(&pods), expected);
        assert_eq!(pods.asked().count(), 1);
        assert_eq!(pods.expire(&name(), |_, _| true).len(), 1);
        assert_eq!(refused(&pods), expected);
        assert!(pods.take_ready().is_empty());
        let (request, caller, _waits) = numbered(1);
        pods.begin_reserving(&name(), request, caller);
        assert_eq!(refused(&pods), expected);
        assert!(pods.end_reserving(&name()).is_some());
        assert_eq!(refused(&pods), expected);
        pods.begin_releasing(&name(), None);
        assert_eq!(refused(&pods), None);
        assert!(pods.end_releasing(&name(), None).is_some());
        assert!(pods.take_ready().is_empty() && pods.state(&name()).is_none());
    }
}

#[test]
fn work_that_ends_in_another_state_changes_nothing() {
    let mut pods = Pods::default();
    let (request, caller, _waits) = numbered(0);
    pods.begin_reserving(&name(), request, caller);
    let (later, _waits) = detach();
    assert!(pods.queue(&name(), later).is_ok());
    assert!(pods.end_making(&name()).is_none());
    assert!(pods.end_removing(&name()).is_none());
    assert!(pods.end_renewing(&name()).is_none());
    assert!(pods.end_releasing(&name(), None).is_none());
    assert!(pods.end_leaving().is_empty() && pods.take_ready().is_empty());
    pods.arrive(&name());
    assert!(matches!(pods.state(&name()), Some(State::Reserving(_))));
    assert!(pods.end_reserving(&name()).is_some());
    assert_eq!(pods.take_ready().len(), 1);
}
