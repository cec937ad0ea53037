//! Finds addresses that two pods have. The import itself reports addresses that nodes and pools
//! have in common.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object, ObjectKey, Pod};

use super::report::Report;

/// Reports each pod whose address an earlier pod has.
pub(super) fn check<'a>(contents: &'a Contents, report: &mut Report<'a>) {
    let mut owners: BTreeMap<IpAddr, &ObjectKey> = BTreeMap::new();
    for (key, stored) in contents.of_kind(Kind::Pod) {
        let Some(Object::Pod(pod)) = stored.state.valid() else { continue };
        // A pod that has ended, or is ending, may have released its address.
        if pod.deleting || pod.is_finished() {
            continue;
        }
        let mut shared = None;
        for address in pod.every_address() {
            let owner = *owners.entry(address).or_insert(key);
            shared = shared.or((owner != key).then_some((address, owner)));
        }
        if let Some((address, owner)) = shared {
            let message = format!(
                "its address {address} is also {owner}'s: what a rule says of one of them holds for both, and packets reach one only"
            );
            report.tell(key, field(pod), Code::SharedAddress, message);
        }
    }
}

fn field(pod: &Pod) -> &'static str {
    match (pod.pod_ips.is_empty(), pod.pod_ip) {
        (false, _) => "status.podIPs",
        (true, Some(_)) => "status.podIP",
        (true, None) => "metadata.annotations",
    }
}
