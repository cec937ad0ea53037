//! Policies in, classifier tables out.
//!
//! The local end of a policy is constant, so a policy is a function of *peer × service*. The layers, in order:
//!
//! 1. [`model`]: the validated cluster. Refuses illegal values; resolves nothing.
//! 2. [`resolve`]: model + local endpoints → the chain of policies of each endpoint and direction, and the predicates that
//!    those policies ask of a peer. Refuses to look at any peer.
//! 3. `identity` and `addresses`: addresses → identities, numbers whose meaning never changes. They refuse to look at any
//!    policy beyond its prefixes.
//! 4. `classes`: identities → classes, those that no predicate in use tells apart. Refuses to look at any rule.
//! 5. `row`: the rules that a peer satisfies → what happens to each protocol and port. Refuses to know who the peer is.
//! 6. [`compile`]: puts 2 to 5 together into an image, keeping identities and counter slots for its life.
//! 7. [`image`]: the tables and a safe lookup: address → identity → class; (chain, class) → row; row × service → path.
//!    Total: any number that anybody hands in has an answer, and the answer to an unknown one is deny.
//! 8. [`reference`](mod@reference): the slow obvious judge, straight over the model, sharing nothing with 2 to 7.
//! 9. [`prove`]: compares an image with a judge in every cell: the header space falls into finitely many atoms, and one
//!    witness stands for each.
//!
//! [`prefix_map`] is the longest-prefix match that 3 and 6 use, and the dataplane for its routes.
//!
//! There is no I/O here, no clock, no async, no randomness that shows (hash seeds only) and no unsafe code.
//!
//! **Not supported**: tiers, order, deny and log rules, profiles, host endpoints, source ports and ICMP types (Calico's
//! and the cluster-scoped policies; the same tables will hold them), in-place growth of an image, eviction of rows under
//! a memory budget.
//!
//! **An address that several pods have** (one being deleted, another already created) is in a set if any pod that has it
//! is. A rule matches such an address if *one* of the pods satisfies all that the rule asks of a peer: a pod that the
//! selector does not match lends its named ports to nobody.

mod addresses;
mod classes;
pub mod compile;
mod dump;
mod identity;
pub mod image;
pub mod model;
pub mod prefix_map;
pub mod prove;
pub mod reference;
pub mod resolve;
mod row;

#[cfg(test)]
mod tests;
