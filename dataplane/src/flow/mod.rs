//! Flows: cached decisions, so that the next packets of a connection need no classification.
//!
//! - [`FlowKey`] names a connection, the same from both ends.
//! - [`FlowEntry`] is the cached decision and its inputs.
//! - [`FlowState`] holds the progress of the connection. It determines the timeout, and the packets that are judged
//!   again.
//! - [`FlowTable`] holds the entries. It has a fixed capacity, bounded work per call, and time as a parameter. Each
//!   [`Owner`] has its share of a full table.
//! - A [`FlowRecord`] is the part of a flow that outlives the process, if the table keeps records.
//! - A [`FlowEnd`] reports to a listener that a flow has ended, and its traffic.
//! - [`TwoKeys`] are those of a translated flow: of its packets before the translation, and behind it.
//! - [`Shards`] say which worker has a flow, if several workers have a table each.
//!
//! Nothing here classifies, routes or sends.

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
pub use two_keys::{Holder, KeyTaken, PlaceInFlow, ReservedKey, TwoKeys};
