//! Calico's BGP without sessions: the peers of a node, and the routes that it accepts and announces.
//!
//! The layers, in order:
//! - [`path`]: the attributes of a route, and an update of routes. Values.
//! - [`peer`]: a peer, with the parameters of a session. Values.
//! - [`peers`]: the peers of a node, from the objects. Pure.
//! - [`filter`]: whether a `BGPFilter` accepts a route to or from a peer, and with which attributes. Pure.
//! - [`decision`]: chooses the best path to a prefix. Pure.
//! - [`export`]: whether a path is announced to a peer, and with which attributes. Pure.
//! - [`table`]: the paths of all peers, the best ones, and the routes announced to each peer. Pure: the caller brings the
//!   events and the time, and sends the resulting messages.
//!
//! The crate has no I/O and no clock. `node/speaker` has the sessions.

pub mod decision;
pub mod export;
pub mod filter;
pub mod path;
pub mod peer;
pub mod peers;
pub mod table;
