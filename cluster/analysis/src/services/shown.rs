//! One Service, as all nodes see it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use manx_calculation::services::view::{ChoiceView, FrontendView, PortView, ServiceView};
use manx_calculation::services::{
    AddressKind, LeftOut, LocalEndpoints, TrafficPolicy, Untranslated, WithoutBackend,
};
use manx_objects::object::{Kind, Object, ObjectKey, Service};
use manx_policy_compiler::model::ObjectName;

use super::ServiceTables;
use super::list::Port;
use super::traffic::Traffic;

/// Indexes of [`ShownService::nodes`].
pub type Nodes = BTreeSet<usize>;

/// See the module.
#[derive(Debug, Clone)]
pub struct ShownService<'a> {
    /// Its name.
    pub name: ObjectName,
    /// The object.
    pub service: &'a Service,
    /// The nodes that were requested and have tables.
    pub nodes: Vec<&'a str>,
    /// The reasons why other nodes have no tables, one line each.
    pub without_tables: Vec<String>,
    /// The reason why nothing of the Service is translated. If it is present, the following fields have no meaning.
    pub left_alone: Option<String>,
    /// Those settings of the Service for its clients that take effect.
    pub traffic: Traffic,
    /// The answer to load balancers, if the Service has a health check.
    pub health_check: Option<ShownHealthCheck>,
    /// Its addresses that no node translates, each with the reason.
    pub untranslated: Vec<(IpAddr, Untranslated)>,
    /// Whether the Service's endpoints are known. They are not known while an EndpointSlice of its namespace is
    /// invalid.
    pub is_known: bool,
    /// The ports, one for each item of `spec.ports`, in the same order.
    pub ports: Vec<ShownPort>,
}

/// The answer to load balancers on a Service's `healthCheckNodePort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShownHealthCheck {
    /// Each node answers with the number of its ready endpoints, on its IPv4 and its IPv6 addresses.
    Served {
        /// The port.
        port: u16,
        /// The ready endpoints of each node.
        ready: BTreeMap<usize, LocalEndpoints>,
    },
    /// The port is not served, for this reason.
    Unserved(String),
}

/// A port of a Service.
#[derive(Debug, Clone)]
pub struct ShownPort {
    /// The port, as the Service defines it.
    pub port: Port,
    /// The reasons why some addresses of the Service have no frontend, and the nodes where this is so.
    pub omissions: BTreeMap<String, Nodes>,
    /// Groups of frontends. Clients of all frontends in a group get the same endpoints.
    pub groups: Vec<Group>,
}

/// Frontends of one family and one traffic policy, with their endpoints.
#[derive(Debug, Clone)]
pub struct Group {
    /// The policy that says which endpoints clients may get.
    pub policy: TrafficPolicy,
    /// The frontends that are the same on all nodes.
    pub frontends: Vec<FrontendView>,
    /// The frontends at the addresses of each node.
    pub of_nodes: BTreeMap<usize, Vec<FrontendView>>,
    /// The endpoints, by address, port and node.
    pub endpoints: BTreeMap<End, Fate>,
    /// The nodes that refuse the connections of their clients, because there is no backend.
    pub refused: Nodes,
    /// The nodes that drop the packets of their clients, because only other nodes have a backend.
    pub dropped: Nodes,
}

/// An endpoint: its address, its port (if it has one for the Service's port), and its node (if it is known).
pub type End = (IpAddr, Option<u16>, Option<Arc<str>>);

/// The nodes whose clients may get an endpoint, and the reasons at the other nodes.
#[derive(Debug, Clone, Default)]
pub struct Fate {
    /// The nodes whose clients may get the endpoint.
    pub backend_for: Nodes,
    /// The reasons why clients of other nodes do not get it.
    pub left_out: BTreeMap<LeftOut, Nodes>,
}

/// The properties that all frontends of a group have in common.
type GroupKey = (bool, bool, TrafficPolicy, Vec<FrontendView>);

