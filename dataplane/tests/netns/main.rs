//! Tests the ports against real kernels. Every test creates its own namespaces, sends a bounded amount of traffic, and
//! leaves nothing behind.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests; their helpers stand outside test functions"
)]

mod namespaces;
mod pods;
mod relay;
mod takeover;
mod tuntap;
mod uplink;
mod veth;
mod vxlan;
