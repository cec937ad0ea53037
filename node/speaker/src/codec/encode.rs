//! Encodes an update into messages.

use std::net::IpAddr;

use bytes::{BufMut as _, BytesMut};
use ipnet::IpNet;
use manx_bgp::path::Update;
use rustbgpd_wire::constants::{HEADER_LEN, attr_flags, attr_type};

use super::encoding::{Encoding, Family};
use super::written::Written;

/// The length of an UPDATE without routes and attributes, in bytes: the header and two length fields.
const EMPTY: usize = HEADER_LEN + 4;
/// The length of an attribute's header in bytes, if its length field has two octets.
const ATTRIBUTE: usize = 4;
/// The length of the part of `MP_UNREACH_NLRI` before its prefixes, in bytes: AFI and SAFI (RFC 4760, 4).
const UNREACH: usize = 3;
/// The length of the part of `MP_REACH_NLRI` before its prefixes, in bytes: AFI and SAFI, the next hop and its length, and
/// a reserved byte.
const REACH: usize = 3 + 1 + 16 + 1;
/// The greatest length of a prefix, in bytes.
const PREFIX: usize = 17;
/// The type of an UPDATE (RFC 4271, 4.1).
const UPDATE: u8 = 2;

/// Appends the messages of an update, each with as many prefixes as fit. `written` caches encoded attributes.
///
/// Routes whose attributes fit into no message, or must not be sent, are withdrawn instead (RFC 8654, 4): the peer must not
/// keep the earlier routes. Returns the number of these routes.
pub(crate) fn encode(
    update: &Update,
    encoding: Encoding,
    written: &mut Written,
    out: &mut BytesMut,
) -> usize {
    withdraw(&update.withdrawn, encoding, out);
    if update.announced.is_empty() {
        return 0;
    }
    if announce(update, encoding, written, out).is_some() {
        return 0;
    }
    withdraw(&update.announced, encoding, out);
    update.announced.len()
}

/// Appends the End-of-RIB message: all routes were sent (RFC 4724, 2).
pub(crate) fn encode_end_of_rib(encoding: Encoding, out: &mut BytesMut) {
    match encoding.family {
        Family::V4 => message(out, |out| out.put_u32(0)),
        Family::V6 => unreach(&mut [].iter(), 0, out),
    }
}

fn withdraw(prefixes: &[IpNet], encoding: Encoding, out: &mut BytesMut) {
    let room = usize::from(encoding.limit) - EMPTY;
    let mut rest = prefixes.iter();
    while !rest.as_slice().is_empty() {
        match encoding.family {
            Family::V4 => message(out, |out| {
                measured(out, |out| pack(&mut rest, room, out));
                out.put_u16(0);
            }),
            Family::V6 => unreach(&mut rest, room - ATTRIBUTE - UNREACH, out),
        }
    }
}

/// Returns `None` if the attributes cannot be sent. Then nothing was appended.
fn announce(
    update: &Update,
    encoding: Encoding,
    written: &mut Written,
    out: &mut BytesMut,
) -> Option<()> {
    let attributes = update.attributes.as_ref()?;
    let common = written.attributes(attributes, encoding.is_four_octet)?;
    let room = usize::from(encoding.limit).checked_sub(EMPTY + common.len())?;
    let mut rest = update.announced.iter();
    match (encoding.family, attributes.next_hop) {
        (Family::V4, IpAddr::V4(_)) => {
            room.checked_sub(PREFIX)?;
            while !rest.as_slice().is_empty() {
                message(out, |out| {
                    out.put_u16(0);
                    measured(out, |out| out.put_slice(&common));
                    pack(&mut rest, room, out);
                });
            }
        }
        (Family::V6, IpAddr::V6(next_hop)) => {
            let room = room.checked_sub(ATTRIBUTE + REACH)?;
            room.checked_sub(PREFIX)?;
            while !rest.as_slice().is_empty() {
                message(out, |out| {
                    out.put_u16(0);
                    measured(out, |out| {
                        // This attribute comes first, so that the peer finds it whatever is wrong with the others (RFC
                        // 7606, 5.1).
                        attribute(attr_type::MP_REACH_NLRI, out, |out| {
                            family(Family::V6, out);
                            out.put_u8(16);
                            out.put_slice(&next_hop.octets());
                            out.put_u8(0);
                            pack(&mut rest, room, out);
                        });
                        out.put_slice(&common);
                    });
                });
            }
        }
        (Family::V4, IpAddr::V6(_)) | (Family::V6, IpAddr::V4(_)) => return None,
    }
    Some(())
}

/// Appends prefixes in the form of messages, as many as fit into `room` bytes.
fn pack(rest: &mut std::slice::Iter<'_, IpNet>, room: usize, out: &mut BytesMut) {
    let end = out.len() + room;
    while let Some(prefix) = rest.as_slice().first()
        && out.len() + length(prefix) <= end
    {
        rest.next();
        out.put_u8(prefix.prefix_len());
        match prefix.network() {
            IpAddr::V4(it) => out.put_slice(&it.octets()[..length(prefix) - 1]),
            IpAddr::V6(it) => out.put_slice(&it.octets()[..length(prefix) - 1]),
        }
    }
}

/// The encoded length of a prefix in bytes (RFC 4271, 4.3).
fn length(prefix: &IpNet) -> usize {
    1 + usize::from(prefix.prefix_len().div_ceil(8))
}

/// Appends a message that withdraws IPv6 prefixes, as many as fit into `room` bytes.
fn unreach(rest: &mut std::slice::Iter<'_, IpNet>, room: usize, out: &mut BytesMut) {
    message(out, |out| {
        out.put_u16(0);
        measured(out, |out| {
            attribute(attr_type::MP_UNREACH_NLRI, out, |out| {
                family(Family::V6, out);
                pack(rest, room, out);
            });
        });
    });
}

fn family(family: Family, out: &mut BytesMut) {
    let (afi, safi) = family.on_wire();
    out.put_u16(afi as u16);
    out.put_u8(safi as u8);
}

fn attribute(code: u8, out: &mut BytesMut, value: impl FnOnce(&mut BytesMut)) {
    out.put_u8(attr_flags::OPTIONAL | attr_flags::EXTENDED_LENGTH);
    out.put_u8(code);
    measured(out, value);
}

/// Appends an UPDATE with this body.
fn message(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let begin = out.len();
    out.put_bytes(0xff, 16);
    out.put_u16(0);
    out.put_u8(UPDATE);
    body(out);
    set_length(out, begin + 16, out.len() - begin);
}

/// Appends a part with its two-octet length before it.
fn measured(out: &mut BytesMut, part: impl FnOnce(&mut BytesMut)) {
    let begin = out.len();
    out.put_u16(0);
    part(out);
    set_length(out, begin, out.len() - begin - 2);
}

/// Fills in a reserved length field. The length fits into two octets, because it is at most the length of a message.
fn set_length(out: &mut BytesMut, at: usize, length: usize) {
    if let Some(place) = out.get_mut(at..at + 2) {
        place.copy_from_slice(&(length as u16).to_be_bytes());
    }
}
