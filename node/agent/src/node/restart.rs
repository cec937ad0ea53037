//! Pods of the last agent: their devices, which the holder has kept, become this agent's, and so do the flows that
//! policy still allows.
//!
//! The last agent may have been of another version, with other settings. What the holder says is therefore held against
//! what this agent knows by itself: its leases, its number of workers, and what the kernel says of the device. What
//! does not fit is let go, and the log and `manx status` say why: such a pod has no network until it is made anew.
//! Nothing passes a pod that is taken over before tables name it, as with any other. What its queues kept is judged: by
//! tables, with the flows restored, and with the other pods' ports served.

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
use crate::holding::{Refused, Resumed};
use manx_api::{Attach, PodName};
use manx_devices::device::OpenDevice;

/// A pod that is attached, and whose queues no worker reads yet.
pub(super) struct TakenOver {
    ports: PodPorts,
    pod: PodName,
    open: OpenDevice,
}

impl Agent {
    /// Attaches the pods. [`Agent::settle`] follows, and then [`Agent::serve`] of what this returns.
    pub(super) fn take_over(&mut self, kept: Vec<Result<Resumed, Refused>>) -> Vec<TakenOver> {
        let mut all = Vec::new();
        for one in kept {
            match one.and_then(|resumed| self.take_over_one(resumed)) {
                Ok(taken) => all.push(taken),
                Err(refused) => self.let_go(refused),
            }
        }
        all
    }

    /// Has the workers open the flows of the last agent again that these tables allow; publication follows. From then on
    /// the holder keeps the records of this agent's flows.
    pub(super) fn restore(&self, flows: BTreeMap<usize, FlowRecordFile>, tables: &Arc<Tables>) {
        let workers = &self.dataplane.ports.workers;
        let (last, files): (Vec<usize>, Vec<FlowRecordFile>) = flows.into_iter().unzip();
        let restored = (!files.is_empty()).then(|| workers.restore(tables, files));
        let answers = RestorePass::ALL.len() * workers.len();
        let records = workers.iter().map(|worker| Arc::clone(worker.flow_records())).collect();
        let holding = Arc::clone(&self.attachments.holding);
        tokio::task::spawn_blocking(move || {
            // The channel ends when each worker has answered, or has gone.
            let restored: Option<Vec<_>> = restored.map(|it| it.iter().collect());
            if restored.as_ref().is_some_and(|it| it.len() < answers) {
                // This agent ends without having opened them. The next one may.
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
            holding.keep_flows(records, &last);
        });
    }

    /// Gives the workers the queues of pods that tables name now.
    pub(super) fn serve(&mut self, all: Vec<TakenOver>) -> Result<(), Error> {
        for TakenOver { ports, pod, open } in all {
            self.dataplane.ports.serve_pod(ports, &pod.to_string(), open)?;
        }
        Ok(())
    }

    fn take_over_one(&mut self, resumed: Resumed) -> Result<TakenOver, Refused> {
        let Resumed { held, queues, device, open } = resumed;
        let (pod, addresses) = (held.attach.pod.clone(), held.attach.addresses.clone());
        let refused = |reason| Refused {
            entry: manx_devices::holder::name(&pod),
            attach: Some(Box::new(held.attach.clone())),
            reason,
        };
        self.check_lease(&held.attach).map_err(refused)?;
        let ports = self.dataplane.ports.reserve_pod(&open);
        let ports = ports.map_err(|error| refused(error.to_string()))?;
        let taken = TakenOver { ports, pod: pod.clone(), open };
        tracing::info!(%pod, ?addresses, "taken over from the last agent");
        let name = object_name(&pod);
        self.attachments.holding.insert(held, queues);
        self.attachments.insert(&name, device, ports, addresses.clone());
        self.inputs.assign(&name, Some(addresses));
        self.inputs.note_pods();
        Ok(taken)
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

    /// A pod that is taken over by another entry is not apart.
    fn refuse(&mut self, attach: &Attach, reason: String) {
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

    fn let_go(&mut self, Refused { entry, attach, reason }: Refused) {
        tracing::warn!(entry, reason, "what the holder has of the last agent is not taken over");
        self.attachments.holding.let_go(entry);
        if let Some(attach) = attach {
            self.refuse(&attach, reason);
        }
    }
}
