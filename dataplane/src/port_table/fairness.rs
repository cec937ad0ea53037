//! Whose turn it is: ports that want a worker's time get equal shares of it, accounted by what their packets cost.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, 1996) with measured costs. Each port has an account of the ticks
//! ([`ticks`](crate::sys::clock::ticks)) that it was served. Virtual time is the lowest account among the ports that wanted time
//! in the last turn, as it was before they were served, whether the turn reached them or ended before. A port is served while its
//! account is at most [`QUANTUM`] ahead of virtual time, and is charged afterwards, when its cost is known. What a port does not
//! use is everybody's: a port that begins to want time starts at virtual time, without credit. A debt stays until virtual time
//! has caught up with it.
//!
//! The law: of two ports that both want time throughout, neither is served more than the other by more than [`QUANTUM`] and what
//! one batch costs.

/// How far ahead of virtual time an account may be for its port to be served: some ten microseconds. It lets ports with small
/// batches be served in one turn.
const QUANTUM: u64 = 50_000;
/// The most that one batch is charged: more is not the port's doing. The worker lost its core meanwhile.
const MAX_CHARGE: u64 = 5_000_000;

/// What a port has been served, in ticks of virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Account(u64);

impl Account {
    /// Charges what packets have cost.
    #[inline]
    pub(crate) fn charge(&mut self, ticks: u64) {
        self.0 += ticks.min(MAX_CHARGE);
    }
}

/// The virtual time of a worker.
#[derive(Debug, Default)]
pub(crate) struct VirtualTime(u64);

impl VirtualTime {
    /// A port begins to want time, or has been asked and has no packets.
    pub(crate) fn join(&self, account: &mut Account) {
        account.0 = account.0.max(self.0);
    }

    /// A turn ends. `lowest`: of the accounts, as they were when it began, of all ports that brought something, were not due, or
    /// were not reached.
    #[inline]
    pub(crate) fn advance(&mut self, lowest: Account) {
        self.0 = self.0.max(lowest.0);
    }

    /// Whether a port is to be served in this turn.
    #[inline]
    pub(crate) fn is_due(&self, account: Account) -> bool {
        account.0 <= self.0 + QUANTUM
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A port of the model: how many batches wait, and what each costs.
    struct Port {
        account: Account,
        cost: u64,
        waiting: u32,
        served: u64,
    }

    /// Turns until nothing waits, or `turns` are over; a turn ends after `most` batches. Returns how many were served.
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
        fn whoever_was_alone_owes_the_last_batch_at_most(cost in 1u64..MAX_CHARGE, alone in 1u32..1000) {
            let mut time = VirtualTime::default();
            let first = Port { account: Account::default(), cost, waiting: alone, served: 0 };
            let mut ports = vec![first];
            // It is served batch by batch, and nobody wants time in between.
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
