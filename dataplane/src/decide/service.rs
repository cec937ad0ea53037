//! Service addresses that the node translates ([`ServicePort`](crate::tables::ServicePort)).
//!
//! A pod's packet to a service address leaves by the service port unjudged. kube-proxy changes its destination, and it
//! comes back by the same port, as a flow of its own: from the pod to an endpoint. That flow is judged, and its replies
//! leave by the service port, so that the node translates them back. They come back from the service address and
//! belong to the first flow.
//!
//! Each first flow costs an entry in the kernel's table of connections, whatever policy says of the second, and all of the
//! node share that table. So a pod has a budget of first flows that leave unjudged ([`ServiceBudgets`]), and gets back what
//! a second flow that policy allows has cost.

use std::net::IpAddr;

use manx_policy_compiler::model::{Shown, Transport};

use crate::drop_reason::DropReason;
use crate::policy::{self, FlowEnds, PolicyVerdict, PolicyViews, UntrackedAllows};
use crate::tables::{EncodedNextHop, NextHop, NextHopPair, Tables};
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

/// How many flows to service addresses an endpoint may open at once that do not come back allowed.
const BURST: u32 = 1024;
/// How many more in each second.
const REFILL: u32 = 100;

/// What each endpoint has left of its flows to service addresses.
#[derive(Debug, Default)]
pub struct ServiceBudgets {
    /// By the endpoint's index. The next endpoint that gets an index goes on with what the last one has left.
    by_endpoint: Vec<Budget>,
}

#[derive(Debug, Clone, Copy)]
struct Budget {
    left: u32,
    /// The second in which it was refilled last.
    at: u32,
}

impl ServiceBudgets {
    fn of(&mut self, index: u32) -> &mut Budget {
        let at = index as usize;
        if self.by_endpoint.len() <= at {
            self.by_endpoint.resize(at + 1, Budget { left: BURST, at: 0 });
        }
        &mut self.by_endpoint[at]
    }

    /// Takes one flow from an endpoint's budget. `false`: nothing is left.
    fn take(&mut self, index: u32, now: u32) -> bool {
        let budget = self.of(index);
        let refill = now.saturating_sub(budget.at).saturating_mul(REFILL);
        *budget = Budget { left: budget.left.saturating_add(refill).min(BURST), at: now };
        let is_left = budget.left > 0;
        budget.left -= u32::from(is_left);
        is_left
    }

    fn give_back(&mut self, index: u32) {
        let budget = self.of(index);
        budget.left = (budget.left + 1).min(BURST);
    }
}

/// Accounts for a flow that policy lets begin. Returns why it does not, after all.
#[inline]
pub(super) fn account(
    tables: &Tables,
    budgets: &mut ServiceBudgets,
    (pair, ends): (NextHopPair, &FlowEnds),
    (address, transport): (Address, Transport),
    now: u32,
) -> Option<DropReason> {
    match ends.from {
        NextHop::Endpoint(index) if pair.from == EncodedNextHop::TRANSLATED => {
            budgets.give_back(index);
            None
        }
        NextHop::Endpoint(index) if ends.to == NextHop::Service => {
            let is_free = hosts(tables, address, transport).is_some() || budgets.take(index, now);
            (!is_free).then_some(DropReason::ServiceExcess)
        }
        _ => None,
    }
}

/// The endpoints of a service's port that are hosts, if there are such: policy has been asked about them.
fn hosts(tables: &Tables, address: Address, transport: Transport) -> Option<&[(IpAddr, u16)]> {
    let Shown::Ports { destination, .. } = transport.shown else { return None };
    let key = (address.to_ip(), transport.protocol, destination);
    tables.service.as_ref()?.hosts.get(&key).map(Vec::as_slice)
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
    let Shown::Ports { source, .. } = transport.shown else { return unjudged };
    let mut verdict = unjudged;
    for (host, port) in hosts(tables, address, transport).unwrap_or_default() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_bounds_what_is_not_given_back_and_nothing_else() {
        let mut budgets = ServiceBudgets::default();
        let taken = |budgets: &mut ServiceBudgets, index, now| {
            (0..10 * BURST).filter(|_| budgets.take(index, now)).count() as u32
        };
        assert_eq!(taken(&mut budgets, 7, 1000), BURST, "it begins full");
        assert_eq!(taken(&mut budgets, 7, 1000), 0);
        assert_eq!(taken(&mut budgets, 7, 1003), 3 * REFILL);
        assert_eq!(taken(&mut budgets, 3, 1003), BURST, "a neighbour has its own");
        assert_eq!(taken(&mut budgets, 7, u32::MAX), BURST, "it does not grow without an end");
        budgets.give_back(7);
        assert_eq!(taken(&mut budgets, 7, u32::MAX), 1);
        for _ in 0..10 * BURST {
            budgets.give_back(7);
            assert!(budgets.take(7, u32::MAX), "who is allowed is not bounded");
        }
        (0..2 * BURST).for_each(|_| budgets.give_back(7));
        assert_eq!(taken(&mut budgets, 7, u32::MAX), BURST);
    }
}
