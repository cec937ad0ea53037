//! The ports of this node that lead to its pods (`hostPort`), as frontends.
//!
//! Source: Kubernetes API, `ContainerPort`; with others the plugin `portmap` does this. A pod that is on the node's
//! network has its ports itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use manx_dataplane::services::{Backend, Frontend, FrontendKey};
use manx_objects::object::{ContainerPort, Pod, Protocol};

use super::backends::can_be_backend;
use super::omission::Omission;

/// The host ports of a node that lead to pods; others are left out. Each is a routing rule or two that every packet of the
/// node's own may have to pass.
pub(super) const MOST_HOST_PORTS: usize = 256;

/// Whether a pod has ports of its node.
pub(super) fn has_some(pod: &Pod) -> bool {
    !pod.host_network && !pod.is_finished() && ports(pod).any(|it| it.host.is_some())
}

/// The frontends of a pod on this node, which has these addresses. A pod has none of a family in which it has no address.
/// What annotations say of a pod's addresses does not count: whoever writes them would lead the node's ports elsewhere.
pub(super) fn compile(
    pod: &Pod,
    of_node: &BTreeSet<IpAddr>,
    omissions: &mut BTreeSet<Omission>,
) -> BTreeMap<FrontendKey, Arc<Frontend>> {
    let own: Vec<IpAddr> =
        pod.pod_ip.iter().chain(&pod.pod_ips).copied().filter(|it| can_be_backend(*it)).collect();
    let mut frontends = BTreeMap::new();
    for port in ports(pod) {
        let Some(host) = port.host else { continue };
        if host.port == u16::MAX {
            omissions.insert(Omission::HostPort(host.port));
            continue;
        }
        if let Some(address) = host.address.filter(|it| !of_node.contains(it)) {
            omissions.insert(Omission::HostAddress { address, port: host.port });
            continue;
        }
        let protocol = port.protocol.unwrap_or(Protocol::Tcp).number();
        for address in of_node.iter().filter(|it| host.address.is_none_or(|one| one == **it)) {
            let backend = own.iter().find(|it| it.is_ipv4() == address.is_ipv4());
            let Some(backend) = backend else { continue };
            let key = FrontendKey { address: (*address).into(), protocol, port: host.port };
            let backend = Backend { address: (*backend).into(), port: port.port };
            frontends.entry(key).or_insert_with(|| Arc::new(frontend(backend)));
        }
    }
    frontends
}

fn frontend(backend: Backend) -> Frontend {
    // Clients keep no backend by it, so that it needs no number.
    Frontend { backends: [backend].into(), all_backends: [backend].into(), ..Frontend::default() }
}

/// The ports of all containers.
fn ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    pod.containers.iter().chain(&pod.init_containers).flatten()
}
