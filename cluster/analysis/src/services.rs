//! How the nodes' tables translate services. The agents calculate their tables in the same way.
//!
//! - [`list`]: a row for each port of each Service.
//! - [`shown`]: one Service, with a reason for each address and endpoint that is left out.
//! - [`traffic`]: the settings of a Service for its clients.
//!
//! Only the objects are known here. An agent also knows its kernel. At a node, an address that only its kernel has
//! cannot be a service's address, and node ports are served at an address that the kernel has.

pub mod list;
pub mod shown;
pub mod traffic;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;
use manx_calculation::services::announced::nets::AnnouncedNets;
use manx_calculation::services::view::ServiceView;
use manx_calculation::services::{Frontends, LocalEndpoints, NodePorts, Omission, admits};
use manx_calculation::topology::{Reserved, Topology};
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, ObjectKey};
use manx_policy_compiler::model::ObjectName;

use crate::routes::Routes;

/// The default range of node ports (Kubernetes' `--service-node-port-range`).
pub const NODE_PORTS: (u16, u16) = (30_000, 32_767);

/// The settings of the agents for services.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentSettings {
    /// The first and the last node port.
    pub node_ports: (u16, u16),
    /// The nets in which an address of `externalIPs` takes effect.
    pub external_ips: Vec<IpNet>,
}

/// The component that translates services' addresses to the addresses of their endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Translates {
    /// The agents (`--services manx`), with these settings.
    Manx(AgentSettings),
    /// kube-proxy, in the nodes' kernels.
    KubeProxy,
}

impl Default for Translates {
    /// Returns the settings of `deploy/manx.yaml`.
    fn default() -> Self {
        Self::Manx(AgentSettings { node_ports: NODE_PORTS, external_ips: Vec::new() })
    }
}

/// The services of a cluster, as its nodes translate them.
#[derive(Debug)]
pub struct ServiceTables<'a> {
    contents: &'a Contents,
    routes: Rc<Routes<'a>>,
    /// The nodes that are examined, in order.
    nodes: Vec<String>,
    /// The addresses of all nodes.
    of_nodes: HashSet<IpAddr>,
    settings: AgentSettings,
    /// The first node of `nodes` that has tables.
    seat: Option<String>,
    /// The services as the node `seat` translates them.
    frontends: Frontends,
}

impl<'a> ServiceTables<'a> {
    /// Returns the tables of all nodes, or only of the node `only`. Returns `Err` if there is no such node.
    pub fn new(
        contents: &'a Contents,
        settings: AgentSettings,
        only: Option<&str>,
    ) -> Result<Self, String> {
        let mut tables = Self::of_routes(contents, Rc::new(Routes::new(contents)), settings);
        if let Some(only) = only {
            let known = few(&tables.nodes);
            tables.nodes.retain(|it| *it == only);
            tables.find_seat();
            if tables.nodes.is_empty() {
                return Err(format!("there is no node {only:?} in the manifests; found {known}"));
            }
        }
        let Some(first) = tables.nodes.first() else {
            let message = "no Node in the manifests has a block of pod addresses (spec.podCIDRs), so no node has tables; \
                           name the manifests of the Nodes, too";
            return Err(message.to_owned());
        };
        if tables.seat.is_none() {
            tables.topology(first)?;
        }
        tables.fill();
        Ok(tables)
    }

    /// Returns the tables of all nodes. The routes may be shared with other code. They are empty if no node has tables.
    pub(crate) fn with_routes(
        contents: &'a Contents,
        routes: Rc<Routes<'a>>,
        settings: AgentSettings,
    ) -> Self {
        let mut tables = Self::of_routes(contents, routes, settings);
        tables.fill();
        tables
    }

    /// Returns the nodes and the settings, with an empty table.
    fn of_routes(contents: &'a Contents, routes: Rc<Routes<'a>>, settings: AgentSettings) -> Self {
        let mut tables = Self {
            contents,
            nodes: routes.nodes_for_pods(),
            of_nodes: routes.node_addresses(),
            routes,
            settings,
            seat: None,
            frontends: Frontends::default(),
        };
        tables.find_seat();
        tables
    }

    fn find_seat(&mut self) {
        self.seat = self.nodes.iter().find(|node| self.topology(node).is_ok()).cloned();
    }

    /// Fills the table of the node `seat`.
    fn fill(&mut self) {
        let Some(node) = &self.seat else { return };
        let Ok(topology) = self.topology(node) else { return };
        let mut node_ports = self.node_ports(&topology, false);
        // A node port is the same on every node. If the node `seat` has no address of a family, the address of another
        // node is used instead.
        for is_v4 in [true, false] {
            if !node_ports.addresses.iter().any(|it| it.is_ipv4() == is_v4) {
                node_ports.addresses.extend(self.of_nodes.iter().find(|it| it.is_ipv4() == is_v4));
            }
        }
        self.frontends = self.frontends_of(node, &topology, node_ports);
    }

