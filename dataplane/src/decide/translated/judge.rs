//! The ends of a translated flow as policy sees them, and the epoch of the decision on it.

use manx_policy_compiler::model::{L4Header, Protocol, Transport};

use crate::decide::address_lookup::{by_return_path, current_epoch, lookup_ends};
use crate::decide::key::transport;
use crate::decide::route::connects;
use crate::flow::{DirectedKey, Epoch, TwoKeys};
use crate::policy::{self, FlowEnds, PolicyVerdict, PolicyView, PolicyViews, UntrackedAllows};
use crate::services::FrontendKey;
use crate::tables::{EncodedNextHop, NextHop, NextHopPair, ReturnPath, Tables};
use crate::wire::address::Address;

/// Evaluates policy for a translated flow with this first key. `asked` are its ends before the translation. `ends` are
/// its ends after the translation, with the source as the client sent it. `port` is the destination port after the
/// translation.
pub(super) fn evaluate(
    tables: &Tables,
    first: &DirectedKey,
    asked: FlowEnds,
    (ends, port): (FlowEnds, u16),
) -> PolicyVerdict {
    let original = transport(&first.key, first.original);
    let l4 = match original.l4 {
        L4Header::Ports { source, .. } => L4Header::Ports { source, destination: port },
        other => other,
    };
    let views = PolicyViews {
        original: PolicyView { ends: asked, transport: original },
        translated: PolicyView { ends, transport: Transport { l4, ..original } },
    };
    policy::evaluate_policy(tables, views, UntrackedAllows::NONE)
}

/// Like [`evaluate`], for a flow that has both keys.
pub(super) fn evaluate_known(tables: &Tables, keys: &TwoKeys, ends: FlowEnds) -> PolicyVerdict {
    let (_, port) = keys.second.key.destination(keys.second.original);
    evaluate(tables, &keys.first, asked_ends(tables, keys, &ends), (ends, port))
}

/// Whether Manx carries the packets of a translated flow between these ends. A service connects more ends than
/// [`connects`] does: hosts outside of the cluster and the node's own processes with backends that are hosts.
/// `to_visit`: the service also connects outside hosts with a backend on another node, which accepts them as visitors.
pub(super) fn leads(
    tables: &Tables,
    (is_service, to_visit): (bool, bool),
    ends: &FlowEnds,
) -> bool {
    let is_led = || match (ends.from, ends.to) {
        // The replies go to the node, because the node's address is the source of such a flow.
        (NextHop::Node | NextHop::World, NextHop::Node | NextHop::World) => {
            is_service && tables.manx_ports.is_some()
        }
        (NextHop::World, NextHop::Tunnel(_)) => is_service && to_visit,
        _ => false,
    };
    // The destination must not be a service address itself, or packets would be translated without end.
    ends.to != NextHop::Service && (connects(tables, ends.from, ends.to) || is_led())
}

/// Like [`leads`], for a flow that has both keys. `leads_as_before`: the flow is allowed and has the same next hops as
/// before. Such a flow may continue to a backend on another node even if its frontend no longer takes visitors.
pub(super) fn leads_known(
    tables: &Tables,
    keys: &TwoKeys,
    ends: &FlowEnds,
    leads_as_before: bool,
) -> bool {
    let [asked, behind] =
        [keys.first, keys.second].map(|it| FrontendKey::asked_by(&it.key, it.original));
    let takes_visitors = || {
        let services = tables.services.as_deref();
        services.and_then(|it| it.frontend(&asked)).is_some_and(|it| it.takes_visitors)
    };
    let is_service = is_of_service(&asked, &behind);
    leads(tables, (is_service, leads_as_before || takes_visitors()), ends)
}

/// Whether a service has changed the destination of a flow from `asked` to `behind`. False for protocols without ports:
/// no service has such a protocol, and an ICMP query has its identifier in place of a port.
pub(super) fn is_of_service(asked: &FrontendKey, behind: &FrontendKey) -> bool {
    Protocol::from_number(asked.protocol).is_some() && asked != behind
}

/// The two addresses that the decision on a translated flow rests on: its source, and its destination after the
/// translation.
#[inline]
fn judged_addresses(TwoKeys { first, second }: &TwoKeys) -> [Address; 2] {
    [first.key.source(first.original).0, second.key.destination(second.original).0]
}

/// The epoch of a decision on a translated flow. The epoch also changes when a backend may have been removed.
#[inline]
pub(in crate::decide) fn epoch(tables: &Tables, keys: &TwoKeys) -> Epoch {
    epoch_of(tables, judged_addresses(keys))
}

/// Like [`epoch`], for a flow with these two addresses, in either order.
#[inline(always)]
#[expect(clippy::inline_always, reason = "every packet that is translated")]
pub(super) fn epoch_of(tables: &Tables, addresses: [Address; 2]) -> Epoch {
    let addresses = addresses.map(|it| it.to_bits() as u32);
    let Epoch { version, changes } = current_epoch(tables, addresses);
    let gone = tables.services.as_ref().map_or(0, |services| services.gone());
    Epoch { version, changes: changes.wrapping_add(gone) }
}

/// The next hops of a flow whose packets in the original direction have this return path, and its ends as policy judges
/// them.
pub(super) fn judged_ends(
    tables: &Tables,
    keys: &TwoKeys,
    path: ReturnPath,
) -> (NextHopPair, FlowEnds) {
    let TwoKeys { first, second } = keys;
    let [source, destination] = judged_addresses(keys);
    let (pair, ends) = by_return_path(tables, path, lookup_ends(tables, source, destination));
    // If the source is a process of the node, the translation changes only its port, because it already has the node's
    // address. So the next hop of the source is tested, too.
    let is_of_node = first.key.source(first.original).0 != second.key.source(second.original).0
        || matches!(ends.from, NextHop::World | NextHop::Node);
    let by_node = is_of_node && matches!(ends.to, NextHop::World | NextHop::Node);
    let pair = if by_node { NextHopPair { to: EncodedNextHop::MANX_PORTS, ..pair } } else { pair };
    (pair, ends)
}

/// The ends of the flow before its translation. Policy sees the same source before and after the translation.
fn asked_ends(tables: &Tables, keys: &TwoKeys, ends: &FlowEnds) -> FlowEnds {
    let (address, _) = keys.first.key.destination(keys.first.original);
    let identities = [ends.identities[0], tables.identity(address)];
    FlowEnds { from: ends.from, to: tables.next_hop(address), identities }
}
