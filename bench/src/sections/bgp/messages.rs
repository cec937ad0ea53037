//! The part of BGP's messages that a peer of this bench writes and reads (RFC 4271, section 4). The
//! functions are pure.

use std::net::Ipv4Addr;

use super::scenario::{Routes, number, prefix};

/// The length of a header in bytes: the marker, the length, the type.
const HEADER: usize = 19;
/// The largest length of a message, in bytes.
const LONGEST: usize = 4096;
/// The hold time that is proposed, in seconds.
const HOLD_TIME: u16 = 240;
/// The number that replaces an autonomous system number of more than two octets (RFC 6793).
const AS_TRANS: u16 = 23456;

const OPEN: u8 = 1;
const UPDATE: u8 = 2;
const NOTIFICATION: u8 = 3;
const KEEPALIVE: u8 = 4;

/// The flags of path attributes: `WELL_KNOWN` is transitive, and `OPTIONAL` is optional and transitive.
const WELL_KNOWN: u8 = 0x40;
const OPTIONAL: u8 = 0xc0;

/// The message that begins a session, with these capabilities: IPv4 unicast, four-octet AS numbers,
/// route refresh.
pub(super) fn open(system: u32, identifier: Ipv4Addr) -> Vec<u8> {
    let mut capabilities = vec![1, 4, 0, 1, 0, 1, 2, 0, 65, 4];
    capabilities.extend(system.to_be_bytes());
    let mut body = vec![4];
    body.extend(u16::try_from(system).unwrap_or(AS_TRANS).to_be_bytes());
    body.extend(HOLD_TIME.to_be_bytes());
    body.extend(identifier.octets());
    let length = capabilities.len() as u8;
    body.extend([length + 2, 2, length]);
    body.extend(capabilities);
    message(OPEN, &body)
}

pub(super) fn keepalive() -> Vec<u8> {
    message(KEEPALIVE, &[])
}

/// The message that announces routes. `is_internal` says whether the peer is in the same autonomous
/// system.
pub(super) fn announce(routes: &Routes, next_hop: Ipv4Addr, is_internal: bool) -> Vec<u8> {
    let Routes { prefixes, path, communities } = routes;
    let words = |all: &[u32]| all.iter().flat_map(|it| it.to_be_bytes()).collect::<Vec<u8>>();
    let mut attributes = Vec::new();
    attribute(&mut attributes, WELL_KNOWN, 1, &[0]);
    let mut segments = Vec::new();
    if !path.is_empty() {
        segments.extend([2, path.len() as u8]);
        segments.extend(words(path));
    }
    attribute(&mut attributes, WELL_KNOWN, 2, &segments);
    attribute(&mut attributes, WELL_KNOWN, 3, &next_hop.octets());
    if is_internal {
        attribute(&mut attributes, WELL_KNOWN, 5, &100u32.to_be_bytes());
    }
    if !communities.is_empty() {
        attribute(&mut attributes, OPTIONAL, 8, &words(communities));
    }
    let mut body = vec![0, 0];
    body.extend((attributes.len() as u16).to_be_bytes());
    body.extend(attributes);
    body.extend(prefixes.iter().flat_map(|it| on_wire(*it)));
    message(UPDATE, &body)
}

/// The message that withdraws a prefix.
pub(super) fn withdraw(number: u32) -> Vec<u8> {
    let prefixes = on_wire(number);
    let mut body = (prefixes.len() as u16).to_be_bytes().to_vec();
    body.extend(prefixes);
    body.extend([0, 0]);
    message(UPDATE, &body)
}

fn attribute(to: &mut Vec<u8>, flags: u8, code: u8, value: &[u8]) {
    to.extend([flags, code, value.len() as u8]);
    to.extend(value);
}

fn on_wire(number: u32) -> Vec<u8> {
    let net = prefix(number);
    let octets = usize::from(net.prefix_len().div_ceil(8));
    [&[net.prefix_len()][..], &net.addr().octets()[..octets]].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xff; 16];
    bytes.extend(((HEADER + body.len()) as u16).to_be_bytes());
    bytes.push(kind);
    bytes.extend(body);
    bytes
}

/// A message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message<'a> {
    Open,
    Keepalive,
    /// An UPDATE. The withdrawn and the announced prefixes are encoded as in the message ([`numbers`] decodes them).
    Update {
        withdrawn: &'a [u8],
        announced: &'a [u8],
    },
    /// The session is over. The values are the code and the subcode.
    Notification(u8, u8),
    /// Any other message.
    Other,
}

/// The first message in a stream, and its length. `Ok(None)` means that the message is not
/// complete.
pub(super) fn first(stream: &[u8]) -> Result<Option<(Message<'_>, usize)>, String> {
    let Some(header) = stream.get(..HEADER) else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([header[16], header[17]]));
    if !(HEADER..=LONGEST).contains(&length) {
        return Err(format!("a message of {length} bytes"));
    }
    let Some(body) = stream.get(HEADER..length) else { return Ok(None) };
    let message = match header[18] {
        OPEN => Message::Open,
        KEEPALIVE => Message::Keepalive,
        NOTIFICATION => {
            let at = |it: usize| body.get(it).copied().unwrap_or(0);
            Message::Notification(at(0), at(1))
        }
        UPDATE => {
            let cut = "an UPDATE whose parts are longer than it";
            let (withdrawn, rest) = part(body).ok_or(cut)?;
            let (_, announced) = part(rest).ok_or(cut)?;
            Message::Update { withdrawn, announced }
        }
        _ => Message::Other,
    };
    Ok(Some((message, length)))
}

/// Splits bytes that begin with a length in two octets: returns the part of this length, and the bytes after it.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}

/// The numbers of the prefixes in a part of a message. `None` for a prefix that no peer announces.
pub(super) fn numbers(mut bytes: &[u8]) -> impl Iterator<Item = Option<usize>> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first()?;
        let octets = usize::from(length.div_ceil(8));
        let mut address = [0; 4];
        let known = octets <= 4 && octets <= rest.len();
        if known {
            address[..octets].copy_from_slice(&rest[..octets]);
        }
        bytes = if known { &rest[octets..] } else { &[] };
        Some(number(*length, u32::from_be_bytes(address)).filter(|_| known))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_a_part_of_it_is_not_complete() {
        let routes = Routes { prefixes: vec![3, 9], path: vec![65001], communities: vec![7] };
        let hop = Ipv4Addr::new(10, 0, 0, 1);
        let stream = [open(64512, hop), keepalive(), announce(&routes, hop, true), withdraw(4)];
        let stream = stream.concat();
        let mut found = Vec::new();
        let mut rest = &stream[..];
        while let Some((message, length)) = first(rest).unwrap() {
            found.push(match message {
                Message::Update { withdrawn, announced } => {
                    let all = |it| numbers(it).collect::<Option<Vec<usize>>>().unwrap();
                    format!("{:?} {:?}", all(withdrawn), all(announced))
                }
                other => format!("{other:?}"),
            });
            for cut in 0..length {
                assert_eq!(first(&rest[..cut]), Ok(None));
            }
            rest = &rest[length..];
        }
        assert_eq!(found, ["Open", "Keepalive", "[] [3, 9]", "[4] []"]);
        assert!(rest.is_empty());
        assert_eq!(numbers(&[24, 1, 2]).collect::<Vec<_>>(), [None]);
        assert!(first(&[0; 19]).is_err());
    }
}
