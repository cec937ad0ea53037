//! The workers and their ports.
//!
//! A process with `CAP_NET_ADMIN` in a pod or on the node may open a queue of a TUN or TAP device with several queues, and
//! change the form in which all queues deliver packets. Then workers cannot parse the packets that they read, and TUN
//! refuses the packets that they write. Workers count both cases. The control loop reads these counters and restores the
//! device, so no packet pays for a check. A write to TAP never fails, so for TAP the pod's next frame shows the change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;
use manx_calculation::overlay::Overlay;
use manx_dataplane::counters::{Counter, PortCounters};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::port::tuntap::Settings;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::{Command, Workers};

use crate::error::Error;
use crate::port_ids::PortIds;
use manx_devices::device::OpenDevice;
use manx_observe::agent_metrics::Traffic;

/// The shortest time between two checks of a device's settings. It limits the agent's work if a process changes them again
/// and again.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Ports {
    pub(super) workers: Workers,
    pub(super) ids: PortIds,
    pub(super) attached: BTreeMap<PortId, Port>,
    /// The counters of detached ports that a worker still uses, with each port's kind.
    draining: Vec<(&'static str, Vec<Arc<PortCounters>>)>,
    /// The traffic of detached ports that no worker uses any more, by kind.
    retired: BTreeMap<&'static str, Traffic>,
}

/// The ports of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodPorts {
    /// The port for the pod itself.
    pub(super) own: PortId,
    /// The port for the host side of the pod's link, if another plugin has connected the pod.
    pub(super) host: Option<PortId>,
}

/// An attached port.
pub(super) struct Port {
    pub(super) name: String,
    /// The counters of each worker.
    pub(super) counters: Vec<Arc<PortCounters>>,
    /// The settings of a TUN or TAP device with several queues, which are checked for changes.
    settings: Option<Settings>,
    /// The port's count of suspect drops at the last check of the settings, and the time of that check.
    checked: (u64, Option<Instant>),
}

impl Ports {
    /// Takes the workers, which have no ports yet.
    pub(super) fn new(workers: Workers) -> Self {
        Self {
            workers,
            ids: PortIds::default(),
            attached: BTreeMap::new(),
            draining: Vec::new(),
            retired: BTreeMap::new(),
        }
    }

    /// Gives the workers a port.
    pub(super) fn attach(
        &mut self,
        name: impl Into<String>,
        device: impl Into<OpenDevice>,
    ) -> Result<PortId, Error> {
        let id = self.reserve()?;
        self.serve(id, name, device)?;
        Ok(id)
    }

    /// Reserves numbers for the ports of a pod, which workers will serve later.
    pub(super) fn reserve_pod(&mut self, open: &OpenDevice) -> Result<PodPorts, Error> {
        let own = self.reserve()?;
        let host = open.host.as_ref().map(|_| self.reserve()).transpose()?;
        Ok(PodPorts { own, host })
    }

    /// Gives the workers the ports of a pod.
    pub(super) fn serve_pod(
        &mut self,
        ports: PodPorts,
        pod: &str,
        mut open: OpenDevice,
    ) -> Result<(), Error> {
        if let (Some(id), Some(queues)) = (ports.host, open.host.take()) {
            self.serve(id, format!("host-side:{pod}"), queues)?;
        }
        self.serve(ports.own, format!("pod:{pod}"), open)
    }

    /// Reserves a number for a port that workers will serve later.
    pub(super) fn reserve(&mut self) -> Result<PortId, Error> {
        self.ids.take().ok_or(Error::PortsExhausted)
    }

    /// Gives the workers a port of this number.
    pub(super) fn serve(
        &mut self,
        id: PortId,
        name: impl Into<String>,
        device: impl Into<OpenDevice>,
    ) -> Result<(), Error> {
        let OpenDevice { queues, settings, .. } = device.into();
        let counters = self.workers.attach(id, queues).ok_or(Error::WorkerGone)?;
        let port = Port { name: name.into(), counters, settings, checked: (0, None) };
        self.attached.insert(id, port);
        Ok(())
    }

