//! The known parts of an invalid object.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::object::{Pairs, Pod, Subject};

/// The known parts of an invalid object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Invalid {
    /// For a policy: the endpoints that it selects, if these could be read.
    pub subject: Option<Subject>,
    /// For a network set: its labels, if they could be read.
    pub labels: Option<Pairs>,
    /// For a pod: the addresses that could be read from its status.
    pub reported: BTreeSet<IpAddr>,
    /// For a pod: the addresses that could be read from its annotations. Anybody who may change the
    /// pod may write these annotations.
    pub annotated: BTreeSet<IpAddr>,
}

impl Invalid {
    /// Returns the known parts of a pod.
    pub(super) fn of_pod(pod: &Pod) -> Self {
        let reported: BTreeSet<IpAddr> = pod.reported_addresses().collect();
        let annotated = pod.every_address().difference(&reported).copied().collect();
        Self { reported, annotated, ..Self::default() }
    }
}
