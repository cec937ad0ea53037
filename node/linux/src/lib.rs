//! The Linux interfaces that the control side needs.
//!
//! The layers, in order:
//! - [`netns`]: network namespaces and their settings.
//! - [`netlink`]: interfaces, addresses, routes, rules and neighbours.
//! - [`autodetect`]: chooses the address at which other nodes reach a node.
//! - [`listening`]: the sockets at which processes listen.
//! - [`process`]: the setup of a process at its start, and whether another process ends.
//! - [`private`]: folders and files that no other user can write to.
//! - [`whole_file`]: files that are replaced whole.
//! - [`socket`]: a listening socket in such a folder, for one process at a time.
//! - [`doctor::sandbox`]: the namespaces that contain a rig.
//! - [`doctor`]: checks whether Manx can work on this machine, and reports what is missing.
//!
//! The system calls of the packet path are in the dataplane. This crate knows no objects and no
//! policies.

pub mod autodetect;
pub mod doctor;
pub mod listening;
pub mod netlink;
pub mod netns;
pub mod private;
pub mod process;
pub mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod whole_file;
