//! Rules over predicates.

use super::predicate::{PortSetId, PredicateId};
use crate::common::SmallList;
use crate::model::IcmpMatch;

/// Ports as a rule names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ports {
    /// Both ends included.
    Range(u16, u16),
    /// Those that answer a question about the end's address.
    Set(PortSetId),
}

/// An [`Entity`](crate::model::Entity) as predicates: all of `wanted` hold, none of `unwanted`, and the port, where `ports` is not empty, is one
/// of these.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ResolvedEntity {
    /// True of the address.
    pub wanted: SmallList<PredicateId>,
    /// False of it.
    pub unwanted: SmallList<PredicateId>,
    /// The end's port is one of these; `None` is every packet.
    pub ports: Option<SmallList<Ports>>,
}

/// A [`RuleEnd`](crate::model::RuleEnd) as predicates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedEnd {
    /// Any of these.
    pub entities: SmallList<ResolvedEntity>,
    /// The end's port is none of these.
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
    /// The families that it can match; entities narrow them by predicates.
    pub families: [bool; 2],
    /// The local end.
    pub local: ResolvedEnd,
    /// The peer.
    pub peer: ResolvedEnd,
}
