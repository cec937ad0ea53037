//! Decodes a message into updates.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use manx_bgp::path::Update;
use rustbgpd_wire::validate::validate_update_attributes_with_context;
use rustbgpd_wire::{
    ErrorDisposition, Ipv4NlriEntry, NlriEntry, NotificationCode, NotificationMessage,
    PathAttribute, Prefix, RevisedParsedUpdate, UpdateMessage, UpdateValidationOptions,
};

use super::attributes;
use super::encoding::{Encoding, Family};

/// The content of an UPDATE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// The peer has sent all of its routes (End-of-RIB; RFC 4724, 2).
    EndOfRib,
    /// Routes have changed.
    Routes {
        /// The changes, in order.
        updates: Vec<Update>,
        /// The description of the message's fault, if it has one. The updates are then the usable rest of the message (RFC
        /// 7606).
        fault: Option<String>,
    },
}

/// Announced prefixes with one next hop.
#[derive(Default)]
struct Announced {
    next_hop: Option<IpAddr>,
    prefixes: Vec<IpNet>,
}

/// Decodes an UPDATE. Prefixes of another family than the session's are ignored.
///
/// # Errors
/// The prefixes of the message cannot be found. The session ends with this notification (RFC 7606, 5.3).
pub(crate) fn decode(
    message: &UpdateMessage,
    encoding: Encoding,
) -> Result<Decoded, NotificationMessage> {
    let Encoding { family, is_internal, .. } = encoding;
    let mut faults = Faults::default();
    let parsed = parse(message, encoding, &mut faults)?;
    let (parsed, malformed) = (parsed.update, parsed.malformed);
    if is_end_of_rib(message, &parsed.attributes, family) && malformed.is_empty() {
        return Ok(Decoded::EndOfRib);
    }
    for it in &malformed {
        faults.add(it.disposition, || format!("attribute {}: {}", it.type_code, it.error));
    }
    let has_body = !parsed.announced.is_empty();
    let mut withdrawn: Vec<IpNet> = parsed.withdrawn.iter().map(in_body).collect();
    let mut body = Announced::default();
    body.prefixes.extend(parsed.announced.iter().map(in_body));
    let mut reach = Announced::default();
    for it in &parsed.attributes {
        match it {
            PathAttribute::NextHop(it) => body.next_hop = Some((*it).into()),
            PathAttribute::MpReachNlri(it) => {
                reach.next_hop = Some(it.next_hop);
                reach.prefixes.extend(it.announced.iter().map(in_attribute));
            }
            PathAttribute::MpUnreachNlri(it) => {
                withdrawn.extend(it.withdrawn.iter().map(in_attribute));
            }
            _ => {}
        }
    }
    let has_routes = has_body || !reach.prefixes.is_empty();
    let options = UpdateValidationOptions::default();
    let valid = validate_update_attributes_with_context(
        &parsed.attributes,
        has_routes,
        has_body,
        !is_internal,
        options,
    );
    if let Err(it) = valid {
        if it.error.disposition == ErrorDisposition::SessionReset {
            let data = Bytes::from(it.error.data);
            let code = NotificationCode::UpdateMessage;
            return Err(NotificationMessage::new(code, it.error.subcode, data));
        }
        faults.add(it.error.disposition, || {
            let code = NotificationCode::UpdateMessage;
            let what = rustbgpd_wire::notification::description(code, it.error.subcode);
            format!("attribute {}: {what}", it.type_code)
        });
    }
    let is_of_session = |it: &IpNet| it.addr().is_ipv4() == (family == Family::V4);
    let count = withdrawn.len() + body.prefixes.len() + reach.prefixes.len();
    withdrawn.retain(is_of_session);
    body.prefixes.retain(is_of_session);
    reach.prefixes.retain(is_of_session);
    if withdrawn.len() + body.prefixes.len() + reach.prefixes.len() < count {
        faults.add(ErrorDisposition::AttributeDiscard, || {
            "prefixes of a family that the session does not carry".to_owned()
        });
    }
    let mut updates = vec![Update { withdrawn, ..Update::default() }];
    for Announced { next_hop, prefixes } in [body, reach] {
        if prefixes.is_empty() {
            continue;
        }
        let is_family = |it: &IpAddr| it.is_ipv4() == (family == Family::V4);
        let next_hop = next_hop.filter(is_family);
        let read = next_hop.and_then(|it| attributes::decode(&parsed.attributes, it));
        if read.is_none() {
            faults.add(ErrorDisposition::TreatAsWithdraw, || {
                "ORIGIN, AS_PATH or a next hop of the session's family is missing".to_owned()
            });
        }
        match read.filter(|_| !faults.withdraw) {
            Some(attributes) => updates.push(Update {
                announced: prefixes,
                attributes: Some(Arc::new(attributes)),
                ..Update::default()
            }),
            None => updates[0].withdrawn.extend(prefixes),
        }
    }
    updates.retain(|it| !it.withdrawn.is_empty() || !it.announced.is_empty());
    Ok(Decoded::Routes { updates, fault: faults.first })
}

