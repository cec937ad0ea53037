//! One Service as a node translates it, with a reason for each address and endpoint that is left out. It is derived
//! from the same data as the table.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use manx_dataplane::services::{Clients, FrontendKey, WithoutBackend};
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object, ObjectKey, Protocol, Service, ServicePort};
use manx_policy_compiler::model::ObjectName;

use super::compile::{Compiler, affinity, frontend_key, has_source_ranges};
use super::health_checks::LocalEndpoints;
use super::{Frontends, NodePorts};
use crate::services::addresses::{
    AddressKind, LeftAlone, Opening, Untranslated, addresses, left_alone, openings, policy,
};
use crate::services::backends::{Candidate, Choice, Here, LeftOut, TrafficPolicy, select, zone};
use crate::services::omission::Omission;
use crate::services::rank::{Precedence, Rank};

/// A Service, as clients of a node see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceView {
    /// The reason why nothing of the Service is translated. If it is present, the other fields have no meaning.
    pub left_alone: Option<LeftAlone>,
    /// The addresses of the Service that no node translates, each with the reason.
    pub untranslated: Vec<(IpAddr, Untranslated)>,
    /// The seconds for which a client keeps its backend, if the Service has client affinity.
    pub affinity: Option<u32>,
    /// Whether the Service's endpoints are known. They are not known while a slice of its namespace is invalid.
    pub is_known: bool,
    /// The clients that `loadBalancerSourceRanges` admits at load balancers' addresses.
    in_source_ranges: Clients,
    /// The ports, one for each item of `spec.ports`, in the same order.
    pub ports: Vec<PortView>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortView {
    /// `name`.
    pub name: Option<String>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub port: u16,
    /// `nodePort`.
    pub node_port: Option<u16>,
    /// The reasons why some addresses of the Service have no frontend on this node.
    pub omissions: Vec<Omission>,
    /// The endpoints for each family and policy. If the Service has no address yet, it has the endpoints of its future
    /// cluster IPs.
    pub choices: Vec<ChoiceView>,
}

/// The endpoints of a port for frontends of one family with the same policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChoiceView {
    /// Whether the family is IPv4.
    pub is_v4: bool,
    /// Which endpoints clients may get.
    pub policy: TrafficPolicy,
    /// The frontends, in the order of their addresses.
    pub frontends: Vec<FrontendView>,
    /// The endpoints, in order. Slices may disagree about the same address.
    pub endpoints: Vec<EndpointView>,
    /// What happens to a connection if there is no backend.
    pub without_backend: WithoutBackend,
}

/// An address and port at which clients reach a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrontendView {
    /// The address.
    pub address: IpAddr,
    /// The port, which may be a node port.
    pub port: u16,
    /// The kind of the address.
    pub kind: AddressKind,
    /// Whether only the clients in `loadBalancerSourceRanges` are served.
    pub has_source_ranges: bool,
    /// Another Service with the same address, protocol and port that comes first and gets the connections.
    pub taken_by: Option<ObjectName>,
}

/// An endpoint at a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointView {
    /// The address.
    pub address: IpAddr,
    /// The port, or `None` if the endpoint's slice has none for the Service's port.
    pub port: Option<u16>,
    /// The reason why new connections do not get the endpoint. `None` if they may get it.
    pub left_out: Option<LeftOut>,
    /// The node of the endpoint.
    pub node: Option<Arc<str>>,
    /// The nodes to which hints assign the endpoint.
    pub for_nodes: Vec<Box<str>>,
    /// The zones to which hints assign the endpoint.
    pub for_zones: Vec<Box<str>>,
}

impl ChoiceView {
    /// Returns the endpoints that new connections may get.
    pub fn backends(&self) -> impl Iterator<Item = &EndpointView> {
        self.endpoints.iter().filter(|it| it.left_out.is_none())
    }
}

impl ServiceView {
    /// Returns whether new connections of a client with this address are accepted at an address of this kind.
    pub fn serves(&self, client: IpAddr, at: AddressKind) -> bool {
        !at.heeds_source_ranges() || self.in_source_ranges.has(client.into())
    }
}

