//! Policies in, classifier tables out.
//!
//! The local end of a policy is constant, so a policy is a function of *peer × service*. A policy goes through these
//! folders, from the top of the list to the bottom; a folder imports only folders above it in this list:
//!
//! | folder | holds | refuses |
//! | folder | holds | refuses |
//! | `common` | ids, small collections, hashing, the join of a second thread | |
//! | [`selector`] | Calico's selector language: expressions over labels | |
//! | [`model`] | the validated cluster, policies of every API in one form | illegal values; resolves nothing |
//! | [`prefix_map`] | longest-prefix match; the dataplane uses it for routes | |
//! | [`resolve`] | model and local endpoints → the list of rules of each endpoint, stage and direction, over *predicates* of addresses | to look at any address |
//! | `peers` | which members have which address, and the predicate set of each address: the predicates that are true of it. Predicate sets → *identities*, numbers whose meaning never changes, and *classes* of one image | to look at any rule |
//! | [`image`] | the tables and the lookup: address → identity → class; (chain, class) → row; row × packet → path | to panic: every lookup has a result, and an unknown number is denied |
//! | `rows` | what happens to each protocol, port and type between a chain and a class: match sets, row plan, row builder, row interner | to know the addresses of the ends |
//! | [`packets`] | sets of packets between two given ends, out of match sets | to know which ends a rule matches |
//! | [`compile`] | the compiler: puts the steps together, keeps identities and counter slots for its life, applies deltas to the last image | |
//! | [`check`] | the proof, which compares an image with a judge in every cell | |
//! | `reference` | a slow and obvious judge, which shares only types with the folders from `resolve` to `compile`; only with the feature `testing` | |
//!
//! **A change** takes the cheapest step that suffices. A pod of another node changes cells of the image in use
//! ([`Compiler::update`](compile::Compiler::update)). New predicates and changed network sets change the entries of the
//! addresses that they concern. A changed policy costs the rows of the lists that contain it. Every other change
//! compiles everything from nothing.
//!
//! There is no I/O here, no clock, no async, no unsafe code, and no randomness that affects results (only hash seeds).
//! A large compilation uses a second thread (`common/join.rs`); the result does not depend on it.
//!
//! **Not supported**: HTTP matches and domain names (the import fails closed on them).
//!
//! **Several members may have one address** (a pod that is being deleted and its successor, a pod inside a network
//! set). The address is in a set if any of these members is in it. A port name holds for an address if a member that
//! has the address both matches the rule's selector and gives this name to the port's number. The named ports of a
//! member that the selector does not match do not count for another member. The local end of a pod's packet is that
//! pod, even if another member has its address.

#![warn(missing_docs)]

pub mod check;
mod common;
pub mod compile;
pub mod image;
pub mod model;
pub mod packets;
mod peers;
pub mod prefix_map;
#[cfg(any(test, feature = "testing"))]
pub mod reference;
pub mod resolve;
mod rows;
pub mod selector;

#[cfg(test)]
mod tests;
