//! The state that decisions keep between packets.

use std::sync::Arc;

use ahash::RandomState;

use super::address_lookup::SourceCache;
use super::flow_decision::FlowDecision;
use super::service::ServiceBudgets;
use super::untracked_hook::UntrackedHookCache;
use crate::flow::{FlowTable, WorkerId};
use crate::fragment::FragmentTracker;
use crate::report::PortRefused;
use crate::services::Affinities;

/// The state that a worker keeps between packets.
pub struct DecisionState {
    /// Flows.
    pub flows: FlowTable,
    /// The source of the last packet that the fast path did not decide.
    pub source_cache: SourceCache,
    /// The untracked hook of the last packet for which there was one to look up.
    pub untracked_hooks: UntrackedHookCache,
    /// The decisions on first fragments.
    pub fragments: FragmentTracker<FlowDecision>,
    /// The rest of each endpoint's budget of new flows to service addresses.
    pub service_budgets: ServiceBudgets,
    /// The backend that each client of a service got last. All workers share it.
    pub affinities: Arc<Affinities>,
    /// Random numbers, and how many were drawn.
    pub random: (RandomState, u64),
    /// The number of live flows that were evicted for others.
    pub evictions: u64,
    /// The last flow of the way out that got no port.
    pub refusal: Refusal,
    /// The worker that gets the next packet whose state may be at any worker, and the number of other workers.
    pub next_worker: (WorkerId, u8),
}

/// A refusal that control is to know of: one a second.
#[derive(Debug, Default)]
pub struct Refusal {
    at: Option<u32>,
    /// It is not reported yet.
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
    /// A random number that no sender can foresee.
    #[inline]
    pub(super) fn chance(&mut self) -> u32 {
        let (random, drawn) = &mut self.random;
        *drawn += 1;
        random.hash_one(*drawn) as u32
    }
}
