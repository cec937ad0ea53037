//! A row for each port of each Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use manx_calculation::services::view::{EndpointView, PortView, ServiceView};
use manx_calculation::services::{AddressKind, LeftOut, Omission, TrafficPolicy, zone};
use manx_objects::object::{Kind, Object, ObjectKey, Protocol, ServiceType};
use manx_policy_compiler::model::ObjectName;

use super::traffic::Traffic;
use super::{ServiceTables, few};

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The Service.
    pub name: ObjectName,
    /// `spec.type`; `None` if the Service is invalid.
    pub service_type: Option<ServiceType>,
    /// The addresses that nodes translate, except the nodes' own addresses.
    pub addresses: Vec<IpAddr>,
    /// The port, or `None` if the Service has none or is invalid.
    pub port: Option<Port>,
    /// The number of endpoints that a new connection may get on some node.
    pub backends: usize,
    /// The number of all endpoints. Each is an address and a port.
    pub endpoints: usize,
    /// The settings for clients that take effect, or `None` if nothing of the Service is translated.
    pub traffic: Option<Traffic>,
    /// `healthCheckNodePort`, if nodes serve it.
    pub health_check: Option<u16>,
    /// The reason why there is no backend, and other notes.
    pub notes: Vec<String>,
}

/// A port, as the Service defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// `name`.
    pub name: Option<String>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub number: u16,
    /// `nodePort`.
    pub node_port: Option<u16>,
}

/// Data that the rows of all Services need.
struct About<'a> {
    /// The nodes of each zone. The empty name has the nodes without a zone.
    zones: BTreeMap<String, BTreeSet<&'a str>>,
    /// The ports for health checks, or the reasons why they are not served.
    health_checks: BTreeMap<ObjectName, Result<u16, Omission>>,
}

/// The endpoints of a port, by address and port. The value is the reason why no connection gets the endpoint, or `None`
/// if some connections may get it.
type Fates = BTreeMap<(IpAddr, Option<u16>), Option<LeftOut>>;

impl ServiceTables<'_> {
    /// Returns the rows of the Services in these namespaces, in order. If `namespaces` is empty, returns the rows of
    /// all Services. Returns `Err` if one of the namespaces has no Service.
    pub fn rows(&self, namespaces: &[String]) -> Result<Vec<Row>, String> {
        let known: BTreeSet<String> = self.names().map(|it| it.namespace).collect();
        if let Some(wrong) = namespaces.iter().find(|it| !known.contains(*it)) {
            let known: Vec<String> = known.into_iter().collect();
            return Err(format!("no Service in namespace {wrong}; found {}", few(&known)));
        }
        let about = About { zones: self.zones(), health_checks: self.health_check_ports() };
        let is_asked =
            |name: &ObjectName| namespaces.is_empty() || namespaces.contains(&name.namespace);
        let names = self.names().filter(is_asked);
        Ok(names.flat_map(|name| self.rows_of(&name, &about)).collect())
    }

    /// Returns the rows of a Service. A Service without ports has one row.
    fn rows_of(&self, name: &ObjectName, about: &About<'_>) -> Vec<Row> {
        let row = Row {
            name: name.clone(),
            service_type: None,
            addresses: Vec::new(),
            port: None,
            backends: 0,
            endpoints: 0,
            traffic: None,
            health_check: None,
            notes: Vec::new(),
        };
        let key = ObjectKey::new(Kind::Service, &name.namespace, &name.name);
        let Some(Object::Service(service)) = self.contents.valid(&key) else {
            return vec![Row {
                notes: vec!["not valid, so nothing of it is translated".to_owned()],
                ..row
            }];
        };
        let Some(view) = self.seat.as_ref().and_then(|node| self.view(name, node).ok()?) else {
            return vec![row];
        };
        let service_type = Some(service.service_type.unwrap_or(ServiceType::ClusterIp));
        let row = Row { service_type, ..row };
        if let Some(why) = view.left_alone {
            return vec![Row { notes: vec![why.to_string()], ..row }];
        }
        let health_check = about.health_checks.get(name);
        let others = self.stand_ins(&view, &about.zones);
        let others: Vec<ServiceView> =
            others.into_iter().filter_map(|node| self.view(name, node).ok()?).collect();
        if view.ports.is_empty() {
            return vec![Row { notes: vec!["it has no port".to_owned()], ..row }];
        }
        let of_service = Row {
            traffic: Some(Traffic::new(service, &view)),
            health_check: health_check.and_then(|it| it.as_ref().ok()).copied(),
            ..row
        };
        let unserved = health_check.and_then(|it| it.as_ref().err());
        let of_port = |(index, port): (usize, &PortView)| {
            let views = others.iter().filter_map(|it| it.ports.get(index));
            let fates = std::iter::once(port).chain(views).map(fates).collect();
            port_row(of_service.clone(), (&view, port), fates, unserved)
        };
        view.ports.iter().enumerate().map(of_port).collect()
    }

    /// Returns the nodes of each zone. The empty name has the nodes without a zone.
    fn zones(&self) -> BTreeMap<String, BTreeSet<&str>> {
        let mut zones: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for name in &self.nodes {
            let zone = zone(self.contents, name).unwrap_or_default();
            zones.entry(zone).or_default().insert(name);
        }
        zones
    }

    /// Returns some nodes, so that every other node has the same backends as one of them or as the node `seat`. They
    /// are the nodes that endpoints and hints name, and one other node of each zone.
    fn stand_ins<'a>(
        &'a self,
        view: &ServiceView,
        zones: &BTreeMap<String, BTreeSet<&'a str>>,
    ) -> BTreeSet<&'a str> {
        let choices = || view.ports.iter().flat_map(|port| &port.choices);
        let endpoints = || choices().flat_map(|choice| &choice.endpoints);
        let is_hinted = |it: &EndpointView| !it.for_nodes.is_empty() || !it.for_zones.is_empty();
        let is_alike = choices().all(|it| it.policy != TrafficPolicy::Local);
        if is_alike && !endpoints().any(is_hinted) {
            return BTreeSet::new();
        }
        let named: BTreeSet<&str> = endpoints()
            .flat_map(|it| {
                it.node.as_deref().into_iter().chain(it.for_nodes.iter().map(|it| &**it))
            })
            .collect();
        let is_other = |it: &&str| !named.contains(it);
        let of_zones = zones.values().filter_map(|nodes| nodes.iter().copied().find(is_other));
        let of_names = self.nodes.iter().map(String::as_str).filter(|it| named.contains(it));
        of_names.chain(of_zones).filter(|it| Some(*it) != self.seat.as_deref()).collect()
    }
}

