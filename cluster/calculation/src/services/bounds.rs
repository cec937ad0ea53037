//! The bounds of a node's table of services. They limit what one author of Services, slices and pods can cost each
//! agent in time and memory. Excess is refused or left out, and reported.

/// The maximum number of ports of a Service that are translated; others are left out.
pub(super) const MOST_PORTS: usize = 1000;
/// The maximum number of endpoints of a Service that may become backends, for all its ports together. Endpoints that
/// are not ready count, too, because each is examined whenever the Service is compiled. A port that would exceed this
/// number gets no backends.
pub(super) use manx_dataplane::services::MOST_BACKENDS;
/// The maximum number of Services of a namespace that are translated. The oldest ones are translated and others are
/// left out. Kubernetes is tested with this number (kubernetes/community,
/// `sig-scalability/configs-and-limits/thresholds.md`).
pub(super) const MOST_SERVICES: usize = 5000;
/// The maximum number of backends that the Services of a namespace may request together. Each port requests its
/// endpoints, and [`BACKENDS_OF_FRONTEND`] for each of its frontends. The first Service that would exceed it, and all
/// younger ones, are left out. Each backend takes 20 bytes, and up to four times as much if traffic policies differ.
pub(super) const MOST_OF_NAMESPACE: usize = 524_288;
/// The number of backends that take as much memory as a frontend with its claim, its keys and its entry in the table.
pub(super) const BACKENDS_OF_FRONTEND: usize = 16;
/// The number of frontends that a node port counts as, independently of the node's number of addresses. Usually a node
/// has three addresses for node ports: one of each family, and 127.0.0.1.
pub(super) const ADDRESSES_OF_NODE: usize = 3;
/// The maximum number of `externalIPs` of a Service that take effect; others are left out. Each address makes one
/// frontend for each port, and the API server accepts as many addresses as fit into an object.
pub(super) const MOST_EXTERNAL_IPS: usize = 16;
/// The maximum number of host ports of a node that lead to pods; others are left out. Each host port makes one routing
/// rule for each address, and every packet that the node itself sends may have to pass all rules.
pub(super) const MOST_HOST_PORTS: usize = 256;
/// The maximum number of ports on which a node answers load balancers' health checks; others are left out. Each port
/// makes one routing rule and one listening socket for each address.
pub(super) const MOST_HEALTH_CHECKS: usize = 256;
/// The maximum number of single service addresses that a node announces to its BGP peers. Others are left out and
/// reported as a problem.
pub(super) const MOST_ANNOUNCED: usize = 4096;
