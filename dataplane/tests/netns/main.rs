//! Tests the ports against real kernels. Every test builds its own namespaces, sends bounded traffic, leaves nothing.
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
