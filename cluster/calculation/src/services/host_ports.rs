//! The ports of this node that lead to its pods (`hostPort`), as frontends.
//!
//! Source: Kubernetes API, `ContainerPort`. With other CNI plugins, the plugin `portmap` does this. A pod on the node's
//! network opens its ports itself.
//!
//! Anybody who can create a pod can request any port. So a port leads to a pod only if it is granted
//! ([`Frontends::grant`](super::Frontends::grant)). The agent grants only ports that no process of the node uses. Some
//! ports are never granted to pods, because a program of the node that uses such a port may be stopped for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use manx_dataplane::services::{Backend, Frontend, FrontendKey};
use manx_objects::object::{ContainerPort, Pod, Protocol};

use super::backends::can_be_backend;
use super::bounds::MOST_HOST_PORTS;
use super::omission::Omission;

/// The ports of node programs that are never granted to pods: SSH, BGP, etcd, Typha, the API server, kubelet,
/// kube-proxy and the control plane; DHCP and VXLAN (Calico's failsafe ports, and Kubernetes documentation, "Ports and
/// Protocols").
const OF_NODES: &[(Protocol, &[u16])] = &[
    (
        Protocol::Tcp,
        &[22, 179, 2379, 2380, 5473, 6443, 10_248, 10_249, 10_250, 10_256, 10_257, 10_259],
    ),
    (Protocol::Udp, &[67, 68, 4789, 8472]),
];

/// Returns whether a pod can have host ports and requests some.
pub(super) fn has_some(pod: &Pod) -> bool {
    !pod.host_network && !pod.is_finished() && ports(pod).any(|it| it.host.is_some())
}

/// Returns the frontends that a pod on this node requests, at these addresses of the node. If the pod has no address of
/// a family, it gets no frontends in this family. The addresses in annotations are ignored, because their authors could
/// otherwise divert the node's ports.
pub(super) fn asked(
    pod: &Pod,
    of_node: &BTreeSet<IpAddr>,
    omissions: &mut BTreeSet<Omission>,
) -> BTreeMap<FrontendKey, Arc<Frontend>> {
    let own: Vec<IpAddr> =
        pod.pod_ip.iter().chain(&pod.pod_ips).copied().filter(|it| can_be_backend(*it)).collect();
    let mut frontends = BTreeMap::new();
    for port in ports(pod) {
        let Some(host) = port.host else { continue };
        let protocol = port.protocol.unwrap_or(Protocol::Tcp);
        if host.port == u16::MAX {
            omissions.insert(Omission::HostPort(host.port));
            continue;
        }
        if OF_NODES.iter().any(|(of, ports)| *of == protocol && ports.contains(&host.port)) {
            omissions.insert(Omission::PortOfNode(host.port));
            continue;
        }
        if let Some(address) = host.address.filter(|it| !of_node.contains(it)) {
            omissions.insert(Omission::HostAddress { address, port: host.port });
            continue;
        }
        if frontends.len() > MOST_HOST_PORTS * of_node.len() {
            omissions.insert(Omission::TooManyHostPorts);
            break;
        }
        for address in of_node.iter().filter(|it| host.address.is_none_or(|one| one == **it)) {
            let backend = own.iter().find(|it| it.is_ipv4() == address.is_ipv4());
            let Some(backend) = backend else { continue };
            let protocol = protocol.number();
            let key = FrontendKey { address: (*address).into(), protocol, port: host.port };
            let backend = Backend { address: (*backend).into(), port: port.port };
            frontends.entry(key).or_insert_with(|| Arc::new(frontend(backend)));
        }
    }
    frontends
}

fn frontend(backend: Backend) -> Frontend {
    // The frontend has no client affinity, so it needs no number of a Service's port.
    Frontend { backends: [backend].into(), all_backends: [backend].into(), ..Frontend::default() }
}

/// Returns the ports of all containers that run at the same time, as the scheduler counts them.
fn ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    pod.containers.iter().flatten()
}
