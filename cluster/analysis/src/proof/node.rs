//! The tables of each node that manifests define, as the node's agent would compile them.

use std::collections::{BTreeMap, BTreeSet};

use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::resolve::LocalName;

use super::{Depth, Proof, Refutation, prove};
use manx_calculation::import::{Cluster, import_for};
use manx_objects::contents::Contents;
use manx_oracle::{Oracle, Party};

/// A node, its endpoints and their tables.
#[derive(Debug)]
pub struct NodeTables {
    /// The endpoints of the node: its pods and its host endpoints.
    pub local: BTreeSet<LocalName>,
    /// The tables.
    pub image: Image,
}

/// Returns every node that the manifests name, with its endpoints. Pods without a node are assigned to the first node
/// or, if there is no node, to a node without a name. An invalid host endpoint may belong to any node, so every node
/// gets it.
pub fn endpoints(contents: &Contents, oracle: &Oracle) -> BTreeMap<String, BTreeSet<LocalName>> {
    let Cluster { model, nodes, pods_by_node, .. } = manx_calculation::import::import(contents);
    let mut endpoints: BTreeMap<String, BTreeSet<LocalName>> =
        nodes.keys().map(|node| (node.clone(), BTreeSet::new())).collect();
    let first = nodes.keys().next().cloned().unwrap_or_default();
    // These are the endpoints that the import has, and those that the oracle says it should have.
    let pods = oracle.pods().filter_map(|pod| match pod {
        Party::Pod { namespace, name, .. } => Some(LocalName::new(namespace, name)),
        Party::Node { .. } | Party::Address(_) => None,
    });
    for pod in model.endpoints.keys().cloned().chain(pods) {
        let node = pods_by_node.get(&pod).map_or(first.as_str(), |node| node);
        endpoints.entry(node.to_owned()).or_default().insert(pod);
    }
    for (name, host) in &model.host_endpoints {
        if host.broken {
            let anywhere = endpoints.values_mut();
            anywhere.for_each(|local| {
                local.insert(LocalName::new("", name));
            });
        } else {
            endpoints.entry(host.node.clone()).or_default().insert(LocalName::new("", name));
        }
    }
    endpoints
}

impl NodeTables {
    /// Compiles the tables of these endpoints of a node.
    pub fn new(contents: &Contents, node: &str, local: BTreeSet<LocalName>) -> Self {
        let cluster = import_for(contents, node);
        let image = Compiler::new().compile(&cluster.model, &local);
        Self { local, image }
    }

    /// Compares the tables with the oracle.
    pub fn prove(
        &self,
        oracle: &Oracle,
        progress: impl FnMut(usize, usize),
    ) -> Result<Proof, Box<Refutation>> {
        prove(oracle, &self.local, &self.image, Depth::Distinct, progress)
    }
}
