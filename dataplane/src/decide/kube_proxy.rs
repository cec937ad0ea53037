//! Service addresses that the node translates ([`KubeProxyPort`](crate::tables::KubeProxyPort)).
//!
//! A pod's packet to a service address leaves by the service port without a verdict. kube-proxy changes its
//! destination. The packet then comes back by the same port as a separate flow, from the pod to an endpoint of the
//! service. Policy judges this second flow. Its replies leave by the service port, so that the node translates them
//! back. The translated replies come from the service address and belong to the first flow.
//!
//! Each first flow takes an entry in the kernel's table of connections, which the whole node shares. This happens
//! before policy can judge the second flow. So each pod has a budget of first flows ([`ServiceBudgets`]). If policy
//! allows the second flow, the pod gets the budget for the first one back.

use std::net::IpAddr;

use manx_policy_compiler::model::{L4Header, Transport};

use crate::drop_reason::DropReason;
use crate::policy::{self, FlowEnds, PolicyVerdict, PolicyViews, UntrackedAllows};
use crate::tables::{EncodedNextHop, NextHop, NextHopPair, Tables};
use crate::wire::address::Address;

/// The reason why a packet between these next hops opens no flow.
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

/// The number of flows to service addresses that an endpoint may open in a burst. A flow counts until its packet comes
/// back translated and policy allows it.
const BURST: u32 = 1024;
/// The number of such flows by which the budget grows each second.
const REFILL: u32 = 100;

/// What is left of each endpoint's budget of new flows to service addresses.
#[derive(Debug, Default)]
pub struct ServiceBudgets {
    /// Indexed by the endpoint's index.
    by_endpoint: Vec<Budget>,
}

#[derive(Debug, Clone, Copy)]
struct Budget {
    /// The attachment of the endpoint. It is compared because the index may later belong to another endpoint.
    attachment: u32,
    left: u32,
    /// The time of the last refill, in seconds.
    at: u32,
}

impl ServiceBudgets {
    /// The budget of an endpoint, which is given by its index and its attachment.
    fn of(&mut self, (index, attachment): (u32, u32)) -> &mut Budget {
        let (at, full) = (index as usize, Budget { attachment, left: BURST, at: 0 });
        if self.by_endpoint.len() <= at {
            self.by_endpoint.resize(at + 1, full);
        }
        let budget = &mut self.by_endpoint[at];
        if budget.attachment != attachment {
            *budget = full;
        }
        budget
    }

    /// Takes one flow from an endpoint's budget. Returns `false` if nothing is left.
    fn take(&mut self, endpoint: (u32, u32), now: u32) -> bool {
        let budget = self.of(endpoint);
        let refill = now.saturating_sub(budget.at).saturating_mul(REFILL);
        (budget.left, budget.at) = (budget.left.saturating_add(refill).min(BURST), now);
        let is_left = budget.left > 0;
        budget.left -= u32::from(is_left);
        is_left
    }

    fn give_back(&mut self, endpoint: (u32, u32)) {
        let budget = self.of(endpoint);
        budget.left = (budget.left + 1).min(BURST);
    }
}

/// Charges the endpoint's budget for a flow that policy allows. A flow to a service address takes one from the budget,
/// unless the service has endpoints that are hosts. A flow that comes back translated gives one back. Returns a drop
/// reason if nothing is left.
#[inline]
pub(super) fn account(
    tables: &Tables,
    budgets: &mut ServiceBudgets,
    (pair, ends): (NextHopPair, &FlowEnds),
    (address, transport): (Address, Transport),
    now: u32,
) -> Option<DropReason> {
    let NextHop::Endpoint(index) = ends.from else { return None };
    let endpoint = || (index, tables.endpoint(index).map_or(0, |it| it.attachment));
    if pair.from == EncodedNextHop::TRANSLATED {
        budgets.give_back(endpoint());
    } else if ends.to == NextHop::Service {
        let is_free = hosts(tables, address, transport).is_some() || budgets.take(endpoint(), now);
        return (!is_free).then_some(DropReason::ServiceExcess);
    }
    None
}

/// The endpoints of a service's port that are host addresses, if there are any.
fn hosts(tables: &Tables, address: Address, transport: Transport) -> Option<&[(IpAddr, u16)]> {
    let L4Header::Ports { destination, .. } = transport.l4 else { return None };
    let key = (address.to_ip(), transport.protocol, destination);
    tables.kube_proxy_port.as_ref()?.hosts.get(&key).map(Vec::as_slice)
}

/// Evaluates policy for a flow to a service address. A packet that the node translates to a pod is judged when it comes
/// back. A packet that the node translates to a host may not come back, so policy must allow every endpoint that is a
/// host.
#[inline(never)]
pub(super) fn evaluate(
    tables: &Tables,
    ends: &FlowEnds,
    address: Address,
    transport: Transport,
) -> PolicyVerdict {
    let unjudged = PolicyVerdict::without_rules(None);
    let L4Header::Ports { source, .. } = transport.l4 else { return unjudged };
    let mut verdict = unjudged;
    for (host, port) in hosts(tables, address, transport).unwrap_or_default() {
        let host = Address::from(*host);
        let to = tables.next_hop(host);
        let identities = [ends.identities[0], tables.identity(host)];
        let l4 = L4Header::Ports { source, destination: *port };
        let views = PolicyViews::untranslated(
            FlowEnds { to, identities, ..*ends },
            Transport { l4, ..transport },
        );
        verdict = policy::evaluate_policy(tables, views, UntrackedAllows::NONE);
        if verdict.denied.is_some() {
            break;
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_bounds_what_is_not_given_back_and_nothing_else() {
        let mut budgets = ServiceBudgets::default();
        let taken = |budgets: &mut ServiceBudgets, endpoint, now| {
            (0..10 * BURST).filter(|_| budgets.take(endpoint, now)).count() as u32
        };
        assert_eq!(taken(&mut budgets, (7, 1), 1000), BURST, "it begins full");
        assert_eq!(taken(&mut budgets, (7, 1), 1000), 0);
        assert_eq!(taken(&mut budgets, (7, 1), 1003), 3 * REFILL);
        assert_eq!(taken(&mut budgets, (3, 2), 1003), BURST, "a neighbour has its own");
        assert_eq!(taken(&mut budgets, (7, 1), u32::MAX), BURST, "it does not grow without an end");
        budgets.give_back((7, 1));
        assert_eq!(taken(&mut budgets, (7, 1), u32::MAX), 1);
        for _ in 0..10 * BURST {
            budgets.give_back((7, 1));
            assert!(budgets.take((7, 1), u32::MAX), "who is allowed is not bounded");
        }
        (0..2 * BURST).for_each(|_| budgets.give_back((7, 1)));
        assert_eq!(taken(&mut budgets, (7, 1), u32::MAX), BURST);
        assert_eq!(
            taken(&mut budgets, (7, 3), u32::MAX),
            BURST,
            "the next at its index begins full"
        );
    }
}
