//! What decisions remember between packets.

use super::address_lookup::SourceCache;
use super::flow_decision::FlowDecision;
use super::service::ServiceBudgets;
use super::untracked_hook::UntrackedHookCache;
use crate::flow::{FlowTable, WorkerId};
use crate::fragment::FragmentTracker;

/// What a worker remembers between packets.
pub struct DecisionState {
    /// Flows.
    pub flows: FlowTable,
    /// The source of the last packet that the fast path did not decide.
    pub source_cache: SourceCache,
    /// The untracked hook of the last packet for which there was one to look up.
    pub untracked_hooks: UntrackedHookCache,
    /// The decisions on first fragments.
    pub fragments: FragmentTracker<FlowDecision>,
    /// What endpoints have left of their flows to service addresses.
    pub service_budgets: ServiceBudgets,
    /// How many live flows were evicted to make room for others.
    pub evictions: u64,
    /// The worker that is tried next for a packet that any worker may have state for, and how many other workers
    /// there are.
    pub next_worker: (WorkerId, u8),
}
