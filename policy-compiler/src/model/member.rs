//! The members that can have an address: pods, network sets, host endpoints, the endpoints of services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::address_set::AddressSet;
use super::traffic::Protocol;
use crate::selector::{
    KUBERNETES, LabelSource, Labels, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, SERVICE_ACCOUNT,
    SERVICE_ACCOUNT_PREFIX,
};

/// The key, after a prefix, for the name of the namespace or service account.
const NAME: &str = "projectcalico.org/name";

/// The service account that Kubernetes creates in every namespace. It exists even without an object in the model.
const DEFAULT_ACCOUNT: &str = "default";

/// A container port that has a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    /// The name, an IANA service name.
    pub name: String,
    /// The protocol. If the rule has a protocol, the name resolves only to ports of that protocol.
    pub protocol: Protocol,
    /// The number, 1-65535.
    pub port: u16,
}

/// A pod that has its own addresses (it is not on the host's network) and has not finished.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// The pod's labels. Pods with equal labels should share them (see [`Interner`](super::Interner)).
    pub labels: Arc<Labels>,
    /// Its service account, which is in the pod's namespace.
    pub service_account: Option<Arc<str>>,
    /// Its addresses, of both families.
    pub addresses: AddressSet,
    /// The named ports of all its containers, including init containers.
    pub named_ports: BTreeSet<NamedPort>,
}

/// An interface of a node, or all of its interfaces, to which policy applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEndpoint {
    /// The labels.
    pub labels: Labels,
    /// The node's name.
    pub node: String,
    /// Its interfaces.
    pub interface: Interface,
    /// Its addresses. A rule's selector that matches this host endpoint matches packets from or to these addresses.
    pub addresses: AddressSet,
    /// Its named ports.
    pub named_ports: BTreeSet<NamedPort>,
    /// The profiles that decide when no policy does, in order.
    pub profiles: Vec<String>,
    /// The labels that it inherits from its profiles, for each profile with labels, in the order of `profiles`. An own
    /// label comes before an inherited one, and a label of an earlier profile comes before one of a later profile. Many
    /// host endpoints share one profile's labels.
    pub inherited: Vec<Arc<Labels>>,
    /// Whether the object could not be imported as it was written. If so, its interfaces, and the policies that select
    /// it, are unknown. It denies everything that a host endpoint without policies would deny. In each direction for
    /// which any global policy has rules for forwarded traffic, it also denies all forwarded traffic.
    pub broken: bool,
}

impl HostEndpoint {
    /// The value that replaces a host endpoint that is not valid.
    pub fn broken() -> Self {
        Self {
            labels: Labels::new(),
            node: String::new(),
            interface: Interface::All,
            addresses: AddressSet::default(),
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
    /// The interface of this name.
    Named(String),
    /// The interfaces that have one of the addresses of the host endpoint.
    OfAddresses,
}

/// Networks with labels, which the selectors of rules may match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSet {
    /// The labels.
    pub labels: Labels,
    /// The networks, without host bits.
    pub nets: BTreeSet<IpNet>,
}

/// Some endpoints of a service. Every one of the addresses has every one of the ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceEndpoints {
    /// The addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// The protocols and ports.
    pub ports: BTreeSet<(Protocol, u16)>,
}

/// The labels of a member that selectors match: its own labels, and inherited ones under keys that its author cannot
/// forge.
///
/// As in Calico, `projectcalico.org/namespace`, `projectcalico.org/orchestrator` and `projectcalico.org/serviceaccount`
/// name its owner; `pcns.KEY` is a label of its namespace, `pcsa.KEY` of its service account, and host endpoints have
/// the labels of their profiles. Unlike in Calico, an object's own label under a reserved key is ignored: a user who
/// may label a pod must not choose the labels of its namespace.
#[derive(Debug, Clone, Copy)]
pub struct LabelView<'m> {
    /// The member's own labels.
    pub own: &'m Labels,
    /// Its namespace, and the namespace's labels.
    pub namespace: Option<(&'m str, &'m Labels)>,
    /// Its service account, and the account's labels. The labels are `None` if the account has no object.
    pub service_account: Option<(&'m str, Option<&'m Labels>)>,
    /// Whether it is a pod.
    pub pod: bool,
    /// The labels that it inherits from its profiles, for each profile with labels.
    pub inherited: &'m [Arc<Labels>],
}

impl<'m> LabelView<'m> {
    /// The labels of the member and of its profiles. A key may occur several times. Selectors then see the first value,
    /// and none if the key is reserved.
    pub(crate) fn own_labels(&self) -> impl Iterator<Item = (&'m str, &'m str)> {
        let inherited = self.inherited.iter().flat_map(|labels| labels.iter());
        self.own.iter().chain(inherited).map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The value of a label. `None` if it is absent.
    pub(crate) fn value(&self, key: &str) -> Option<&'m str> {
        if let Some(key) = key.strip_prefix(NAMESPACE_PREFIX) {
            let (name, labels) = self.namespace?;
            return if key == NAME { Some(name) } else { labels.get(key).map(String::as_str) };
        }
        if let Some(key) = key.strip_prefix(SERVICE_ACCOUNT_PREFIX) {
            let (name, labels) = self.service_account?;
            // The label comes from the service account's object, not from the pod that names it.
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
