//! The compiled tables and the lookup in them.
//!
//! ```text
//! address ── prefix map ──────────> identity
//! identity ───────────────────────────> class       identities that no policy in use distinguishes
//! (chain, class) ─────────────────> row
//! row ── protocol, ports, type ───> path        reason, verdict, rules on the way, counter slot
//! ```
//!
//! Every lookup has a result. It does not panic, even for a number of another image or an invalid number. For a number
//! that refers to nothing in this image, the result is [`Reason::Unknown`](crate::model::Reason), which denies.

mod canonical;
mod chain;
mod change_counters;
mod decisions;
mod leaf;
mod line;
mod linear;
mod lines;
mod packet_key;
mod path;
mod peers;
mod tables;
mod target;

pub use chain::{Chain, LocalPredicateSets};
pub(crate) use chain::{LINEAR, LocalEndpoint};
pub(crate) use change_counters::ChangeCounters;
pub use decisions::{Decisions, Lookups, Run};
pub(crate) use leaf::{LEAF_WIDTH, Leaf};
pub(crate) use line::{Line, WIDTH};
pub(crate) use linear::Linear;
pub(crate) use lines::{Lines, Row, TABLES};
pub(crate) use packet_key::{KEYED, OTHERS, icmp_key, table_of};
pub use path::Path;
pub(crate) use peers::PeerTables;
pub use tables::{Counts, Image, Query};
pub(crate) use target::{Interval, NO_KEY, Target};

pub use crate::common::{ChainId, Identity, PathId};

#[cfg(test)]
pub(crate) use lines::STEPS;
#[cfg(test)]
pub(crate) use packet_key::{PacketKey, table};
#[cfg(test)]
pub(crate) use tables::NO_ROW;
