//! What the control side needs from Linux.
//!
//! The layers, in order:
//! - [`netns`]: network namespaces and their settings.
//! - [`netlink`]: interfaces, addresses, routes, rules and neighbours.
//! - [`process`]: what a process does to itself at its start, and whether another one ends.
//! - [`private`]: folders and files that no other user can write to.
//! - [`socket`]: a listening socket in such a folder, of one process at a time.
//! - [`doctor::sandbox`]: the namespaces that hold a rig.
//! - [`doctor`]: whether this machine lets Manx work, and what is missing.
//!
//! The system calls of the packet path are in the dataplane. This crate knows no objects and no
//! policies.

pub mod doctor;
pub mod netlink;
pub mod netns;
pub mod private;
pub mod process;
pub mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
