//! Pods that are attached and detached.
//!
//! Attaching has three steps. The control loop reserves an address; a thread that may block makes the device
//! ([`DeviceWork`](super::super::device_work::DeviceWork)); the control loop commits: it takes the device as a port and publishes
//! tables that name the pod. The caller gets its reply after that, so the pod's policy is in force. Detaching goes the other way
//! round. Work for many pods runs at once; requests for one pod run one after the other, in order of arrival. What fails
//! leaves nothing: neither a device nor an address.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::panic::resume_unwind;

use manx_dataplane::encapsulation::Encapsulation;
use manx_dataplane::port::vxlan;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::Command;
use manx_policy_compiler::model::ObjectName;
use tokio::sync::oneshot;

use super::super::device::{AgentNamespace, OpenDevice};
use super::super::device_work::Completed;
use super::super::pod_device::{self, Attachment, PodDevice};
use super::super::server::Outcome;
use super::{Agent, Pod};
use manx_api::{self as api, Attach, Attached, ErrorKind, Failure, PodName, Response};
use manx_calculation::calc::{self, Local};
use manx_calculation::import::Overlay;

/// Takes the reply to a request. A client that went away has closed it.
type Caller = oneshot::Sender<Outcome>;

/// What a caller wants of a pod.
pub(super) enum PodRequest {
    /// To be attached.
    Attach(Attach, Caller),
    /// To be detached, and its addresses released.
    Detach(PodName, Caller),
}

impl PodRequest {
    fn pod(&self) -> ObjectName {
        let (Self::Attach(Attach { pod, .. }, _) | Self::Detach(pod, _)) = self;
        ObjectName::new(&pod.namespace, &pod.name)
    }
}

/// What the control loop does when a piece of device work has ended. The caller gets the reply after the next publication.
pub(in super::super) type Commit = Box<dyn FnOnce(&mut Agent) -> Option<Reply> + Send>;

/// Who gets which reply.
pub(in super::super) type Reply = (Caller, Response);

/// What follows when a pod's device is gone.
struct Departure {
    /// Whose addresses are released; `None`: the pod keeps them.
    release: Option<PodName>,
    reply: Option<Reply>,
}

impl Agent {
    /// Does what is asked for, now or after what is under way for the same pod.
    pub(super) fn submit(&mut self, request: PodRequest) {
        let name = request.pod();
        match self.busy.get_mut(&name) {
            Some(waiting) => waiting.push_back(request),
            None => self.begin(name, request),
        }
    }

    fn begin(&mut self, name: ObjectName, request: PodRequest) {
        match request {
            PodRequest::Attach(attach, caller) => self.begin_attach(name, attach, caller),
            PodRequest::Detach(pod, caller) => {
                let reply = Some((caller, Ok(api::Reply::Detached)));
                self.begin_detach(&name, Departure { release: Some(pod), reply });
            }
        }
    }

    /// The first step: an address is reserved. A repeated request for what is there gets its reply at once; another device
    /// of the pod goes first.
    fn begin_attach(&mut self, name: ObjectName, attach: Attach, caller: Caller) {
        if let (Some(pod), Some(local)) = (self.pods.get(&name), self.locals.get(&name)) {
            if pod.device.is(&attach.netns, &attach.interface) {
                let addresses = local.addresses.clone();
                let attached = Attached { addresses, device: pod.device.device(), mtu: local.mtu };
                return reply(caller, Ok(api::Reply::Attached(attached)));
            }
            let departure = Departure { release: Some(attach.pod.clone()), reply: None };
            self.begin_detach(&name, departure);
            return self.submit(PodRequest::Attach(attach, caller));
        }
        let addresses = match self.addresses.assign(&attach.pod) {
            Ok(addresses) => addresses,
            Err(error) => {
                let failure = Failure { kind: error.kind(), message: error.to_string() };
                return reply(caller, Err(failure));
            }
        };
        self.start_attach(name, attach, addresses, caller);
    }

    /// The second step: a thread makes the device.
    fn start_attach(
        &mut self,
        name: ObjectName,
        attach: Attach,
        addresses: Vec<IpAddr>,
        caller: Caller,
    ) {
        let mtu = self.pod_mtu();
        let (segments, device) = (self.pod_segments(mtu), self.pod_device);
        let (queues, polling) = (self.workers.len(), self.polling);
        let pod = name.clone();
        let work = move |namespace: &AgentNamespace| -> Commit {
            let attachment = Attachment {
                netns: &attach.netns,
                interface: &attach.interface,
                addresses: &addresses,
                mtu,
                segments,
                device,
                queues,
                polling,
            };
            match pod_device::attach(namespace, &attachment) {
                Ok(made) => Box::new(move |agent| {
                    let attached = Attached { addresses, device, mtu };
                    agent.adopt(pod, attach.pod, attached, made, caller)
                }),
                Err(error) => Box::new(move |agent| {
                    agent.release(&attach.pod);
                    let message = error.to_string();
                    Some((caller, Err(Failure { kind: error.kind(), message })))
                }),
            }
        };
        self.start(name, work);
    }

    /// Runs work for a pod; requests for it wait from now on.
    fn start(
        &mut self,
        name: ObjectName,
        work: impl FnOnce(&AgentNamespace) -> Commit + Send + 'static,
    ) {
        self.busy.insert(name.clone(), VecDeque::new());
        self.device_work.start(name, work);
    }

