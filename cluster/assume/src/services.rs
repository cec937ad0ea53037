//! The endpoints of services: the pods that a service's selector matches, or the addresses in the Endpoints of the same
//! name if the service has no selector.
//!
//! A named target port may be a different number at each pod, so pods with different numbers are in different slices.
//!
//! Source: Kubernetes documentation, "Service", "`EndpointSlices`".

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::{
    EndpointPort, EndpointSlice, Kind, Object, ObjectKey, Pairs, Pod, PortNumber, Protocol,
    Service, ServicePort, SliceEndpoint,
};

use serde_json::Value as Json;

use crate::{Completion, list, manifest};

/// The text between a service's name and a number in the names of assumed slices.
const ASSUMED: &str = "-assumed-";

/// Makes the slices of services that have none. If a service or its Endpoints are not valid, an invalid slice is made,
/// so that policies which name a service of that namespace deny.
pub(crate) fn make_slices(completion: &mut Completion<'_>) {
    let having = services_of_slices(completion.contents, |_| true);
    let services = completion.contents.of_kind(Kind::Service);
    let services =
        services.filter(|(key, _)| !having.contains(&(key.namespace.clone(), key.name.clone())));
    let services: Vec<(ObjectKey, State)> =
        services.map(|(key, stored)| (key.clone(), stored.state.clone())).collect();
    let (mut made, mut copied) = (Vec::new(), Vec::new());
    for (key, state) in services {
        let State::Valid(object) = state else {
            completion.store(slice_key(&key, 0), State::Invalid(Box::default()));
            continue;
        };
        let Object::Service(service) = &*object else { continue };
        let (slices, names) = match completion.contents.copied_endpoints(&key, service) {
            Some(State::Valid(object)) => (copies(&key, object), &mut copied),
            Some(State::Invalid(_)) => {
                completion.store(slice_key(&key, 0), State::Invalid(Box::default()));
                continue;
            }
            None => (slices(completion.contents, &key, service), &mut made),
        };
        if !slices.is_empty() {
            names.push(format!("{}/{}", key.namespace, key.name));
        }
        for (key, slice) in slices {
            completion.add(key, Object::EndpointSlice(Box::new(slice)));
        }
    }
    for (names, endpoints) in [(made, "the pods that they select"), (copied, "their Endpoints")] {
        if !names.is_empty() {
            let names = list(names.iter().map(String::as_str));
            completion.note(format!("no EndpointSlice: {names}; their endpoints are {endpoints}"));
        }
    }
}

/// Returns namespace and name of each service that has a slice which `counts` accepts.
fn services_of_slices(
    contents: &Contents,
    counts: impl Fn(&ObjectKey) -> bool,
) -> BTreeSet<(String, String)> {
    let slices = contents.of_kind(Kind::EndpointSlice).filter(|(key, _)| counts(key));
    slices
        .filter_map(|(key, _)| match contents.valid(key)? {
            Object::EndpointSlice(slice) => Some((key.namespace.clone(), slice.service.clone()?)),
            _ => None,
        })
        .collect()
}

/// Returns the slices of all valid services with selectors or Endpoints, as manifests, for the current pods.
pub fn endpoint_slices(contents: &Contents) -> BTreeMap<ObjectKey, Json> {
    // The Endpoints of a service are not copied if the service has slices that Manx did not make.
    let having = services_of_slices(contents, |key| !key.name.contains(ASSUMED));
    let services = contents.of_kind(Kind::Service);
    let services = services.filter_map(|(key, stored)| match stored.state.valid()? {
        Object::Service(service) => Some((key, service)),
        _ => None,
    });
    let slices =
        services.flat_map(|(key, service)| match contents.copied_endpoints(key, service) {
            Some(_) if having.contains(&(key.namespace.clone(), key.name.clone())) => Vec::new(),
            Some(State::Valid(object)) => copies(key, object),
            Some(State::Invalid(_)) => Vec::new(),
            None => slices(contents, key, service),
        });
    let manifest = |(key, slice)| {
        let manifest = manifest::of_object(&key, &Object::EndpointSlice(Box::new(slice)));
        (key, manifest)
    };
    slices.map(manifest).collect()
}

