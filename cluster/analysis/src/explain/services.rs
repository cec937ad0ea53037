//! A service as a destination: its endpoints, and the port of each endpoint that stands for the service's port.
//!
//! Kubernetes translates a service's address and port before policy sees the packet. A headless service has no address
//! of its own, and nothing translates its ports.
//!
//! Source: Kubernetes documentation, "Service", "Virtual IPs and service proxies".

use std::collections::BTreeSet;
use std::net::IpAddr;

use manx_api::explain::PacketSpec;
use manx_objects::contents::Contents;
use manx_objects::object::{
    ContainerPort, Kind, Object, ObjectKey, PortNumber, Protocol, Service, ServicePort,
};

use super::Explainer;
use crate::services::Translates;

/// The destinations of a packet after the translation of services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destinations {
    /// The ends.
    pub ends: Vec<Destination>,
    /// Notes about the translations of services.
    pub notes: Vec<String>,
}

/// One destination, in the form of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The end.
    pub end: String,
    /// The packet as it arrives there.
    pub packet: PacketSpec,
    /// The reason why no connection reaches this end, independently of policy.
    pub dropped: Option<String>,
}

impl Destinations {
    /// Makes destinations about which policy alone decides.
    pub(super) fn passing(ends: Vec<(String, PacketSpec)>) -> Self {
        let end = |(end, packet)| Destination { end, packet, dropped: None };
        Self { ends: ends.into_iter().map(end).collect(), notes: Vec::new() }
    }
}

impl Explainer<'_> {
    /// Like [`Explainer::ends`], for a destination: the address of a service stands for its endpoints, and the port of
    /// the service stands for the port of each endpoint. For a client on `node`, the endpoints are those that a new
    /// connection may get.
    pub fn destinations(
        &self,
        text: &str,
        packet: PacketSpec,
        node: Option<&str>,
    ) -> Result<Destinations, String> {
        let mut notes = Vec::new();
        let having = text.parse().ok().and_then(|address| self.having(address));
        let text = having.map_or_else(
            || text.to_owned(),
            |key| {
                notes.push(format!("{text} is an address of {key}: judged at its endpoints"));
                format!("svc/{}/{}", key.namespace, key.name)
            },
        );
        let ends = self.ends(&text)?;
        let of_service = name_of(&text)
            .and_then(|(namespace, name)| service_of(namespace, name, self.contents))
            .filter(|(_, it)| !it.headless);
        let (Some((key, service)), PacketSpec::Protocol(protocol, Some(port))) =
            (of_service, packet)
        else {
            let ends = ends.into_iter().map(|end| (end, packet)).collect();
            return Ok(Destinations { notes, ..Destinations::passing(ends) });
        };
        let is_its = service.ports.iter().any(|it| is_it(it, (protocol, port)));
        let is_manx = matches!(self.translates, Translates::Manx(_));
        if is_manx && !is_its && !self.is_left_alone(&key) {
            let why = without_port(&key, service, protocol, port);
            let dropped = |end| Destination { end, packet, dropped: Some(why.clone()) };
            let ends = ends.into_iter().map(dropped).collect();
            return Ok(Destinations { ends, notes: Vec::new() });
        }
        let (ends, note) = translate(ends, (&key, service), (protocol, port), self.contents)?;
        notes.extend(note);
        let to = |port| PacketSpec::Protocol(protocol, Some(port));
        let ends = ends.into_iter().map(|(end, port)| (end, to(port))).collect();
        let index = service.ports.iter().position(|it| is_it(it, (protocol, port)));
        let found = match (index, node) {
            (Some(index), Some(node)) => self.backends(ends, (&key, index), node),
            _ => Destinations::passing(ends),
        };
        notes.extend(found.notes);
        Ok(Destinations { notes, ..found })
    }

    /// Parses a destination of the form `svc/NAME:PORT`. Returns the service without the port, and the packet to it.
    /// The port is a name or a number. Returns `None` if the text has another form.
    pub fn service_port(&self, text: &str) -> Result<Option<(String, PacketSpec)>, String> {
        let Some((service, port)) = text.rsplit_once(':') else { return Ok(None) };
        let Some((namespace, name)) = name_of(service) else { return Ok(None) };
        let Some((key, of_key)) = service_of(namespace, name, self.contents) else {
            return Err(format!("there is no valid Service {namespace}/{name} in the manifests"));
        };
        let is_named =
            |it: &&ServicePort| it.name.as_deref() == Some(port) || port.parse() == Ok(it.port);
        let found: BTreeSet<(u8, u16)> =
            of_key.ports.iter().filter(is_named).map(|it| (number(it.protocol), it.port)).collect();
        let has = listed(of_key);
        match found.into_iter().collect::<Vec<_>>().as_slice() {
            [(protocol, port)] => {
                Ok(Some((service.to_owned(), PacketSpec::Protocol(*protocol, Some(*port)))))
            }
            [] => Err(format!("{key} has no port {port}; found {has}")),
            _ => Err(format!(
                "port {port} of {key} has several protocols: name the port, or give --port; found {has}"
            )),
        }
    }

    /// Returns whether a text names a service that has translated addresses, by the service's name or by its cluster
    /// IP.
    pub(super) fn is_translated(&self, text: &str) -> bool {
        let by_address = text.parse().ok().and_then(|address| self.having(address));
        by_address.is_some()
            || name_of(text)
                .and_then(|(namespace, name)| service_of(namespace, name, self.contents))
                .is_some_and(|(_, it)| !it.headless)
    }

    /// Returns the service that has a cluster IP. Returns `None` if a pod or a node has the address.
    pub(super) fn having(&self, address: IpAddr) -> Option<&ObjectKey> {
        if !self.parties.having(address).is_empty() {
            return None;
        }
        let mut services = services(self.contents);
        services.find(|(_, service)| service.cluster_ips.contains(&address)).map(|(key, _)| key)
    }
}

