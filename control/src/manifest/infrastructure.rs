//! Namespaces, nodes and address pools.

use std::net::IpAddr;

use ipnet::IpNet;

use super::cursor::{Cursor, Findings};
use super::metadata::Metadata;
use super::object::{EncapsulationMode, IpPool, Namespace, Node};
use super::problem::Cause;
use super::syntax::{ADDRESS, CIDR, address, cidr};

/// The label that the API server puts on every namespace.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Where Calico notes a node's address and the length of its subnet.
const CALICO_ADDRESS: &str = "projectcalico.org/IPv4Address";
/// Where Calico notes the hardware address of a node's VXLAN device, if it is not the one that follows from its name.
const VXLAN_MAC: &str = "projectcalico.org/VXLANTunnelMACAddr";

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
        vxlan_mac: vxlan_mac(root, metadata, out),
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
    let expected = "an IPv4 address with its prefix length, e.g. 172.18.0.2/24";
    annotation(root, CALICO_ADDRESS, expected, out);
    None
}

fn vxlan_mac(root: &Cursor<'_>, metadata: &Metadata, out: &mut Findings) -> Option<[u8; 6]> {
    let text = metadata.annotations.get(VXLAN_MAC)?;
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2))
        .collect();
    let mac = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    if mac.is_none() {
        annotation(root, VXLAN_MAC, "a hardware address, e.g. 66:0a:1b:2c:3d:4e", out);
    }
    mac
}

/// Says of an annotation what it should have been.
fn annotation(root: &Cursor<'_>, name: &str, expected: &str, out: &mut Findings) {
    if let Some(metadata) = root.field("metadata")
        && let Some(annotations) = metadata.field("annotations")
        && let Some(field) = annotations.field(name)
    {
        field.expected(out, expected);
    }
}

fn encapsulation_mode(
    spec: &Cursor<'_>,
    name: &str,
    out: &mut Findings,
) -> Option<EncapsulationMode> {
    spec.field(name)?.parsed(out, "Always, CrossSubnet or Never", |text| match text {
        "Always" => Some(EncapsulationMode::Always),
        "CrossSubnet" => Some(EncapsulationMode::CrossSubnet),
        "Never" | "" => Some(EncapsulationMode::Never),
        _ => None,
    })
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
    let ipip_mode = encapsulation_mode(&spec, "ipipMode", out);
    let vxlan_mode = encapsulation_mode(&spec, "vxlanMode", out);
    let encapsulates =
        |mode| matches!(mode, Some(EncapsulationMode::Always | EncapsulationMode::CrossSubnet));
    if let (Some(field), Some(IpNet::V6(_)), true) =
        (spec.field("ipipMode"), net, encapsulates(ipip_mode))
    {
        field.error(out, Cause::Conflict("an IPv6 pool cannot have IPIP".to_owned()));
    }
    if let Some(field) = spec.field("vxlanMode")
        && encapsulates(vxlan_mode)
    {
        if encapsulates(ipip_mode) {
            field.conflict(out, "a pool has IPIP or VXLAN, not both");
        } else if matches!(net, Some(IpNet::V6(_))) {
            let message = "VXLAN between IPv6 addresses is not supported: pods of this pool are reached on their own node only";
            field.warning(out, Cause::Notice(message.to_owned()));
        }
    }
    if let Some(field) = spec.field("natOutgoing")
        && field.boolean(out) == Some(true)
    {
        let message =
            "is not done: what pods of this pool send to outside keeps their own addresses";
        field.warning(out, Cause::Notice(message.to_owned()));
    }
    // Pods get addresses from their node's blocks, not from pools.
    if let Some(field) = spec.field("disabled") {
        field.boolean(out);
    }
    Some(IpPool { cidr: net?.trunc(), ipip_mode, vxlan_mode })
}
