//! What this environment allows, what a lack costs, and the command that mends it.

pub mod lack;
mod tun;

pub use self::lack::{Capability, Lack};
pub use self::tun::tun;
