//! The client of a published port, as the translating node sees it and as a backend sees it.

use std::net::IpAddr;

use manx_api::explain::PacketSpec;
use manx_calculation::topology::Route;
use manx_oracle::Party;

use super::AskedFor;
use crate::explain::Explainer;
use crate::explain::connections::{Asked, Connections};
use crate::routes::WayOut;

/// A client as the translating node sees it.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) kind: ClientKind,
    /// The client in the form of requests.
    pub(super) text: String,
    pub(super) address: IpAddr,
    /// The client's node.
    pub(super) node: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientKind {
    /// A pod of the translating node.
    Pod,
    /// A process of the translating node.
    Process,
    Outside,
}

/// The source that a backend sees.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Client,
    /// The client's own address. The client is outside the cluster, and the packet comes through the tunnel of the
    /// translating node.
    Visitor,
    /// An address of the translating node.
    Node(IpAddr),
    /// The packet does not arrive: the translating node has no address of this family.
    Nothing,
}

impl Explainer<'_> {
    /// Returns the client as the translating node sees it. If a pod connects to another node, the packet first leaves
    /// the pod's own node, and the pod's egress policy sees the untranslated address. Returns `None` if the packet does
    /// not arrive.
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

    /// Adds the connection from the client to a backend that `node` has chosen.
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
                // A process of the node connects to its own node, so the source does not change.
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

    /// Returns the source address that an end sees for a process of `node` that connects through a service. Returns
    /// `None` if the address does not change.
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

    /// Returns a note about clients outside the cluster that come in through a node other than the backend's node
    /// `home`.
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

    /// Returns the source that a backend sees for a client whose connection `node` has translated.
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

    /// Returns the ends that have an address, in the form of requests. For an IPv6 address of a pod, this is the
    /// address itself, because the name of a pod stands for its IPv4 address first.
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
