//! TUN devices that somebody else has changed.
//!
//! A process with `CAP_NET_ADMIN` in a pod, or on the node, may open a queue of a device that has several, and change the form in
//! which all queues hand over packets. What comes then is no packet, and what is written is refused: workers count both, and
//! what they count is looked at here, so that no packet pays for it.

use std::time::{Duration, Instant};

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::port::tun::Settings;

use super::{Agent, Port};

/// Between two looks at a device's settings: whoever changes them again and again is to have no more of the agent's time.
const BETWEEN: Duration = Duration::from_secs(1);

/// A device whose settings are looked after.
pub(super) struct Watched {
    settings: Settings,
    /// What its port had counted when they were last looked at.
    counted: u64,
    /// When that was.
    at: Option<Instant>,
}

impl Watched {
    pub(super) const fn new(settings: Settings) -> Self {
        Self { settings, counted: 0, at: None }
    }
}

impl Agent {
    /// Sets devices back that others have changed, and tells it.
    pub(in super::super) fn restore_devices(&mut self, now: Instant) {
        self.ports.values_mut().for_each(|port| port.restore_device(now));
    }
}

impl Port {
    fn restore_device(&mut self, now: Instant) {
        let doubts = [DropReason::Malformed, DropReason::TransmitRefused];
        let of = |reason| self.counters.iter().map(move |one| one.dropped(reason).read());
        let counted = doubts.into_iter().flat_map(of).sum();
        let Some(device) = &mut self.device else { return };
        let lately = device.at.is_some_and(|at| now.saturating_duration_since(at) < BETWEEN);
        if counted == device.counted || lately {
            return;
        }
        (device.counted, device.at) = (counted, Some(now));
        // Of a device that is gone the workers tell.
        if let Ok(Some(changed)) = device.settings.restore() {
            tracing::warn!(
                port = self.name,
                found = %changed,
                "somebody has changed how the device hands over packets: set back, what was sent meanwhile is lost"
            );
        }
    }
}
