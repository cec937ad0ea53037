//! The restart of an agent: this agent takes over the pods of the last agent whose devices the holder has kept, and the
//! flows that policy still allows.
//!
//! The last agent may have had another version or other settings. So each entry of the holder is compared with this agent's
//! leases, its number of workers, and the kernel's description of the device. An entry that differs is refused, and the log
//! and `manx status` give the reason. Such a pod has no network until it is made again. As with any other pod, no packets
//! pass a restored pod before the tables contain it. Packets that its queues have kept are judged later, when the flows are
//! restored and the ports of all pods are served.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use manx_dataplane::flow::FlowRecordFile;
use manx_dataplane::pipeline::{RestorePass, Restored};
use manx_dataplane::tables::Tables;

use super::Agent;
use super::pod_request::object_name;
use super::pod_state::{Apart, Unleased};
use super::ports::PodPorts;
use crate::error::Error;
use crate::restart_state::{RefusedEntry, RestoredDevice};
use manx_api::{Attach, PodName};
use manx_devices::device::OpenDevice;

/// A restored pod whose queues no worker reads yet.
pub(super) struct RestoredPod {
    ports: PodPorts,
    pod: PodName,
    open: OpenDevice,
}

impl Agent {
    /// Attaches the pods. The caller then calls [`Agent::settle`], and [`Agent::serve_restored`] with the returned pods.
    pub(super) fn restore_pods(
        &mut self,
        devices: Vec<Result<RestoredDevice, RefusedEntry>>,
    ) -> Vec<RestoredPod> {
        let mut all = Vec::new();
        for device in devices {
            match device.and_then(|device| self.restore_pod(device)) {
                Ok(pod) => all.push(pod),
                Err(refused) => self.refuse(refused),
            }
        }
        all
    }

    /// Makes the workers open those flows of the last agent that these tables allow. The caller publishes the tables next.
    /// Afterwards the holder keeps the records of this agent's flows.
    pub(super) fn restore_flows(
        &self,
        flows: BTreeMap<usize, FlowRecordFile>,
        tables: &Arc<Tables>,
    ) {
        let workers = &self.dataplane.ports.workers;
        let (last, files): (Vec<usize>, Vec<FlowRecordFile>) = flows.into_iter().unzip();
        let restored = (!files.is_empty()).then(|| workers.restore(tables, files));
        let answers = RestorePass::ALL.len() * workers.len();
        let records = workers.iter().map(|worker| Arc::clone(worker.flow_records())).collect();
        let restart_state = Arc::clone(&self.attachments.restart_state);
        tokio::task::spawn_blocking(move || {
            // The channel ends when each worker has answered or ended.
            let restored: Option<Vec<_>> = restored.map(|it| it.iter().collect());
            if restored.as_ref().is_some_and(|it| it.len() < answers) {
                // This agent ends before the flows are opened. The flow records stay for the next agent.
                return;
            }
            match restored.into_iter().flatten().sum::<io::Result<Restored>>() {
                Ok(Restored { flows: 0, ended: 0, spoiled: 0 }) => {}
                Ok(Restored { flows, ended, spoiled }) => tracing::info!(
                    flows,
                    ended,
                    spoiled,
                    "connections of the last agent go on, but for those that have ended: policy no longer allows them, or their pods \
                     or their time are gone"
                ),
                Err(error) => tracing::warn!(
                    %error,
                    "connections of the last agent are judged as new ones: their records cannot be read"
                ),
            }
            restart_state.keep_flows(records, &last);
        });
    }

    /// Gives the workers the queues of restored pods, which the tables contain now.
    pub(super) fn serve_restored(&mut self, all: Vec<RestoredPod>) -> Result<(), Error> {
        for RestoredPod { ports, pod, open } in all {
            self.dataplane.ports.serve_pod(ports, &pod.to_string(), open)?;
        }
        Ok(())
    }

    fn restore_pod(&mut self, device: RestoredDevice) -> Result<RestoredPod, RefusedEntry> {
        let RestoredDevice { held, queues, device, open } = device;
        let (pod, addresses) = (held.attach.pod.clone(), held.attach.addresses.clone());
        let refused = |reason| RefusedEntry {
            entry: manx_devices::holder::name(&pod),
            attach: Some(Box::new(held.attach.clone())),
            reason,
        };
        self.check_lease(&held.attach).map_err(refused)?;
        let ports = self.dataplane.ports.reserve_pod(&open);
        let ports = ports.map_err(|error| refused(error.to_string()))?;
        let restored = RestoredPod { ports, pod: pod.clone(), open };
        tracing::info!(%pod, ?addresses, "taken over from the last agent");
        let name = object_name(&pod);
        self.attachments.restart_state.insert(held, queues);
        self.attachments.insert(&name, device, ports, addresses.clone());
        self.inputs.assign(&name, Some(addresses));
        self.inputs.note_pods();
        Ok(restored)
    }

    /// Compares an attachment with the pod's lease.
    fn check_lease(&self, attach: &Attach) -> Result<(), String> {
        let leases = self.attachments.leases();
        let pod = &attach.pod;
        let Some(has) = leases.addresses(pod) else {
            let found = &attach.addresses;
            return Err(format!("it has the addresses {found:?}, and the pod has no lease"));
        };
        let set = |all: &[IpAddr]| all.iter().copied().collect::<BTreeSet<_>>();
        if set(has) != set(&attach.addresses) {
            let found = &attach.addresses;
            return Err(format!("it has the addresses {found:?}, and the pod's lease {has:?}"));
        }
        match (leases.id(pod), attach.id()) {
            (has, found) if has == found.as_ref() => Ok(()),
            (has, found) => {
                let text = |id: Option<String>| id.unwrap_or_else(|| "no runtime's".to_owned());
                let [found, has] =
                    [found.map(|it| it.to_string()), has.map(ToString::to_string)].map(text);
                Err(format!("it is {found}, and the pod's lease is {has}"))
            }
        }
    }

    /// Sets the pod of a refused entry to [`State::Apart`](super::pod_state::State::Apart), unless another entry has
    /// restored it.
    fn set_refused(&mut self, attach: &Attach, reason: String) {
        let name = object_name(&attach.pod);
        let has_lease = self.attachments.leases().addresses(&attach.pod).is_some();
        let pods = &mut self.attachments.pods;
        if pods.find(&name).is_some() {
            return;
        }
        let apart = if has_lease {
            Apart::Refused(reason)
        } else {
            Apart::Unleased(Unleased { reason, id: attach.id() })
        };
        pods.set_apart(&name, apart);
    }

    /// Gives up an entry, and sets its pod to [`State::Apart`](super::pod_state::State::Apart).
    fn refuse(&mut self, RefusedEntry { entry, attach, reason }: RefusedEntry) {
        tracing::warn!(entry, reason, "what the holder has of the last agent is not taken over");
        self.attachments.restart_state.release_entry(entry);
        if let Some(attach) = attach {
            self.set_refused(&attach, reason);
        }
    }
}
