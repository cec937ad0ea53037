//! The cluster: manifests of 100,000 pods, 5,000 nodes and 14,000 policies. All objects are written as JSON-like YAML,
//! one line for each.

use std::fs;
use std::net::Ipv4Addr;

use tempfile::TempDir;

use crate::error::Failure;
use crate::host::namespaces::temporary_folder;

/// The number of namespaces.
pub(super) const NAMESPACES: usize = 1_000;
/// The number of pods of a namespace.
pub(super) const PODS: usize = 100;
/// The number of policies of a namespace.
const POLICIES: usize = 14;
/// The number of nodes.
const NODES: usize = 5_000;
/// The number of pods of the first node.
const LOCAL: usize = 250;
/// The first namespace without pods of the first node.
pub(super) const FIRST_REMOTE: usize = LOCAL.div_ceil(PODS);
/// The first node, whose tables are calculated.
pub(super) const NODE: &str = "node-0";

/// The manifest of a namespace with its pods and policies.
pub(super) fn namespace(index: usize) -> String {
    let own = format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: ns-{index}, labels: {{team: t{}}}}}}}",
        index % 40
    );
    let pods = (0..PODS).map(|at| pod(index, at, at % 20));
    let policies = (0..POLICIES).map(|at| policy(index, at, 9000));
    let objects: Vec<String> = [own].into_iter().chain(pods).chain(policies).collect();
    objects.join("\n---\n")
}

/// The pod of this number in a namespace. The first pods are on the first node.
pub(super) fn pod(namespace: usize, at: usize, app: usize) -> String {
    let (node, address) = place(namespace * PODS + at);
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: pod-{at}, namespace: ns-{namespace}, labels: {{app: app-{app}, tier: t{}}}}}, \
         spec: {{nodeName: node-{node}, containers: [{{name: c, ports: [{{name: http, containerPort: 8080}}]}}]}}, status: {{podIP: {address}}}}}",
        at % 3
    )
}

/// The node and the address of the pod with this number in the cluster.
pub(super) fn place(index: usize) -> (usize, Ipv4Addr) {
    let node = index / (NAMESPACES * PODS / NODES).max(LOCAL) % NODES;
    (node, Ipv4Addr::from_bits(0x0a00_0000 + (node * 256 + 2 + index % LOCAL) as u32))
}

/// The policy with this number in a namespace: a deny for all pods, DNS for all pods, or one of twelve for single apps.
pub(super) fn policy(namespace: usize, at: usize, port: usize) -> String {
    let spec = match at {
        0 => "podSelector: {}, policyTypes: [Ingress, Egress]".to_owned(),
        1 => {
            "podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: 53}]}]"
                .to_owned()
        }
        _ => format!(
            "podSelector: {{matchLabels: {{app: app-{at}}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: app-{}}}}}}}, \
             {{namespaceSelector: {{matchLabels: {{team: t{}}}}}, podSelector: {{matchLabels: {{tier: t1}}}}}}], \
             ports: [{{port: http}}, {{port: {port}}}]}}]",
            (at + 1) % 20,
            (namespace + at) % 40
        ),
    };
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p-{at}, namespace: ns-{namespace}}}, spec: {{{spec}}}}}"
    )
}

/// The node with this number, with a block of this prefix length.
pub(super) fn node(index: usize, length: u8) -> String {
    let block = Ipv4Addr::from_bits(0x0a00_0000 + (index * 256) as u32);
    let address = Ipv4Addr::from_bits(0xac10_0000 + index as u32 + 1);
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: node-{index}}}, spec: {{podCIDR: {block}/{length}}}, \
         status: {{addresses: [{{type: InternalIP, address: {address}}}]}}}}\n---\n"
    )
}

/// The nodes and the pool.
pub(super) fn nodes() -> String {
    let pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: pool}, spec: {cidr: 10.0.0.0/8, ipipMode: Always}}";
    (0..NODES).map(|index| node(index, 24)).collect::<String>() + pool
}

/// Writes the files of the cluster's manifests.
pub(super) fn write_manifests() -> Result<TempDir, Failure> {
    let directory = temporary_folder()?;
    for index in 0..NAMESPACES {
        fs::write(directory.path().join(format!("ns-{index}.yaml")), namespace(index))?;
    }
    fs::write(directory.path().join("nodes.yaml"), nodes())?;
    Ok(directory)
}
