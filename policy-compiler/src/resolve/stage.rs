//! The points on a packet's path at which policies are evaluated.

use crate::model::{Direction, Hook};

/// The point on a packet's path at which an endpoint's policies are evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// At a pod.
    Pod,
    /// At a host endpoint, for traffic of the host's own processes.
    Host,
    /// At a host endpoint, for forwarded traffic.
    Forward,
    /// At a host endpoint, before destination NAT.
    PreDnat,
    /// At a host endpoint, before connection tracking.
    Untracked,
}

impl Stage {
    /// The stages of a host endpoint, in the order in which an arriving packet passes them.
    pub const OF_HOST: [Self; 4] = [Self::Untracked, Self::PreDnat, Self::Forward, Self::Host];

    pub(super) fn includes(self, hook: Hook, direction: Direction) -> bool {
        match self {
            Self::Pod | Self::Host => matches!(hook, Hook::Endpoint | Hook::Forward),
            Self::Forward => hook == Hook::Forward,
            Self::PreDnat => hook == Hook::PreDnat && direction == Direction::Ingress,
            Self::Untracked => hook == Hook::Untracked,
        }
    }

    /// Whether the default action of a tier applies at this stage. In Calico it does not apply before connection
    /// tracking and before NAT.
    pub(super) fn ends_tiers(self) -> bool {
        matches!(self, Self::Pod | Self::Host | Self::Forward)
    }

    /// Whether failsafe ports are allowed before any policy is evaluated.
    pub(super) fn failsafe(self) -> bool {
        matches!(self, Self::Host | Self::PreDnat | Self::Untracked)
    }
}
