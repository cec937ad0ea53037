//! Connections to services through node ports, external addresses and addresses of load balancers, if kube-proxy
//! translates them.
//!
//! kube-proxy translates in the kernel of the node that receives the packet. With `externalTrafficPolicy: Cluster` the
//! node masquerades every client, so the endpoint sees an address of that node. With `Local` the node does not
//! masquerade, and uses only its own endpoints. Policy treats the translated connection like any other. Its source is
//! the address that the endpoint sees. So one connection from a pod results in several: from the pod to the published
//! address, which the pod's egress policy sees untranslated, and from there to each endpoint.
//!
//! Source: Kubernetes documentation, "Using Source IP"; `docs/kubernetes.md`, "What a node forwards".

use std::net::IpAddr;

use manx_api::explain::PacketSpec;
use manx_calculation::topology::Route;
use manx_objects::object::{Kind, Object, ObjectKey, Service};
use manx_oracle::Party;

use super::Explainer;
use super::connections::{Asked, Connections};
use super::services::{Destination, Destinations, number, services};

/// A port of a service that clients outside the cluster can reach.
struct Published<'a> {
    key: &'a ObjectKey,
    service: &'a Service,
    /// The service's own port.
    port: u16,
    /// The node whose kernel receives the packet, if this follows from the address.
    node: Option<String>,
}

impl Explainer<'_> {
    /// Returns the connections that result from a connection to a node port or an external address, if kube-proxy
    /// translates it. Returns `None` if no service has this address and port.
    pub(super) fn by_kube_proxy(
        &self,
        from: &str,
        (to, protocol, port): (&str, u8, u16),
    ) -> Result<Option<Connections>, String> {
        let packet = PacketSpec::Protocol(protocol, Some(port));
        let Some(Published { key, service, port, node }) = self.published(to, (protocol, port))
        else {
            return Ok(None);
        };
        let client = self.parties.named(from, &mut Vec::new())?.into_iter().next();
        let is_pod = matches!(client, Some(Party::Pod { .. }));
        let clients_node = client.as_ref().and_then(|it| self.oracle.node(it)).map(str::to_owned);
        // The client's node translates an external address itself, so the packet does not leave this node untranslated.
        let at = node.clone().or_else(|| clients_node.clone());
        let name = format!("svc/{}/{}", key.namespace, key.name);
        let Destinations { ends, mut notes } =
            self.destinations(&name, PacketSpec::Protocol(protocol, Some(port)), None)?;
        let direct = Asked::new(from, to, packet);
        if service.keeps_clients {
            notes.push(format!("{to} leads to {key}, whose externalTrafficPolicy is Local: the client's address is kept"));
            let asked = self.keeping_client((direct, is_pod), key, ends, at);
            return Ok(Some(Connections { asked, notes }));
        }
        let by_itself = !is_pod && clients_node.is_some() && clients_node == at;
        let mut all = Vec::new();
        if is_pod {
            all.push(direct);
        }
        for Destination { end, packet, .. } in ends {
            if by_itself {
                all.push(Asked::new(from, &end, packet));
                continue;
            }
            // A client outside the cluster may come in through any node.
            let Some(node) = at.clone().or_else(|| self.node_of(&end)) else {
                return Err(format!(
                    "which node gets what is sent to {to} is not known: ask for node/NAME"
                ));
            };
            let seen = self.masquerade(&node, &end)?;
            notes
                .push(format!("{to} leads to {key}: node {node} masquerades the client as {seen}"));
            all.push(Asked::new(&seen.to_string(), &end, packet));
        }
        notes.dedup();
        Ok(Some(Connections { asked: all, notes }))
    }

    /// Returns the connections to a service that keeps the client's address: one to each endpoint on `at`, the node
    /// that receives the packet. `direct` is the connection to the published address. If the packet is dropped,
    /// `direct` is the only result, with the reason.
    fn keeping_client(
        &self,
        (direct, is_pod): (Asked, bool),
        service: &ObjectKey,
        ends: Vec<Destination>,
        at: Option<String>,
    ) -> Vec<Asked> {
        if is_pod {
            let why = "what comes back from the node with a pod's address is taken for forged";
            return vec![Asked { dropped: Some(why.to_owned()), ..direct }];
        }
        let is_there = |end: &str| at.is_none() || self.node_of(end) == at;
        let ends = ends.into_iter().filter(|it| is_there(&it.end));
        let all: Vec<Asked> = ends.map(|it| Asked::new(&direct.from, &it.end, it.packet)).collect();
        if all.is_empty() {
            let node = at.unwrap_or_default();
            let why = format!(
                "{service} has no endpoint on node {node}, and its externalTrafficPolicy is Local"
            );
            return vec![Asked { dropped: Some(why), ..direct }];
        }
        all
    }

    /// Returns the service to which a node port or an external address leads.
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

    /// Returns the source address that the endpoint sees when this node masquerades the client. It is an address of
    /// Manx's interface if Manx carries the packets and the node has such an address; otherwise it is the node's own
    /// address.
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
        let own = object.internal_ips.iter().copied().find(of_family);
        let by_manx = self.routes.node(node).and_then(|node| {
            let all = node.plan.masquerade_addresses();
            // If Manx has no such address on the node, the kernel uses another address of the node.
            if all.is_empty() { own } else { all.iter().copied().find(of_family) }
        });
        let seen = match route {
            // A node without a block for pods has no interface of Manx, and Manx carries neither direct packets nor
            // those that leave the cluster.
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
