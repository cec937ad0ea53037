//! The `EndpointSlice`s of each Service.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::{
    EndpointPort, EndpointSlice, Kind, Object, ObjectKey, Protocol, Service, ServicePort,
    SliceEndpoint,
};
use manx_policy_compiler::model::ObjectName;

use super::backends::{LeftOut, can_be_backend};
use super::bounds::MOST_PORTS;

/// A Service with more ports than this gets an index of its ports.
const FEW_PORTS: usize = 4;

/// The valid slices of each Service, and the namespaces with invalid slices.
#[derive(Debug, Default)]
pub(super) struct Slices {
    pub(super) of_services: HashMap<ObjectName, Vec<(String, Arc<Object>)>>,
    /// The number of invalid slices in each namespace.
    broken: HashMap<String, usize>,
}

impl Slices {
    /// Applies the change of a slice, and returns the Services whose endpoints have changed. While a slice of a
    /// namespace is invalid, no Service of the namespace has endpoints.
    pub(super) fn follow(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        (before, now): (Option<&State>, Option<&State>),
    ) -> Vec<ObjectKey> {
        let was_broken = self.is_broken(&key.namespace);
        let mut changed = Vec::new();
        changed.extend(before.and_then(|state| self.remove(key, state)));
        changed.extend(now.and_then(|state| self.add(key, state)));
        if self.is_broken(&key.namespace) != was_broken {
            let services = contents.of_kind_in(Kind::Service, &key.namespace);
            changed.extend(services.map(|(key, _)| key.clone()));
        }
        changed
    }

    /// Adds a slice, and returns the Service that it belongs to.
    pub(super) fn add(&mut self, key: &ObjectKey, state: &State) -> Option<ObjectKey> {
        let State::Valid(object) = state else {
            *self.broken.entry(key.namespace.clone()).or_default() += 1;
            return None;
        };
        let service = service_of(key, object)?;
        let slices = self.of_services.entry(service.clone());
        let slices = slices.or_insert_with(|| Vec::with_capacity(1));
        slices.push((key.name.clone(), Arc::clone(object)));
        Some(key_of(&service))
    }

    /// Removes a slice, and returns the Service to which it belonged.
    fn remove(&mut self, key: &ObjectKey, state: &State) -> Option<ObjectKey> {
        let State::Valid(object) = state else {
            if let Some(count) = self.broken.get_mut(&key.namespace) {
                *count -= 1;
                if *count == 0 {
                    self.broken.remove(&key.namespace);
                }
            }
            return None;
        };
        let service = service_of(key, object)?;
        if let Some(slices) = self.of_services.get_mut(&service) {
            slices.retain(|(name, _)| *name != key.name);
            if slices.is_empty() {
                self.of_services.remove(&service);
            }
        }
        Some(key_of(&service))
    }

    /// Returns whether a slice of the namespace is invalid.
    pub(super) fn is_broken(&self, namespace: &str) -> bool {
        self.broken.contains_key(namespace)
    }

    /// Returns the ready endpoints of a Service, for any of its ports.
    pub(super) fn ready<'a>(
        &'a self,
        (name, service): (&ObjectName, &'a Service),
    ) -> impl Iterator<Item = &'a SliceEndpoint> {
        let targets: HashSet<_> = service.ports.iter().take(MOST_PORTS).map(target).collect();
        let is_of_service =
            move |of: &EndpointPort| targets.contains(&(of.name.as_deref(), of.protocol));
        let is_known = !self.is_broken(&name.namespace);
        let slices = self.of_services.get(name).filter(|_| is_known).into_iter().flatten();
        let slices = slices.filter_map(move |(_, object)| match &**object {
            Object::EndpointSlice(slice) if slice.ports.iter().any(&is_of_service) => Some(slice),
            _ => None,
        });
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        endpoints.filter(|it| it.ready && can_be_backend(it.address))
    }

    /// Returns, for each port of a Service in order, the slices that have this port, each with its port number there.
    /// The time is proportional to the total number of ports, not to the product of the Service's and the slices'
    /// ports.
    pub(super) fn of_ports<'a>(
        &'a self,
        service: &ObjectName,
        ports: &[ServicePort],
    ) -> Vec<Vec<(&'a EndpointSlice, u16)>> {
        let mut found: Vec<Vec<(&EndpointSlice, u16)>> = vec![Vec::new(); ports.len()];
        let slices = self.of_services.get(service).into_iter().flatten();
        let slices = slices.filter_map(|(_, object)| match &**object {
            Object::EndpointSlice(slice) => Some(slice),
            _ => None,
        });
        let mut index: HashMap<_, Vec<usize>> = HashMap::new();
        if ports.len() > FEW_PORTS {
            for (at, port) in ports.iter().enumerate() {
                index.entry(target(port)).or_default().push(at);
            }
        }
        for slice in slices {
            for of in &slice.ports {
                let asked = (of.name.as_deref(), of.protocol);
                if ports.len() > FEW_PORTS {
                    for at in index.get(&asked).into_iter().flatten() {
                        found[*at].push((slice, of.port));
                    }
                } else {
                    let all = ports.iter().zip(&mut found);
                    let same = all.filter(|(port, _)| target(port) == asked);
                    same.for_each(|(_, found)| found.push((slice, of.port)));
                }
            }
        }
        found
    }

    /// Calls `each` for the endpoints of a Service in a family. Each endpoint comes with its port for the Service's
    /// port, or with the reason why the endpoint cannot have connections.
    pub(super) fn each_endpoint<'a>(
        &'a self,
        service: &ObjectName,
        port: &ServicePort,
        is_v4: bool,
        mut each: impl FnMut(&'a SliceEndpoint, Result<u16, LeftOut>),
    ) {
        let protocol = port.protocol.unwrap_or(Protocol::Tcp);
        for (_, object) in self.of_services.get(service).into_iter().flatten() {
            let Object::EndpointSlice(slice) = &**object else { continue };
            let is_it = |of: &&EndpointPort| of.name == port.name && of.protocol == protocol;
            let ports: Vec<u16> = slice.ports.iter().filter(is_it).map(|it| it.port).collect();
            for endpoint in slice.endpoints.iter().filter(|it| it.address.is_ipv4() == is_v4) {
                if ports.is_empty() {
                    each(endpoint, Err(LeftOut::Port));
                } else if can_be_backend(endpoint.address) {
                    for port in &ports {
                        each(endpoint, Ok(*port));
                    }
                } else {
                    each(endpoint, Err(LeftOut::Address));
                }
            }
        }
    }
}

/// Returns the name and the protocol, by which a slice identifies a Service's port.
fn target(port: &ServicePort) -> (Option<&str>, Protocol) {
    (port.name.as_deref(), port.protocol.unwrap_or(Protocol::Tcp))
}

/// Returns the Service of a slice.
fn service_of(key: &ObjectKey, slice: &Object) -> Option<ObjectName> {
    match slice {
        Object::EndpointSlice(slice) => {
            Some(ObjectName::new(&key.namespace, slice.service.as_deref()?))
        }
        _ => None,
    }
}

fn key_of(service: &ObjectName) -> ObjectKey {
    ObjectKey::new(Kind::Service, &service.namespace, &service.name)
}
