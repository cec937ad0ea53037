//! The workers, and the ports that they have.
//!
//! A process with `CAP_NET_ADMIN` in a pod, or on the node, may open a queue of a TUN or TAP device that has several,
//! and change the form in which all queues deliver packets. Then workers read no packets that they can parse, and TUN
//! refuses what they write. Workers count both. The control loop reads these counters and sets the device back, so that
//! no packet pays for a check. A write to TAP never fails, so there the change is noticed at the pod's next frame.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;
use manx_dataplane::counters::{Counter, PortCounters};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::port::tuntap::Settings;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::{Command, Workers};

use crate::error::Error;
use crate::port_ids::PortIds;
use manx_devices::device::OpenDevice;
use manx_observe::agent_metrics::Traffic;

/// The shortest time between two checks of a device's settings. A process that changes them again and again gets no
/// more of the agent's time.
const BETWEEN: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Ports {
    pub(super) workers: Workers,
    pub(super) ids: PortIds,
    pub(super) attached: BTreeMap<PortId, Port>,
    /// The counters of pods' ports that are detached, by what is behind them, until no worker has them any more.
    leaving: Vec<(&'static str, Vec<Arc<PortCounters>>)>,
    /// What such ports have counted.
    left: BTreeMap<&'static str, Traffic>,
}

/// The ports of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodPorts {
    /// Its own.
    pub(super) own: PortId,
    /// That of its host side, where another plugin has connected it.
    pub(super) host: Option<PortId>,
}

/// A port and what it is called.
pub(super) struct Port {
    pub(super) name: String,
    /// Of each worker.
    pub(super) counters: Vec<Arc<PortCounters>>,
    /// The settings of a TUN or TAP device of several queues, which are looked after.
    settings: Option<Settings>,
    /// What the port had counted when they were last checked, and when that was.
    checked: (u64, Option<Instant>),
}

impl Ports {
    /// None yet.
    pub(super) fn new(workers: Workers) -> Self {
        Self {
            workers,
            ids: PortIds::default(),
            attached: BTreeMap::new(),
            leaving: Vec::new(),
            left: BTreeMap::new(),
        }
    }

    /// Gives the workers a port.
    pub(super) fn attach(
        &mut self,
        name: impl Into<String>,
        held: impl Into<OpenDevice>,
    ) -> Result<PortId, Error> {
        let id = self.reserve()?;
        self.serve(id, name, held)?;
        Ok(id)
    }

    /// Numbers for the ports of a pod, which workers will serve later.
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

    /// A number for a port that workers will serve later.
    pub(super) fn reserve(&mut self) -> Result<PortId, Error> {
        self.ids.take().ok_or(Error::PortsExhausted)
    }

    /// Gives the workers a port of this number.
    pub(super) fn serve(
        &mut self,
        id: PortId,
        name: impl Into<String>,
        held: impl Into<OpenDevice>,
    ) -> Result<(), Error> {
        let OpenDevice { queues, settings, .. } = held.into();
        let counters = self.workers.attach(id, queues).ok_or(Error::WorkerGone)?;
        let port = Port { name: name.into(), counters, settings, checked: (0, None) };
        self.attached.insert(id, port);
        Ok(())
    }

    /// Takes a port from the workers, which the last tables, of this version, do not name. What is returned ends when
    /// the queues that workers still served are closed.
    pub(super) fn detach(&mut self, id: PortId, version: u64) -> Receiver<()> {
        let (told, closed) = crossbeam::channel::bounded(0);
        self.workers.send_all(|| Command::Detach(id, Some(told.clone())));
        let port = self.attached.remove(&id);
        self.leaving.extend(port.map(|port| (kind(&port.name), port.counters)));
        self.fold();
        self.ids.rest(id, version);
        closed
    }

    /// Adds up what ports have counted that no worker serves any more.
    fn fold(&mut self) {
        let left = &mut self.left;
        self.leaving.retain(|(kind, counters)| {
            let is_served = counters.iter().any(|it| Arc::strong_count(it) > 1);
            if !is_served {
                left.entry(kind).or_default().add(&traffic(counters));
            }
            is_served
        });
    }

    /// What has passed, by what is behind a port. Pods, those that are gone included, are taken together: their names
    /// are without bound, and a sum that loses a pod would go back.
    pub(super) fn traffic(&mut self) -> BTreeMap<&'static str, Traffic> {
        self.fold();
        let mut by_kind = self.left.clone();
        by_kind.entry(PODS).or_default();
        let attached = self.attached.values();
        let attached = attached.map(|port| (kind(&port.name), &port.counters));
        let leaving = self.leaving.iter().map(|(kind, counters)| (*kind, counters));
        for (kind, counters) in attached.chain(leaving) {
            by_kind.entry(kind).or_default().add(&traffic(counters));
        }
        by_kind
    }

    /// The name of a port that is attached.
    pub(super) fn name(&self, id: PortId) -> Option<&str> {
        self.attached.get(&id).map(|port| port.name.as_str())
    }

    /// Sets devices back that others have changed, and logs it.
    pub(super) fn restore_devices(&mut self, now: Instant) {
        self.attached.values_mut().for_each(|port| port.restore_device(now));
    }
}

/// What is behind ports of pods.
const PODS: &str = "pod";

/// What is behind a port of this name.
fn kind(name: &str) -> &'static str {
    let kind = name.split_once(':').map_or(name, |(kind, _)| kind);
    let own = [
        "host",
        "host-side",
        "forwarded",
        "service",
        "uplink-raw",
        "uplink-packet",
        "uplink-vxlan",
    ];
    own.into_iter().find(|own| *own == kind).unwrap_or(PODS)
}

/// What the workers have counted of a port.
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
    /// What has passed it.
    pub(super) fn traffic(&self) -> Traffic {
        traffic(&self.counters)
    }

    fn restore_device(&mut self, now: Instant) {
        let Some(settings) = &self.settings else { return };
        let doubts = [DropReason::Malformed, DropReason::TransmitRefused];
        let of = |reason| self.counters.iter().map(move |one| one.dropped(reason).read());
        let counted = doubts.into_iter().flat_map(of).sum();
        let (before, at) = self.checked;
        let lately = at.is_some_and(|at| now.saturating_duration_since(at) < BETWEEN);
        if counted == before || lately {
            return;
        }
        self.checked = (counted, Some(now));
        // Of a device that is gone the workers tell.
        if let Ok(Some(changed)) = settings.restore() {
            tracing::warn!(
                port = self.name,
                found = %changed,
                "a process has changed how the device delivers packets: set back, packets sent meanwhile are lost"
            );
        }
    }
}
