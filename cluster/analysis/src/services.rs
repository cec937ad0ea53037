//! What the tables of nodes do with services. The calculation of the agents decides it.
//!
//! - [`list`]: a row for each port of each Service.
//! - [`shown`]: one Service, with a reason for each address and endpoint that is left out.
//! - [`traffic`]: what a Service says of its clients.
//!
//! The objects are all that is known. An agent also knows its kernel: an address that only the kernel of its node has is
//! no service's there, and node ports are served at an address that the kernel has.

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

/// The range of node ports of a cluster that does not say (Kubernetes' `--service-node-port-range`).
pub const NODE_PORTS: (u16, u16) = (30_000, 32_767);

/// What the settings of the agents say of services.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentSettings {
    /// The range of node ports, the first and the last.
    pub node_ports: (u16, u16),
    /// The nets whose addresses count as one of `externalIPs`.
    pub external_ips: Vec<IpNet>,
}

/// Who translates services' addresses to those of their endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Translates {
    /// The agents (`--services manx`), with these settings.
    Manx(AgentSettings),
    /// kube-proxy, in the nodes' kernels.
    KubeProxy,
}

impl Default for Translates {
    /// As `deploy/manx.yaml` asks for.
    fn default() -> Self {
        Self::Manx(AgentSettings { node_ports: NODE_PORTS, external_ips: Vec::new() })
    }
}

/// The services of a cluster, as its nodes translate them.
#[derive(Debug)]
pub struct ServiceTables<'a> {
    contents: &'a Contents,
    routes: Rc<Routes<'a>>,
    /// The nodes that are asked about, in order.
    nodes: Vec<String>,
    /// The addresses of all nodes.
    of_nodes: HashSet<IpAddr>,
    settings: AgentSettings,
    /// The first of the nodes that has tables.
    seat: Option<String>,
    /// The table of this node.
    frontends: Frontends,
}

impl<'a> ServiceTables<'a> {
    /// The tables of all nodes, or of `only` one. `Err`: there is no such node.
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

    /// The tables of all nodes, by routes that others use, too. They are empty if no node has tables.
    pub(crate) fn with_routes(
        contents: &'a Contents,
        routes: Rc<Routes<'a>>,
        settings: AgentSettings,
    ) -> Self {
        let mut tables = Self::of_routes(contents, routes, settings);
        tables.fill();
        tables
    }

    /// The nodes without a table.
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

    /// Fills the table of the seat.
    fn fill(&mut self) {
        let Some(node) = &self.seat else { return };
        let Ok(topology) = self.topology(node) else { return };
        let mut node_ports = self.node_ports(&topology, false);
        // A node port is the same on every node, so that the address of a family that this node does not have is any.
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

    /// The table of one of the nodes with all ports for which its pods ask, as if no program of the node used one. `Err`
    /// says why it has none.
    pub(crate) fn with_host_ports(&self, node: &str) -> Result<Frontends, String> {
        let topology = self.topology(node)?;
        let node_ports = self.node_ports(&topology, true);
        let mut frontends = self.frontends_of(node, &topology, node_ports);
        let admits = |address| admits(&topology, |it| self.of_nodes.contains(it), address);
        let asked = frontends.asked_ports();
        frontends.grant(self.contents, &asked, admits);
        Ok(frontends)
    }

    /// The table of the first node that has one: at addresses that are no node's, all nodes have the same Services.
    pub(crate) fn frontends(&self) -> &Frontends {
        &self.frontends
    }

    /// The ports of nodes that are services', the first and the last.
    pub(crate) fn node_port_range(&self) -> (u16, u16) {
        self.settings.node_ports
    }

    /// The node of [`ServiceTables::frontends`].
    pub(crate) fn seat(&self) -> Option<&str> {
        self.seat.as_deref()
    }

    /// The addresses of a node that have node ports, one of each family. `Err` says why it has no tables.
    pub(crate) fn addresses_with_node_ports(&self, node: &str) -> Result<BTreeSet<IpAddr>, String> {
        let topology = self.topology(node)?;
        Ok(self.node_ports(&topology, false).addresses)
    }

    /// The topology of one of the nodes. `Err` says why it has no tables.
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

    /// What a node does with a Service. `None`: there is no valid Service of this name. `Err` says why the node has no
    /// tables.
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

    /// What load balancers are told that ask a node for a Service: the port, and the ready endpoints. `None`: they are to
    /// ask nobody. `Err` says why the port is not served.
    fn health_check(
        &self,
        name: &ObjectName,
        node: &str,
    ) -> Option<Result<(u16, LocalEndpoints), Omission>> {
        let topology = self.topology(node).ok()?;
        let node = (node, &self.node_ports(&topology, false));
        self.frontends.health_check_view(self.contents, name, node)
    }

    /// The ports at which load balancers ask for Services, or why they are not served. It is the same on all nodes.
    fn health_check_ports(&self) -> BTreeMap<ObjectName, Result<u16, Omission>> {
        let name = |key: &ObjectKey| ObjectName::new(&key.namespace, &key.name);
        let served = self.frontends.health_checks();
        let served = served.iter().map(|(port, check)| (name(&check.service), Ok(*port)));
        let unserved = self.frontends.omissions().filter(|(_, it)| it.is_of_health_check());
        served.chain(unserved.map(|(key, why)| (name(key), Err(why)))).collect()
    }

    /// The names of all Services, valid or not, in order.
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
