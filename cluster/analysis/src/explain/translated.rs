//! Connections to node ports, load balancers' addresses, external IPs and host ports, if Manx translates them.
//!
//! The node that receives the packet chooses the backend from its own table of services. Policy judges the connection
//! from the client to this backend. It never sees the address that the client connected to. The backend sees the
//! client's own address, except if its replies would not come back through this node. For packets, `source_behind` of
//! the dataplane makes this decision.
//!
//! Source: `docs/services.md`.

mod client;
mod host_port;
mod service;

use std::net::IpAddr;

use manx_api::explain::PacketSpec;
use manx_calculation::services::Omission;
use manx_objects::object::Service;
use manx_oracle::Party;

use super::Explainer;
use super::connections::{Asked, Connections};
use super::services::{number, services, without_port};

/// The address and port that a client connects to.
#[derive(Debug, Clone, Copy)]
struct AskedFor<'a> {
    /// The text in the request.
    text: &'a str,
    address: IpAddr,
    /// The node that has the address.
    node: Option<&'a str>,
    protocol: u8,
    port: u16,
}

/// The treatment of a connection to a port that no service and no pod has.
enum Untranslated {
    /// The connection is dropped, for this reason.
    Dropped(String),
    /// Policy judges it untranslated, and this note is added.
    AsAsked(String),
}

impl AskedFor<'_> {
    fn packet(&self) -> PacketSpec {
        PacketSpec::Protocol(self.protocol, Some(self.port))
    }

    /// Returns the untranslated connection, marked as dropped.
    fn dropped(&self, from: &str, why: String) -> Asked {
        Asked { dropped: Some(why), ..Asked::new(from, self.text, self.packet()) }
    }
}

impl Explainer<'_> {
    /// Returns the connections that result from a connection of `from`, if Manx translates it. Returns `None` if the
    /// destination is a pod, a cluster IP or a program of a node.
    pub(super) fn by_manx(
        &self,
        from: &str,
        (to, protocol, port): (&str, u8, u16),
    ) -> Result<Option<Connections>, String> {
        let clients = || self.parties.named(from, &mut Vec::new());
        let Some((address, node)) = self.published_address(to, clients)? else { return Ok(None) };
        let asked = AskedFor { text: to, address, node: node.as_deref(), protocol, port };
        let of_family = |it: &Party| it.address().is_ipv4() == address.is_ipv4();
        let Some(client) = clients()?.into_iter().find(of_family) else { return Ok(None) };
        let place = (address, node.is_some());
        let service = self.tables().frontends().service_of(place, protocol, port);
        let pod = match (service, asked.node) {
            (None, Some(node)) => self.host_port(node, &asked),
            _ => None,
        };
        if service.is_none() && pod.is_none() {
            return Ok(self.without_frontend(from, &asked));
        }
        let mut found = Connections { asked: Vec::new(), notes: Vec::new() };
        let Some(client) = self.arrive(from, &client, &asked, &mut found)? else {
            return Ok(Some(found));
        };
        match (service, pod) {
            (Some(service), _) => self.lead_to_service(&client, &asked, service, &mut found)?,
            (None, Some((backend, pod))) => {
                found.notes.push(format!("{to} leads to {pod}, whose hostPort it is"));
                let node = asked.node.unwrap_or_default();
                self.lead_to(&client, node, backend, protocol, &mut found)?;
            }
            (None, None) => {}
        }
        found.asked.dedup();
        found.notes.dedup();
        Ok(Some(found))
    }

    /// Returns the address that a text names, and the node that has this address. The address must be one at which
    /// clients can reach services: a node's address for node ports, or an address that no pod, no node and no cluster
    /// IP has.
    fn published_address(
        &self,
        to: &str,
        clients: impl Fn() -> Result<Vec<Party>, String>,
    ) -> Result<Option<(IpAddr, Option<String>)>, String> {
        let of_node =
            |node: &str| self.tables().addresses_with_node_ports(node).unwrap_or_default();
        if let Some(node) = to.strip_prefix("node/") {
            let clients = clients()?;
            let is_reached = |it: &IpAddr| {
                clients.iter().any(|client| client.address().is_ipv4() == it.is_ipv4())
            };
            let address = of_node(node).into_iter().find(is_reached);
            return Ok(address.map(|it| (it, Some(node.to_owned()))));
        }
        let Ok(address) = to.parse::<IpAddr>() else { return Ok(None) };
        Ok(match self.parties.having(address) {
            [] if self.having(address).is_none() => Some((address, None)),
            [Party::Node { name, .. }] if of_node(name).contains(&address) => {
                Some((address, Some(name.clone())))
            }
            _ => None,
        })
    }

    /// Returns the connection to a port that no service and no pod has. Returns `None` if policy judges it like any
    /// other connection.
    fn without_frontend(&self, from: &str, asked: &AskedFor<'_>) -> Option<Connections> {
        let untranslated = match asked.node {
            Some(node) => self.without_node_port(node, asked)?,
            None => self.without_address(asked)?,
        };
        let as_asked = Asked::new(from, asked.text, asked.packet());
        let (one, notes) = match untranslated {
            Untranslated::Dropped(why) => (Asked { dropped: Some(why), ..as_asked }, Vec::new()),
            Untranslated::AsAsked(note) => (as_asked, vec![note]),
        };
        Some(Connections { asked: vec![one], notes })
    }

    /// Returns the treatment of a port of a node that no service and no pod has.
    fn without_node_port(&self, node: &str, asked: &AskedFor<'_>) -> Option<Untranslated> {
        let (first, last) = self.tables().node_port_range();
        if (first..=last).contains(&asked.port) {
            return Some(Untranslated::Dropped(format!(
                "refused (unknown-port): the nodes' ports {first} to {last} are services' (--node-ports), and none has \
                 this one at {} of node {node}",
                asked.address
            )));
        }
        let is_its = |service: &Service| {
            let mut ports = service.ports.iter();
            ports
                .any(|it| (number(it.protocol), it.node_port) == (asked.protocol, Some(asked.port)))
        };
        let (key, _) = services(self.contents).find(|(_, service)| is_its(service))?;
        Some(Untranslated::AsAsked(format!("{key}: {}", Omission::NodePort(asked.port))))
    }

    /// Returns the treatment of a port of a Service's address that no service has.
    fn without_address(&self, asked: &AskedFor<'_>) -> Option<Untranslated> {
        let AskedFor { text, address, protocol, port, .. } = *asked;
        let has = |service: &Service| service.addresses.contains(&address);
        let (key, service) = services(self.contents).find(|(_, service)| has(service))?;
        if self.tables().frontends().addresses().contains(&address) {
            return Some(Untranslated::Dropped(without_port(key, service, protocol, port)));
        }
        let view = self.tables().seat().and_then(|node| self.view(key, node).ok().flatten());
        let why = view.and_then(|it| {
            let mut untranslated = it.untranslated.into_iter();
            untranslated.find(|(it, _)| *it == address).map(|(_, why)| why)
        });
        let why = why.map_or_else(|| Omission::Address(address).to_string(), |it| it.to_string());
        let note = format!("no node translates {text}, an address of {key}: {why}");
        Some(Untranslated::AsAsked(note))
    }
}