/// Parses `svc/NAMESPACE/NAME`, or `svc/NAME` for the namespace `default`.
pub(super) fn name_of(text: &str) -> Option<(&str, &str)> {
    let name = text.strip_prefix("svc/")?;
    Some(name.split_once('/').unwrap_or(("default", name)))
}

/// Returns the valid services.
pub(crate) fn services(contents: &Contents) -> impl Iterator<Item = (&ObjectKey, &Service)> {
    contents.of_kind(Kind::Service).filter_map(|(key, _)| match contents.valid(key) {
        Some(Object::Service(service)) => Some((key, &**service)),
        _ => None,
    })
}

/// Returns the valid service of this name.
pub(super) fn service_of<'a>(
    namespace: &str,
    name: &str,
    contents: &'a Contents,
) -> Option<(ObjectKey, &'a Service)> {
    let key = ObjectKey::new(Kind::Service, namespace, name);
    match contents.valid(&key)? {
        Object::Service(service) => Some((key, service)),
        _ => None,
    }
}

/// Ends with the port of each, and a note about the translation.
type Translated = (Vec<(String, u16)>, Option<String>);

/// Returns, for a port of the service, the port of each end, and a note. An end that has no port of the required name
/// is left out. If the service does not have the port, each end has the same port.
fn translate(
    ends: Vec<String>,
    (key, service): (&ObjectKey, &Service),
    (protocol, port): (u8, u16),
    contents: &Contents,
) -> Result<Translated, String> {
    let mut ports = service.ports.iter();
    let Some(wanted) = ports.find(|it| is_it(it, (protocol, port))) else {
        let has: Vec<String> = service.ports.iter().map(shown).collect();
        let has =
            if has.is_empty() { "no port".to_owned() } else { format!("only {}", has.join(", ")) };
        let note = format!("{key} has {has}: judged at port {port} of its endpoints");
        return Ok((ends.into_iter().map(|end| (end, port)).collect(), Some(note)));
    };
    let target = |end: String| {
        let target = match &wanted.target {
            None => port,
            Some(PortNumber::Number { port, .. }) => *port,
            Some(PortNumber::Name(name)) => named((name, wanted), &end, key, contents)?,
        };
        Some((end, target))
    };
    let ends: Vec<(String, u16)> = ends.into_iter().filter_map(target).collect();
    if ends.is_empty() {
        return Err(format!("no endpoint of {key} has the port that its port {port} names"));
    }
    let targets: BTreeSet<u16> = ends.iter().map(|(_, target)| *target).collect();
    if targets == [port].into() {
        return Ok((ends, None));
    }
    let targets: Vec<String> = targets.iter().map(u16::to_string).collect();
    let targets = targets.join(" or ");
    Ok((ends, Some(format!("port {port} of {key} is port {targets} of its endpoints"))))
}

/// Returns the port number that a named target port of a service has at an end. For a pod it is the pod's port of that
/// name, and for an address it is the port in the service's slices.
fn named(
    (name, wanted): (&str, &ServicePort),
    end: &str,
    service: &ObjectKey,
    contents: &Contents,
) -> Option<u16> {
    let protocol = number(wanted.protocol);
    if let Some((namespace, pod)) = end.split_once('/') {
        let key = ObjectKey::new(Kind::Pod, namespace, pod);
        let Object::Pod(pod) = contents.valid(&key)? else { return None };
        let mut ports = pod.containers.iter().chain(&pod.init_containers).flatten();
        let is_it = |it: &&ContainerPort| {
            it.name.as_deref() == Some(name) && number(it.protocol) == protocol
        };
        return ports.find(is_it).map(|it| it.port);
    }
    let address: IpAddr = end.parse().ok()?;
    let mut found = BTreeSet::new();
    for (key, _) in contents.of_kind_in(Kind::EndpointSlice, &service.namespace) {
        if let Some(Object::EndpointSlice(slice)) = contents.valid(key)
            && slice.service.as_ref() == Some(&service.name)
            && slice.addresses.contains(&address)
        {
            let ports = slice.ports.iter().filter(|it| it.name == wanted.name);
            found.extend(ports.filter(|it| it.protocol.number() == protocol).map(|it| it.port));
        }
    }
    (found.len() == 1).then(|| found.pop_first()).flatten()
}

/// Returns the number of a protocol. An absent protocol is TCP.
pub(crate) fn number(protocol: Option<Protocol>) -> u8 {
    protocol.unwrap_or(Protocol::Tcp).number()
}

fn is_it(of: &ServicePort, (protocol, port): (u8, u16)) -> bool {
    of.port == port && number(of.protocol) == protocol
}

/// Returns the reason why a node refuses connections to a port that a translated service does not have.
pub(super) fn without_port(key: &ObjectKey, service: &Service, protocol: u8, port: u16) -> String {
    let protocol = Protocol::from_number(protocol).map_or("protocol", Protocol::name);
    let found = listed(service);
    format!("refused (service-without-port): {key} has no port {protocol} {port}; found {found}")
}

/// Lists the ports of a service for a message.
fn listed(service: &Service) -> String {
    let has: Vec<String> = service.ports.iter().map(shown).collect();
    if has.is_empty() { "no port".to_owned() } else { has.join(", ") }
}

fn shown(port: &ServicePort) -> String {
    format!("{} {}", port.protocol.unwrap_or(Protocol::Tcp), port.port)
}
