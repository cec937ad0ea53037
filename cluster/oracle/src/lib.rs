//! The independent oracle, which judges connections from the objects themselves.
//!
//! The oracle is based only on wire objects and on the documentation of Kubernetes and Calico. It has its own defaults,
//! selectors and addresses. It shares no code with the import, the model, the resolution or the tables, so that a
//! mistake is not made twice in the same way. It is intentionally slow and simple. `manx rig` compares the fate of real
//! traffic with the oracle's verdicts, and the conformance tests compare the compiled tables with them.
//!
//! The layers, in order:
//! - [`packet`]: a packet's protocol and L4 header. `selector`: Calico's selector language. `matching`: Kubernetes'
//!   selectors and blocks.
//! - `addresses`, `address_owner`, `members`: the members that have an address, and the labels that selectors see.
//!   `service_slices`: the endpoints of services. `set`: the members that a rule or a policy selects.
//! - `rules`, `prepare`: the first term of a rule that a packet does not match, and rules in their original form.
//! - `policies`, `tiers`, `selecting`, `profiles`, `hosts`: the policies in their order, and the rules that apply if
//!   there is no policy. `place`: the places where policy is evaluated, and the policies that apply there.
//! - `oracle`: the members, policies, tiers, profiles and hosts of one cluster.
//! - `decide`: evaluates the policies of an endpoint. `judge`: evaluates both ends of a connection. `enforcement`:
//!   evaluates a single end. `address_class`: the inputs on which a verdict depends. `host`: evaluates host endpoint
//!   policy at a node's interface. [`verdict`]: the results. [`explain`], [`interface`], `staged`: the steps of an
//!   evaluation.
//! - `service_backends`: the backends that a new connection to a service may get. Policy is not evaluated there.
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
mod service_slices;
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