impl ServiceTables<'_> {
    /// Returns a Service as the nodes see it. Returns `Err` if there is no valid Service of this name.
    pub fn shown(&self, name: &ObjectName) -> Result<ShownService<'_>, String> {
        let key = ObjectKey::new(Kind::Service, &name.namespace, &name.name);
        let Some(stored) = self.contents.objects.get(&key) else {
            let beside =
                self.names().filter(|it| it.name == name.name || it.namespace == name.namespace);
            let found = manx_objects::few(beside, 10);
            let found = if found.is_empty() { String::new() } else { format!("; found {found}") };
            return Err(format!("{key} is not in the manifests{found}"));
        };
        let Some(Object::Service(service)) = stored.state.valid() else {
            return Err(format!("{key} is not valid, so nothing of it is translated"));
        };
        let (mut views, mut without_tables): (Vec<(&str, ServiceView)>, _) =
            (Vec::new(), Vec::new());
        for node in &self.nodes {
            match self.view(name, node) {
                Ok(view) => views.extend(view.map(|view| (node.as_str(), view))),
                Err(why) => without_tables.push(why),
            }
        }
        let Some((_, first)) = views.first() else {
            return Err(format!("no node has tables, so what becomes of {key} is not known"));
        };
        let of_port = |(index, port): (usize, &PortView)| {
            let views = views.iter().enumerate();
            let views = views.filter_map(|(node, (_, view))| Some((node, view.ports.get(index)?)));
            shown_port(port, views)
        };
        Ok(ShownService {
            name: name.clone(),
            service,
            nodes: views.iter().map(|(node, _)| *node).collect(),
            without_tables,
            left_alone: first.left_alone.map(|why| why.to_string()),
            traffic: Traffic::new(service, first),
            health_check: self.shown_health_check(name, views.iter().map(|(node, _)| *node)),
            untranslated: first.untranslated.clone(),
            is_known: first.is_known,
            ports: first.ports.iter().enumerate().map(of_port).collect(),
        })
    }
}

impl ServiceTables<'_> {
    fn shown_health_check<'a>(
        &self,
        name: &ObjectName,
        nodes: impl Iterator<Item = &'a str>,
    ) -> Option<ShownHealthCheck> {
        let mut served: Option<(u16, BTreeMap<usize, LocalEndpoints>)> = None;
        for (index, node) in nodes.enumerate() {
            match self.health_check(name, node)? {
                Ok((port, ready)) => {
                    served.get_or_insert_with(|| (port, BTreeMap::new())).1.insert(index, ready);
                }
                Err(why) => return Some(ShownHealthCheck::Unserved(why.to_string())),
            }
        }
        served.map(|(port, ready)| ShownHealthCheck::Served { port, ready })
    }
}

fn shown_port<'a>(
    port: &PortView,
    views: impl Iterator<Item = (usize, &'a PortView)>,
) -> ShownPort {
    let mut omissions: BTreeMap<String, Nodes> = BTreeMap::new();
    let mut groups: BTreeMap<GroupKey, Group> = BTreeMap::new();
    for (node, view) in views {
        for omission in &view.omissions {
            omissions.entry(omission.to_string()).or_default().insert(node);
        }
        for choice in &view.choices {
            add(&mut groups, choice, node);
        }
    }
    ShownPort {
        port: Port {
            name: port.name.clone(),
            protocol: port.protocol,
            number: port.port,
            node_port: port.node_port,
        },
        omissions,
        groups: groups.into_values().collect(),
    }
}

/// Adds the frontends and endpoints of one node to the groups.
fn add(groups: &mut BTreeMap<GroupKey, Group>, choice: &ChoiceView, node: usize) {
    let is_of_node = |it: &&FrontendView| it.kind == AddressKind::NodePort;
    let frontends = || choice.frontends.iter();
    let same: Vec<FrontendView> = frontends().filter(|it| !is_of_node(it)).cloned().collect();
    let of_node: Vec<FrontendView> = frontends().filter(is_of_node).cloned().collect();
    // IPv4 sorts before IPv6, and node ports sort last.
    let key = (!choice.is_v4, !of_node.is_empty(), choice.policy, same);
    let group = groups.entry(key).or_insert_with_key(|(_, _, policy, frontends)| Group {
        policy: *policy,
        frontends: frontends.clone(),
        of_nodes: BTreeMap::new(),
        endpoints: BTreeMap::new(),
        refused: Nodes::new(),
        dropped: Nodes::new(),
    });
    if !of_node.is_empty() {
        group.of_nodes.insert(node, of_node);
    }
    for it in &choice.endpoints {
        let fate = group.endpoints.entry((it.address, it.port, it.node.clone())).or_default();
        match it.left_out {
            None => fate.backend_for.insert(node),
            Some(why) => fate.left_out.entry(why).or_default().insert(node),
        };
    }
    // Slices may disagree about an endpoint. It is a backend if one of them makes it one.
    for it in choice.backends() {
        if let Some(fate) = group.endpoints.get_mut(&(it.address, it.port, it.node.clone())) {
            fate.left_out.values_mut().for_each(|nodes| _ = nodes.remove(&node));
            fate.left_out.retain(|_, nodes| !nodes.is_empty());
        }
    }
    if choice.backends().next().is_none() {
        match choice.without_backend {
            WithoutBackend::Refuse => group.refused.insert(node),
            WithoutBackend::Drop => group.dropped.insert(node),
        };
    }
}
