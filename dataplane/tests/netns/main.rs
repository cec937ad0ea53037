//! The ports against real kernels: every test builds namespaces of its own, sends bounded traffic and leaves nothing.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests; their helpers stand outside test functions"
)]

mod namespaces;
mod pods;
mod takeover;
mod tun;
mod uplink;
mod veth;
mod vxlan;
