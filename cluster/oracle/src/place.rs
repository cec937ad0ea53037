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

    /// Returns whether failsafe ports pass here.
    pub(super) const fn has_failsafe(self) -> bool {
        matches!(self, Self::Host | Self::PreDnat | Self::Untracked)
    }
}

/// The policies that apply at a place, and the result if the last tier does not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chain {
    /// The policies at a pod, and for traffic of the host's own processes. If the last tier does
    /// not decide, the profiles do.
    Endpoint,
    /// The policies for traffic that a host endpoint forwards.
    Forward,
    /// The policies before destination NAT.
    PreDnat,
    /// The policies before connection tracking.
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

    /// Returns whether a tier whose default action is Deny denies here. It does not deny if a later
    /// place judges the packet again.
    pub(super) fn ends_tiers(self) -> bool {
        matches!(self, Self::Endpoint | Self::Forward)
    }
}
