//! The constants of all paths: ports, MTUs, and the names of the pods.

/// The TCP and UDP port to which all traffic goes. The policies and filters of a path allow it.
pub const PORT: u16 = 5201;
/// The number of ports, starting with [`PORT`], to which an attacker may send.
pub const ATTACK_PORTS: u16 = 64;
/// The MTU of the underlay, and of pods that need no tunnel, in bytes.
pub const MTU: u32 = 1500;
/// The bytes that VXLAN over IPv4 adds to a packet: outer IPv4, UDP and VXLAN headers and the inner Ethernet header.
pub const VXLAN_OVERHEAD: u32 = 20 + 8 + 8 + 14;
/// The bytes that IPIP adds to a packet: one IPv4 header.
pub const IPIP_OVERHEAD: u32 = 20;
/// The Kubernetes namespace of all pods.
pub const NAMESPACE: &str = "bench";
/// The pod that attacks.
pub const ATTACKER: &str = "attacker";
/// The pod on the attacker's node to which the attacker may send.
pub const TARGET: &str = "target";
/// The pod on the second node to which the attacker may send.
pub const FAR: &str = "far";
