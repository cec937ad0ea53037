//! Whole rigs, as users start them, with the traffic of the kernel's own sockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attach;
mod bench;
mod capture;
mod change;
mod daily;
mod dumps;
mod forged;
mod json;
mod kept;
mod lost;
mod mtu;
mod observed;
mod privileges;
mod proved;
mod shared;
mod stopped;
mod table;
mod takeover;
mod traffic;
mod walk_through;
mod whole;
mod world;
