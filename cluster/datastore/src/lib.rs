//! Sources of objects: a directory of manifests, or an API server.
//!
//! The layers, in order:
//! - `error`: why a source cannot be used.
//! - `directory`: the [`Store`] of a directory. It reads what has changed, keeps the last good state of each file and
//!   says with [`Changes`](manx_objects::contents::Changes) what differs.
//! - `watch`: reports when a directory may have changed.
//! - `writes`: how single objects are written: by compare-and-swap.
//! - `pool`: the first `IPPool` of a cluster, by these writes.
//! - `followed`: what every source has that follows a server: its objects, the last state of them on disk, since when they
//!   are stale, and what is still to be written.
//! - [`api_server`]: the API server as such a source: how it is asked, its objects listed and watched, and what is written
//!   to it.
//! - `source`: the [`Source`] that an agent follows. It has all objects, and returns one change after the other.
//!
//! The meaning and the parsing of objects are in `manx-objects`; this crate decides when a text is read and which of
//! its states is used.

pub mod api_server;
mod directory;
mod error;
mod followed;
mod pool;
mod source;
mod watch;
mod writes;

pub use directory::{Read, STANDS, Store, manifests, read_paths, read_with_texts};
pub use error::SourceError;
pub use followed::{Follower, Stale, Waits};
pub use pool::DefaultPool;
pub use source::Source;
pub use writes::{Revision, WriteError, Writes};
