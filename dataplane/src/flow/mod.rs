//! Flows: cached decisions, so that later packets of a connection need no classification.
//!
//! - [`FlowKey`] identifies a connection and is the same for both directions.
//! - [`FlowEntry`] is the cached decision and its inputs.
//! - [`FlowState`] holds the progress of the connection. It determines the timeout, and which packets are judged again.
//! - [`FlowTable`] holds the entries. It has a fixed capacity, bounded work per call, and time as a parameter. Each
//!   [`Owner`] has its share of a full table.
//! - A [`FlowRecord`] is the part of a flow that outlives the process, if the table keeps records.
//! - A [`FlowEnd`] reports the end of a flow and its traffic to a listener.
//! - [`TwoKeys`] are the keys of a translated flow: one for its packets before the translation, one for its packets
//!   after it.
//! - [`Shards`] determine which worker has a flow, if there are several workers with a table each.
//!
//! This module does not classify, route or send.

mod bucket;
mod end;
mod entry;
mod eviction;
mod eviction_class;
mod flow_mut;
mod key;
mod owners;
mod record;
mod second_key;
mod shards;
mod slots;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod two_keys;
mod untranslated;

pub use crate::hash_seed::HashSeed;
pub use end::{EndReason, FlowEnd};
pub use entry::{
    Epoch, FirstLine, FlowEntry, PolicyStamp, RuleCounters, SecondLine, Traffic, Verdict,
};
pub use flow_mut::FlowMut;
pub use key::{FlowKey, Orientation};
pub use owners::Owner;
pub use record::{FlowRecord, FlowRecordFile, MAX_AGE, NoRecords};
pub use second_key::DirectedKey;
pub use shards::{MAX_WORKERS, Shards, WorkerId};
pub use state::{Admission, FlowDirection, FlowState, TcpFlags};
pub use table::{Evicted, FlowTable, Found, Guess, Victims};
pub use two_keys::{KeyOwner, KeyTaken, PlaceInFlow, ReservedKey, TwoKeys};
