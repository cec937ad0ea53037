//! The oracle's own implementation of Kubernetes selectors, blocks and protocols.

use std::net::IpAddr;

use ipnet::IpNet;

use manx_objects::object::{IpBlock, LabelSelector, Operator, Pairs, Protocol};

/// Returns whether a selector matches an object with these labels. (Kubernetes, "Labels and Selectors".) All
/// requirements must be met. `NotIn` and `DoesNotExist` match objects without the key.
pub(super) fn selected(selector: &LabelSelector, labels: &Pairs) -> bool {
    for (key, wanted) in &selector.match_labels {
        if labels.get(key) != Some(wanted) {
            return false;
        }
    }
    for expression in &selector.match_expressions {
        let has = labels.get(&expression.key);
        let listed = has.is_some_and(|value| expression.values.iter().any(|v| v == value));
        let holds = match expression.operator {
            Operator::In => listed,
            Operator::NotIn => !listed,
            Operator::Exists => has.is_some(),
            Operator::DoesNotExist => has.is_none(),
        };
        if !holds {
            return false;
        }
    }
    true
}

/// Returns whether an address is in a block and in none of its exceptions.
pub(super) fn in_block(block: &IpBlock, address: IpAddr) -> bool {
    if !in_net(block.cidr, address) {
        return false;
    }
    for except in &block.except {
        if in_net(*except, address) {
            return false;
        }
    }
    true
}

/// Returns whether the leading bits are equal. Addresses of different families never match.
pub(super) fn in_net(net: IpNet, address: IpAddr) -> bool {
    let (net_bits, address_bits, width) = match (net.addr(), address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (u128::from(a.to_bits()), u128::from(b.to_bits()), 32_u32)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128_u32),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    let host = width - u32::from(net.prefix_len());
    // A prefix without bits contains every address of its family.
    host == 128 || net_bits >> host == address_bits >> host
}

/// Returns IANA's protocol number. A port without a protocol is TCP.
pub(super) fn protocol_number(protocol: Option<Protocol>) -> u8 {
    match protocol {
        Some(Protocol::Tcp) | None => 6,
        Some(Protocol::Udp) => 17,
        Some(Protocol::Sctp) => 132,
    }
}
