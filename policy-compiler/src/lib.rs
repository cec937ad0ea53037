//! Policies in, classifier tables out.
//!
//! The local end of a policy is constant, so a policy is a function of *peer × service*. The layers, in order:
//!
//! 1. [`model`]: the validated cluster, policies of every API in one shape, over labels by [`selector`]. Refuses illegal
//!    values; resolves nothing.
//! 2. [`resolve`]: model + local endpoints → the list of policies of each endpoint, stage and direction, and all that they
//!    ask of an address: predicates. Refuses to look at any address. Rules are lists of [`few`]; `stable` hashes them.
//! 3. `members`, `index`: who stands behind which addresses, and which of them selectors match.
//! 4. `predicates`: what is true of each member and each CIDR. Refuses to look at any rule. `grouped` holds many short lists.
//! 5. `addresses`: who has each address, by all that matters of them.
//! 6. `classes`, `identity`: truths → identities, numbers whose meaning never changes, and classes of them in one image, which
//!    `class_map` holds.
//! 7. `claim`, `row`: the rules that hold between two ends → what happens to each protocol, port and type. They refuse to
//!    know who the ends are. `plan` says which rows are to be made, `making` makes them, on two cores where they are many;
//!    `laid` holds each row and line once, by `numbers`, and `paths` where they lead.
//! 8. [`compile`]: puts 2 to 7 together into an image, keeping identities and counter slots for its life.
//!    [`update`] changes one in place where a pod comes or goes and nothing else; in what stands `answer` says what policies
//!    ask anew, and `sets` what network sets bring or take; `touched` says it of the addresses.
//! 9. [`image`]: the tables and a safe lookup: address → identity → class; (chain, class) → row; row × packet → path, in
//!    `lines` of the cache, or rule by rule (`linear`); [`batch`] looks up for many packets side by side; `changes` counts
//!    what is stored in place.
//!    Total: any number that anybody hands in has an answer, and the answer to an unknown one is deny.
//! 10. [`reference`](mod@reference): the slow obvious judge, straight over the model, sharing nothing with 2 to 9.
//! 11. [`prove`]: compares an image with a judge in every cell: the header space falls into finitely many atoms, and a
//!     [`witness`] stands for each.
//!
//! [`prefix_map`] is the longest-prefix match that 3 and 6 use, and the dataplane for its routes.
//!
//! There is no I/O here, no clock, no async, no randomness that shows (hash seeds only) and no unsafe code. Where a whole
//! compilation is large a second thread helps (`beside`); what it makes depends on no thread.
//!
//! **Not supported**: HTTP matches and domain names (the import fails closed on them).
//!
//! **An address that several members have** (pods of which one is being deleted, a pod inside a network set) is in a set if
//! any of them is. A port name counts for an address if a member that has it satisfies the selector beside the name and
//! gives it the number: one that the selector does not match lends its named ports to nobody. The local end of a pod's
//! packet is that pod, whoever else still has its address.

mod addresses;
mod answer;
pub mod batch;
mod beside;
mod canonical;
mod chains;
mod changes;
mod claim;
mod class_map;
mod classes;
pub mod compile;
pub mod few;
mod grouped;
mod identity;
pub mod image;
mod index;
mod laid;
mod leaf;
mod linear;
mod lines;
mod making;
mod members;
pub mod model;
mod numbers;
mod paths;
mod plan;
mod pods;
mod predicates;
pub mod prefix_map;
pub mod prove;
mod ranges;
pub mod reference;
pub mod resolve;
mod row;
mod rows;
pub mod selector;
mod sets;
mod slots;
mod stable;
mod touched;
pub mod update;
pub mod witness;

#[cfg(test)]
mod tests;
