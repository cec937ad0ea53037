//! Services that Manx translates itself: which backends a new connection to an address, protocol and port may get.
//!
//! - [`ServiceTable`] is the table, a part of [`Tables`](crate::tables::Tables). Control makes the next one from the
//!   last by setting what has changed; what is alike is shared.
//! - A [`Frontend`] is one address, protocol and port of a service, with its [`Backend`]s.
//!
//! Nothing here opens a flow or changes a packet.

mod table;

pub use table::{Backend, Frontend, FrontendKey, ServiceTable, WithoutBackend};