    /// Removes a port from the workers. The last tables have this version, and must not contain the port. The returned
    /// channel ends when the workers have closed the port's queues.
    pub(super) fn detach(&mut self, id: PortId, version: u64) -> Receiver<()> {
        let (told, closed) = crossbeam::channel::bounded(0);
        self.workers.send_all(|| Command::Detach(id, Some(told.clone())));
        let port = self.attached.remove(&id);
        self.draining.extend(port.map(|port| (kind(&port.name), port.counters)));
        self.retire_drained();
        self.ids.rest(id, version);
        closed
    }

    /// Adds the counters that no worker uses any more to the retired traffic.
    fn retire_drained(&mut self) {
        let retired = &mut self.retired;
        self.draining.retain(|(kind, counters)| {
            let is_served = counters.iter().any(|it| Arc::strong_count(it) > 1);
            if !is_served {
                retired.entry(kind).or_default().add(&traffic(counters));
            }
            is_served
        });
    }

    /// The traffic since the start, by kind of port. All pods together, including former ones, are one kind. Counters
    /// for each pod would need an unbounded number of names, and a sum over the present pods would decrease when a pod
    /// ends.
    pub(super) fn traffic(&mut self) -> BTreeMap<&'static str, Traffic> {
        self.retire_drained();
        let mut by_kind = self.retired.clone();
        by_kind.entry(PODS).or_default();
        let attached = self.attached.values();
        let attached = attached.map(|port| (kind(&port.name), &port.counters));
        let draining = self.draining.iter().map(|(kind, counters)| (*kind, counters));
        for (kind, counters) in attached.chain(draining) {
            by_kind.entry(kind).or_default().add(&traffic(counters));
        }
        by_kind
    }

    /// The name of an attached port.
    pub(super) fn name(&self, id: PortId) -> Option<&str> {
        self.attached.get(&id).map(|port| port.name.as_str())
    }

    /// Restores the devices that other processes have changed, and logs that.
    pub(super) fn restore_devices(&mut self, now: Instant) {
        self.attached.values_mut().for_each(|port| port.restore_device(now));
    }
}

/// The kind of pods' ports.
const PODS: &str = "pod";

/// The kind of the port with this name.
fn kind(name: &str) -> &'static str {
    let kind = name.split_once(':').map_or(name, |(kind, _)| kind);
    let own = ["host", "host-side", "forwarded", "service", "icmp", "uplink-packet"];
    let mut own = own.into_iter().chain(Overlay::ALL.map(Overlay::port));
    own.find(|own| *own == kind).unwrap_or(PODS)
}

/// The sum of all workers' counters of a port.
fn traffic(counters: &[Arc<PortCounters>]) -> Traffic {
    let sum = |read: &dyn Fn(&PortCounters) -> &Counter| -> u64 {
        counters.iter().map(|it| read(it).read()).sum()
    };
    let drops = DropReason::ALL.into_iter();
    Traffic {
        received_packets: sum(&|it| &it.received_packets),
        received_bytes: sum(&|it| &it.received_bytes),
        sent_packets: sum(&|it| &it.sent_packets),
        sent_bytes: sum(&|it| &it.sent_bytes),
        drops: drops.map(|reason| (reason.name(), sum(&|it| it.dropped(reason)))).collect(),
    }
}

impl Port {
    /// The traffic since the port was attached.
    pub(super) fn traffic(&self) -> Traffic {
        traffic(&self.counters)
    }

    fn restore_device(&mut self, now: Instant) {
        let Some(settings) = &self.settings else { return };
        let doubts = [DropReason::Malformed, DropReason::TransmitRefused];
        let of = |reason| self.counters.iter().map(move |one| one.dropped(reason).read());
        let counted = doubts.into_iter().flat_map(of).sum();
        let (before, at) = self.checked;
        let lately = at.is_some_and(|at| now.saturating_duration_since(at) < CHECK_INTERVAL);
        if counted == before || lately {
            return;
        }
        self.checked = (counted, Some(now));
        // An error means that the device is gone, which the workers report.
        if let Ok(Some(changed)) = settings.restore() {
            tracing::warn!(
                port = self.name,
                found = %changed,
                "a process has changed how the device delivers packets: set back, packets sent meanwhile are lost"
            );
        }
    }
}
