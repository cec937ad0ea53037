//! Service addresses that the node translates ([`ServicePort`](crate::tables::ServicePort)).
//!
//! A pod's packet to a service address leaves by the service port unjudged. kube-proxy changes its destination, and it
//! comes back by the same port, as a flow of its own: from the pod to an endpoint. That flow is judged, and its replies
//! leave by the service port, so that the node translates them back. They come back from the service address and
//! belong to the first flow.

use manx_policy_compiler::model::{Shown, Transport};

use crate::drop_reason::DropReason;
use crate::policy::{self, FlowEnds, PolicyVerdict, PolicyViews, UntrackedAllows};
use crate::tables::{EncodedNextHop, NextHopPair, Tables};
use crate::wire::address::Address;

/// Why a packet between these next hops opens no flow.
#[inline]
pub(super) fn refusal(pair: NextHopPair) -> Option<DropReason> {
    match (pair.from, pair.to) {
        (EncodedNextHop::TRANSLATED, EncodedNextHop::SERVICE) => {
            Some(DropReason::ServiceUntranslated)
        }
        (EncodedNextHop::SERVICE, _) => Some(DropReason::ServiceWithoutFlow),
        _ => None,
    }
}

/// Evaluates policy for a flow to a service address. What the node translates to a pod is judged when it comes back. What
/// it translates to a host may not come back, so that every endpoint that is a host must be allowed.
#[inline(never)]
pub(super) fn evaluate(
    tables: &Tables,
    ends: &FlowEnds,
    address: Address,
    transport: Transport,
) -> PolicyVerdict {
    let unjudged = PolicyVerdict::without_rules(None);
    let (Some(service), Shown::Ports { source, destination }) = (&tables.service, transport.shown)
    else {
        return unjudged;
    };
    let key = (address.to_ip(), transport.protocol, destination);
    let hosts = service.hosts.get(&key).map_or(&[][..], Vec::as_slice);
    let mut verdict = unjudged;
    for (host, port) in hosts {
        let host = Address::from(*host);
        let to = tables.next_hop(host);
        let identities = [ends.identities[0], tables.identity(host)];
        let shown = Shown::Ports { source, destination: *port };
        let views = PolicyViews::untranslated(
            FlowEnds { to, identities, ..*ends },
            Transport { shown, ..transport },
        );
        verdict = policy::evaluate_policy(tables, views, UntrackedAllows::NONE);
        if verdict.denied.is_some() {
            break;
        }
    }
    verdict
}
