//! A flow, as far as it is known.

use std::net::IpAddr;
use std::time::SystemTime;

use serde::Serialize;

/// What policy says of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Allowed,
    Denied,
}

/// Both ends of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ends {
    pub(super) source: (IpAddr, u16),
    pub(super) destination: (IpAddr, u16),
    pub(super) protocol: u8,
}

/// A flow's verdict, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decided {
    pub(super) at: SystemTime,
    pub(super) verdict: Verdict,
    /// What decided by the source's egress policy; if the flow is denied by ingress policy, absent.
    pub(super) egress: Option<String>,
    /// The same of the destination's ingress policy.
    pub(super) ingress: Option<String>,
}
