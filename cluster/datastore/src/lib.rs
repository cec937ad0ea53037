//! Sources of objects: a directory of manifests, or an API server.
//!
//! The layers, in order:
//! - `error`: the errors of sources.
//! - `directory`: the [`Store`] of a directory. It reads changed files, keeps the last good state of each, and returns
//!   the differences as [`Changes`](manx_objects::contents::Changes).
//! - `watch`: reports when a directory may have changed.
//! - `served`: the kinds of object that are read and written one by one.
//! - `writes`: writes of single objects, by compare-and-swap.
//! - `object_event`: sentences about objects, for people, by these writes.
//! - `lease`: at most one of several processes leads, by these writes.
//! - `pool`: the first `IPPool` of a cluster, by these writes.
//! - [`secrets`]: values of single Secrets, apart from all other objects.
//! - `node_status`: what people want to know of a node at the API server, apart from all other objects.
//! - `happening`: what happens at a node, for people.
//! - `followed`: the common part of all sources that follow a server: its objects, their last state on disk, the time
//!   since which they are stale, and the values that are still to be written.
//! - [`api_server`]: the API server as such a source: its connection, lists, watches and writes.
//! - [`time`]: times of objects, for crates without a clock.
//! - `source`: the [`Source`] that an agent follows. It has all objects, and returns one change after the other.
//!
//! The meaning and the parsing of objects are in `manx-objects`; this crate decides when a text is read and which of
//! its states is used.

pub mod api_server;
mod directory;
mod error;
mod followed;
mod happening;
mod lease;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
mod node_status;
mod object_event;
mod pool;
pub mod secrets;
mod served;
mod source;
pub mod time;
mod watch;
mod writes;

pub use directory::{Read, STANDS, Store, manifests, read_paths, read_with_texts};
pub use error::SourceError;
pub use followed::{Follower, Stale, Waits};
pub use happening::Happening;
pub use lease::{Candidate, Terms};
pub use node_status::{NodeStatuses, StatusRequest};
pub use object_event::ObjectEvent;
pub use pool::DefaultPool;
pub use served::{ServedKey, ServedKind};
pub use source::Source;
pub use writes::{Revision, WriteError, Writes};
