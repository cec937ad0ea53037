//! Connections to node ports, load balancers' addresses, external IPs and host ports, where Manx translates them.
//!
//! The node that gets the packet chooses the backend, by its own table of services. Policy judges the connection from the
//! client to this backend: it never sees the address that the client asks. The backend sees the client's own address, but
//! where its answers would not come back by this node. `source_behind` of the dataplane decides this for packets.
//!
//! Source: `docs/services.md`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;

use manx_api::explain::PacketSpec;
use manx_calculation::services::view::{ChoiceView, FrontendView, PortView, ServiceView};
use manx_calculation::services::{AddressKind, FrontendKey, Frontends, Omission, WithoutBackend};
use manx_calculation::topology::Route;
use manx_objects::object::{ObjectKey, Service};
use manx_oracle::Party;
use manx_policy_compiler::model::ObjectName;

use super::Explainer;
use super::connections::{Asked, Connections};
use super::services::{number, services, without_port};
use crate::routes::WayOut;

/// What a client asks for.
#[derive(Debug, Clone, Copy)]
struct AskedFor<'a> {
    /// As the request names it.
    text: &'a str,
    address: IpAddr,
    /// The node that has the address.
    node: Option<&'a str>,
    protocol: u8,
    port: u16,
}

/// A client at the node that translates.
#[derive(Debug, Clone)]
struct Client {
    kind: ClientKind,
    /// Its name in requests.
    text: String,
    address: IpAddr,
    /// Its node.
    node: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientKind {
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

/// The backends that clients of a node may get.
struct Chosen {
    /// Each with its port.
    backends: Vec<(IpAddr, u16)>,
    notes: Vec<String>,
}

impl AskedFor<'_> {
    fn packet(&self) -> PacketSpec {
        PacketSpec::Protocol(self.protocol, Some(self.port))
    }

    /// The connection as the client asks for it, which is dropped.
    fn dropped(&self, from: &str, why: String) -> Asked {
        Asked { dropped: Some(why), ..Asked::new(from, self.text, self.packet()) }
    }

    /// The port, the choice and the frontend of a Service that this client finds. Clients from outside may find another
    /// one than clients in the cluster.
    fn frontend<'v>(
        &self,
        view: &'v ServiceView,
        is_outside: bool,
    ) -> Option<(&'v ChoiceView, &'v FrontendView)> {
        let is_of_protocol = |it: &&PortView| it.protocol.number() == self.protocol;
        let choices = view.ports.iter().filter(is_of_protocol).flat_map(|it| &it.choices);
        let all = choices.flat_map(|choice| choice.frontends.iter().map(move |it| (choice, it)));
        let found = all.filter(|(_, it)| {
            let is_node_port = it.kind == AddressKind::NodePort;
            (it.address, it.port, is_node_port) == (self.address, self.port, self.node.is_some())
        });
        let counts = |kind: AddressKind| is_outside || !kind.is_outside_alone();
        found.filter(|(_, it)| counts(it.kind)).max_by_key(|(_, it)| it.kind.is_outside_alone())
    }
}

