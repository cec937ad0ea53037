//! The service addresses that the node's kube-proxy translates: the cluster IPs, and which of their endpoints are
//! hosts. [`Frontends`](super::Frontends) are the services that Manx translates itself.
//!
//! All other addresses of services (`externalIPs`, load balancers) count as addresses outside the cluster. The reason
//! is that any author of a Service may give it any such address, which must not bypass policy.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use manx_dataplane::tables::ServiceHosts;
use manx_objects::contents::Contents;
use manx_objects::object::{EndpointSlice, Kind, Object, ObjectKey, Protocol, Service};

use crate::topology::{Route, Topology};

/// The maximum number of hosts among the endpoints of a service's port. For every new flow, policy is evaluated for
/// each of them.
const MOST_HOSTS: usize = 64;

/// The service addresses that a node translates, and data about their endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KubeProxyServices {
    /// The cluster IPs that the node translates.
    pub addresses: BTreeSet<IpAddr>,
    /// The endpoints of these services that are hosts.
    pub hosts: Arc<ServiceHosts>,
    /// The addresses of endpoints whose route is the same as for destinations outside the cluster. The value is true if
    /// the address belongs to a pod of another plugin.
    endpoints: HashMap<IpAddr, bool>,
}

impl KubeProxyServices {
    /// Returns the service addresses of a cluster, as a node sees them. `is_own` says whether an address is the node's
    /// own. `is_pod` says whether an address belongs to a pod, if the route of the address is the same as for
    /// destinations outside the cluster.
    ///
    /// A cluster IP is left out if it is in a pool or a block, or is the node's own address. A service whose objects
    /// are not completely known is left out, too. Policy is then evaluated for the cluster IP itself, not for the
    /// endpoints. If the address of an endpoint was a pod's `before`, it still counts as a pod's until no slice names
    /// it, because a slice names a pod for some time after the pod is gone.
    pub fn new(
        contents: &Contents,
        topology: &Topology,
        is_own: impl Fn(&IpAddr) -> bool,
        before: &Self,
        is_pod: impl Fn(&IpAddr) -> bool,
    ) -> Self {
        let mut slices: BTreeMap<(&str, &str), Vec<&EndpointSlice>> = BTreeMap::new();
        let mut unknown = BTreeSet::new();
        for (key, stored) in contents.of_kind(Kind::EndpointSlice) {
            let Some(object) = stored.state.valid() else {
                unknown.insert(key.namespace.as_str());
                continue;
            };
            if let Object::EndpointSlice(slice) = object
                && let Some(service) = &slice.service
            {
                slices.entry((&key.namespace, service)).or_default().push(slice);
            }
        }
        let mut all = Self::default();
        let mut hosts = ServiceHosts::new();
        let named = slices.values().flatten().flat_map(|slice| &slice.addresses);
        let named = named.filter(|address| topology.is_of_world(**address));
        let is_or_was = |it: &IpAddr| is_pod(it) || before.is_pod(it) == Some(true);
        let endpoints: HashMap<IpAddr, bool> =
            named.map(|address| (*address, is_or_was(address))).collect();
        let is_host = |address: &IpAddr| match endpoints.get(address) {
            Some(is_pod) => !is_pod,
            None => matches!(topology.route(*address).1, Route::Node | Route::Masquerade),
        };
        for (key, stored) in contents.of_kind(Kind::Service) {
            if let Some(Object::Service(service)) = stored.state.valid()
                && !unknown.contains(key.namespace.as_str())
            {
                let slices = slices.get(&(key.namespace.as_str(), key.name.as_str()));
                let slices = slices.map_or(&[][..], Vec::as_slice);
                let translated = service
                    .cluster_ips
                    .iter()
                    .filter(|address| topology.is_of_world(**address) && !is_own(address));
                for address in translated {
                    all.add(&mut hosts, (*address, service), slices, is_host);
                }
            }
        }
        (all.hosts, all.endpoints) = (Arc::new(hosts), endpoints);
        all
    }

    /// Returns whether the node translates the same addresses, and the same endpoints are hosts.
    pub fn has_same_translation(&self, other: &Self) -> bool {
        (&self.addresses, &self.hosts) == (&other.addresses, &other.hosts)
    }

    /// Returns whether the endpoint with this address is a pod of another plugin. Returns `None` if no endpoint has
    /// this address, or if the route of the address already gives the answer.
    pub fn is_pod(&self, address: &IpAddr) -> Option<bool> {
        self.endpoints.get(address).copied()
    }

    /// Returns whether a change of this object may change the services. Pods are not considered here.
    pub fn may_be_changed_by(key: &ObjectKey) -> bool {
        matches!(key.kind, Kind::Service | Kind::EndpointSlice)
    }

    fn add(
        &mut self,
        hosts: &mut ServiceHosts,
        (address, service): (IpAddr, &Service),
        slices: &[&EndpointSlice],
        is_host: impl Fn(&IpAddr) -> bool,
    ) {
        let mut found = Vec::new();
        for port in &service.ports {
            let protocol = port.protocol.unwrap_or(Protocol::Tcp);
            let mut of_port = BTreeSet::new();
            for slice in slices {
                let targets =
                    slice.ports.iter().filter(|it| it.name == port.name && it.protocol == protocol);
                for target in targets {
                    let addresses = slice.addresses.iter();
                    let of_family = addresses.filter(|it| it.is_ipv4() == address.is_ipv4());
                    of_port.extend(of_family.filter(|it| is_host(it)).map(|it| (*it, target.port)));
                }
            }
            if of_port.len() > MOST_HOSTS {
                return;
            }
            if !of_port.is_empty() {
                found
                    .push(((address, protocol.number(), port.port), of_port.into_iter().collect()));
            }
        }
        self.addresses.insert(address);
        hosts.extend(found);
    }
}

#[cfg(test)]
mod tests;
