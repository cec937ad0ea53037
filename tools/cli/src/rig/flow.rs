//! A flow of a rig and its verdict, as far as agents have reported it.

use std::net::IpAddr;
use std::time::SystemTime;

use serde::Serialize;

/// The verdict of policy on a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Allowed,
    Denied,
}

/// Both ends of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FlowEnds {
    pub(super) source: (IpAddr, u16),
    pub(super) destination: (IpAddr, u16),
    pub(super) protocol: u8,
}

/// The verdict on a flow, as far as agents have reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlowVerdict {
    pub(super) at: SystemTime,
    pub(super) verdict: Verdict,
    /// The rule of the source's egress policy that decided. Absent if ingress policy denied the flow.
    pub(super) egress: Option<String>,
    /// The rule of the destination's ingress policy that decided.
    pub(super) ingress: Option<String>,
}