/// Completes the row of a Service for one of its ports. `fates` has, for each examined node, whether connections get
/// each of the port's endpoints there. `unserved` is the reason why nodes do not serve the port for health checks.
fn port_row(
    of_service: Row,
    (view, port): (&ServiceView, &PortView),
    fates: Vec<Fates>,
    unserved: Option<&Omission>,
) -> Row {
    let differs = fates.iter().map(backends).collect::<BTreeSet<_>>().len() > 1;
    let all = merged(fates.into_iter().flatten());
    let mut notes = vec![match why_none(view, port, &all) {
        None if differs => Some("nodes have different backends".to_owned()),
        other => other,
    }];
    notes.extend(port.omissions.iter().map(|it| Some(it.to_string())));
    notes.push(unserved.map(ToString::to_string));
    let mut notes: Vec<String> = notes.into_iter().flatten().collect();
    // The reason why there is no backend may also be among the omissions.
    notes.dedup();
    Row {
        addresses: addresses(port),
        port: Some(Port {
            name: port.name.clone(),
            protocol: port.protocol,
            number: port.port,
            node_port: port.node_port,
        }),
        backends: backends(&all).len(),
        endpoints: all.len(),
        notes,
        ..of_service
    }
}

/// Returns the addresses that have a frontend, except the nodes' own addresses.
fn addresses(port: &PortView) -> Vec<IpAddr> {
    let frontends = port.choices.iter().flat_map(|choice| &choice.frontends);
    let own = frontends.filter(|it| it.kind != AddressKind::NodePort).map(|it| it.address);
    own.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns whether each endpoint of a port is a backend at one node, or why it is not.
fn fates(port: &PortView) -> Fates {
    let endpoints = port.choices.iter().flat_map(|choice| &choice.endpoints);
    merged(endpoints.map(|it| ((it.address, it.port), it.left_out)))
}

/// Merges the fates of endpoints: an endpoint that is a backend on any node counts as a backend.
fn merged(all: impl Iterator<Item = ((IpAddr, Option<u16>), Option<LeftOut>)>) -> Fates {
    let mut merged = Fates::new();
    for (end, fate) in all {
        merged.entry(end).and_modify(|it| *it = (*it).min(fate)).or_insert(fate);
    }
    merged
}

/// Returns the endpoints that connections may get.
fn backends(fates: &Fates) -> BTreeSet<(IpAddr, Option<u16>)> {
    fates.iter().filter(|(_, fate)| fate.is_none()).map(|(end, _)| *end).collect()
}

/// Returns a short reason why clients get no backend of a port. Returns `None` if some clients get one.
fn why_none(service: &ServiceView, port: &PortView, fates: &Fates) -> Option<String> {
    if !service.is_known {
        return Some("an EndpointSlice of its namespace is not valid".to_owned());
    }
    let frontends = || port.choices.iter().flat_map(|choice| &choice.frontends);
    if let Some(omission) = port.omissions.first()
        && frontends().next().is_none()
    {
        return Some(omission.to_string());
    }
    let taken: BTreeSet<_> = frontends().filter_map(|it| it.taken_by.as_ref()).collect();
    if let Some(by) = taken.first()
        && frontends().all(|it| it.taken_by.is_some())
    {
        return Some(format!("Service {by}, which comes first, has its addresses and ports"));
    }
    if fates.is_empty() {
        return Some("no endpoint".to_owned());
    }
    if fates.values().all(Option::is_some) {
        let mut counts: BTreeMap<LeftOut, usize> = BTreeMap::new();
        fates.values().flatten().for_each(|why| *counts.entry(*why).or_default() += 1);
        let counts = counts.iter().map(|(why, count)| format!("{count}: {why}"));
        return Some(counts.collect::<Vec<_>>().join("; "));
    }
    frontends().next().is_none().then(|| "no address".to_owned())
}
