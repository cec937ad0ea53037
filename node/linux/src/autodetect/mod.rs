//! Which of its addresses a node has for other nodes, by Calico's methods.
//!
//! The layers, in order:
//! - `method`: the settings, read.
//! - `facts`: what the kernel says of interfaces, addresses and routes.
//! - `choose`: the decision, from settings and facts alone.
//!
//! Source: Calico's reference, "Configuring calico/node" (`IP`, `IP_AUTODETECTION_METHOD`), and its documentation,
//! "Configure IP autodetection". Three things differ, because an address that is wrong costs more than one that is missing:
//! an address that stands already stays while the method admits it; several interfaces that were meant to be one are
//! refused; an address that other nodes cannot use for long (temporary, tentative, of an interface that is down) is none.

mod choose;
mod facts;
mod method;

pub use self::choose::{Choice, Found, Known, MOST_TOLD, Refusal, addresses, choose};
pub use self::facts::{Destination, Facts, Interface, read};
pub use self::method::{Method, Wanted, method, methods, wanted};

#[cfg(test)]
mod tests;
