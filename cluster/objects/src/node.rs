//! Nodes.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::calico;
use super::cursor::{Cursor, Findings};
use super::metadata::{Metadata, annotation};
use super::object::{NODE_ADDRESSES, Node, NodeBgp, TO_BE_DELETED, TUNNEL_ADDRESSES};
use super::problem::Severity;
use super::syntax::{ADDRESS, CIDR, address, cidr};
use super::tree::{self, Value};

/// The annotations in which Calico stores a node's IPv4 and IPv6 address, each with the prefix length of its subnet.
const CALICO_ADDRESS: &str = NODE_ADDRESSES[0];
const CALICO_ADDRESS_V6: &str = NODE_ADDRESSES[1];
/// The annotation in which Calico stores the MAC address of a node's VXLAN device. It is present if the address does
/// not follow from the node's name.
const VXLAN_MAC: &str = "projectcalico.org/VXLANTunnelMACAddr";

/// The annotation with a node's autonomous system, if it differs from the cluster's.
const SYSTEM: &str = "projectcalico.org/ASNumber";
/// The annotation that makes a node a route reflector.
const REFLECTOR_CLUSTER: &str = "projectcalico.org/RouteReflectorClusterID";

const NODE_SPEC_IGNORED: &[&str] = &["configSource", "externalID", "providerID", "unschedulable"];
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

/// Reads a node.
pub(super) fn node(root: &Cursor<'_>, metadata: &Metadata, out: &mut Findings) -> Node {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec", "status"], &[]);
    let mut node = Node {
        labels: metadata.labels.clone(),
        is_leaving: metadata.deleting,
        pod_cidrs: Vec::new(),
        internal_ips: Vec::new(),
        external_ips: Vec::new(),
        calico_address: calico_address(root, metadata, out),
        tunnel_addresses: tunnel_addresses(root, metadata, out),
        vxlan_mac: vxlan_mac(root, metadata, out),
        bgp: bgp(root, metadata, out),
    };
    if let Some(spec) = root.field("spec")
        && spec.mapping(out, &["podCIDR", "podCIDRs", "taints"], NODE_SPEC_IGNORED)
    {
        node.is_leaving |= spec.field("taints").is_some_and(|taints| has_taint(taints.node));
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
        for (kind, address) in addresses.items(out, node_address) {
            match kind {
                AddressType::Internal => node.internal_ips.push(address),
                AddressType::External => node.external_ips.push(address),
            }
        }
    }
    node
}

/// Returns whether a taint marks the node for deletion. All other content of taints is for the scheduler and is not
/// checked.
fn has_taint(taints: &tree::Node) -> bool {
    let Value::Sequence(taints) = &taints.value else { return false };
    let is_it = |taint: &tree::Node| {
        let key = taint.get("key").map(|key| &key.value);
        matches!(key, Some(Value::String(key)) if key == TO_BE_DELETED)
    };
    taints.iter().any(is_it)
}

/// The types of node addresses that Manx reads.
enum AddressType {
    Internal,
    External,
}

/// Reads an `InternalIP` or `ExternalIP`. Addresses of other types are not used, and may not be IP addresses.
fn node_address(cursor: &Cursor<'_>, out: &mut Findings) -> Option<(AddressType, IpAddr)> {
    if !cursor.mapping(out, &["type", "address"], &[]) {
        return None;
    }
    let types = "InternalIP or another type of address";
    let kind = match cursor.required(out, "type", types)?.string(out, types)? {
        "InternalIP" => AddressType::Internal,
        "ExternalIP" => AddressType::External,
        _ => return None,
    };
    let address = cursor.required(out, "address", ADDRESS)?.parsed(out, ADDRESS, address)?;
    Some((kind, address))
}

fn calico_address(root: &Cursor<'_>, metadata: &Metadata, out: &mut Findings) -> Option<IpNet> {
    let text = metadata.annotations.get(CALICO_ADDRESS)?;
    let net = cidr(text).or_else(|| address(text).map(IpNet::from));
    if matches!(net, Some(IpNet::V4(_))) {
        return net;
    }
    let expected = "an IPv4 address with its prefix length, e.g. 172.18.0.2/24";
    annotation(root, CALICO_ADDRESS, expected, Severity::Error, out);
    None
}

fn tunnel_addresses(root: &Cursor<'_>, metadata: &Metadata, out: &mut Findings) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (name, v4) in TUNNEL_ADDRESSES {
        let Some(text) = metadata.annotations.get(name) else { continue };
        let address = address(text).filter(|address| address.is_ipv4() == v4);
        if address.is_none() {
            let family = if v4 { "IPv4" } else { "IPv6" };
            let expected = format!("an {family} address without a prefix length");
            annotation(root, name, &expected, Severity::Error, out);
        }
        addresses.extend(address);
    }
    addresses
}

fn vxlan_mac(root: &Cursor<'_>, metadata: &Metadata, out: &mut Findings) -> Option<[u8; 6]> {
    let text = metadata.annotations.get(VXLAN_MAC)?;
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2))
        .collect();
    let mac = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    if mac.is_none() {
        let expected = "a hardware address, e.g. 66:0a:1b:2c:3d:4e";
        annotation(root, VXLAN_MAC, expected, Severity::Error, out);
    }
    mac
}

/// Reads the annotations of a node that concern BGP. An annotation that cannot be read counts as absent and causes a
/// warning. Routes to the node's pods do not depend on it.
fn bgp(root: &Cursor<'_>, metadata: &Metadata, out: &mut Findings) -> NodeBgp {
    let mut of = |name: &str, expected: &str, read: &dyn Fn(&str) -> bool| {
        let text = metadata.annotations.get(name).filter(|text| !text.is_empty())?;
        if read(text) {
            return Some(text);
        }
        annotation(root, name, expected, Severity::Warning, out);
        None
    };
    let net = |text: &str| {
        let net = cidr(text).or_else(|| address(text).map(IpNet::from));
        net.filter(|net| matches!(net, IpNet::V6(_)))
    };
    let system = |text: &str| calico::system_text(text);
    let cluster = |text: &str| text.parse::<Ipv4Addr>().ok();
    let ipv6 = "an IPv6 address with its prefix length, e.g. fd00::2/64";
    let number = "the number of an autonomous system, e.g. 64512";
    let id = "a cluster's ID in the form of an IPv4 address, e.g. 244.0.0.1";
    NodeBgp {
        system: of(SYSTEM, number, &|it| system(it).is_some()).and_then(|it| system(it)),
        cluster: of(REFLECTOR_CLUSTER, id, &|it| cluster(it).is_some()).and_then(|it| cluster(it)),
        ipv6_address: of(CALICO_ADDRESS_V6, ipv6, &|it| net(it).is_some()).and_then(|it| net(it)),
    }
}