impl Frontends {
    /// Returns the Service that gets connections to an address, protocol and port. A node port is the same on all
    /// nodes, so the answer for this table's node also holds for other nodes.
    pub fn service_of(
        &self,
        (address, is_of_node): (IpAddr, bool),
        protocol: u8,
        port: u16,
    ) -> Option<&ObjectKey> {
        let at = if is_of_node { self.node_address(address.is_ipv4())? } else { address };
        self.service_at(&FrontendKey { address: at.into(), protocol, port }).map(|it| &**it)
    }

    /// Returns this node's address of a family that has node ports.
    fn node_address(&self, is_v4: bool) -> Option<IpAddr> {
        self.node_ports.addresses.iter().find(|it| it.is_ipv4() == is_v4).copied()
    }

    /// Returns a Service as `node` translates it, if the node has these node ports. `admits` is the same as for
    /// [`Frontends::follow`], and `contents` are those of the last change. Returns `None` if there is no valid Service
    /// of this name.
    ///
    /// The node may be other than the table's node. Services that claim an address only on that other node are not
    /// known then.
    pub fn view(
        &self,
        contents: &Contents,
        name: &ObjectName,
        (node, node_ports): (&str, &NodePorts),
        admits: impl Fn(IpAddr) -> bool,
    ) -> Option<ServiceView> {
        let key = ObjectKey::new(Kind::Service, &name.namespace, &name.name);
        let Some(Object::Service(service)) = contents.valid(&key) else { return None };
        let mut view = ServiceView {
            left_alone: left_alone(service),
            untranslated: Vec::new(),
            affinity: affinity(service),
            is_known: !self.slices.is_broken(&name.namespace),
            in_source_ranges: match &service.source_ranges[..] {
                [] => Clients::All,
                ranges => Clients::of(ranges),
            },
            ports: Vec::new(),
        };
        let rank = Rank::new(&Arc::new(key), service.created);
        if view.left_alone.is_none() && self.shares.leaves_out(&rank) {
            view.left_alone = Some(LeftAlone::Namespace);
        }
        if view.left_alone.is_some() {
            return Some(view);
        }
        let here = Here { node: node.to_owned(), zone: zone(contents, node) };
        let mut own = Vec::new();
        for (address, ends) in addresses(service, &self.external) {
            match ends {
                Ok(ends) => own.push((address, ends, admits(address))),
                Err(why) => view.untranslated.push((address, why)),
            }
        }
        let of_port = |port: &ServicePort| {
            let of_node = (node_ports.range, node_ports.addresses.iter().copied());
            let openings = openings((service, port), &own, of_node).collect();
            self.port_view((name, service, &rank), port, openings, &here)
        };
        view.ports = service.ports.iter().map(of_port).collect();
        Some(view)
    }

    /// Returns the answer of `node` to load balancers that ask about a Service, if the node has these node ports: the
    /// port, and the number of ready endpoints. Returns `None` if the Service has no such port, or if nothing of it is
    /// translated. Returns `Err`, with the reason, if the port is not served.
    pub fn health_check_view(
        &self,
        contents: &Contents,
        name: &ObjectName,
        (node, node_ports): (&str, &NodePorts),
    ) -> Option<Result<(u16, LocalEndpoints), Omission>> {
        let key = ObjectKey::new(Kind::Service, &name.namespace, &name.name);
        let Some(Object::Service(service)) = contents.valid(&key) else { return None };
        // A Service that is left alone or left out does not claim the port.
        let is_translated = left_alone(service).is_none()
            && !self.shares.leaves_out(&Rank::new(&Arc::new(key.clone()), service.created));
        let here = Here { node: node.to_owned(), zone: None };
        let compiler = Compiler { here: &here, node_ports, ..self.compiler() };
        let mut omissions = BTreeSet::new();
        let check = is_translated
            .then(|| compiler.compile_health_check((name, service), &mut omissions))
            .flatten();
        let mut why_not = omissions.into_iter().next();
        self.each_health_check(|of, omission| {
            if *of == key {
                why_not.get_or_insert(omission);
            }
        });
        why_not.map(Err).or(check.map(Ok))
    }

