//! Messages of other speakers, unchanged and with random changes. None is decoded wrongly, none causes a panic, and only
//! those messages end a session for which RFC 7606 requires it.
//!
//! An independent parser finds the prefixes of a message, and whether they can be found.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustbgpd_wire::{Message, decode_message};

use super::decode::{Decoded, decode};
use super::encoding::{Encoding, Family};

const MESSAGES: &str = include_str!("foreign.txt");
/// The length of a message's header in bytes: marker, length and type (RFC 4271, 4.1).
const HEADER: usize = 19;
const UPDATE: u8 = 2;
/// The attributes with multiprotocol prefixes (RFC 4760): `MP_REACH_NLRI` announces them, and `MP_UNREACH_NLRI` withdraws
/// them.
const REACH: u8 = 14;
const UNREACH: u8 = 15;
/// The flag of an attribute whose length field has two bytes.
const EXTENDED: u8 = 0x10;
const LIMIT: u16 = 4096;

/// The number of changed messages of a run. `MANX_BGP_MUTATIONS` sets another number.
const MUTATIONS: u64 = 300_000;

/// The messages, including their marker.
fn messages() -> Vec<Vec<u8>> {
    let lines = MESSAGES.lines().filter(|line| !line.starts_with('#'));
    let message = |line: &str| {
        let (_, hex) = line.split_once(' ').unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let rest = (0..hex.len()).step_by(2).map(byte);
        [0xff; 16].into_iter().chain(rest).collect()
    };
    lines.map(message).collect()
}

/// The prefixes of a message, as the independent parser finds them. An error means that they cannot all be found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Prefixes {
    announced: BTreeSet<IpNet>,
    withdrawn: BTreeSet<IpNet>,
}

struct Unreadable;

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Unreadable> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or(Unreadable)?;
    *bytes = rest;
    Ok(taken)
}

