//! The places where policy is evaluated, and the policies that apply there.

use super::policies::Hook;

/// A place where policy is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
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

impl Place {
    pub(super) const fn chain(self) -> Chain {
        match self {
            Self::Pod | Self::Host => Chain::Endpoint,
            Self::Forward => Chain::Forward,
            Self::PreDnat => Chain::PreDnat,
            Self::Untracked => Chain::Untracked,
        }
    }

    /// Whether failsafe ports pass here.
    pub(super) const fn has_failsafe(self) -> bool {
        matches!(self, Self::Host | Self::PreDnat | Self::Untracked)
    }
}

/// The policies that apply, and the result if the last tier does not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chain {
    /// At a pod, and for the traffic of the host's own processes. The profiles follow.
    Endpoint,
    /// For traffic that a host endpoint forwards.
    Forward,
    /// Before destination NAT.
    PreDnat,
    /// Before connection tracking.
    Untracked,
}

impl Chain {
    pub(super) fn asks(self, hook: Hook) -> bool {
        match self {
            Self::Endpoint => matches!(hook, Hook::Normal | Hook::Forward),
            Self::Forward => hook == Hook::Forward,
            Self::PreDnat => hook == Hook::PreDnat,
            Self::Untracked => hook == Hook::Untracked,
        }
    }

    /// Whether a tier whose default action is Deny denies here. It does not if the packet is judged
    /// again later.
    pub(super) fn ends_tiers(self) -> bool {
        matches!(self, Self::Endpoint | Self::Forward)
    }
}
