use std::collections::BTreeSet;

use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;
use crate::node::pod_request::tests::{attach, detach};
use crate::server::Outcome;

fn name() -> ObjectName {
    ObjectName::new("shop", "web")
}

/// A request to attach, by the number of its namespace.
fn numbered(number: usize) -> (AttachRequest, Caller, oneshot::Receiver<Outcome>) {
    let (PodRequest::Attach(mut request, caller), waits) = attach() else { panic!("it attaches") };
    request.attach.netns = number.to_string().into();
    (*request, caller, waits)
}

fn number(request: &PodRequest) -> usize {
    let PodRequest::Attach(request, _) = request else { panic!("it attaches") };
    request.attach.netns.to_str().unwrap().parse().unwrap()
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A request comes.
    Ask,
    /// The next turn of the control loop.
    Turn,
    /// What is under way ends, well or not.
    End(bool),
    /// The pod's object comes or goes.
    Object(bool),
    /// The pod is detached by an end that overtakes what waits.
    Overtake,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Ask),
        3 => Just(Step::Turn),
        3 => any::<bool>().prop_map(Step::End),
        1 => any::<bool>().prop_map(Step::Object),
        1 => Just(Step::Overtake),
    ];
    prop::collection::vec(step, 0..60)
}

/// A pod whose every attachment fails when it has been reserved.
#[derive(Default)]
struct Walk {
    pods: Pods,
    is_known: bool,
    asked: usize,
    /// What has come to an end, in order.
    ended: Vec<usize>,
    given_up: BTreeSet<usize>,
    waits: Vec<oneshot::Receiver<Outcome>>,
}

impl Walk {
    /// As [`Agent::submit`](crate::node::Agent) does.
    fn submit(&mut self, request: PodRequest) {
        let Err(PodRequest::Attach(request, caller)) = self.pods.queue(&name(), request) else {
            return;
        };
        if self.is_known {
            self.pods.begin_reserving(&name(), *request, caller);
        } else {
            self.pods.expect(&name(), *request, caller);
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
            }
            Step::End(well) => {
                if let Some(Reserving { request, caller, .. }) = self.pods.end_reserving(&name()) {
                    self.ended.push(number(&PodRequest::Attach(Box::new(request), caller)));
                    if well {
                        self.pods.begin_releasing(&name(), None);
                    }
                } else {
                    let failed = (!well).then(|| "the disk is full".to_owned());
                    let _ = self.pods.end_releasing(&name(), failed);
                }
            }
            Step::Object(is_known) => {
                self.is_known = is_known;
                if is_known {
                    self.pods.arrive(&name());
                }
            }
            Step::Overtake => {
                let given_up = std::cell::RefCell::new(Vec::new());
                self.pods.give_up(&name(), |request, _| {
                    let number: usize = request.attach.netns.to_str().unwrap().parse().unwrap();
                    let is_even = number.is_multiple_of(2);
                    given_up.borrow_mut().extend(is_even.then_some(number));
                    is_even
                });
                self.given_up.extend(given_up.into_inner());
            }
        }
    }
}

proptest! {
    #[test]
    fn requests_of_a_pod_come_in_order_and_none_is_lost(steps in steps()) {
        let mut walk = Walk::default();
        for step in steps {
            walk.step(step);
            let waiting = walk.pods.all.get(&name()).map_or(0, |pod| pod.requests.len());
            let under_way = matches!(walk.pods.state(&name()), Some(State::Reserving(_)));
            prop_assert_eq!(
                walk.ended.len() + walk.given_up.len() + waiting + usize::from(under_way),
                walk.asked
            );
            if let Some(State::Expected(_)) = walk.pods.state(&name()) {
                prop_assert!(waiting > 0, "nobody waits for its object");
            }
        }
        walk.step(Step::Object(true));
        for _ in 0..3 * walk.asked + 3 {
            walk.step(Step::Turn);
            walk.step(Step::End(true));
        }
        let expected: Vec<usize> =
            (0..walk.asked).filter(|it| !walk.given_up.contains(it)).collect();
        prop_assert_eq!(walk.ended, expected);
        walk.pods.take_ready();
        let is_over = matches!(walk.pods.state(&name()), None | Some(State::Apart(Apart::Stuck(_))));
        prop_assert!(is_over, "nothing is left of it but what could not be released");
    }
}

#[test]
fn a_pod_that_was_refused_is_refused_until_it_has_addresses_or_none() {
    let mut pods = Pods::default();
    let refused = |pods: &Pods| pods.state(&name()).and_then(State::refused).map(str::to_owned);
    let reason = Some("it has another MTU".to_owned());
    pods.set_apart(&name(), Apart::Refused("it has another MTU".to_owned()));
    assert_eq!(refused(&pods), reason);
    let (request, caller, _waits) = numbered(0);
    pods.expect(&name(), request, caller);
    assert_eq!(refused(&pods), reason);
    assert_eq!(pods.without_addresses().count(), 1);
    assert_eq!(pods.give_up(&name(), |_, _| true).len(), 1);
    assert_eq!(refused(&pods), reason);
    assert!(pods.take_ready().is_empty());
    let (request, caller, _waits) = numbered(1);
    pods.begin_reserving(&name(), request, caller);
    assert_eq!(refused(&pods), reason);
    assert!(pods.end_reserving(&name()).is_some());
    assert_eq!(refused(&pods), reason);
    pods.begin_releasing(&name(), None);
    assert_eq!(refused(&pods), None);
    assert!(pods.end_releasing(&name(), None).is_some());
    assert!(pods.take_ready().is_empty() && pods.state(&name()).is_none());
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
