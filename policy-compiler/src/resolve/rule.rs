//! Rules over predicates.

use std::sync::Arc;

use super::predicate::{PortSetId, PredicateId};
use crate::common::SmallList;
use crate::model::IcmpMatch;

/// The ports in a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ports {
    /// A range of ports, with both ends included.
    Range(u16, u16),
    /// The ports of a port set at the end's address.
    Set(PortSetId),
}

/// An [`Entity`](crate::model::Entity), or one of its nets, in the form of predicates. It matches an address and a port
/// if all predicates in `wanted` are true of the address, no predicate in `unwanted` is, and `ports` is `None` or
/// contains the port.
///
/// An entity with several nets becomes one for each net. Each net is one predicate, even if many rules use it. So at
/// most 33 of these predicates are true of an IPv4 address, and at most 129 of an IPv6 address: one for each length of
/// a prefix. The entities of a rule share their ports, so the memory of a rule with *n* nets and *m* ports is
/// proportional to *n + m*.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedEntity {
    /// The families of the addresses that it can match.
    pub families: [bool; 2],
    /// The predicates that must be true of the address.
    pub wanted: SmallList<PredicateId>,
    /// The predicates that must be false of the address, in ascending order.
    pub unwanted: Arc<[PredicateId]>,
    /// The end's port must be one of these. `None` means every packet.
    pub ports: Option<Arc<[Ports]>>,
}

/// A [`RuleEnd`](crate::model::RuleEnd) in the form of predicates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedEnd {
    /// One of these must match.
    pub entities: SmallList<ResolvedEntity>,
    /// The end's port must be none of these.
    pub not_ports: SmallList<Ports>,
}

/// A rule in the form of predicates.
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
