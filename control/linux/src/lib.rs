//! What the control side asks of Linux.
//!
//! The layers, in order:
//! - [`netns`]: network namespaces and their settings.
//! - [`netlink`]: interfaces, addresses, routes, rules and neighbours.
//! - [`private`]: folders and files that nobody else can write to.
//! - [`doctor`]: whether this machine lets Manx work, and what is missing.
//!
//! The packet path's system calls are the dataplane's. Nothing here knows an object or a policy.

pub mod doctor;
pub mod netlink;
pub mod netns;
pub mod private;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
