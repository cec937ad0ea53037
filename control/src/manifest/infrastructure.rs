//! Namespaces, nodes and address pools.

use std::net::IpAddr;

use ipnet::IpNet;

use super::cursor::{Cursor, Findings};
use super::metadata::Metadata;
use super::object::{IpPool, IpipMode, Namespace, Node};
use super::problem::Cause;
use super::syntax::{ADDRESS, CIDR, address, cidr};

/// The label that the API server puts on every namespace.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Where Calico notes a node's address and the length of its subnet.
const CALICO_ADDRESS: &str = "projectcalico.org/IPv4Address";

const NODE_SPEC_IGNORED: &[&str] =
    &["configSource", "externalID", "providerID", "taints", "unschedulable"];
const NODE_STATUS_IGNORED: &[&str] = &[
    "allocatable",
    "capacity",
    "conditions",
    "config",
    "daemonEndpoints",
    "declaredFeatures",
    "features",
    "images",
    "nodeInfo",
    "phase",
    "runtimeHandlers",
    "volumesAttached",
    "volumesInUse",
];
const POOL_IGNORED: &[&str] = &[
    "allowedUses",
    "assignmentMode",
    "blockSize",
    "disableBGPExport",
    "namespaceSelector",
    "nodeSelector",
];

/// Reads a namespace.
pub(super) fn namespace(
    root: &Cursor<'_>,
    name: &str,
    metadata: Metadata,
    out: &mut Findings,
) -> Namespace {
    root.mapping(out, &["apiVersion", "kind", "metadata"], &["spec", "status"]);
    let mut labels = metadata.labels;
    labels.insert(NAMESPACE_NAME.to_owned(), name.to_owned());
    Namespace { labels }
}

/// Reads a node.
pub(super) fn node(root: &Cursor<'_>, metadata: &Metadata, out: &mut Findings) -> Node {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec", "status"], &[]);
    let mut node = Node {
        pod_cidrs: Vec::new(),
        internal_ips: Vec::new(),
        calico_address: calico_address(root, metadata, out),
    };
    if let Some(spec) = root.field("spec")
        && spec.mapping(out, &["podCIDR", "podCIDRs"], NODE_SPEC_IGNORED)
    {
        if let Some(field) = spec.field("podCIDRs") {
            node.pod_cidrs =
                field.items(out, |item, out| item.parsed(out, CIDR, cidr).map(|net| net.trunc()));
        }
        if let Some(field) = spec.field("podCIDR")
            && let Some(net) = field.parsed(out, CIDR, cidr)
            && !node.pod_cidrs.contains(&net.trunc())
        {
            node.pod_cidrs.insert(0, net.trunc());
        }
    }
    if let Some(status) = root.field("status")
        && status.mapping(out, &["addresses"], NODE_STATUS_IGNORED)
        && let Some(addresses) = status.field("addresses")
    {
        node.internal_ips = addresses.items(out, node_address);
    }
    node
}

/// An `InternalIP`; addresses of other types are none of ours, and not all of them are addresses.
fn node_address(cursor: &Cursor<'_>, out: &mut Findings) -> Option<IpAddr> {
    if !cursor.mapping(out, &["type", "address"], &[]) {
        return None;
    }
    let types = "InternalIP or another type of address";
    if cursor.required(out, "type", types)?.string(out, types)? != "InternalIP" {
        return None;
    }
    cursor.required(out, "address", ADDRESS)?.parsed(out, ADDRESS, address)
}

fn calico_address(root: &Cursor<'_>, metadata: &Metadata, out: &mut Findings) -> Option<IpNet> {
    let text = metadata.annotations.get(CALICO_ADDRESS)?;
    let net = cidr(text).or_else(|| address(text).map(IpNet::from));
    if matches!(net, Some(IpNet::V4(_))) {
        return net;
    }
    if let Some(metadata) = root.field("metadata")
        && let Some(annotations) = metadata.field("annotations")
        && let Some(field) = annotations.field(CALICO_ADDRESS)
    {
        field.expected(out, "an IPv4 address with its prefix length, e.g. 172.18.0.2/24");
    }
    None
}

/// Reads a pool; `None` if it has no legal CIDR, which is then in `out`.
pub(super) fn ip_pool(root: &Cursor<'_>, out: &mut Findings) -> Option<IpPool> {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec"], &["status"]);
    let spec = root.required(out, "spec", "a mapping with a cidr")?;
    let read = &["cidr", "ipipMode", "vxlanMode", "natOutgoing", "disabled"];
    if !spec.mapping(out, read, POOL_IGNORED) {
        return None;
    }
    let net = spec.required(out, "cidr", CIDR).and_then(|field| field.parsed(out, CIDR, cidr));
    let mode_field = spec.field("ipipMode");
    let ipip_mode = mode_field.and_then(|field| {
        field.parsed(out, "Always, CrossSubnet or Never", |text| match text {
            "Always" => Some(IpipMode::Always),
            "CrossSubnet" => Some(IpipMode::CrossSubnet),
            "Never" | "" => Some(IpipMode::Never),
            _ => None,
        })
    });
    if let (Some(field), Some(IpNet::V6(_)), Some(IpipMode::Always | IpipMode::CrossSubnet)) =
        (mode_field, net, ipip_mode)
    {
        field.error(out, Cause::Conflict("an IPv6 pool cannot have IPIP".to_owned()));
    }
    if let Some(field) = spec.field("vxlanMode")
        && let Some(true) = field.parsed(out, "Always, CrossSubnet or Never", |text| match text {
            "Always" | "CrossSubnet" => Some(true),
            "Never" | "" => Some(false),
            _ => None,
        })
    {
        if matches!(ipip_mode, Some(IpipMode::Always | IpipMode::CrossSubnet)) {
            field.conflict(out, "a pool has IPIP or VXLAN, not both");
        } else {
            let message = "VXLAN is not supported: packets between nodes are not encapsulated";
            field.warning(out, Cause::Notice(message.to_owned()));
        }
    }
    Some(IpPool {
        cidr: net?.trunc(),
        ipip_mode,
        nat_outgoing: spec
            .field("natOutgoing")
            .and_then(|field| field.boolean(out))
            .unwrap_or(false),
        disabled: spec.field("disabled").and_then(|field| field.boolean(out)).unwrap_or(false),
    })
}