    fn frontends_of(&self, node: &str, topology: &Topology, node_ports: NodePorts) -> Frontends {
        let frontends =
            Frontends::new(node, node_ports).with_external_ips(&self.settings.external_ips);
        let nets = AnnouncedNets::new(self.contents, self.routes.cluster(), &Reserved::new());
        let mut frontends = frontends.with_announced(nets.cluster_ips());
        let admits = |address| admits(topology, |it| self.of_nodes.contains(it), address);
        frontends.follow(self.contents, &Changes::Everything, admits);
        frontends
    }

    /// Returns the table of a node with all host ports that its pods request, as if no program of the node used one of
    /// them. Returns `Err`, with the reason, if the node has no tables.
    pub(crate) fn with_host_ports(&self, node: &str) -> Result<Frontends, String> {
        let topology = self.topology(node)?;
        let node_ports = self.node_ports(&topology, true);
        let mut frontends = self.frontends_of(node, &topology, node_ports);
        let admits = |address| admits(&topology, |it| self.of_nodes.contains(it), address);
        let asked = frontends.asked_ports();
        frontends.grant(self.contents, &asked, admits);
        Ok(frontends)
    }

    /// Returns the table of the first node that has one. For addresses that belong to no node, all nodes have the same
    /// Services.
    pub(crate) fn frontends(&self) -> &Frontends {
        &self.frontends
    }

    /// Returns the first and the last port of nodes that are reserved for services.
    pub(crate) fn node_port_range(&self) -> (u16, u16) {
        self.settings.node_ports
    }

    /// Returns the node of [`ServiceTables::frontends`].
    pub(crate) fn seat(&self) -> Option<&str> {
        self.seat.as_deref()
    }

    /// Returns the addresses of a node that have node ports, one for each family. Returns `Err`, with the reason, if
    /// the node has no tables.
    pub(crate) fn addresses_with_node_ports(&self, node: &str) -> Result<BTreeSet<IpAddr>, String> {
        let topology = self.topology(node)?;
        Ok(self.node_ports(&topology, false).addresses)
    }

    /// Returns the topology of one of the nodes. Returns `Err`, with the reason, if the node has no tables.
    fn topology(&self, node: &str) -> Result<Rc<Topology>, String> {
        self.routes
            .topology(node)?
            .ok_or_else(|| format!("node {node} has no block of pod addresses"))
    }

    fn node_ports(&self, topology: &Topology, of_pods: bool) -> NodePorts {
        let of_family = |is_v4| topology.addresses.iter().find(|it| it.is_ipv4() == is_v4).copied();
        NodePorts {
            range: self.settings.node_ports,
            addresses: [true, false].into_iter().filter_map(of_family).collect(),
            of_pods,
        }
    }

    /// Returns a Service as a node translates it. Returns `None` if there is no valid Service of this name. Returns
    /// `Err`, with the reason, if the node has no tables.
    pub(crate) fn view(
        &self,
        name: &ObjectName,
        node: &str,
    ) -> Result<Option<ServiceView>, String> {
        let topology = self.topology(node)?;
        let admits = |address| admits(&topology, |it| self.of_nodes.contains(it), address);
        let node = (node, &self.node_ports(&topology, false));
        Ok(self.frontends.view(self.contents, name, node, admits))
    }

    /// Returns the answer to load balancers that ask a node about a Service: the port, and the number of ready
    /// endpoints. Returns `None` if the Service has no health check. Contains `Err`, with the reason, if the port is
    /// not served.
    fn health_check(
        &self,
        name: &ObjectName,
        node: &str,
    ) -> Option<Result<(u16, LocalEndpoints), Omission>> {
        let topology = self.topology(node).ok()?;
        let node = (node, &self.node_ports(&topology, false));
        self.frontends.health_check_view(self.contents, name, node)
    }

    /// Returns the port on which load balancers ask about each Service, or the reason why it is not served. The result
    /// is the same on all nodes.
    fn health_check_ports(&self) -> BTreeMap<ObjectName, Result<u16, Omission>> {
        let name = |key: &ObjectKey| ObjectName::new(&key.namespace, &key.name);
        let served = self.frontends.health_checks();
        let served = served.iter().map(|(port, check)| (name(&check.service), Ok(*port)));
        let unserved = self.frontends.omissions().filter(|(_, it)| it.is_of_health_check());
        served.chain(unserved.map(|(key, why)| (name(key), Err(why)))).collect()
    }

    /// Returns the names of all Services, valid or not, in order.
    fn names(&self) -> impl Iterator<Item = ObjectName> {
        let all = self.contents.of_kind(Kind::Service);
        all.map(|(key, _)| ObjectName::new(&key.namespace, &key.name))
    }
}

fn few(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { manx_objects::few(names, 10) }
}

#[cfg(test)]
mod tests;
