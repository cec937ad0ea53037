//! Flows: what was decided once for a connection, so that its next packets need no classification.
//!
//! [`FlowKey`] names a connection, the same from both ends. [`FlowEntry`] is the cached decision and all that it rests on.
//! [`FlowState`] says how far the connection has come, how long it may be silent, and which packets are judged anew.
//! [`FlowTable`] holds the entries: fixed capacity, bounded work per call, time as a parameter; of a full table each [`Owner`]
//! has its share. [`Shards`] tell which worker's flow it is where several workers have a table each. Nothing here classifies, routes or sends.

mod bucket;
mod entry;
mod eviction;
mod key;
mod owners;
mod shards;
mod slots;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use entry::{
    Epoch, FirstLine, FlowEntry, FlowMut, PolicyStamp, RuleCounters, SecondLine, Traffic, Verdict,
};
pub use key::{FlowKey, Orientation};
pub use owners::Owner;
pub use shards::{MAX_WORKERS, Shards, WorkerId};
pub use state::{Admission, FlowDirection, FlowState, TcpFlags};
pub use table::{Evicted, FlowTable, Found, Guess, HashSeed, Victims};