    fn port_view(
        &self,
        (name, service, rank): (&ObjectName, &Service, &Arc<Rank>),
        port: &ServicePort,
        openings: Vec<Result<Opening, Omission>>,
        here: &Here,
    ) -> PortView {
        let mut view = PortView {
            name: port.name.clone(),
            protocol: port.protocol.unwrap_or(Protocol::Tcp),
            port: port.port,
            node_port: port.node_port,
            omissions: Vec::new(),
            choices: Vec::new(),
        };
        for opening in openings {
            let Opening { address, port: number, kind, policy } = match opening {
                Ok(opening) => opening,
                Err(omission) => {
                    view.omissions.push(omission);
                    continue;
                }
            };
            let ends = (address.is_ipv4(), policy);
            let taken_by = self.taken_by(rank, port, (address, number, kind));
            let has_source_ranges = has_source_ranges(service, kind);
            let frontend =
                FrontendView { address, port: number, kind, has_source_ranges, taken_by };
            let made = view.choices.iter().position(|it| (it.is_v4, it.policy) == ends);
            let made = made.unwrap_or_else(|| {
                view.choices.push(self.choice_view(name, port, ends, here));
                view.choices.len() - 1
            });
            view.choices[made].frontends.push(frontend);
        }
        if service.cluster_ips.is_empty() {
            let ends = |is_v4| (is_v4, policy(service.internal_local));
            let of_families =
                [true, false].map(|is_v4| self.choice_view(name, port, ends(is_v4), here));
            view.choices.extend(of_families.into_iter().filter(|it| !it.endpoints.is_empty()));
        }
        view
    }

    fn choice_view(
        &self,
        name: &ObjectName,
        port: &ServicePort,
        (is_v4, policy): (bool, TrafficPolicy),
        here: &Here,
    ) -> ChoiceView {
        let mut found = Vec::new();
        if !self.slices.is_broken(&name.namespace) {
            self.slices.each_endpoint(name, port, is_v4, |it, port| found.push((it, port)));
        }
        let candidates: Vec<Candidate<'_>> = found
            .iter()
            .filter_map(|(endpoint, port)| Some(Candidate { endpoint, port: port.ok()? }))
            .collect();
        let choice = Choice::new(&candidates, policy, here);
        let (_, without_backend) = select(&candidates, policy, here);
        let endpoints = found.iter().map(|&(endpoint, port)| {
            let hints = endpoint.hints.as_deref();
            EndpointView {
                address: endpoint.address,
                port: port.ok(),
                left_out: match port {
                    Ok(port) => choice.leaves_out(&Candidate { endpoint, port }),
                    Err(why) => Some(why),
                },
                node: endpoint.node.clone(),
                for_nodes: hints.map(|it| it.nodes.to_vec()).unwrap_or_default(),
                for_zones: hints.map(|it| it.zones.to_vec()).unwrap_or_default(),
            }
        });
        let mut endpoints: Vec<EndpointView> = endpoints.collect();
        endpoints.sort();
        endpoints.dedup();
        ChoiceView { is_v4, policy, frontends: Vec::new(), endpoints, without_backend }
    }

    /// Returns the Service that comes before this one and has the same address and port. A node port is the same on all
    /// nodes, so the answer for the table's own node also holds for other nodes.
    fn taken_by(
        &self,
        rank: &Arc<Rank>,
        port: &ServicePort,
        (address, number, kind): (IpAddr, u16, AddressKind),
    ) -> Option<ObjectName> {
        let at = match kind {
            AddressKind::NodePort => self.node_address(address.is_ipv4())?,
            AddressKind::ClusterIp
            | AddressKind::LoadBalancer
            | AddressKind::LoadBalancerOutside
            | AddressKind::ExternalIp
            | AddressKind::ExternalIpOutside => address,
        };
        let precedence =
            Precedence { is_external_ip: kind.is_external_ip(), rank: Arc::clone(rank) };
        let (first, _) = self.claims.first(&frontend_key(at, port, number))?;
        (*first < precedence).then(|| first.name())
    }
}