impl Explainer<'_> {
    /// The connections that one from `from` becomes if Manx translates it. `None`: it is one to a pod, to a cluster IP or to
    /// a program of a node.
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

    /// The address that a text names, and the node that has it, if services' clients may ask there: one of the node with
    /// node ports, or one that no pod, no node and no cluster IP has.
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

    /// What becomes of a connection to a port that no service and no pod has. `None`: it is judged as any other.
    fn without_frontend(&self, from: &str, asked: &AskedFor<'_>) -> Option<Connections> {
        let as_asked = || Asked::new(from, asked.text, asked.packet());
        if let Some(node) = asked.node {
            let (first, last) = self.tables().node_port_range();
            if (first..=last).contains(&asked.port) {
                let why = format!(
                    "refused (unknown-port): the nodes' ports {first} to {last} are services' (--node-ports), and none has \
                     this one at {} of node {node}",
                    asked.address
                );
                return Some(Connections {
                    asked: vec![asked.dropped(from, why)],
                    notes: Vec::new(),
                });
            }
            let is_its = |service: &Service| {
                let mut ports = service.ports.iter();
                ports.any(|it| {
                    (number(it.protocol), it.node_port) == (asked.protocol, Some(asked.port))
                })
            };
            let (key, _) = services(self.contents).find(|(_, service)| is_its(service))?;
            let notes = vec![format!("{key}: {}", Omission::NodePort(asked.port))];
            return Some(Connections { asked: vec![as_asked()], notes });
        }
        let has = |service: &Service| service.addresses.contains(&asked.address);
        let (key, service) = services(self.contents).find(|(_, service)| has(service))?;
        if self.tables().frontends().addresses().contains(&asked.address) {
            let why = without_port(key, service, asked.protocol, asked.port);
            return Some(Connections { asked: vec![asked.dropped(from, why)], notes: Vec::new() });
        }
        let view = self.tables().seat().and_then(|node| self.view(key, node).ok().flatten());
        let why = view.and_then(|it| {
            let mut untranslated = it.untranslated.into_iter();
            untranslated.find(|(address, _)| *address == asked.address).map(|(_, why)| why)
        });
        let why =
            why.map_or_else(|| Omission::Address(asked.address).to_string(), |it| it.to_string());
        let notes = vec![format!("no node translates {}, an address of {key}: {why}", asked.text)];
        Some(Connections { asked: vec![as_asked()], notes })
    }

    /// The client as the node that translates sees it. A pod that asks another node leaves its own one first, and its
    /// egress policy sees the address that it asks. `None`: it does not arrive.
    fn arrive(
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

    /// Adds the connections to the backends of a Service.
    fn lead_to_service(
        &self,
        client: &Client,
        asked: &AskedFor<'_>,
        key: &ObjectKey,
        found: &mut Connections,
    ) -> Result<(), String> {
        found.notes.push(format!("{} leads to {key}", asked.text));
        let at =
            asked.node.or(client.node.as_deref().filter(|_| client.kind != ClientKind::Outside));
        let nodes = match at {
            Some(node) => BTreeSet::from([node.to_owned()]),
            None => self.nodes_of_endpoints(key)?,
        };
        let mut refused = Vec::new();
        let mut led = BTreeSet::new();
        for node in &nodes {
            // An outside host may come in by any node: each backend is asked for at its own.
            let is_asked = |it: IpAddr| at.is_some() || self.home_of(it).as_ref() == Some(node);
            match self.choose(client, asked, key, (node, &is_asked))? {
                Err(why) => refused.push(why),
                Ok(Chosen { backends, notes }) => {
                    found.notes.extend(notes);
                    for backend in backends {
                        led.insert(backend);
                        self.lead_to(client, node, backend, asked.protocol, found)?;
                        if at.is_none() {
                            found.notes.extend(self.seen_elsewhere(node, backend.0)?);
                        }
                    }
                }
            }
        }
        // Hints may mean a backend for other nodes than its own.
        for node in nodes.iter().filter(|_| at.is_none()) {
            let chosen = self.choose(client, asked, key, (node, &|_| true))?;
            for backend in chosen.into_iter().flat_map(|it| it.backends) {
                if led.insert(backend) {
                    self.lead_to(client, node, backend, asked.protocol, found)?;
                }
            }
        }
        if led.is_empty() {
            let why = refused.into_iter().next();
            let why = why.unwrap_or_else(|| format!("dropped (service-without-backend): {key} has no endpoint on a node whose clients get it"));
            found.asked.push(asked.dropped(&client.text, why));
        }
        Ok(())
    }

    /// The backends that a client may get at a node, of those that are asked about. The inner `Err` says why he gets none.
    fn choose(
        &self,
        client: &Client,
        asked: &AskedFor<'_>,
        key: &ObjectKey,
        (node, is_asked): (&str, &dyn Fn(IpAddr) -> bool),
    ) -> Result<Result<Chosen, String>, String> {
        let view = self.view(key, node)?;
        let is_outside = client.kind == ClientKind::Outside;
        let found = view.as_ref().and_then(|it| Some((it, asked.frontend(it, is_outside)?)));
        let Some((view, (choice, frontend))) = found else {
            return Ok(Err(format!("node {node} does not translate {}", asked.text)));
        };
        if !view.serves(client.address, frontend.kind) {
            let why = format!(
                "dropped (service-source-ranges): {} is in none of loadBalancerSourceRanges of {key}",
                client.address
            );
            return Ok(Err(why));
        }
        let mut notes = Vec::new();
        for it in choice.endpoints.iter().filter(|it| is_asked(it.address)) {
            let Some(why) = it.left_out else { continue };
            let ends = self.ends_of(it.address).join(", ");
            notes.push(format!("{ends} is left out for clients of node {node}: {why}"));
        }
        let backends = choice.backends().filter(|it| is_asked(it.address));
        let backends = backends.filter_map(|it| Some((it.address, it.port?)));
        let backends: Vec<_> = backends.collect();
        if !backends.is_empty() {
            return Ok(Ok(Chosen { backends, notes }));
        }
        let what = match choice.without_backend {
            WithoutBackend::Refuse => "refused",
            WithoutBackend::Drop => "dropped",
        };
        let why = if view.is_known {
            format!("{key} has no endpoint for clients of node {node}")
        } else {
            format!("an EndpointSlice of namespace {} is not valid", key.namespace)
        };
        let more: Vec<String> = [why].into_iter().chain(notes).collect();
        Ok(Err(format!("{what} (service-without-backend): {}", more.join("; "))))
    }

    /// Adds the connection to a backend, which `node` chooses for the client.
    fn lead_to(
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

    /// The source that an end sees of a process of `node` that a service has led to it, if it is another one.
    pub(super) fn process_seen_as(&self, node: &str, end: &str) -> Result<Option<IpAddr>, String> {
        let parties = self.parties.named(end, &mut Vec::new())?;
        let address = parties.iter().map(Party::address).max_by_key(IpAddr::is_ipv4);
        let Some(address) = address else { return Ok(None) };
        Ok(match self.seen(ClientKind::Process, node, address)? {
            Seen::Node(address) => Some(address),
            Seen::Client | Seen::Visitor | Seen::Nothing => None,
        })
    }

    /// The nodes of a Service's endpoints.
    fn nodes_of_endpoints(&self, key: &ObjectKey) -> Result<BTreeSet<String>, String> {
        let Some(seat) = self.tables().seat() else { return Ok(BTreeSet::new()) };
        let view = self.view(key, seat)?;
        let choices = view.iter().flat_map(|it| &it.ports).flat_map(|it| &it.choices);
        let endpoints = choices.flat_map(|it| &it.endpoints).map(|it| it.address);
        let nodes = endpoints.filter_map(|it| self.home_of(it));
        Ok(nodes.chain([seat.to_owned()]).collect())
    }

    /// The node that has an address or whose pod has it, if it has tables, else the first one that has.
    fn home_of(&self, address: IpAddr) -> Option<String> {
        let mut nodes = self.parties.having(address).iter().filter_map(|it| self.oracle.node(it));
        let has_tables = |it: &&str| self.routes.topology(it).is_ok_and(|found| found.is_some());
        nodes.find(has_tables).or(self.tables().seat()).map(str::to_owned)
    }

    /// A note about outside hosts who come in by another node than the backend's `home`.
    fn seen_elsewhere(&self, home: &str, backend: IpAddr) -> Result<Option<String>, String> {
        let mut others = self.routes.nodes_with_blocks().into_iter().filter(|it| it != home);
        let Some(other) = others.next() else { return Ok(None) };
        Ok(match self.seen(ClientKind::Outside, &other, backend)? {
            Seen::Node(address) => Some(format!(
                "clients who come in by another node are seen as that node, such as {other} ({address}): no tunnel leads to {backend}"
            )),
            Seen::Client | Seen::Visitor | Seen::Nothing => None,
        })
    }

    /// The pod to which a port of a node leads, with the address and port there.
    fn host_port(&self, node: &str, asked: &AskedFor<'_>) -> Option<((IpAddr, u16), ObjectKey)> {
        let frontends = self.host_ports(node)?;
        let AskedFor { address, protocol, port, .. } = *asked;
        let key = FrontendKey { address: address.into(), protocol, port };
        let pod = frontends.asked_ports().remove(&key)?;
        let backend = frontends.table().frontend(&key)?.backends.first().copied()?;
        Some(((backend.address.to_ip(), backend.port), ObjectKey::clone(&pod)))
    }

    fn host_ports(&self, node: &str) -> Option<Rc<Frontends>> {
        if let Some(known) = self.host_ports.borrow().get(node) {
            return known.clone();
        }
        let made = self.tables().with_host_ports(node).ok().map(Rc::new);
        self.host_ports.borrow_mut().insert(node.to_owned(), made.clone());
        made
    }

    /// What a node does with a Service.
    fn view(&self, key: &ObjectKey, node: &str) -> Result<Option<ServiceView>, String> {
        self.tables().view(&ObjectName::new(&key.namespace, &key.name), node)
    }

    /// Whether nodes translate nothing of a Service.
    pub(super) fn is_left_alone(&self, key: &ObjectKey) -> bool {
        let view = self.tables().seat().and_then(|node| self.view(key, node).ok().flatten());
        view.is_some_and(|it| it.left_alone.is_some())
    }

    /// The ends with an address, in the form of requests. In an explanation a pod's name means its IPv4 address first.
    fn ends_of(&self, address: IpAddr) -> Vec<String> {
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
