//! How much of one thing a node's table of services takes. Whoever writes Services, slices and pods would otherwise make
//! every node's agent compile and keep as much as he likes; what is over is refused or left out, and told.

/// The ports of a Service that are translated; others are left out.
pub(super) const MOST_PORTS: usize = 1000;
/// The endpoints of a Service that may become backends, those of all its ports together, ready or not: each is looked at
/// whenever the Service is compiled. A port that would have more has none.
pub(super) use manx_dataplane::services::MOST_BACKENDS;
/// The Services of a namespace that are translated, the oldest ones; others are left out. Kubernetes is tested with as many
/// (kubernetes/community, `sig-scalability/configs-and-limits/thresholds.md`).
pub(super) const MOST_SERVICES: usize = 5000;
/// The backends that the Services of a namespace may ask for together: the endpoints of each port, and
/// [`BACKENDS_OF_FRONTEND`] for each of its frontends. From the first Service on that asks for more, they are left out. Each
/// takes 20 bytes, and up to four times as much where policies differ.
pub(super) const MOST_OF_NAMESPACE: usize = 524_288;
/// The backends that take as much memory as a frontend: its claim, its keys and the table's entry.
pub(super) const BACKENDS_OF_FRONTEND: usize = 16;
/// The frontends for which a node port counts, however many addresses a node has: mostly one of each family, and 127.0.0.1.
pub(super) const ADDRESSES_OF_NODE: usize = 3;
/// The `externalIPs` of a Service that count; others are left out. Each is a frontend for each port, and the API server
/// takes as many as an object has room for.
pub(super) const MOST_EXTERNAL_IPS: usize = 16;
/// The host ports of a node that lead to pods; others are left out. Each is a routing rule for each address, which every
/// packet of the node's own may have to pass.
pub(super) const MOST_HOST_PORTS: usize = 256;
/// The ports of a node at which load balancers ask for Services; others are left out. Each is a routing rule and a listening
/// socket for each address.
pub(super) const MOST_HEALTH_CHECKS: usize = 256;
/// The most single addresses of services that a node announces to its peers in BGP. Others are left out, and a problem says
/// so.
pub(super) const MOST_ANNOUNCED: usize = 4096;
