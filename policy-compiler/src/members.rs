//! Who stands behind which addresses, and what selectors see of them.
//!
//! A *member* is a pod, a network set, a host endpoint, or some endpoints of a service. Members are borrowed from the model:
//! a cluster has many, and nothing of them is copied.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::model::{
    Endpoint, HostEndpoint, Labels, Model, NamedPort, NetworkSet, ObjectName, ServiceEndpoints,
    View,
};

/// Index into [`Members::all`].
pub(crate) type Position = usize;

/// A member of the cluster.
#[derive(Debug)]
pub(crate) struct Member<'m> {
    namespace: &'m str,
    name: &'m str,
    pub(crate) what: What<'m>,
    /// The labels of its namespace, if it is in one.
    around: Option<&'m Labels>,
    /// The labels of its service account, if that has any.
    account: Option<&'m Labels>,
}

/// What a member is.
#[derive(Debug)]
pub(crate) enum What<'m> {
    Pod(&'m Endpoint),
    Set(&'m NetworkSet),
    /// With the labels of its profiles.
    Host(&'m HostEndpoint, Box<Labels>),
    /// With the service's name.
    Service(&'m ObjectName, &'m ServiceEndpoints),
}

static NONE: Labels = Labels::new();

impl<'m> Member<'m> {
    /// A pod of a model, or one that was in it a moment ago.
    pub(crate) fn pod(model: &'m Model, name: &'m ObjectName, pod: &'m Endpoint) -> Self {
        let account = pod.service_account.as_deref().filter(|_| !model.service_accounts.is_empty());
        let account = account.and_then(|account| {
            model.service_accounts.get(&ObjectName::new(name.namespace.as_str(), account))
        });
        let around = Some(model.namespace_labels(&name.namespace));
        Self { namespace: &name.namespace, name: &name.name, what: What::Pod(pod), around, account }
    }

    /// What selectors see of it; nothing of a service's endpoints.
    pub(crate) fn view(&self) -> Option<View<'_>> {
        let namespace = self.around.map(|labels| (self.namespace, labels));
        let view =
            View { own: &NONE, namespace, service_account: None, pod: false, inherited: &NONE };
        match &self.what {
            What::Pod(endpoint) => Some(View {
                own: &endpoint.labels,
                service_account: endpoint.service_account.as_deref().map(|it| (it, self.account)),
                pod: true,
                ..view
            }),
            What::Set(set) => Some(View { own: &set.labels, ..view }),
            What::Host(host, inherited) => Some(Model::host_view(host, inherited)),
            What::Service(..) => None,
        }
    }

    /// The port names that it gives numbers.
    pub(crate) fn named_ports(&self) -> impl Iterator<Item = &NamedPort> {
        let ports = match &self.what {
            What::Pod(endpoint) => Some(&endpoint.named_ports),
            What::Host(host, _) => Some(&host.named_ports),
            What::Set(_) | What::Service(..) => None,
        };
        ports.into_iter().flatten()
    }

    /// Whether it is a pod or a host endpoint.
    pub(crate) fn is_endpoint(&self) -> bool {
        matches!(self.what, What::Pod(_) | What::Host(..))
    }

    /// Hands over the prefixes that it has.
    pub(crate) fn for_each_net(&self, mut hand: impl FnMut(IpNet)) {
        let mut hosts = |addresses: &BTreeSet<IpAddr>| {
            for address in addresses {
                hand(IpNet::from(*address));
            }
        };
        match &self.what {
            What::Pod(endpoint) => hosts(&endpoint.addresses),
            What::Host(host, _) => hosts(&host.addresses),
            What::Service(_, some) => hosts(&some.addresses),
            What::Set(set) => {
                for net in &set.nets {
                    hand(net.trunc());
                }
            }
        }
    }
}

/// Members side by side of whom everything is the same that they have from their namespace and kind. Those in no namespace are
/// each alone.
pub(crate) type Run = Range<Position>;

/// The members of a cluster: pods, then sets, then host endpoints, then services, each in the order of their names.
#[derive(Debug)]
pub(crate) struct Members<'m> {
    pub(crate) all: Vec<Member<'m>>,
    /// All that selectors see, in runs.
    pub(crate) runs: Vec<Run>,
    /// Indexes of the runs of each namespace, at most one of pods and one of sets.
    namespaces: AHashMap<&'m str, Vec<usize>>,
    /// Where the services begin, of which selectors see nothing.
    pub(crate) services: Position,
}

