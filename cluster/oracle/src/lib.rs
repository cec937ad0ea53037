//! The independent oracle: it judges the objects themselves.
//!
//! It reads wire objects and the documentation of Kubernetes and Calico, and nothing else: its own defaults, its own
//! selectors, its own addresses. It shares no code with the import, the model, resolution or the tables, so that one
//! mistake is not made twice; it is slow and plain on purpose. `manx rig` expects its verdicts of real traffic, and the
//! conformance tests compare the compiled tables with them.
//!
//! The layers, in order:
//! - [`packet`]: a packet's protocol and L4 header. `selector`: Calico's selector language. `matching`: Kubernetes'
//!   selectors and blocks.
//! - `addresses`, `address_owner`, `members`: the members that have an address, and the labels that selectors see.
//!   `services`: the endpoints of services. `set`: the members that a rule or a policy selects.
//! - `rules`, `prepare`: the first term of a rule that a packet does not match; rules as they were written.
//! - `policies`, `tiers`, `selecting`, `profiles`, `hosts`: the policies in their order, and the rules that apply
//!   without a policy. `place`: the policies that apply at a place.
//! - `oracle`: all of these for one cluster.
//! - `decide`: the search. `judge`: the search at both ends of a connection. `enforcement`: the search at one end
//!   alone. `address_class`: the inputs that it depends on. `host`: the search at a node's interface. [`verdict`]: the
//!   results. [`explain`], [`interface`], `staged`: the steps of the search.
//! - `service_backends`: the backends that a new connection to a service may get. No policy is asked.
//!
//! A connection passes if the egress side of its source and the ingress side of its destination both allow it. Replies
//! are not judged.

mod address_class;
mod address_owner;
mod addresses;
mod blocks;
mod built_in;
mod crossing;
mod decide;
mod direction;
mod enforcement;
pub mod explain;
mod host;
mod hosts;
pub mod interface;
mod judge;
mod matching;
mod members;
mod oracle;
pub mod packet;
mod party;
mod place;
mod policies;
mod prepare;
mod profiles;
mod rules;
mod selecting;
mod selector;
mod service_backends;
mod services;
mod set;
mod staged;
#[cfg(test)]
mod tests;
mod tiers;
pub mod verdict;
mod words;

pub use address_class::{AddressClass, Key, Limits};
pub use blocks::BlockSource;
pub use crossing::Crossing;
pub use direction::Direction;
pub use enforcement::EnforcementPoint;
pub use oracle::Oracle;
pub use packet::{L4Header, Packet};
pub use party::Party;
pub use place::Place;
pub use service_backends::{ServiceBackends, ServiceOracle};
pub use staged::Staged;
pub use verdict::{Judgement, RuleName, Verdict, VerdictReason};
