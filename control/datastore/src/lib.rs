//! Sources of objects. Today there is one: a directory of manifests.
//!
//! The layers, in order:
//! - `directory`: the [`Store`] of a directory. It reads what has changed, keeps the last good state of each file and tells by
//!   [`Changes`](manx_objects::contents::Changes) what differs.
//! - `watch`: tells when a directory may have changed.
//!
//! What objects mean, and how they are read, is `manx-objects`' part; this crate decides when a file is read and which state
//! of it is in force. Another source, say an API server, stands beside `directory` and tells the same changes.

mod directory;
mod watch;

pub use directory::{STANDS, Store, read_paths};
pub use watch::{WakeUp, Watcher};