fn number(bytes: &mut &[u8], count: usize) -> Result<usize, Unreadable> {
    Ok(take(bytes, count)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// Parses prefixes in the form of RFC 4271, 4.3.
fn prefixes(mut bytes: &[u8], is_v4: bool, into: &mut BTreeSet<IpNet>) -> Result<(), Unreadable> {
    while !bytes.is_empty() {
        let length = number(&mut bytes, 1)?;
        let taken = take(&mut bytes, length.div_ceil(8))?;
        let mut address = [0; 16];
        if length > if is_v4 { 32 } else { 128 } {
            return Err(Unreadable);
        }
        address[..taken.len()].copy_from_slice(taken);
        let [a, b, c, d, ..] = address;
        into.insert(if is_v4 {
            Ipv4Net::new(Ipv4Addr::new(a, b, c, d), length as u8).unwrap().trunc().into()
        } else {
            Ipv6Net::new(Ipv6Addr::from(address), length as u8).unwrap().trunc().into()
        });
    }
    Ok(())
}

/// Parses the prefixes of an attribute of unicast. Other families were not negotiated, and count as unreadable (RFC 4760,
/// 7).
fn in_attribute(kind: u8, mut value: &[u8], all: &mut Prefixes) -> Result<(), Unreadable> {
    let (family, service) = (number(&mut value, 2)?, number(&mut value, 1)?);
    if kind == REACH {
        let next_hop = number(&mut value, 1)?;
        // A next hop of another length leaves unclear where the prefixes begin (RFC 7606, 7.11).
        if !matches!((family, next_hop), (1, 4 | 16 | 32) | (2, 16 | 32)) {
            return Err(Unreadable);
        }
        take(&mut value, next_hop)?;
        number(&mut value, 1)?;
    }
    let into = if kind == REACH { &mut all.announced } else { &mut all.withdrawn };
    match (family, service) {
        (1 | 2, 1) => prefixes(value, family == 1, into),
        _ => Err(Unreadable),
    }
}

/// The prefixes of the body of an UPDATE. If an attribute does not end within the message, only the prefixes of later
/// attributes are lost; the announced prefixes of the body are still found.
fn all_prefixes(mut body: &[u8]) -> Result<Prefixes, Unreadable> {
    let mut all = Prefixes::default();
    let withdrawn = number(&mut body, 2)?;
    prefixes(take(&mut body, withdrawn)?, true, &mut all.withdrawn)?;
    let attributes = number(&mut body, 2)?;
    let mut attributes = take(&mut body, attributes)?;
    prefixes(body, true, &mut all.announced)?;
    let mut seen = BTreeSet::new();
    while !attributes.is_empty() {
        let [flags, kind] = *take(&mut attributes, 2)? else { return Err(Unreadable) };
        let length = number(&mut attributes, if flags & EXTENDED == 0 { 1 } else { 2 })?;
        let value = take(&mut attributes, length)?;
        if matches!(kind, REACH | UNREACH) {
            // If the attribute occurs twice, neither can be relied on (RFC 7606, 3 g).
            if !seen.insert(kind) {
                return Err(Unreadable);
            }
            in_attribute(kind, value, &mut all)?;
        }
    }
    Ok(all)
}

fn encoding(family: Family) -> Encoding {
    Encoding { family, is_four_octet: true, is_internal: false, limit: LIMIT }
}

/// The classes of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A message that is no UPDATE.
    Other,
    /// An UPDATE whose prefixes cannot be found.
    Unreadable,
    /// An UPDATE that announces routes, some of which are withdrawn because of a fault.
    Withdrawn,
    /// An UPDATE that is accepted as it is.
    Taken,
}

/// Classifies a message. Returns an error if it is decoded wrongly.
fn judge(message: &[u8]) -> Result<Kind, String> {
    let Ok(Message::Update(update)) = decode_message(&mut Bytes::copy_from_slice(message), LIMIT)
    else {
        return Ok(Kind::Other);
    };
    let mut kind = Kind::Taken;
    let length = usize::from(u16::from_be_bytes([message[16], message[17]]));
    let expected = all_prefixes(&message[HEADER..length]);
    for family in [Family::V4, Family::V6] {
        let updates = match decode(&update, encoding(family)) {
            Ok(Decoded::Routes { updates, .. }) => updates,
            Err(notification) if expected.is_ok() => {
                return Err(format!(
                    "the session ends, and all prefixes can be read: {notification:?}"
                ));
            }
            Ok(Decoded::EndOfRib) | Err(_) => Vec::new(),
        };
        let Ok(expected) = &expected else {
            kind = Kind::Unreadable;
            continue;
        };
        let of_family = |it: &&IpNet| it.addr().is_ipv4() == (family == Family::V4);
        let named: BTreeSet<IpNet> =
            expected.announced.union(&expected.withdrawn).filter(of_family).copied().collect();
        let announced: BTreeSet<IpNet> =
            updates.iter().flat_map(|it| it.announced.iter().copied()).collect();
        let withdrawn: BTreeSet<IpNet> =
            updates.iter().flat_map(|it| it.withdrawn.iter().copied()).collect();
        let told: BTreeSet<IpNet> = announced.union(&withdrawn).copied().collect();
        if told != named {
            return Err(format!("prefixes {told:?}, expected {named:?}"));
        }
        if !announced.is_subset(&expected.announced) {
            return Err(format!("{announced:?} announced, expected of {:?}", expected.announced));
        }
        if !expected.announced.iter().filter(of_family).all(|it| announced.contains(it)) {
            kind = Kind::Withdrawn;
        }
    }
    Ok(kind)
}

#[test]
fn messages_of_other_speakers_are_read_without_a_fault() {
    let mut updates = 0;
    for message in messages() {
        let found = decode_message(&mut Bytes::from(message.clone()), LIMIT).unwrap();
        let Message::Update(update) = found else { continue };
        assert_ne!(judge(&message).unwrap(), Kind::Unreadable);
        for family in [Family::V4, Family::V6] {
            match decode(&update, encoding(family)).unwrap() {
                Decoded::EndOfRib => {}
                Decoded::Routes { updates: routes, fault } => {
                    let foreign = "prefixes of a family that the session does not carry";
                    // Routes with an AS_SET are withdrawn (RFC 9774), but other speakers still send them.
                    let sets = "attribute 2: UPDATE prohibited AS path segment type 1";
                    let is_right = fault.as_ref().is_none_or(|it| it == foreign || it == sets);
                    assert!(is_right, "{fault:?}: {message:?}");
                    updates += usize::from(!routes.is_empty());
                }
            }
        }
    }
    assert!(updates > 40, "{updates}");
}

/// Changes a message in a few places. Mostly its length fields stay correct.
fn change(rng: &mut fastrand::Rng, all: &[Vec<u8>]) -> Vec<u8> {
    let mut message = all[rng.usize(..all.len())].clone();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(HEADER..message.len().max(HEADER + 1));
        let Some(byte) = message.get_mut(at) else { continue };
        match rng.u8(..8) {
            0 => *byte ^= 1 << rng.u8(..8),
            1 => *byte = rng.u8(..),
            2 => *byte = [0, 1, 0xff, 0x7f, 0x80, 32, 33, 128, 129][rng.usize(..9)],
            3 => message.insert(at, rng.u8(..)),
            4 => drop(message.remove(at)),
            5 => message.truncate(at),
            6 => {
                let other = &all[rng.usize(..all.len())];
                let from = rng.usize(HEADER.min(other.len() - 1)..other.len());
                let count = rng.usize(..=(other.len() - from).min(40));
                message.splice(at..at, other[from..from + count].iter().copied());
            }
            _ => {
                let end = rng.usize(at..=message.len().min(at + 40));
                let copied = message[at..end].to_vec();
                message.splice(at..at, copied);
            }
        }
    }
    message.truncate(LIMIT.into());
    if rng.u8(..16) != 0 {
        let length = (message.len() as u16).to_be_bytes();
        message[16..18].copy_from_slice(&length);
        mend(rng, &mut message);
    }
    message
}

/// Sets the length of the attributes, so that they end at the end of the message or up to 8 bytes before it.
fn mend(rng: &mut fastrand::Rng, message: &mut [u8]) {
    if message.len() < HEADER + 4 || message[18] != UPDATE || rng.bool() {
        return;
    }
    let withdrawn = usize::from(u16::from_be_bytes([message[HEADER], message[HEADER + 1]]));
    let at = HEADER + 2 + withdrawn;
    let Some(rest) = message.len().checked_sub(at + 2) else { return };
    let length = (rest - rng.usize(..=rest.min(8))) as u16;
    message[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

#[test]
fn a_changed_message_ends_a_session_only_if_its_prefixes_cannot_be_read() {
    let count = std::env::var("MANX_BGP_MUTATIONS").ok().map(|it| it.parse().unwrap());
    let all = messages();
    let mut rng = fastrand::Rng::with_seed(7606);
    let count = count.unwrap_or(MUTATIONS);
    let mut kinds = Vec::new();
    for at in 0..count {
        let message = change(&mut rng, &all);
        match judge(&message) {
            Ok(kind) => kinds.push(kind),
            Err(fault) => panic!("message {at}: {fault}\n{message:02x?}"),
        }
    }
    for kind in [Kind::Unreadable, Kind::Withdrawn, Kind::Taken] {
        let found = kinds.iter().filter(|it| **it == kind).count();
        assert!(found as u64 > count / 50, "{kind:?}: {found} of {count}");
    }
}
