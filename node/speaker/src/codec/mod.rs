//! Converts UPDATEs between the wire and the values of `manx-bgp`.
//!
//! - [`encoding`]: the negotiated encoding of a session.
//! - `attributes`: the attributes of a path.
//! - [`written`]: encoded attributes, shared by all peers.
//! - [`encode`]: encodes an update into messages, each within the limit.
//! - [`decode`]: decodes a message into updates. A malformed attribute withdraws the prefixes (RFC 7606).

mod attributes;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod encoding;
#[cfg(test)]
mod foreign_tests;
#[cfg(test)]
mod tests;
pub(crate) mod written;