/// Parses a message. If the only fault is the flags of `MP_REACH_NLRI` or `MP_UNREACH_NLRI`, the message is parsed with the
/// right flags and its routes are withdrawn (RFC 7606, 3 c). The library alone would end the session.
fn parse(
    message: &UpdateMessage,
    Encoding { is_four_octet, is_internal, .. }: Encoding,
    faults: &mut Faults,
) -> Result<RevisedParsedUpdate, NotificationMessage> {
    let read = |it: &UpdateMessage| it.parse_revised(is_four_octet, is_internal, false, &[]);
    read(message).or_else(|error| {
        let mended = with_right_flags(message).and_then(|it| read(&it).ok());
        faults.add(ErrorDisposition::TreatAsWithdraw, || error.to_string());
        mended.ok_or_else(|| {
            let (code, subcode, data) = error.to_notification();
            NotificationMessage::new(code, subcode, data)
        })
    })
}

/// The message with the flags of RFC 4760 at `MP_REACH_NLRI` and `MP_UNREACH_NLRI`. Returns `None` if the flags are right
/// already, or if the attributes cannot be separated.
fn with_right_flags(message: &UpdateMessage) -> Option<UpdateMessage> {
    const OPTIONAL: u8 = 0x80;
    const EXTENDED: u8 = 0x10;
    let mut attributes = message.path_attributes.to_vec();
    let mut at = 0;
    while let Some([flags, kind, length @ ..]) = attributes.get(at..at + 4) {
        let extended = flags & EXTENDED;
        let length = match length {
            [high, low] if extended != 0 => 4 + usize::from(u16::from_be_bytes([*high, *low])),
            [length, _] => 3 + usize::from(*length),
            _ => return None,
        };
        if matches!(kind, 14 | 15) {
            attributes[at] = OPTIONAL | extended;
        }
        at += length;
    }
    let is_changed = attributes != message.path_attributes;
    is_changed.then(|| UpdateMessage { path_attributes: attributes.into(), ..message.clone() })
}

/// The faults of a message.
#[derive(Default)]
struct Faults {
    /// The description of the first fault.
    first: Option<String>,
    /// Whether the message's routes are withdrawn.
    withdraw: bool,
}

impl Faults {
    fn add(&mut self, disposition: ErrorDisposition, words: impl FnOnce() -> String) {
        self.withdraw |= disposition >= ErrorDisposition::TreatAsWithdraw;
        self.first.get_or_insert_with(words);
    }
}

fn is_end_of_rib(message: &UpdateMessage, attributes: &[PathAttribute], family: Family) -> bool {
    let UpdateMessage { withdrawn_routes, path_attributes, nlri } = message;
    if !withdrawn_routes.is_empty() || !nlri.is_empty() {
        return false;
    }
    match family {
        Family::V4 => path_attributes.is_empty(),
        Family::V6 => matches!(
            attributes,
            [PathAttribute::MpUnreachNlri(it)]
                if it.withdrawn.is_empty() && (it.afi, it.safi) == family.on_wire()
        ),
    }
}

fn in_body(it: &Ipv4NlriEntry) -> IpNet {
    of(Prefix::V4(it.prefix))
}

fn in_attribute(it: &NlriEntry) -> IpNet {
    of(it.prefix)
}

/// Converts a prefix whose length was checked by the parser.
fn of(prefix: Prefix) -> IpNet {
    match prefix {
        Prefix::V4(it) => Ipv4Net::new(it.addr, it.len).unwrap_or_default().into(),
        Prefix::V6(it) => Ipv6Net::new(it.addr, it.len).unwrap_or_default().into(),
    }
}
