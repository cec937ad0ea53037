//! Sessions with real sockets, in a network namespace of each test.

mod bird;
mod by_hand;
pub(crate) mod net;
mod protected;
mod two;
