//! The members that have each address, and the predicates that are true of it.
//!
//! `members` lists the members and their prefixes; `selector_index` finds the members that a selector matches.
//! `predicates` evaluates every predicate for every member; members with equal predicate sets are one *kind*
//! (`member_kinds`). `addresses` sorts the prefixes (`prefixes`), each with the kinds of its members and its *atom*
//! (`atoms`). `classes` and `identity` give each prefix its identity and class.

mod addresses;
mod atoms;
mod class_map;
mod classes;
mod identity;
mod member_kinds;
mod members;
mod pod_index;
mod predicate_set;
mod predicates;
mod prefixes;
mod selector_index;
mod terms_in_use;
mod truths;
mod weights;

pub(crate) use addresses::{Addresses, PrefixEdit, SetPrefixes};
pub(crate) use atoms::AtomPredicates;
pub(crate) use class_map::{ClassMap, NO_CLASS};
pub(crate) use classes::{Classes, Classifier, NewClass, classes_by_predicate};
pub(crate) use identity::{IdentityInterner, PredicateKey};
pub(crate) use member_kinds::{MemberKindId, MemberKinds};
pub(crate) use members::{Member, Members};
pub(crate) use pod_index::PodIndex;
pub(crate) use predicate_set::{AddressFacts, PredicateSet, family, union};
pub(crate) use predicates::{MemberPredicates, Predicates, evaluate};
pub(crate) use terms_in_use::TermsInUse;
pub(crate) use truths::{TooMany, Truths, most_truths};
pub(crate) use weights::Weights;
