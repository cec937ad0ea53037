//! Who can stand behind an address: pods, network sets, host endpoints, the endpoints of services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::traffic::Protocol;
use crate::selector::{
    KUBERNETES, LabelSource, Labels, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, SERVICE_ACCOUNT,
    SERVICE_ACCOUNT_PREFIX,
};

/// Behind a prefix: the name of the namespace or service account.
const NAME: &str = "projectcalico.org/name";

/// The service account that Kubernetes makes in every namespace: it exists without an object here.
const DEFAULT_ACCOUNT: &str = "default";

/// A container port that has a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    /// The name, an IANA service name.
    pub name: String,
    /// A name resolves only among ports of the rule's protocol, if that has one.
    pub protocol: Protocol,
    /// The number, 1-65535.
    pub port: u16,
}

/// A pod that has addresses of its own (not on the host's network) and is not finished.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// The pod's labels; pods that have the same best share them (see [`LabelInterner`](super::LabelInterner)).
    pub labels: Arc<Labels>,
    /// Its service account, of its own namespace.
    pub service_account: Option<String>,
    /// Its addresses, either family.
    pub addresses: BTreeSet<IpAddr>,
    /// The named ports of all its containers, init containers too.
    pub named_ports: BTreeSet<NamedPort>,
}

/// An interface of a node's that policy is for, or all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEndpoint {
    /// The labels.
    pub labels: Labels,
    /// The node's name.
    pub node: String,
    /// Which interfaces.
    pub interface: Interface,
    /// The addresses by which selectors of other policies know it.
    pub addresses: BTreeSet<IpAddr>,
    /// Its named ports.
    pub named_ports: BTreeSet<NamedPort>,
    /// What decides when no policy does, in order.
    pub profiles: Vec<String>,
    /// The labels of those of its profiles that have any, in the same order: an earlier one's come first, its own before
    /// them. Many host endpoints share one profile's.
    pub inherited: Vec<Arc<Labels>>,
    /// It could not be imported as it was written, and whose interfaces it is for, and which policies select it, is not
    /// known. It denies what a host endpoint without policies would, and all forwarded traffic of a direction of which any
    /// global policy for forwarded traffic speaks.
    pub broken: bool,
}

impl HostEndpoint {
    /// What stands for one of which nothing is known.
    pub fn broken() -> Self {
        Self {
            labels: Labels::new(),
            node: String::new(),
            interface: Interface::All,
            addresses: BTreeSet::new(),
            named_ports: BTreeSet::new(),
            profiles: Vec::new(),
            inherited: Vec::new(),
            broken: true,
        }
    }
}

/// The interfaces of a host endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interface {
    /// `*`.
    All,
    /// The one of this name.
    Named(String),
    /// Those that have one of the host endpoint's addresses.
    OfAddresses,
}

/// Networks with labels, by which rules may select them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSet {
    /// The labels.
    pub labels: Labels,
    /// The networks, host bits cut off.
    pub nets: BTreeSet<IpNet>,
}

/// Some endpoints of a service: every address with every port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceEndpoints {
    /// The addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Protocols and ports.
    pub ports: BTreeSet<(Protocol, u16)>,
}

/// What selectors see of a member: its own labels, and what it inherits under keys that its author cannot forge.
///
/// As in Calico: `projectcalico.org/namespace`, `projectcalico.org/orchestrator` and `projectcalico.org/serviceaccount`
/// tell where it belongs; `pcns.KEY` is a label of its namespace, `pcsa.KEY` of its service account, host endpoints have the
/// labels of their profiles. Other than in Calico a label of the object's own under one of the reserved keys is not seen:
/// whoever may label a pod may not choose its namespace's labels.
#[derive(Debug, Clone, Copy)]
pub struct LabelView<'m> {
    /// The member's own labels.
    pub own: &'m Labels,
    /// Its namespace and that one's labels.
    pub namespace: Option<(&'m str, &'m Labels)>,
    /// Its service account and that one's labels; these are `None` if there is no such object.
    pub service_account: Option<(&'m str, Option<&'m Labels>)>,
    /// Whether it is a pod.
    pub pod: bool,
    /// The labels of each of its profiles.
    pub inherited: &'m [Arc<Labels>],
}

impl<'m> LabelView<'m> {
    /// The value of a label; `None` where it is absent.
    pub(crate) fn value(&self, key: &str) -> Option<&'m str> {
        if let Some(key) = key.strip_prefix(NAMESPACE_PREFIX) {
            let (name, labels) = self.namespace?;
            return if key == NAME { Some(name) } else { labels.get(key).map(String::as_str) };
        }
        if let Some(key) = key.strip_prefix(SERVICE_ACCOUNT_PREFIX) {
            let (name, labels) = self.service_account?;
            // The label is the object's, and not the pod's that names it.
            let exists = labels.is_some() || name == DEFAULT_ACCOUNT;
            return match key {
                NAME => exists.then_some(name),
                _ => labels?.get(key).map(String::as_str),
            };
        }
        match key {
            NAMESPACE => self.namespace.map(|(name, _)| name),
            ORCHESTRATOR => self.pod.then_some(KUBERNETES),
            SERVICE_ACCOUNT => self.service_account.map(|(name, _)| name),
            _ => {
                let inherited = || self.inherited.iter().find_map(|labels| labels.get(key));
                self.own.get(key).or_else(inherited).map(String::as_str)
            }
        }
    }
}

impl LabelSource for LabelView<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        self.value(key)
    }
}
