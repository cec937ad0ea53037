//! The client of a published port: how the node that translates sees it, and how a backend does.

use std::net::IpAddr;

use manx_api::explain::PacketSpec;
use manx_calculation::topology::Route;
use manx_oracle::Party;

use super::AskedFor;
use crate::explain::Explainer;
use crate::explain::connections::{Asked, Connections};
use crate::routes::WayOut;

/// A client at the node that translates.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) kind: ClientKind,
    /// Its name in requests.
    pub(super) text: String,
    pub(super) address: IpAddr,
    /// Its node.
    pub(super) node: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientKind {
    /// A pod of this node.
    Pod,
    /// A process of this node.
    Process,
    Outside,
}

/// The source that a backend sees.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Client,
    /// The client, whom the tunnel of the node that translates brings from outside.
    Visitor,
    /// An address of the node that translates.
    Node(IpAddr),
    /// Nothing: that node has no address of this family.
    Nothing,
}

impl Explainer<'_> {
    /// The client as the node that translates sees it. A pod that asks another node leaves its own one first, and its
    /// egress policy sees the address that it asks. `None`: it does not arrive.
    pub(super) fn arrive(
        &self,
        from: &str,
        client: &Party,
        asked: &AskedFor<'_>,
        found: &mut Connections,
    ) -> Result<Option<Client>, String> {
        let node = self.oracle.node(client).map(str::to_owned);
        let is_here = node.is_some() && asked.node.is_none_or(|it| node.as_deref() == Some(it));
        let (address, text) = (client.address(), from.to_owned());
        let kind = match client {
            Party::Pod { .. } if is_here => ClientKind::Pod,
            Party::Node { .. } if is_here => ClientKind::Process,
            _ => ClientKind::Outside,
        };
        let (Party::Pod { .. }, Some(there), Some(own)) = (client, asked.node, &node) else {
            return Ok(Some(Client { kind, text, address, node }));
        };
        if is_here {
            return Ok(Some(Client { kind, text, address, node }));
        }
        let leaves = Asked::new(from, asked.text, asked.packet());
        let why = match self.routes.way_out(own, [address, asked.address])? {
            WayOut::As(address) => {
                found.asked.push(leaves);
                let note = format!(
                    "node {own} sends what the pod asks node {there} with its own address {address} (natOutgoing)"
                );
                found.notes.push(note);
                let text = address.to_string();
                return Ok(Some(Client { kind, text, address, node: None }));
            }
            WayOut::Closed => {
                "dropped (no-route): the node has no address by which the world sees pods"
            }
            WayOut::AsItself => match self.routes.route(there, address)? {
                Some((_, Route::Direct(_) | Route::World)) | None => {
                    found.asked.push(leaves);
                    return Ok(Some(Client { kind, text, address, node: None }));
                }
                Some(_) => {
                    "dropped (source-spoofed): it comes to the other node with a pod's address, and not in a tunnel"
                }
            },
        };
        found.asked.push(Asked { dropped: Some(why.to_owned()), ..leaves });
        Ok(None)
    }

    /// Adds the connection to a backend, which `node` chooses for the client.
    pub(super) fn lead_to(
        &self,
        client: &Client,
        node: &str,
        (backend, port): (IpAddr, u16),
        protocol: u8,
        found: &mut Connections,
    ) -> Result<(), String> {
        let packet = PacketSpec::Protocol(protocol, Some(port));
        let seen = self.seen(client.kind, node, backend)?;
        for end in self.ends_of(backend) {
            let mut asked = Asked::new(&client.text, &end, packet);
            match &seen {
                Seen::Client => {}
                Seen::Visitor => asked.brought_by = Some(node.to_owned()),
                // A host that is asked by itself.
                Seen::Node(address) if *address == client.address => {}
                Seen::Node(address) => {
                    found.notes.push(format!("{end} sees the client as node {node} ({address})"));
                    asked.from = address.to_string();
                }
                Seen::Nothing => {
                    let why = "dropped (no-route): the node has no address of this family that a tunnel brings";
                    asked.dropped = Some(why.to_owned());
                }
            }
            if !found.asked.contains(&asked) {
                found.asked.push(asked);
            }
        }
        Ok(())
    }

    /// The source that an end sees of a process of `node` that a service has led to it, if it is another one.
    pub(in crate::explain) fn process_seen_as(
        &self,
        node: &str,
        end: &str,
    ) -> Result<Option<IpAddr>, String> {
        let parties = self.parties.named(end, &mut Vec::new())?;
        let address = parties.iter().map(Party::address).max_by_key(IpAddr::is_ipv4);
        let Some(address) = address else { return Ok(None) };
        Ok(match self.seen(ClientKind::Process, node, address)? {
            Seen::Node(address) => Some(address),
            Seen::Client | Seen::Visitor | Seen::Nothing => None,
        })
    }

    /// A note about outside hosts who come in by another node than the backend's `home`.
    pub(super) fn seen_elsewhere(
        &self,
        home: &str,
        backend: IpAddr,
    ) -> Result<Option<String>, String> {
        let mut others = self.routes.nodes_for_pods().into_iter().filter(|it| it != home);
        let Some(other) = others.next() else { return Ok(None) };
        Ok(match self.seen(ClientKind::Outside, &other, backend)? {
            Seen::Node(address) => Some(format!(
                "clients who come in by another node are seen as that node, such as {other} ({address}): no tunnel leads to {backend}"
            )),
            Seen::Client | Seen::Visitor | Seen::Nothing => None,
        })
    }

    /// The source that a backend sees of a client whom `node` has led to it.
    fn seen(&self, client: ClientKind, node: &str, backend: IpAddr) -> Result<Seen, String> {
        let Some((_, route)) = self.routes.route(node, backend)? else { return Ok(Seen::Client) };
        let of_family = |it: &IpAddr| it.is_ipv4() == backend.is_ipv4();
        let by_node = |address: Option<IpAddr>| address.map_or(Seen::Nothing, Seen::Node);
        Ok(match (client, route) {
            (ClientKind::Pod, _) | (_, Route::Local | Route::NoRoute(_)) => Seen::Client,
            (ClientKind::Outside, Route::Tunnel(_)) => Seen::Visitor,
            (
                ClientKind::Process | ClientKind::Outside,
                Route::Node | Route::Masquerade | Route::Direct(_) | Route::World,
            ) => {
                let addresses = self.tables().addresses_with_node_ports(node)?;
                by_node(addresses.into_iter().find(of_family))
            }
            (ClientKind::Process, Route::Tunnel(_)) => {
                let topology = self.routes.topology(node)?.unwrap_or_default();
                let own = topology.tunnel_addresses.iter().chain(&topology.addresses);
                by_node(own.copied().filter(IpAddr::is_ipv4).find(of_family))
            }
        })
    }

    /// The ends with an address, in the form of requests. In an explanation a pod's name means its IPv4 address first.
    pub(super) fn ends_of(&self, address: IpAddr) -> Vec<String> {
        let pods = self.parties.having(address).iter().filter_map(|it| match it {
            Party::Pod { namespace, name, .. } => Some(format!("{namespace}/{name}")),
            Party::Node { .. } | Party::Address(_) => None,
        });
        let pods: Vec<String> = pods.collect();
        if pods.is_empty() || (pods.len() == 1 && address.is_ipv6()) {
            vec![address.to_string()]
        } else {
            pods
        }
    }
}