    /// First nothing leads to the pod, then its port goes, then its device, on a thread; the address may be another pod's only
    /// after that.
    fn begin_detach(&mut self, name: &ObjectName, departure: Departure) {
        self.locals.remove(name);
        let Some(gone) = self.pods.remove(name) else { return self.depart(departure) };
        self.publish();
        self.detach_port(gone.port);
        if departure.release.is_some() {
            tracing::info!(pod = %name, "detached");
        }
        self.start_removal(name, gone.device, departure);
    }

    fn start_removal(&mut self, name: &ObjectName, device: PodDevice, departure: Departure) {
        let pod = name.clone();
        self.start(name.clone(), move |namespace| {
            if let Err(error) = device.detach(namespace) {
                tracing::warn!(%pod, %error, "the pod's interface could not be removed");
            }
            Box::new(|agent| {
                agent.depart(departure);
                None
            })
        });
    }

    /// Takes a pod's port and device away, of which nothing is left to use. The pod keeps its addresses.
    pub(super) fn detach_device(&mut self, name: &ObjectName) {
        self.begin_detach(name, Departure { release: None, reply: None });
    }

    /// The third step, of all whose device work has ended: one publication names all that are attached now, and then the
    /// callers get their replies.
    pub(in super::super) fn commit(
        &mut self,
        completed: impl IntoIterator<Item = Completed<Commit>>,
    ) {
        let (mut replies, mut requests) = (Vec::new(), Vec::new());
        for Completed { pod, result } in completed {
            // An agent that does not know what has become of a device ends.
            let commit = result.unwrap_or_else(|panic| resume_unwind(panic));
            requests.extend(self.busy.remove(&pod).unwrap_or_default());
            replies.extend(commit(self));
        }
        if replies.iter().any(|(_, response)| response.is_ok()) {
            self.publish();
        }
        for (caller, response) in replies {
            reply(caller, response);
        }
        for request in requests {
            self.submit(request);
        }
    }

    /// Takes a device that was made as a port, and its pod as an endpoint. Where there is no port, the device goes first, and
    /// the caller is told then.
    fn adopt(
        &mut self,
        name: ObjectName,
        pod: PodName,
        attached: Attached,
        (device, queues): (PodDevice, OpenDevice),
        caller: Caller,
    ) -> Option<Reply> {
        let port = match self.attach_port(format!("pod:{pod}"), queues) {
            Ok(port) => port,
            Err(error) => {
                let failure = Failure { kind: ErrorKind::Internal, message: error.to_string() };
                let reply = Some((caller, Err(failure)));
                self.start_removal(&name, device, Departure { release: Some(pod), reply });
                return None;
            }
        };
        self.attachments += 1;
        let (index, attachment) = (self.free_index(), self.attachments);
        let (addresses, mtu) = (attached.addresses.clone(), attached.mtu);
        tracing::info!(%pod, ?addresses, device = ?attached.device, "attached");
        self.locals.insert(name.clone(), Local { index, attachment, port, addresses, mtu });
        self.pods.insert(name, Pod { device, port });
        Some((caller, Ok(api::Reply::Attached(attached))))
    }

    /// The device is gone.
    fn depart(&mut self, Departure { release, reply: to }: Departure) {
        if let Some(pod) = release {
            self.release(&pod);
        }
        if let Some((caller, response)) = to {
            reply(caller, response);
        }
    }

    /// Takes a port that the last tables do not name from the workers.
    fn detach_port(&mut self, port: PortId) {
        self.workers.send_all(|| Command::Detach(port));
        self.ports.remove(&port);
        self.port_ids.rest(port, self.tables.version);
    }

    fn release(&mut self, pod: &PodName) {
        if let Err(error) = self.addresses.release(pod) {
            tracing::error!(%pod, %error, "the pod's addresses could not be released and stay taken");
        }
    }

    /// The lowest endpoint index that no attached pod has.
    fn free_index(&self) -> u32 {
        let taken: BTreeSet<u32> = self.locals.values().map(|local| local.index).collect();
        (0..=taken.len() as u32).find(|index| !taken.contains(index)).unwrap_or_default()
    }

    /// How many segments the pods' super-packets may have: where there is VXLAN, as many as its socket sends at once.
    fn pod_segments(&self, mtu: u32) -> Option<u32> {
        let vxlan = self.topology.peers().iter().any(|peer| peer.overlay == Overlay::Vxlan);
        vxlan.then(|| vxlan::segments_at_once(mtu))
    }

    /// The MTU that fits every tunnel that there is, and IPIP, which is Calico's default.
    fn pod_mtu(&self) -> u32 {
        let overlays = self.topology.peers().into_iter().map(|peer| peer.overlay);
        let headers = overlays.map(|overlay| calc::encapsulation(overlay).header_len());
        let most = headers.max().unwrap_or(0).max(Encapsulation::Ipip.header_len());
        self.underlay.mtu.saturating_sub(most as u32)
    }
}

fn reply(caller: Caller, response: Response) {
    // A client that went away no longer waits.
    let _ = caller.send(Outcome::Reply(response));
}
