//! Connections to services from outside the cluster: by node ports, external addresses, and addresses of load
//! balancers.
//!
//! kube-proxy translates them in the kernel of the node that gets them. With `externalTrafficPolicy: Cluster` it
//! masquerades every client, so the endpoint sees an address of that node. With `Local` it does not, and uses endpoints
//! of that node only. The translated connection is like any other, from the address that the endpoint sees. So one
//! question becomes several: from a pod to the published address, which the pod's egress policy sees untranslated, and
//! from there to each endpoint.
//!
//! Source: Kubernetes documentation, "Using Source IP"; `docs/kubernetes.md`, "What a node forwards".

use std::net::IpAddr;

use manx_api::explain::PacketSpec;
use manx_calculation::import;
use manx_calculation::topology::Route;
use manx_objects::object::{Kind, Object, ObjectKey, Service};
use manx_oracle::Party;

use super::Explainer;
use super::services::{Destination, Destinations, number, services};

/// A connection to judge, in the form of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asked {
    /// The source.
    pub from: String,
    /// The destination.
    pub to: String,
    /// The packet that arrives at the destination.
    pub packet: PacketSpec,
    /// The reason why it is dropped whatever policy says, if it is.
    pub dropped: Option<String>,
}

/// The connections that one connection becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connections {
    /// All of these must pass for the connection to pass by every endpoint.
    pub asked: Vec<Asked>,
    /// Notes about the translations of services.
    pub notes: Vec<String>,
}

/// A port of a service that is reached from outside the cluster.
struct Published<'a> {
    key: &'a ObjectKey,
    service: &'a Service,
    /// The service's own port.
    port: u16,
    /// The node whose kernel gets the packet, if the address tells.
    node: Option<String>,
}

impl Explainer<'_> {
    /// The connections that policy decides about if `from`, a single end, connects to `to`. `to` may be anything that
    /// [`Explainer::destinations`] takes.
    pub fn connections(
        &self,
        from: &str,
        to: &str,
        packet: PacketSpec,
    ) -> Result<Connections, String> {
        let asked = |from: &str, to: &str, packet| Asked {
            from: from.to_owned(),
            to: to.to_owned(),
            packet,
            dropped: None,
        };
        let (published, protocol) = match packet {
            PacketSpec::Protocol(protocol, Some(port)) => {
                (self.published(to, (protocol, port)), protocol)
            }
            _ => (None, 0),
        };
        let Some(Published { key, service, port, node }) = published else {
            let node = self.node_of(from);
            let Destinations { ends, notes } = self.destinations(to, packet, node.as_deref())?;
            let asked = ends.into_iter().map(|Destination { end, packet, dropped }| Asked {
                dropped,
                ..asked(from, &end, packet)
            });
            return Ok(Connections { asked: asked.collect(), notes });
        };
        let client = self.parties.named(from, &mut Vec::new())?.into_iter().next();
        let is_pod = matches!(client, Some(Party::Pod { .. }));
        let clients_node = client.as_ref().and_then(|it| self.oracle.node(it)).map(str::to_owned);
        // A packet to an external address leaves the node only if the node does not translate it.
        let at = node.clone().or_else(|| clients_node.clone());
        let name = format!("svc/{}/{}", key.namespace, key.name);
        let Destinations { ends, mut notes } =
            self.destinations(&name, PacketSpec::Protocol(protocol, Some(port)), None)?;
        let mut all = Vec::new();
        if is_pod {
            all.push(asked(from, to, packet));
        }
        let by_itself = !is_pod && clients_node.is_some() && clients_node == at;
        if service.keeps_clients {
            notes.push(format!("{to} leads to {key}, whose externalTrafficPolicy is Local: the client's address is kept"));
            if is_pod {
                let why = "what comes back from the node with a pod's address is taken for forged";
                all[0].dropped = Some(why.to_owned());
                return Ok(Connections { asked: all, notes });
            }
            let is_there = |end: &str| at.is_none() || self.node_of(end) == at;
            let ends = ends.into_iter().filter(|it| is_there(&it.end));
            all.extend(ends.map(|it| asked(from, &it.end, it.packet)));
            if all.is_empty() {
                return Err(format!("{key} has no endpoint on node {}", at.unwrap_or_default()));
            }
            return Ok(Connections { asked: all, notes });
        }
        for Destination { end, packet, .. } in ends {
            if by_itself {
                all.push(asked(from, &end, packet));
                continue;
            }
            // A client outside the cluster may come in by any node.
            let Some(node) = at.clone().or_else(|| self.node_of(&end)) else {
                return Err(format!(
                    "which node gets what is sent to {to} is not known: ask for node/NAME"
                ));
            };
            let seen = self.masquerade(&node, &end)?;
            notes
                .push(format!("{to} leads to {key}: node {node} masquerades the client as {seen}"));
            all.push(asked(&seen.to_string(), &end, packet));
        }
        notes.dedup();
        Ok(Connections { asked: all, notes })
    }

    /// The service that a node port or an external address leads to.
    fn published(&self, to: &str, (protocol, port): (u8, u16)) -> Option<Published<'_>> {
        let address: Option<IpAddr> = to.parse().ok();
        let named = to.strip_prefix("node/").map(str::to_owned);
        let node = named.or_else(|| {
            self.parties.having(address?).iter().find_map(|party| match party {
                Party::Node { name, .. } => Some(name.clone()),
                _ => None,
            })
        });
        let external = address.filter(|it| self.parties.having(*it).is_empty());
        services(self.contents).find_map(|(key, service)| {
            let is_external = external.is_some_and(|it| {
                service.addresses.contains(&it) && !service.cluster_ips.contains(&it)
            });
            let mut ports = service.ports.iter().filter(|it| number(it.protocol) == protocol);
            let found = ports.find(|it| {
                (node.is_some() && it.node_port == Some(port)) || (is_external && it.port == port)
            })?;
            Some(Published { key, service, port: found.port, node: node.clone() })
        })
    }

    /// The node of an end that is a pod.
    fn node_of(&self, end: &str) -> Option<String> {
        let found = self.parties.named(end, &mut Vec::new()).ok()?;
        Some(self.oracle.node(found.first()?)?.to_owned())
    }

    /// The source address that the endpoint sees when this node masquerades the client: an address of Manx's interface
    /// if Manx carries the packets, otherwise the node's own.
    fn masquerade(&self, node: &str, end: &str) -> Result<IpAddr, String> {
        let to = self.parties.named(end, &mut Vec::new())?;
        let Some(to) = to.first().map(Party::address) else {
            return Err(format!("{end} has no address"));
        };
        let key = ObjectKey::new(Kind::Node, "", node);
        let Some(Object::Node(object)) = self.contents.valid(&key) else {
            return Err(format!("there is no valid node {node} in the manifests"));
        };
        let route = self.routes.route(node, to)?.map(|(_, route)| route);
        let of_family = |it: &IpAddr| it.is_ipv4() == to.is_ipv4();
        let by_manx = import::plan(object).masquerade_addresses().iter().copied().find(of_family);
        let own = object.internal_ips.iter().copied().find(of_family);
        let seen = match route {
            // A node without a block has no Manx interface.
            None | Some(Route::Direct(_) | Route::World) => own,
            Some(
                Route::Local
                | Route::Node
                | Route::Masquerade
                | Route::Tunnel(_)
                | Route::NoRoute(_),
            ) => by_manx,
        };
        seen.ok_or_else(|| format!("node {node} has no address of the family of {to}"))
    }
}
