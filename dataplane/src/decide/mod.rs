//! The decision for one packet. It rests on the packet's entrance, its flow if that is known, the verdict of policy,
//! and the route.
//!
//! This module does not touch a device, a clock or a buffer; the caller acts on the [`Fate`](crate::fate::Fate).

mod address_lookup;
mod entrance;
mod fast_path;
mod flow_decision;
mod key;
mod kube_proxy;
mod metadata;
mod restore;
mod route;
mod slow_path;
mod state;
mod stored_decision;
mod tracked;
mod translated;
mod untracked;
mod untracked_hook;
mod visitor;

pub use address_lookup::SourceCache;
pub use entrance::Entrance;
pub use fast_path::fast_path;
pub use flow_decision::FlowDecision;
pub use key::flow_key;
pub use kube_proxy::ServiceBudgets;
pub use metadata::{Arrival, FlowLookup, PacketMetadata, PacketRef};
pub use restore::{RestoreOutcome, restore};
pub use slow_path::{Decision, decide};
pub use state::{DecisionState, Refusal};
pub use translated::translated_fast_path;
pub use untracked::untracked_fast_path;
pub use untracked_hook::{UntrackedHookCache, UntrackedVerdict};
