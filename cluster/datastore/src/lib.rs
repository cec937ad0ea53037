//! Sources of objects: a directory of manifests, or an API server.
//!
//! The layers, in order:
//! - `error`: the errors of sources.
//! - `directory`: the [`Store`] of a directory. It reads changed files, stores the last valid state of each, and
//!   returns the differences as [`Changes`](manx_objects::contents::Changes).
//! - `watch`: reports when a directory may have changed.
//! - `served`: the kinds of object that are read and written individually.
//! - `writes`: writes single objects with compare-and-swap.
//! - `object_event`: Events about objects, for people, with these writes.
//! - `lease`: ensures that at most one of several processes leads, with these writes.
//! - `pool`: the first `IPPool` of a cluster, with these writes.
//! - [`secrets`]: values of single Secrets, separate from all other objects.
//! - `node_status`: the status of a node for people at the API server, separate from all other objects.
//! - `happening`: what happened at a node, for people.
//! - `followed`: the common part of all sources that follow a server. It has the objects, their last state on disk,
//!   since when they are stale, and the values that must still be written.
//! - [`api_server`]: the API server as such a source, with its connection, lists, watches and writes.
//! - [`time`]: times of objects, for crates without a clock.
//! - `source`: the [`Source`] that an agent follows. It has all objects, and returns one change after the other.
//!
//! `manx-objects` parses and interprets objects. This crate decides when a text is read, and whether its newest or an
//! earlier state is used.

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
