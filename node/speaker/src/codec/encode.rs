//! From an update to messages.

use std::net::IpAddr;

use bytes::{Bytes, BytesMut};
use ipnet::IpNet;
use manx_bgp::path::Update;
use rustbgpd_wire::UpdateMessage;
use rustbgpd_wire::constants::{HEADER_LEN, attr_flags, attr_type};

use super::attributes;
use super::encoding::{Encoding, Family};

/// The bytes of an UPDATE without routes and attributes: the header, and two lengths.
const EMPTY: usize = HEADER_LEN + 4;
/// The bytes of an attribute before its value, if its length has two octets.
const ATTRIBUTE: usize = 4;
/// The bytes of `MP_UNREACH_NLRI` before its prefixes: family and kind (RFC 4760, 4).
const UNREACH: usize = 3;
/// The bytes of `MP_REACH_NLRI` before its prefixes: family, kind, the next hop and its length, one that is reserved.
const REACH: usize = 3 + 1 + 16 + 1;
/// The most bytes of a prefix.
const PREFIX: usize = 17;

/// Appends the messages of an update, with as many prefixes in each as fit.
///
/// Routes whose attributes fit into no message, or must not be sent, are withdrawn instead (RFC 8654, 4): the peer must
/// not keep what held before. Returns their number.
pub(crate) fn encode(update: &Update, encoding: Encoding, out: &mut BytesMut) -> usize {
    withdraw(&update.withdrawn, encoding, out);
    if update.announced.is_empty() {
        return 0;
    }
    if announce(update, encoding, out).is_some() {
        return 0;
    }
    withdraw(&update.announced, encoding, out);
    update.announced.len()
}

/// Appends the message that says that everything was told (RFC 4724, 2).
pub(crate) fn encode_end_of_rib(encoding: Encoding, out: &mut BytesMut) {
    match encoding.family {
        Family::V4 => push(&[], Vec::new(), &[], encoding, out),
        Family::V6 => push(&[], unreach(&[]), &[], encoding, out),
    }
}

fn withdraw(prefixes: &[IpNet], encoding: Encoding, out: &mut BytesMut) {
    let room = usize::from(encoding.limit) - EMPTY;
    match encoding.family {
        Family::V4 => {
            for it in pack(prefixes, room) {
                push(&it, Vec::new(), &[], encoding, out);
            }
        }
        Family::V6 => {
            for it in pack(prefixes, room - ATTRIBUTE - UNREACH) {
                push(&[], unreach(&it), &[], encoding, out);
            }
        }
    }
}

/// `None`: nothing was appended, because the attributes cannot be sent.
fn announce(update: &Update, encoding: Encoding, out: &mut BytesMut) -> Option<()> {
    let attributes = update.attributes.as_deref()?;
    let mut common = Vec::new();
    attributes::encode(attributes, encoding, &mut common).ok()?;
    let room = usize::from(encoding.limit).checked_sub(EMPTY + common.len())?;
    match (encoding.family, attributes.next_hop) {
        (Family::V4, IpAddr::V4(_)) => {
            room.checked_sub(PREFIX)?;
            for it in pack(&update.announced, room) {
                push(&[], common.clone(), &it, encoding, out);
            }
        }
        (Family::V6, IpAddr::V6(next_hop)) => {
            let room = room.checked_sub(ATTRIBUTE + REACH)?;
            room.checked_sub(PREFIX)?;
            for it in pack(&update.announced, room) {
                // It comes first, so that it is found whatever is wrong with the others (RFC 7606, 5.1).
                let mut value = family(encoding.family);
                value.push(16);
                value.extend(next_hop.octets());
                value.push(0);
                value.extend(it);
                let mut all = attribute(attr_type::MP_REACH_NLRI, &value);
                all.extend_from_slice(&common);
                push(&[], all, &[], encoding, out);
            }
        }
        (Family::V4, IpAddr::V6(_)) | (Family::V6, IpAddr::V4(_)) => return None,
    }
    Some(())
}

/// Prefixes as they stand in messages, in portions of at most `room` bytes.
fn pack(prefixes: &[IpNet], room: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut rest = prefixes.iter().peekable();
    std::iter::from_fn(move || {
        let mut portion = Vec::new();
        while let Some(prefix) = rest.next_if(|it| portion.len() + length(it) <= room) {
            portion.push(prefix.prefix_len());
            match prefix.network() {
                IpAddr::V4(it) => portion.extend_from_slice(&it.octets()[..length(prefix) - 1]),
                IpAddr::V6(it) => portion.extend_from_slice(&it.octets()[..length(prefix) - 1]),
            }
        }
        (!portion.is_empty()).then_some(portion)
    })
}

/// The bytes that a prefix takes (RFC 4271, 4.3).
fn length(prefix: &IpNet) -> usize {
    1 + usize::from(prefix.prefix_len().div_ceil(8))
}

fn unreach(prefixes: &[u8]) -> Vec<u8> {
    let mut value = family(Family::V6);
    value.extend_from_slice(prefixes);
    attribute(attr_type::MP_UNREACH_NLRI, &value)
}

fn family(family: Family) -> Vec<u8> {
    let (afi, safi) = family.on_wire();
    let mut bytes = (afi as u16).to_be_bytes().to_vec();
    bytes.push(safi as u8);
    bytes
}

fn attribute(code: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![attr_flags::OPTIONAL | attr_flags::EXTENDED_LENGTH, code];
    // A value is part of a message, whose length has two octets.
    bytes.extend((value.len() as u16).to_be_bytes());
    bytes.extend_from_slice(value);
    bytes
}

fn push(
    withdrawn: &[u8],
    attributes: Vec<u8>,
    announced: &[u8],
    encoding: Encoding,
    out: &mut BytesMut,
) {
    let message = UpdateMessage {
        withdrawn_routes: Bytes::copy_from_slice(withdrawn),
        path_attributes: attributes.into(),
        nlri: Bytes::copy_from_slice(announced),
    };
    // The parts were measured: they are within the limit.
    let encoded = message.encode_with_limit(out, encoding.limit);
    debug_assert!(encoded.is_ok(), "{encoded:?}");
}
