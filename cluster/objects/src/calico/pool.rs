//! `IPPool`. A pool is refused if the API server or Calico's client would refuse it.
//!
//! Source: Calico's API reference, "IP pool".

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::super::code::Code;
use super::super::cursor::{Cursor, Findings};
use super::super::object::{AssignmentMode, Created, EncapsulationMode, IpPool, Kind, PoolUse};
use super::super::settings::tell;
use super::super::tree::Value;
use super::fixed::OBJECT;
use super::value::{NET, Over, net, selector};

/// Fields of Calico's first API, each with the field that replaced it.
const FORMER: [(&str, &str); 2] = [("ipip", "ipipMode"), ("nat-outgoing", "natOutgoing")];
const LINK_LOCAL: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
];

/// Reads a pool. Returns `None`, with an error in `out`, if the pool has no legal CIDR.
pub(in super::super) fn ip_pool(
    root: &Cursor<'_>,
    created: Option<Created>,
    out: &mut Findings,
) -> Option<IpPool> {
    root.mapping(out, OBJECT, &["status"]);
    let spec = root.required(out, "spec", "a mapping with a cidr")?;
    if !tell(&spec, Kind::IpPool, out) {
        return None;
    }
    for (key, now) in FORMER {
        if let Some(field) = spec.field(key).filter(|it| it.node.value != Value::Boolean(false)) {
            field.conflict(out, format!("is of Calico's first API: write {now}"));
        }
    }
    let cidr = spec.required(out, "cidr", NET).and_then(|field| net(&field, out));
    let ipip_mode = encapsulation_mode(&spec, "ipipMode", out);
    let vxlan_mode = encapsulation_mode(&spec, "vxlanMode", out);
    check_modes(&spec, cidr, [ipip_mode, vxlan_mode], out);
    let (block_size, disabled) = match cidr {
        Some(cidr) => extent(&spec, cidr, out),
        None => (None, false),
    };
    let [node_selector, namespace_selector] = ["nodeSelector", "namespaceSelector"].map(|key| {
        let field = spec.field(key)?;
        selector(&field, Over::Labels, out)
    });
    let assignment_mode = spec.field("assignmentMode").and_then(|field| {
        field.parsed(out, "Automatic or Manual", |text| match text {
            "Automatic" => Some(AssignmentMode::Automatic),
            "Manual" => Some(AssignmentMode::Manual),
            _ => None,
        })
    });
    let allowed_uses = uses(&spec, [ipip_mode, vxlan_mode], out);
    // `uses` reports a value that is not a boolean.
    let hidden =
        spec.field("disableBGPExport").map(|field| field.node.value == Value::Boolean(true));
    let nat_outgoing = spec.field("natOutgoing").and_then(|field| field.boolean(out));
    Some(IpPool {
        cidr: cidr?,
        ipip_mode,
        vxlan_mode,
        nat_outgoing: nat_outgoing.unwrap_or(false),
        block_size,
        disabled,
        node_selector,
        namespace_selector,
        assignment_mode,
        allowed_uses,
        is_hidden_from_peers: hidden == Some(true),
        created,
    })
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

fn encapsulates(mode: Option<EncapsulationMode>) -> bool {
    matches!(mode, Some(EncapsulationMode::Always | EncapsulationMode::CrossSubnet))
}

/// Checks that the pool has at most one encapsulation, and that an IPv6 pool does not use IPIP.
fn check_modes(
    spec: &Cursor<'_>,
    cidr: Option<IpNet>,
    [ipip, vxlan]: [Option<EncapsulationMode>; 2],
    out: &mut Findings,
) {
    let of_ipv6 = matches!(cidr, Some(IpNet::V6(_)));
    if let Some(field) = spec.field("ipipMode")
        && of_ipv6
        && encapsulates(ipip)
    {
        field.conflict(out, "an IPv6 pool cannot have IPIP");
    }
    if let Some(field) = spec.field("vxlanMode")
        && encapsulates(vxlan)
    {
        if encapsulates(ipip) {
            field.conflict(out, "a pool has IPIP or VXLAN, not both");
        } else if of_ipv6 {
            let message = "VXLAN between IPv6 addresses is not supported: pods of this pool are reached on their own node only";
            field.told(out, Code::NoVxlanOfIpv6, message);
        }
    }
}

/// Reads `blockSize` and `disabled`. A pool that is not disabled must be large enough for one block. No pool may
/// contain link-local addresses.
fn extent(spec: &Cursor<'_>, cidr: IpNet, out: &mut Findings) -> (Option<u8>, bool) {
    let (expected, range) = match cidr {
        IpNet::V4(_) => ("a length of IPv4 blocks from 20 to 32", 20..=32),
        IpNet::V6(_) => ("a length of IPv6 blocks from 116 to 128", 116..=128),
    };
    let written = spec.field("blockSize").filter(|field| field.node.value != Value::Integer(0));
    let block_size = written.as_ref().map(|field| field.integer::<u8>(out, expected, range));
    let disabled = spec.field("disabled").and_then(|field| field.boolean(out)) == Some(true);
    // `None` means that the field is present and cannot be read.
    let block = block_size.unwrap_or(Some(IpPool::default_block_size(cidr)));
    if let Some(field) = spec.field("cidr") {
        if let Some(block) = block.filter(|block| cidr.prefix_len() > *block && !disabled) {
            let message = format!("is too small for one block of the pool (blockSize: {block})");
            field.conflict(out, message);
        }
        let overlapped = LINK_LOCAL.iter().find(|net| net.contains(&cidr) || cidr.contains(*net));
        if let Some(net) = overlapped {
            field.conflict(out, format!("overlaps the link-local addresses {net}"));
        }
    }
    (block_size.flatten(), disabled)
}

/// Reads `allowedUses`. Tunnel addresses have no namespace, so a pool for them may not select namespaces. Addresses for
/// load balancers belong to no node, so a pool for them may not set encapsulation or select nodes. Such a pool also may
/// not set `disableBGPExport`.
fn uses(
    spec: &Cursor<'_>,
    modes: [Option<EncapsulationMode>; 2],
    out: &mut Findings,
) -> Vec<PoolUse> {
    let exports = spec.field("disableBGPExport").map(|field| (field.boolean(out), field));
    let Some(field) = spec.field("allowedUses") else { return Vec::new() };
    let uses: Vec<PoolUse> = field.distinct(out, |item, out| {
        item.parsed(out, "Workload, Tunnel or LoadBalancer", |text| match text {
            "Workload" => Some(PoolUse::Workload),
            "Tunnel" => Some(PoolUse::Tunnel),
            "LoadBalancer" => Some(PoolUse::LoadBalancer),
            _ => None,
        })
    });
    if uses.contains(&PoolUse::Tunnel)
        && let Some(field) = spec.field("namespaceSelector").filter(|field| !field.is_empty())
    {
        field.conflict(out, "may not stand in a pool for Tunnel: write allowedUses: [Workload]");
    }
    if !uses.contains(&PoolUse::LoadBalancer) {
        return uses;
    }
    if uses.iter().any(|one| *one != PoolUse::LoadBalancer) {
        field.conflict(out, "LoadBalancer may not be used together with another use");
    }
    for (key, mode) in ["ipipMode", "vxlanMode"].into_iter().zip(modes) {
        if let Some(field) = spec.field(key).filter(|_| encapsulates(mode)) {
            field.conflict(out, "must be Never in a pool for LoadBalancer");
        }
    }
    if let Some((Some(true), field)) = exports {
        field.conflict(out, "may not stand in a pool for LoadBalancer");
    }
    if let Some(field) = spec.field("nodeSelector").filter(|field| !field.is_empty())
        && !matches!(&field.node.value, Value::String(text) if text == "all()")
    {
        field.conflict(out, "must be all() in a pool for LoadBalancer");
    }
    uses
}
