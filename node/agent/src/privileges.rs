//! The capabilities that the agent keeps.

use std::io;

use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};

/// The capabilities that are needed while pods are attached and detached, and their purpose. The workers' threads also give
/// these up, because they only use open descriptors.
const KEPT: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN to enter the pods' network namespaces"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN to make devices, addresses and routes"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW to open the packet sockets of veth pods"),
];

/// The capability that BGP needs at its start. The speaker's thread gives it up.
const FOR_BGP: (CapabilitySet, &str) =
    (CapabilitySet::NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE to listen at BGP's port");

/// Drops all capabilities of the calling thread. A thread that reads data from arbitrary senders calls it.
pub(super) fn drop_all() -> io::Result<()> {
    keep_only(CapabilitySet::empty()).map(drop)
}

/// Drops all other capabilities of the calling thread, and of all threads that it starts later. Returns a line for the
/// log.
pub(super) fn drop_unneeded(speaks_bgp: bool) -> io::Result<String> {
    let needed = || KEPT.into_iter().chain(speaks_bgp.then_some(FOR_BGP));
    let kept = keep_only(needed().map(|(capability, _)| capability).collect())?;
    let kept = needed().filter(|(capability, _)| kept.contains(*capability));
    let kept: Vec<&str> = kept.map(|(_, what_for)| what_for).collect();
    Ok(format!("of root's capabilities kept: {}; by the workers none", kept.join(", ")))
}
