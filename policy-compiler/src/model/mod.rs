//! The validated model: the input of the compiler, the reference and the proof.
//!
//! Every value here has been checked; a value that could be illegal has a constructor that refuses it. Nothing is
//! resolved yet: selectors are still selectors, and named ports are still names. Policies of all APIs have the same
//! form.

mod address_set;
mod cluster;
mod interner;
mod journal;
mod member;
mod name;
mod policy;
mod reason;
mod tracked;
mod traffic;

pub use address_set::AddressSet;
pub use cluster::{Failsafe, FailsafePort, Model};
pub use interner::Interner;
pub use journal::Journal;
pub use member::{
    Endpoint, HostEndpoint, Interface, LabelView, NamedPort, NetworkSet, ServiceEndpoints,
};
pub use name::{ObjectName, PolicyKind, PolicyName, RuleName};
pub use policy::{
    Action, DefaultAction, Entity, Hook, IcmpMatch, Order, Policy, PortMatch, Profile, Rule,
    RuleEnd, Tier, compare_policies,
};
pub use reason::{Decision, Noted, Reason, Verdict};
pub use tracked::{Mark, Tracked};
pub(crate) use traffic::icmp_of;
pub use traffic::{Direction, Family, ICMP, ICMPV6, L4Header, Protocol, Transport};

pub use crate::selector::{
    KUBERNETES, Labels, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, SERVICE_ACCOUNT,
    SERVICE_ACCOUNT_PREFIX,
};
