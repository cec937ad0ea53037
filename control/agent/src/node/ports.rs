//! The workers, and the ports that they have.
//!
//! A process with `CAP_NET_ADMIN` in a pod, or on the node, may open a queue of a TUN device that has several, and
//! change the form in which all queues deliver packets. Then workers read no packets that they can parse, and the
//! device refuses what they write. Workers count both. The control loop reads these counters and sets the device back,
//! so that no packet pays for a check.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use manx_dataplane::counters::PortCounters;
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::port::tun::Settings;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::{Command, Workers};

use crate::error::Error;
use crate::port_ids::PortIds;
use manx_devices::device::OpenDevice;

/// The shortest time between two checks of a device's settings. A process that changes them again and again gets no
/// more of the agent's time.
const BETWEEN: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Ports {
    pub(super) workers: Workers,
    pub(super) ids: PortIds,
    pub(super) attached: BTreeMap<PortId, Port>,
}

/// A port and what it is called.
pub(super) struct Port {
    pub(super) name: String,
    /// Of each worker.
    pub(super) counters: Vec<Arc<PortCounters>>,
    /// A TUN device's settings, which are looked after.
    settings: Option<Settings>,
    /// What the port had counted when they were last checked, and when that was.
    checked: (u64, Option<Instant>),
}

impl Ports {
    /// None yet.
    pub(super) fn new(workers: Workers) -> Self {
        Self { workers, ids: PortIds::default(), attached: BTreeMap::new() }
    }

    /// Gives the workers a port.
    pub(super) fn attach(
        &mut self,
        name: impl Into<String>,
        held: impl Into<OpenDevice>,
    ) -> Result<PortId, Error> {
        let OpenDevice { queues, settings } = held.into();
        let id = self.ids.take().ok_or(Error::PortsExhausted)?;
        let counters = self.workers.attach(id, queues).ok_or(Error::WorkerGone)?;
        let port = Port { name: name.into(), counters, settings, checked: (0, None) };
        self.attached.insert(id, port);
        Ok(id)
    }

    /// Takes a port from the workers, which the last tables, of this version, do not name.
    pub(super) fn detach(&mut self, id: PortId, version: u64) {
        self.workers.send_all(|| Command::Detach(id));
        self.attached.remove(&id);
        self.ids.rest(id, version);
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

impl Port {
    fn restore_device(&mut self, now: Instant) {
        let doubts = [DropReason::Malformed, DropReason::TransmitRefused];
        let of = |reason| self.counters.iter().map(move |one| one.dropped(reason).read());
        let counted = doubts.into_iter().flat_map(of).sum();
        let Some(settings) = &self.settings else { return };
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
