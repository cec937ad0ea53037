//! The members that can have an address: pods, host endpoints, and the endpoints of services. This module also imports
//! Felix's settings for hosts.

use std::borrow::Cow;
use std::net::IpAddr;

use manx_policy_compiler::model::{
    AddressSet, Endpoint, Failsafe, HostEndpoint, Interface, Interner, Labels, NamedPort,
    NetworkSet, Protocol, ServiceEndpoints,
};

use manx_objects::object::{self, AnnotatedIps, calico};

/// Returns whether a pod can be an endpoint: it is neither on the host's network nor finished.
pub(super) fn takes_part(pod: &object::Pod) -> bool {
    !pod.host_network && !pod.is_finished()
}

/// Returns the pod's service account, which is `default` if the pod names none.
pub(super) fn service_account(pod: &object::Pod) -> &str {
    pod.service_account.as_deref().unwrap_or("default")
}

/// Values that many pods have in common; each value is stored once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shared {
    labels: Interner<Labels>,
    /// The names of nodes and of service accounts.
    pub(super) names: Interner<str>,
}

/// Returns the pod as an endpoint with its addresses, or `None` if it has none.
pub(super) fn endpoint(
    pod: &object::Pod,
    addresses: AddressSet,
    shared: &mut Shared,
) -> Option<Endpoint> {
    let containers = pod.containers.iter().chain(&pod.init_containers).flatten();
    let named_ports = containers
        .filter_map(|port| {
            Some(NamedPort {
                name: port.name.clone()?,
                protocol: port.protocol.unwrap_or(Protocol::Tcp),
                port: port.port,
            })
        })
        .collect();
    (!addresses.is_empty()).then(|| Endpoint {
        labels: shared.labels.intern(Cow::Owned(pod.labels.to_map())),
        service_account: Some(shared.names.intern(service_account(pod).into())),
        addresses,
        named_ports,
    })
}

/// Returns the addresses that a pod's object names. They come from the first of these fields that has any:
/// `status.podIPs`, `podIP`, or an annotation with addresses. If a pod is being deleted and its plugin has emptied its
/// annotation (`podIP` in Calico), the pod has released its addresses, even if its status still names them.
///
/// Source: `libcalico-go`, the conversion of pods (`getPodIPs`, `IsFinished`).
pub fn addresses(pod: &object::Pod) -> Vec<IpAddr> {
    let AnnotatedIps { pod_ips, pod_ip, aws_pod_ips } = &pod.annotated_ips;
    let emptied = |list: &Option<Vec<IpAddr>>| list.as_ref().is_some_and(Vec::is_empty);
    if pod.deleting && (emptied(pod_ip) || emptied(aws_pod_ips)) {
        return Vec::new();
    }
    if !pod.pod_ips.is_empty() {
        return pod.pod_ips.clone();
    }
    if let Some(address) = pod.pod_ip {
        return vec![address];
    }
    let mut annotated = [pod_ips, pod_ip, aws_pod_ips].into_iter().flatten();
    let list = annotated.find(|list| !list.is_empty());
    list.into_iter().flatten().copied().collect()
}

pub(super) fn host_endpoint(wire: &calico::HostEndpoint) -> HostEndpoint {
    let ports = wire.ports.iter().filter_map(|(name, protocol, port)| {
        let protocol = Protocol::from_number(*protocol)?;
        Some(NamedPort { name: name.clone(), protocol, port: *port })
    });
    HostEndpoint {
        labels: wire.labels.to_map(),
        node: wire.node.clone(),
        interface: match wire.interface.as_deref() {
            Some("*") => Interface::All,
            Some(name) => Interface::Named(name.to_owned()),
            None => Interface::OfAddresses,
        },
        addresses: wire.expected_ips.iter().copied().collect(),
        named_ports: ports.collect(),
        profiles: wire.profiles.clone(),
        inherited: Vec::new(),
        broken: false,
    }
}

pub(super) fn network_set(wire: &calico::NetworkSet) -> NetworkSet {
    NetworkSet { labels: wire.labels.to_map(), nets: wire.nets.iter().copied().collect() }
}

/// Returns the endpoints of a slice.
pub(super) fn service_endpoints(slice: &object::EndpointSlice) -> ServiceEndpoints {
    ServiceEndpoints {
        addresses: slice.addresses.clone(),
        ports: slice.ports.iter().map(|it| (it.protocol, it.port)).collect(),
    }
}

/// Applies the failsafe ports of a configuration; a list that it does not set stays unchanged.
pub(super) fn failsafe(wire: &calico::FelixConfiguration, failsafe: &mut Failsafe) {
    let lists = [&wire.failsafe_inbound, &wire.failsafe_outbound];
    for (ports, listed) in failsafe.ports.iter_mut().zip(lists) {
        if let Some(listed) = listed {
            let port = |it: &calico::Failsafe| {
                Some((Protocol::from_number(it.protocol)?, it.port, it.net))
            };
            *ports = listed.iter().filter_map(port).collect();
        }
    }
}
