//! A Service with a published port: the backends that nodes choose for a client.

use std::collections::BTreeSet;
use std::net::IpAddr;

use manx_calculation::services::view::{ChoiceView, FrontendView, PortView, ServiceView};
use manx_calculation::services::{AddressKind, WithoutBackend};
use manx_objects::object::ObjectKey;
use manx_policy_compiler::model::ObjectName;

use super::AskedFor;
use super::client::{Client, ClientKind};
use crate::explain::Explainer;
use crate::explain::connections::Connections;

/// The backends that clients of a node may get.
struct Chosen {
    /// The address and port of each backend.
    backends: Vec<(IpAddr, u16)>,
    notes: Vec<String>,
}

impl AskedFor<'_> {
    /// Returns the choice and the frontend of a Service that apply to this client. They may differ between clients
    /// outside the cluster and clients in it.
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
    /// Adds the connections to the backends of a Service.
    pub(super) fn lead_to_service(
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
        let mut views = Vec::new();
        let mut refused = Vec::new();
        let mut led = BTreeSet::new();
        for node in &nodes {
            // A client outside the cluster may come in through any node, so each backend is examined at the backend's
            // own node.
            let is_asked = |it: IpAddr| at.is_some() || self.home_of(it).as_ref() == Some(node);
            let view = self.view(key, node)?;
            match self.choose(client, asked, key, (node, view.as_ref()), is_asked) {
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
            views.push((node, view));
        }
        // Hints may assign a backend to clients of other nodes than its own.
        for (node, view) in views.iter().filter(|_| at.is_none()) {
            let chosen = self.choose(client, asked, key, (node, view.as_ref()), |_| true);
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

    /// Returns the backends that a client may get at a node, from those that `is_asked` accepts. Returns `Err`, with
    /// the reason, if the client gets none.
    fn choose(
        &self,
        client: &Client,
        asked: &AskedFor<'_>,
        key: &ObjectKey,
        (node, view): (&str, Option<&ServiceView>),
        is_asked: impl Fn(IpAddr) -> bool,
    ) -> Result<Chosen, String> {
        let is_outside = client.kind == ClientKind::Outside;
        let found = view.and_then(|it| Some((it, asked.frontend(it, is_outside)?)));
        let Some((view, (choice, frontend))) = found else {
            return Err(format!("node {node} does not translate {}", asked.text));
        };
        if !view.serves(client.address, frontend.kind) {
            let why = format!(
                "dropped (service-source-ranges): {} is in none of loadBalancerSourceRanges of {key}",
                client.address
            );
            return Err(why);
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
            return Ok(Chosen { backends, notes });
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
        Err(format!("{what} (service-without-backend): {}", more.join("; ")))
    }

    /// Returns the nodes of a Service's endpoints.
    fn nodes_of_endpoints(&self, key: &ObjectKey) -> Result<BTreeSet<String>, String> {
        let Some(seat) = self.tables().seat() else { return Ok(BTreeSet::new()) };
        let view = self.view(key, seat)?;
        let choices = view.iter().flat_map(|it| &it.ports).flat_map(|it| &it.choices);
        let endpoints = choices.flat_map(|it| &it.endpoints).map(|it| it.address);
        let nodes = endpoints.filter_map(|it| self.home_of(it));
        Ok(nodes.chain([seat.to_owned()]).collect())
    }

    /// Returns the node that has an address, or whose pod has it, if this node has tables. Otherwise returns the first
    /// node that has tables.
    fn home_of(&self, address: IpAddr) -> Option<String> {
        let mut nodes = self.parties.having(address).iter().filter_map(|it| self.oracle.node(it));
        let has_tables = |it: &&str| self.routes.topology(it).is_ok_and(|found| found.is_some());
        nodes.find(has_tables).or(self.tables().seat()).map(str::to_owned)
    }

    /// Returns a Service as a node translates it.
    pub(super) fn view(&self, key: &ObjectKey, node: &str) -> Result<Option<ServiceView>, String> {
        self.tables().view(&ObjectName::new(&key.namespace, &key.name), node)
    }

    /// Returns whether nodes translate nothing of a Service.
    pub(in crate::explain) fn is_left_alone(&self, key: &ObjectKey) -> bool {
        let view = self.tables().seat().and_then(|node| self.view(key, node).ok().flatten());
        view.is_some_and(|it| it.left_alone.is_some())
    }
}
