//! Pods that are attached and detached.

use std::collections::BTreeSet;

use manx_dataplane::encapsulation::Encapsulation;
use manx_dataplane::port::vxlan;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::Command;
use manx_policy_compiler::model::ObjectName;

use super::super::Error;
use super::super::pod_device::{self, Attachment};
use super::{Agent, Pod};
use manx_api::{Attach, Attached, ErrorKind, Failure, PodName};
use manx_calculation::calc::{self, Local};
use manx_calculation::import::Overlay;

impl Agent {
    pub(super) fn attach(&mut self, attach: &Attach) -> Result<Attached, Failure> {
        let name = ObjectName::new(&attach.pod.namespace, &attach.pod.name);
        if let (Some(pod), Some(local)) = (self.pods.get(&name), self.locals.get(&name)) {
            if pod.device.is(&attach.netns, &attach.interface) {
                return Ok(Attached {
                    addresses: local.addresses.clone(),
                    device: pod.device.device(),
                    mtu: local.mtu,
                });
            }
            self.detach(&attach.pod);
        }
        let addresses = self
            .addresses
            .assign(&attach.pod)
            .map_err(|error| Failure { kind: error.kind(), message: error.to_string() })?;
        let mtu = self.pod_mtu();
        let made = pod_device::attach(
            &self.namespace,
            &Attachment {
                netns: &attach.netns,
                interface: &attach.interface,
                addresses: &addresses,
                mtu,
                segments: self.pod_segments(mtu),
                device: self.pod_device,
                queues: self.workers.len(),
                polling: self.polling,
            },
        );
        let (device, held) = match made {
            Ok(made) => made,
            Err(error) => {
                self.release(&attach.pod);
                return Err(Failure { kind: error.kind(), message: error.to_string() });
            }
        };
        let port = match self.attach_port(format!("pod:{}", attach.pod), held) {
            Ok(port) => port,
            Err(error) => {
                if let Err(error) = device.detach(&self.namespace) {
                    tracing::warn!(pod = %attach.pod, %error, "the pod's interface could not be removed");
                }
                self.release(&attach.pod);
                return Err(internal(&error));
            }
        };
        self.attachments += 1;
        let local = Local {
            index: self.free_index(),
            attachment: self.attachments,
            port,
            addresses: addresses.clone(),
            mtu,
        };
        self.pods.insert(name.clone(), Pod { device, port });
        self.locals.insert(name, local);
        self.publish();
        tracing::info!(pod = %attach.pod, ?addresses, device = ?self.pod_device, "attached");
        Ok(Attached { addresses, device: self.pod_device, mtu })
    }

    pub(super) fn detach(&mut self, pod: &PodName) {
        if self.detach_device(&ObjectName::new(&pod.namespace, &pod.name)) {
            tracing::info!(%pod, "detached");
        }
        self.release(pod);
    }

    /// Takes the pod's port and device away; it keeps its addresses. Returns whether it had them.
    pub(super) fn detach_device(&mut self, name: &ObjectName) -> bool {
        self.locals.remove(name);
        let Some(gone) = self.pods.remove(name) else { return false };
        // First nothing leads there, then the port goes; the address may be somebody else's only after that.
        self.publish();
        self.detach_port(gone.port);
        if let Err(error) = gone.device.detach(&self.namespace) {
            tracing::warn!(pod = %name, %error, "the pod's interface could not be removed");
        }
        true
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

    /// Of how many segments pods' super-packets may be: where there is VXLAN, of as many as its socket sends at once.
    fn pod_segments(&self, mtu: u32) -> Option<u32> {
        let vxlan = self.topology.peers().iter().any(|peer| peer.overlay == Overlay::Vxlan);
        vxlan.then(|| vxlan::segments_at_once(mtu))
    }

    /// Pods' packets must fit the tunnels that there are, and IPIP, which is Calico's default.
    fn pod_mtu(&self) -> u32 {
        let overlays = self.topology.peers().into_iter().map(|peer| peer.overlay);
        let headers = overlays.map(|overlay| calc::encapsulation(overlay).header_len());
        let most = headers.max().unwrap_or(0).max(Encapsulation::Ipip.header_len());
        self.underlay.mtu.saturating_sub(most as u32)
    }
}

fn internal(error: &Error) -> Failure {
    Failure { kind: ErrorKind::Internal, message: error.to_string() }
}
