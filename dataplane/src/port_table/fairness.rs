//! Decides which ports are served in a turn: ports that want a worker's time get equal shares of it.
//!
//! The method is start-time fair queueing (Goyal, Vin and Cheng, 1996) with measured costs. Each port has an account:
//! the number of [`ticks`](crate::sys::clock::ticks) for which it was served. Virtual time is the lowest account among
//! the ports that wanted time in the last turn. Each account counts with its value before the turn, even if the turn
//! did not reach its port. A port is served while its account is at most [`QUANTUM`] ahead of virtual time. It is
//! charged afterwards, when the cost is known. Time that a port does not use is shared by the other ports: a port that
//! begins to want time starts at virtual time, without credit. A port that is ahead of virtual time has a debt, which
//! stays until virtual time has caught up.
//!
//! The law: if two ports want time throughout, neither is served for longer than the other by more than [`QUANTUM`] and
//! the cost of one batch.

/// A port is served while its account is at most this far ahead of virtual time: about twenty microseconds. This lets
/// all ports with small batches be served in one turn.
const QUANTUM: u64 = 50_000;
/// The largest charge for a batch. A batch takes longer only if the worker lost its core, and no port pays for that.
const MAX_CHARGE: u64 = 5_000_000;

/// The ticks for which a port was served, in virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Account(u64);

impl Account {
    /// Charges the cost of packets.
    #[inline]
    pub(crate) fn charge(&mut self, ticks: u64) {
        self.0 += ticks.min(MAX_CHARGE);
    }
}

/// The virtual time of a worker.
#[derive(Debug, Default)]
pub(crate) struct VirtualTime(u64);

impl VirtualTime {
    /// Moves an account up to virtual time, because its port begins to want time, or was polled and has no packets.
    pub(crate) fn join(&self, account: &mut Account) {
        account.0 = account.0.max(self.0);
    }

    /// Ends a turn. `lowest` is the lowest account of the ports that delivered packets, were not due, or were not
    /// reached. Each account counts with its value at the beginning of the turn.
    #[inline]
    pub(crate) fn advance(&mut self, lowest: Account) {
        self.0 = self.0.max(lowest.0);
    }

    /// Whether a port is due in this turn.
    #[inline]
    pub(crate) fn is_due(&self, account: Account) -> bool {
        account.0 <= self.0 + QUANTUM
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A port of the model: the number of batches that wait, and the cost of each.
    struct Port {
        account: Account,
        cost: u64,
        waiting: u32,
        served: u64,
    }

    /// Runs at most `turns` turns of at most `most` batches, until nothing waits. Returns the number of batches that
    /// were served.
    fn run(time: &mut VirtualTime, ports: &mut [Port], turns: usize, most: u32) -> u32 {
        let (mut batches, mut idle) = (0, 0);
        for _ in 0..turns {
            let wanting = ports.iter().filter(|port| port.waiting > 0);
            let is_alone = wanting.clone().count() == 1;
            let Some(lowest) = wanting.map(|port| port.account).min() else { break };
            let before = batches;
            for port in ports.iter_mut().filter(|port| port.waiting > 0) {
                if is_alone || time.is_due(port.account) {
                    port.waiting -= 1;
                    port.served += port.cost;
                    port.account.charge(port.cost);
                    batches += 1;
                }
                if batches - before == most {
                    break;
                }
            }
            idle = if batches > before { 0 } else { idle + 1 };
            assert!(idle < 2, "of two turns in which somebody wants time one serves somebody");
            time.advance(lowest);
        }
        batches
    }

    proptest! {
        #[test]
        fn ports_that_want_time_throughout_are_served_alike_whatever_their_batches_cost(
            costs in prop::collection::vec(1u64..=MAX_CHARGE, 2..9), turns in 1usize..500, most in 1u32..9,
        ) {
            let mut time = VirtualTime::default();
            let port = |cost: &u64| Port { account: Account::default(), cost: *cost, waiting: u32::MAX, served: 0 };
            let mut ports: Vec<_> = costs.iter().map(port).collect();
            run(&mut time, &mut ports, turns, most);
            for (one, other) in ports.iter().flat_map(|one| ports.iter().map(move |other| (one, other))) {
                prop_assert!(one.served <= other.served + QUANTUM + one.cost, "{} {}", one.served, other.served);
            }
        }

        #[test]
        fn a_port_that_was_served_alone_owes_at_most_the_last_batch(cost in 1u64..MAX_CHARGE, alone in 1u32..1000) {
            let mut time = VirtualTime::default();
            let first = Port { account: Account::default(), cost, waiting: alone, served: 0 };
            let mut ports = vec![first];
            // The port is served batch by batch, and no other port wants time in between.
            prop_assert_eq!(run(&mut time, &mut ports, usize::MAX, u32::MAX), alone);
            let mut late = Port { account: Account::default(), cost: 1, waiting: u32::MAX, served: 0 };
            time.join(&mut late.account);
            prop_assert!(ports[0].account.0 - late.account.0 <= cost, "the time before is not the late one's to claim");
            ports[0].waiting = u32::MAX;
            time.join(&mut ports[0].account);
            ports.push(late);
            run(&mut time, &mut ports, 2, u32::MAX);
            prop_assert!(ports[1].served > 0);
        }
    }

    #[test]
    fn a_debt_outlasts_silence_but_not_the_others_service() {
        let mut time = VirtualTime::default();
        let (mut debtor, mut other) = (Account::default(), Account::default());
        debtor.charge(10 * QUANTUM);
        time.join(&mut debtor);
        time.join(&mut other);
        assert!(
            time.is_due(other) && !time.is_due(debtor),
            "who was silent for a moment still owes"
        );
        other.charge(10 * QUANTUM);
        time.advance(other.min(debtor));
        assert!(time.is_due(other) && time.is_due(debtor));
    }

    #[test]
    fn a_worker_that_lost_its_core_does_not_charge_it_to_a_port() {
        let mut account = Account::default();
        account.charge(u64::MAX / 2);
        assert_eq!(account, Account(MAX_CHARGE));
    }
}
