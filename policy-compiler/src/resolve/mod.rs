//! The policies that apply to a local endpoint, and their terms about the two ends of a packet.
//!
//! A *list* holds the policies that select an endpoint at one [`Stage`] and in one direction, tier by tier, and what
//! happens if no rule decides. Its rules are [`Steps`] in the order of evaluation. A condition of a list on an address
//! is a [`Predicate`], or a [`PortSet`] if its result is a set of ports. Lists are interned: endpoints that are
//! selected by the same policies share one. Resolution reads no address, neither that of the local end nor that of a
//! peer.

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
