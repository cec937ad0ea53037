//! Sessions with real sockets, each test in its own network namespace.

mod bird;
mod by_hand;
pub(crate) mod net;
mod protected;
mod two;