fn slice_key(service: &ObjectKey, index: usize) -> ObjectKey {
    let name = format!("{}{ASSUMED}{index}", service.name);
    ObjectKey { kind: Kind::EndpointSlice, name, ..service.clone() }
}

/// Returns the slices that the cluster makes from a service's Endpoints.
fn copies(service: &ObjectKey, endpoints: &Object) -> Vec<(ObjectKey, EndpointSlice)> {
    let Object::Endpoints(endpoints) = endpoints else { return Vec::new() };
    let slices = endpoints.slices.iter().enumerate();
    slices.map(|(index, slice)| (slice_key(service, index), slice.clone())).collect()
}

/// Returns the slices of the pods that a service selects.
fn slices(
    contents: &Contents,
    key: &ObjectKey,
    service: &Service,
) -> Vec<(ObjectKey, EndpointSlice)> {
    if service.selector.is_empty() || service.external_name.is_some() {
        return Vec::new();
    }
    let mut groups: BTreeMap<(bool, Vec<(u8, u16)>), Group> = BTreeMap::new();
    for (_, stored) in contents.of_kind_in(Kind::Pod, &key.namespace) {
        let Some(Object::Pod(pod)) = stored.state.valid() else { continue };
        if pod.is_finished() || !selects(&service.selector, &pod.labels) {
            continue;
        }
        let ports: Vec<EndpointPort> =
            service.ports.iter().filter_map(|port| target(port, pod)).collect();
        let numbers = ports.iter().map(|it| (it.protocol as u8, it.port)).collect();
        for address in addresses(contents, pod) {
            let group = groups.entry((address.is_ipv6(), Vec::clone(&numbers)));
            let (_, endpoints) = group.or_insert_with(|| (ports.clone(), Endpoints::new()));
            endpoints.entry(address).or_insert_with(|| endpoint(address, pod));
        }
    }
    let slices = groups.into_values().enumerate();
    let slice = |(index, (ports, endpoints)): (usize, Group)| {
        let slice = EndpointSlice {
            service: Some(key.name.clone()),
            addresses: endpoints.keys().copied().collect(),
            endpoints: endpoints.into_values().collect(),
            ports,
        };
        (slice_key(key, index), slice)
    };
    slices.map(slice).collect()
}

/// The ports and the endpoints of a slice.
type Group = (Vec<EndpointPort>, Endpoints);

/// The endpoints of a slice, by their addresses.
type Endpoints = BTreeMap<IpAddr, SliceEndpoint>;

/// Returns the endpoint of a pod at an address. It counts as ready, because manifests do not say which pods are ready.
fn endpoint(address: IpAddr, pod: &Pod) -> SliceEndpoint {
    let node = pod.node_name.as_deref().map(Arc::from);
    SliceEndpoint { address, ready: true, serving: true, terminating: false, node, hints: None }
}

fn selects(selector: &Pairs, labels: &Pairs) -> bool {
    selector.iter().all(|(label, value)| labels.get(label) == Some(value))
}

/// Returns the addresses of a pod, or of its node if the pod is on the host's network.
fn addresses(contents: &Contents, pod: &Pod) -> BTreeSet<IpAddr> {
    if !pod.host_network {
        return pod.every_address();
    }
    let node = pod.node_name.as_deref();
    let node = node.and_then(|name| contents.valid(&ObjectKey::new(Kind::Node, "", name)));
    match node {
        Some(Object::Node(node)) => node.internal_ips.iter().copied().collect(),
        _ => BTreeSet::new(),
    }
}

/// Returns the port of the pod that belongs to a service's port. Returns `None` if the target port is a name and no
/// port of the pod with the same protocol has this name.
fn target(port: &ServicePort, pod: &Pod) -> Option<EndpointPort> {
    let protocol = port.protocol.unwrap_or(Protocol::Tcp);
    let number = match &port.target {
        None => port.port,
        Some(PortNumber::Number { port, .. }) => *port,
        Some(PortNumber::Name(name)) => {
            let mut ports = pod.containers.iter().chain(&pod.init_containers).flatten();
            let named = ports.find(|it| {
                it.name.as_ref() == Some(name) && it.protocol.unwrap_or(Protocol::Tcp) == protocol
            });
            named?.port
        }
    };
    Some(EndpointPort { name: port.name.clone(), protocol, port: number })
}
