//! The state that decisions keep between packets.

use std::sync::Arc;

use ahash::RandomState;

use super::address_lookup::SourceCache;
use super::flow_decision::FlowDecision;
use super::kube_proxy::ServiceBudgets;
use super::untracked_hook::UntrackedHookCache;
use crate::flow::{FlowTable, WorkerId};
use crate::fragment::FragmentTracker;
use crate::report::PortRefused;
use crate::services::SessionAffinities;

/// The state that a worker keeps between packets.
pub struct DecisionState {
    /// The flow table.
    pub flows: FlowTable,
    /// The source of the last packet that the fast path left to the slow path.
    pub source_cache: SourceCache,
    /// The untracked hook that was looked up last.
    pub untracked_hooks: UntrackedHookCache,
    /// The decisions on first fragments.
    pub fragments: FragmentTracker<FlowDecision>,
    /// What is left of each endpoint's budget of new flows to service addresses.
    pub service_budgets: ServiceBudgets,
    /// The last backend of each client of a service. All workers share it.
    pub affinities: Arc<SessionAffinities>,
    /// The source of random numbers, and how many have been drawn.
    pub random: (RandomState, u64),
    /// The number of live flows that were evicted for others.
    pub evictions: u64,
    /// The last refusal of a masqueraded flow for which no port was free.
    pub refusal: Refusal,
    /// The worker to which a packet is handed off if it is unknown which worker has the packet's state, and the number
    /// of other workers.
    pub next_worker: (WorkerId, u8),
}

/// A refusal to report to the control loop, at most one per second.
#[derive(Debug, Default)]
pub struct Refusal {
    at: Option<u32>,
    /// The refusal, until it is reported.
    pub waiting: Option<PortRefused>,
}

impl Refusal {
    pub(super) fn note(&mut self, now: u32, refused: impl FnOnce() -> PortRefused) {
        if self.at.replace(now) != Some(now) {
            self.waiting = Some(refused());
        }
    }
}

impl DecisionState {
    /// A random number that no sender can predict.
    #[inline]
    pub(super) fn chance(&mut self) -> u32 {
        let (random, drawn) = &mut self.random;
        *drawn += 1;
        random.hash_one(*drawn) as u32
    }
}
