//! `BlockAffinity`, as Calico's IPAM writes it.
//!
//! `spec.deleted` is text in `crd.projectcalico.org/v1` and a boolean in `projectcalico.org/v3`. This reader accepts
//! either form in both versions, because the versions do not differ otherwise.
//!
//! Source: Calico's custom resource definitions, and its design of IPAM.

use super::super::cursor::{Cursor, Findings};
use super::super::object::{AffinityState, AffinityType, BlockAffinity, Kind};
use super::super::settings::tell;
use super::super::syntax::{DNS_SUBDOMAIN, is_dns_subdomain};
use super::super::tree::Value;
use super::fixed::OBJECT;
use super::value::{NET, net};

const STATE: &str = "pending, confirmed or pendingDeletion";
const TYPE: &str = "host or virtual";

/// Reads an affinity. Returns `None`, with an error in `out`, if the block, its node or another field is missing or not
/// legal.
pub(in super::super) fn block_affinity(
    root: &Cursor<'_>,
    out: &mut Findings,
) -> Option<BlockAffinity> {
    root.mapping(out, OBJECT, &["status"]);
    let spec = root.required(out, "spec", "a mapping with cidr, node and state")?;
    if !tell(&spec, Kind::BlockAffinity, out) {
        return None;
    }
    let cidr = spec.required(out, "cidr", NET).and_then(|field| net(&field, out));
    let node = spec.required(out, "node", "the name of the node that claims the block");
    let node = node.and_then(|field| {
        field.parsed(out, DNS_SUBDOMAIN, |text| is_dns_subdomain(text).then(|| text.to_owned()))
    });
    let state = spec.required(out, "state", STATE).and_then(|field| {
        field.parsed(out, STATE, |text| match text {
            "pending" => Some(AffinityState::Pending),
            "confirmed" => Some(AffinityState::Confirmed),
            "pendingDeletion" => Some(AffinityState::PendingDeletion),
            _ => None,
        })
    });
    let claimant = match spec.field("type").filter(|field| !field.is_empty()) {
        Some(field) => field.parsed(out, TYPE, |text| match text {
            "host" => Some(AffinityType::Host),
            "virtual" => Some(AffinityType::Virtual),
            _ => None,
        }),
        None => Some(AffinityType::Host),
    };
    let is_deleted = match spec.field("deleted").filter(|field| !field.is_empty()) {
        Some(field) => truth(&field, out),
        None => Some(false),
    };
    Some(BlockAffinity {
        cidr: cidr?,
        node: node?,
        state: state?,
        claimant: claimant?,
        is_deleted: is_deleted?,
    })
}

/// Reads a boolean, or the text of one.
fn truth(cursor: &Cursor<'_>, out: &mut Findings) -> Option<bool> {
    match &cursor.node.value {
        Value::Boolean(truth) => Some(*truth),
        Value::String(text) if &**text == "true" => Some(true),
        Value::String(text) if &**text == "false" => Some(false),
        _ => {
            cursor.expected(out, "true or false, in quotes or not");
            None
        }
    }
}
