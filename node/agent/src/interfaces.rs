//! The names of the interfaces that Manx makes in the node's namespace.

/// The host port's interface.
pub(crate) const HOST: &str = "manx0";
/// The service port's interface, or that of Manx's own translation.
pub(crate) const SERVICES: &str = "manx1";
/// The interface of forwarded packets.
pub(crate) const FORWARDED: &str = "manx2";