impl<'m> Members<'m> {
    pub(crate) fn of(model: &'m Model) -> Self {
        let mut members = Self {
            all: Vec::with_capacity(model.endpoints.len() + model.network_sets.len()),
            runs: Vec::new(),
            namespaces: AHashMap::new(),
            services: 0,
        };
        let accounts: AHashMap<(&str, &str), &Labels> = model
            .service_accounts
            .iter()
            .map(|(name, labels)| ((name.namespace.as_str(), name.name.as_str()), labels))
            .collect();
        let mut current: Option<(&str, &Labels)> = None;
        for (ObjectName { namespace, name }, endpoint) in &model.endpoints {
            // The first pod's name of the namespace stands for it in all: a run is told without reading it.
            let (namespace, around) = match current {
                Some(known) if known.0 == namespace => known,
                _ => (namespace.as_str(), model.namespace_labels(namespace)),
            };
            current = Some((namespace, around));
            let mut account = None;
            // Not to look at the pod here saves a miss of the cache for each.
            if !accounts.is_empty() {
                let named = endpoint.service_account.as_deref();
                account = named.and_then(|it| accounts.get(&(namespace, it))).copied();
            }
            let what = What::Pod(endpoint);
            members.add(Member { namespace, name, what, around: Some(around), account });
        }
        let pods = members.all.len();
        for (ObjectName { namespace, name }, set) in &model.network_sets {
            let around = (!namespace.is_empty()).then(|| model.namespace_labels(namespace));
            members.add(Member { namespace, name, what: What::Set(set), around, account: None });
        }
        for (name, host) in &model.host_endpoints {
            let what = What::Host(host, Box::new(model.inherited(host)));
            members.add(Member { namespace: "", name, what, around: None, account: None });
        }
        members.runs_of(0..pods);
        members.runs_of(pods..members.all.len());
        members.services = members.all.len();
        for (name, service) in &model.services {
            for some in service.iter() {
                let what = What::Service(name, some);
                let (namespace, name) = (name.namespace.as_str(), name.name.as_str());
                members.add(Member { namespace, name, what, around: None, account: None });
            }
        }
        members
    }

    fn add(&mut self, member: Member<'m>) {
        self.all.push(member);
    }

    /// Adds the runs of members of one kind, in order.
    fn runs_of(&mut self, range: Range<Position>) {
        let mut start = range.start;
        for same in self.all[range].chunk_by(|a, b| {
            let same = std::ptr::eq(a.namespace, b.namespace) || a.namespace == b.namespace;
            same && a.around.is_some() && b.around.is_some()
        }) {
            let positions = start..start + same.len();
            start = positions.end;
            let namespace = same.first().filter(|it| it.around.is_some()).map(|it| it.namespace);
            if let Some(namespace) = namespace {
                self.namespaces.entry(namespace).or_default().push(self.runs.len());
            }
            self.runs.push(positions);
        }
    }

    /// The runs of a namespace.
    pub(crate) fn runs_in(&self, namespace: &str) -> impl Iterator<Item = &Run> {
        let indexes = self.namespaces.get(namespace).into_iter().flatten();
        indexes.filter_map(|index| self.runs.get(*index))
    }

    /// The position of a pod or, without a namespace, of a host endpoint.
    pub(crate) fn endpoint(&self, name: &ObjectName) -> Option<Position> {
        if name.namespace.is_empty() {
            let is_it = |member: &Member<'_>| {
                matches!(member.what, What::Host(..)) && member.name == name.name
            };
            return self.all.iter().position(is_it);
        }
        let is_pods =
            |run: &&Run| matches!(self.all.get(run.start), Some(Member { what: What::Pod(_), .. }));
        let run = self.runs_in(&name.namespace).find(is_pods)?.clone();
        let at = self.all.get(run.clone())?.binary_search_by(|it| it.name.cmp(&name.name)).ok()?;
        Some(run.start + at)
    }
}
