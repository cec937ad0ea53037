//! Calico's BGP without sessions: what a node's sessions follow from, and what routes they bring and take.
//!
//! The layers, in order:
//! - [`path`]: the attributes of a route, and an update of routes. Values.
//! - [`peer`]: a peer, with all that a session with it follows from. Values.
//! - [`peers`]: the peers of a node, by the objects. Pure.
//! - [`filter`]: whether a `BGPFilter` lets a route to or from a peer, and with which attributes. Pure.
//! - [`decision`]: which of two paths to a prefix is better. Pure.
//! - [`export`]: whether a peer is told of a path, and with which attributes. Pure.
//! - [`table`]: the paths of all peers, the best ones, and what each peer has been told. Pure: the caller brings the
//!   events and the time, and carries out what comes back.
//!
//! No I/O, no clock. Sessions are `node/speaker`'s.

pub mod decision;
pub mod export;
pub mod filter;
pub mod path;
pub mod peer;
pub mod peers;
pub mod table;
