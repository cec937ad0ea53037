//! The policies that apply to a local endpoint, and their terms for the two ends of a packet.
//!
//! A *list* is the policies that select an endpoint at one [`Stage`] and in one direction, tier by tier, with what
//! happens if no rule decides: [`Steps`] in the order of evaluation. Everything that a list asks about an address is a
//! [`Predicate`] or, if the answer is a set of ports, a [`PortSet`]. Lists are interned: endpoints that the same
//! policies select share one. Resolution looks at no address, neither the local end's nor a peer's.

mod cache;
mod differing;
mod list;
mod matching;
mod order;
mod policy_rules;
mod predicate;
mod price;
mod required_label;
mod resolver;
mod revision;
mod rule;
mod size;
mod stage;
mod step_index;
mod steps;
mod terms;
mod vocabulary;

pub(crate) use cache::ResolveCache;
pub use list::{List, Lists, LocalName, Resolved, ResolvedList};
pub(crate) use matching::{Facts, matches};
pub(crate) use order::PolicyOrder;
pub(crate) use predicate::PossiblePorts;
pub use predicate::{PortSet, PortSetId, Predicate, PredicateId};
pub(crate) use resolver::resolve;
pub use rule::{Ports, ResolvedEnd, ResolvedEntity, ResolvedRule};
pub use stage::Stage;
pub use steps::{DecisionPlace, RuleEffect, Step, Steps};
pub use terms::Terms;
pub(crate) use vocabulary::Vocabulary;

pub use crate::common::SmallList;
