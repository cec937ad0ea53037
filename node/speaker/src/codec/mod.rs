//! UPDATEs between the wire and the values of `manx-bgp`.
//!
//! - [`encoding`]: what the two ends have agreed on.
//! - `attributes`: the attributes of a path.
//! - [`written`]: attributes as they are written, once for all peers.
//! - [`encode`]: from an update to messages, each within the limit.
//! - [`decode`]: from a message to updates. A malformed attribute withdraws the prefixes (RFC 7606).

mod attributes;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod encoding;
#[cfg(test)]
mod foreign_tests;
#[cfg(test)]
mod tests;
pub(crate) mod written;
