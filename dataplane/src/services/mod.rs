//! Services that Manx translates itself: which backends a new connection to an address, protocol and port may get.
//!
//! - [`ServiceTable`] is the table, a part of [`Tables`](crate::tables::Tables). The control loop derives the next
//!   table from the last one by setting the entries that have changed; the rest is shared.
//! - A [`Frontend`] is one address, protocol and port of a service, with its [`Backend`]s and [`Clients`].
//! - [`choose`] chooses the backend of a new connection: by the client's [affinity](SessionAffinities), [the same on all
//!   nodes](MOST_WEIGHED), or at random.
//!
//! This module does not open flows or change packets.

use std::net::{Ipv4Addr, Ipv6Addr};

mod affinity;
mod choice;
mod clients;
mod consistent;
mod table;

pub use affinity::{MOST_BACKENDS, SessionAffinities};
pub use choice::choose;
pub use clients::Clients;
pub use consistent::MOST_WEIGHED;
pub use table::{Backend, Frontend, FrontendKey, ServiceTable, WithoutBackend};

/// The source address after the translation for an endpoint that reaches itself through a service: its gateway.
pub const HAIRPIN_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The same for IPv6.
pub const HAIRPIN_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
