//! Rules over predicates.

use std::sync::Arc;

use super::predicate::{PortSetId, PredicateId};
use crate::common::SmallList;
use crate::model::IcmpMatch;

/// The ports that a rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ports {
    /// Both ends included.
    Range(u16, u16),
    /// The ports that a port set has at the end's address.
    Set(PortSetId),
}

/// An [`Entity`](crate::model::Entity), or one of its nets, as predicates. It matches if all of `wanted` are true, none
/// of `unwanted` is, and the port is one of `ports`, if these are given.
///
/// An entity of several nets becomes one for each net. Each net is a predicate of its own, so an address has as many
/// of these predicates as nets contain it (33 or 129 at most), however many rules name the nets. The entities of a
/// rule share their common parts: a rule of *n* nets and *m* ports takes memory for *n + m*.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedEntity {
    /// The families that it can match.
    pub families: [bool; 2],
    /// Predicates that must be true of the address.
    pub wanted: SmallList<PredicateId>,
    /// Predicates that must be false of it, ascending.
    pub unwanted: Arc<[PredicateId]>,
    /// The end's port must be one of these; `None` is every packet.
    pub ports: Option<Arc<[Ports]>>,
}

/// A [`RuleEnd`](crate::model::RuleEnd) as predicates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedEnd {
    /// One of these must match.
    pub entities: SmallList<ResolvedEntity>,
    /// The end's port must be none of these.
    pub not_ports: SmallList<Ports>,
}

/// A rule as predicates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedRule {
    /// See [`Rule::protocol`](crate::model::Rule::protocol).
    pub protocol: Option<u8>,
    /// See [`Rule::not_protocol`](crate::model::Rule::not_protocol).
    pub not_protocol: Option<u8>,
    /// See [`Rule::icmp`](crate::model::Rule::icmp).
    pub icmp: Option<IcmpMatch>,
    /// See [`Rule::not_icmp`](crate::model::Rule::not_icmp).
    pub not_icmp: Option<IcmpMatch>,
    /// The families that the rule can match; entities restrict them further.
    pub families: [bool; 2],
    /// The local end.
    pub local: ResolvedEnd,
    /// The peer.
    pub peer: ResolvedEnd,
}
