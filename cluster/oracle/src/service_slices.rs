//! The endpoints of services, from their slices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::matching::protocol_number;
use manx_objects::contents::Stored;
use manx_objects::object::{EndpointSlice, Kind, Object, ObjectKey};

/// The slices of every service.
#[derive(Debug, Default)]
pub(super) struct ServiceSlices {
    slices: BTreeMap<(String, String), Vec<EndpointSlice>>,
    /// The namespaces with an invalid slice. Such a slice may belong to any service there.
    broken: BTreeSet<String>,
}

/// The endpoints of one service.
#[derive(Debug, Default)]
pub(super) struct ServiceMembers(Vec<EndpointSlice>);

impl ServiceSlices {
    pub(super) fn new(objects: &BTreeMap<ObjectKey, Stored>) -> Self {
        let mut services = Self::default();
        for (key, stored) in objects {
            match stored.state.valid() {
                None if key.kind == Kind::EndpointSlice => {
                    services.broken.insert(key.namespace.clone());
                }
                Some(Object::EndpointSlice(slice)) => {
                    if let Some(service) = &slice.service {
                        let name = (key.namespace.clone(), service.clone());
                        services.slices.entry(name).or_default().push(EndpointSlice::clone(slice));
                    }
                }
                Some(_) | None => {}
            }
        }
        services
    }

    /// Returns the endpoints of a service. There are none if the service has no slice. Returns
    /// `None` if they are not known.
    pub(super) fn members(&self, namespace: &str, name: &str) -> Option<ServiceMembers> {
        if self.broken.contains(namespace) {
            return None;
        }
        let slices = self.slices.get(&(namespace.to_owned(), name.to_owned()));
        Some(ServiceMembers(slices.cloned().unwrap_or_default()))
    }
}

impl ServiceMembers {
    /// Returns the addresses of every endpoint.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().flat_map(|slice| slice.addresses.iter().copied())
    }

    /// Returns every protocol number and port that an endpoint serves.
    pub(super) fn ports(&self) -> impl Iterator<Item = (u8, u16)> + '_ {
        let ports = self.0.iter().flat_map(|slice| &slice.ports);
        ports.map(|it| (protocol_number(Some(it.protocol)), it.port))
    }

    /// Returns the protocols and ports that are served at an address.
    pub(super) fn served(&self, address: IpAddr) -> BTreeSet<(u8, u16)> {
        let there = self.0.iter().filter(|slice| slice.addresses.contains(&address));
        let ports = there.flat_map(|slice| &slice.ports);
        ports.map(|it| (protocol_number(Some(it.protocol)), it.port)).collect()
    }

    /// Returns whether an endpoint has this address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|slice| slice.addresses.contains(&address))
    }

    /// Returns whether an endpoint has this address and serves this port. A packet without a port
    /// matches no port.
    pub(super) fn has_port(&self, address: IpAddr, protocol: u8, number: Option<u16>) -> bool {
        self.0.iter().any(|slice| {
            slice.addresses.contains(&address)
                && slice.ports.iter().any(|it| {
                    protocol_number(Some(it.protocol)) == protocol && number == Some(it.port)
                })
        })
    }
}
