//! Chooses the address at which other nodes reach this one, by Calico's methods.
//!
//! The layers, in order:
//! - `method`: parses the settings.
//! - `facts`: the kernel's interfaces, addresses and routes.
//! - `choose`: the decision, a pure function of settings and facts.
//!
//! Source: Calico's reference, "Configuring calico/node" (`IP`, `IP_AUTODETECTION_METHOD`), and its documentation,
//! "Configure IP autodetection". Three things differ, because a wrong address costs more than a missing one. An address
//! that was chosen before stays while it is among those that the method allows. If a method should find a single
//! interface and several match, none is chosen. An address that other nodes cannot use for long is not chosen
//! (temporary, tentative, or on an interface that is down).

mod choose;
mod facts;
mod method;

pub use self::choose::{Choice, Found, Known, MOST_TOLD, Refusal, addresses, choose};
pub use self::facts::{Destination, Facts, Interface, read};
pub use self::method::{Method, Wanted, method, methods, wanted};

#[cfg(test)]
mod tests;
