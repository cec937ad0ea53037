//! The cluster as policy sees it: the policies, and every object that they can refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::journal::Journal;
use super::member::{Endpoint, HostEndpoint, LabelView, NetworkSet, ServiceEndpoints};
use super::name::{ObjectName, PolicyName};
use super::policy::{Order, Policy, Profile, Tier};
use super::tracked::{Mark, Tracked};
use super::traffic::Protocol;
use crate::selector::Labels;

/// A cluster as policy sees it. The maps are ordered, so the same objects in any order give the same value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Model {
    /// The labels of every namespace. A pod whose namespace is missing here is treated as if the namespace had no
    /// labels.
    pub namespaces: Tracked<BTreeMap<String, Labels>>,
    /// The labels of every service account that has an object.
    pub service_accounts: Tracked<BTreeMap<ObjectName, Labels>>,
    /// Every pod that is an endpoint.
    pub endpoints: Tracked<BTreeMap<ObjectName, Arc<Endpoint>>>,
    /// Every host endpoint, by name.
    pub host_endpoints: Tracked<BTreeMap<String, Arc<HostEndpoint>>>,
    /// Every network set. A global one has no namespace.
    pub network_sets: Journal<ObjectName, Arc<NetworkSet>>,
    /// The endpoints of every service that a rule names.
    pub services: Tracked<BTreeMap<ObjectName, Arc<BTreeSet<ServiceEndpoints>>>>,
    /// The tiers that have objects. A built-in tier needs no object, and an object with the name of a built-in tier
    /// changes nothing.
    pub tiers: BTreeMap<String, Tier>,
    /// Every policy.
    pub policies: Journal<PolicyName, Arc<Policy>>,
    /// Every profile that host endpoints may name.
    pub profiles: Tracked<BTreeMap<String, Arc<Profile>>>,
    /// Ports that host endpoint policy never closes.
    pub failsafe: Failsafe,
    /// The addresses of invalid pods, unless a valid pod has the address too. All traffic to and from them is denied.
    pub unknown: Tracked<BTreeSet<IpAddr>>,
}

/// A protocol, a port, and the peers for which the port stays open. `None` means every peer.
pub type FailsafePort = (Protocol, u16, Option<ipnet::IpNet>);

/// Ports that host endpoint policy never closes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failsafe {
    /// By direction: ingress and egress.
    pub ports: [BTreeSet<FailsafePort>; 2],
}

impl Default for Failsafe {
    /// Calico's lists (Felix configuration reference, `FailsafeInboundHostPorts` and `FailsafeOutboundHostPorts`).
    fn default() -> Self {
        const TCP: [u16; 8] = [22, 179, 2379, 2380, 5473, 6443, 6666, 6667];
        let list = |tcp: &[u16], udp: &[u16]| {
            let tcp = tcp.iter().map(|port| (Protocol::Tcp, *port, None));
            tcp.chain(udp.iter().map(|port| (Protocol::Udp, *port, None))).collect()
        };
        Self { ports: [list(&TCP, &[68]), list(&TCP[1..], &[53, 67])] }
    }
}

static NONE: Labels = Labels::new();

impl Model {
    /// The index of the endpoints' mark among the [marks](Self::marks).
    pub(crate) const ENDPOINTS: usize = 2;
    /// The index of the network sets' mark.
    pub(crate) const NETWORK_SETS: usize = 4;

    /// The marks of everything that determines the addresses of members and the labels that selectors match.
    pub(crate) fn marks(&self) -> [Mark; 8] {
        [
            self.namespaces.mark(),
            self.service_accounts.mark(),
            self.endpoints.mark(),
            self.host_endpoints.mark(),
            self.network_sets.mark(),
            self.services.mark(),
            // Profiles are here because their rules may use predicates that no policy uses.
            self.profiles.mark(),
            self.unknown.mark(),
        ]
    }

    /// The labels of a namespace. There are none if the namespace is not in the model.
    pub fn namespace_labels(&self, namespace: &str) -> &Labels {
        self.namespaces.get(namespace).unwrap_or(&NONE)
    }

    /// The labels of a pod that selectors match.
    pub fn pod_view<'m>(&'m self, name: &'m ObjectName, endpoint: &'m Endpoint) -> LabelView<'m> {
        let service_account = endpoint.service_account.as_deref().map(|account| {
            if self.service_accounts.is_empty() {
                return (account, None);
            }
            let key = ObjectName::new(name.namespace.as_str(), account);
            (account, self.service_accounts.get(&key))
        });
        LabelView {
            own: &endpoint.labels,
            namespace: Some((&name.namespace, self.namespace_labels(&name.namespace))),
            service_account,
            pod: true,
            inherited: &[],
        }
    }

    /// The labels of a network set that selectors match.
    pub fn set_view<'m>(&'m self, name: &'m ObjectName, set: &'m NetworkSet) -> LabelView<'m> {
        let namespace = (!name.namespace.is_empty())
            .then(|| (name.namespace.as_str(), self.namespace_labels(&name.namespace)));
        LabelView { own: &set.labels, namespace, service_account: None, pod: false, inherited: &[] }
    }

    /// The labels of a host endpoint that selectors match.
    pub fn host_view(host: &HostEndpoint) -> LabelView<'_> {
        let HostEndpoint { labels: own, inherited, .. } = host;
        LabelView { own, namespace: None, service_account: None, pod: false, inherited }
    }

    /// A tier by its name: built in, defined, or [missing](Tier::MISSING).
    pub fn tier(&self, name: &str) -> Tier {
        let defined = || self.tiers.get(name).copied();
        Tier::built_in(name).or_else(defined).unwrap_or(Tier::MISSING)
    }

    /// The sort key of tiers. Tiers that are built in or defined come first, by order and name. Tiers that policies
    /// name but no object defines come last, even after a tier that is defined without an order.
    pub fn tier_sort_key<'t>(&self, name: &'t str) -> (bool, Order, &'t str) {
        let missing = Tier::built_in(name).is_none() && !self.tiers.contains_key(name);
        (missing, self.tier(name).order, name)
    }
}
