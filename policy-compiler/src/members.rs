//! Who stands behind which addresses, and what selectors see of them.
//!
//! A *member* is a pod, a network set, a host endpoint, or some endpoints of a service. Members are borrowed from the model:
//! a cluster has many, and nothing of them is copied.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

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
    /// Not as `&str`: that would look at the name of each.
    name: &'m String,
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
    Host(&'m HostEndpoint),
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

    /// A network set of a model.
    pub(crate) fn set(model: &'m Model, name: &'m ObjectName, set: &'m NetworkSet) -> Self {
        let ObjectName { namespace, name } = name;
        let around = (!namespace.is_empty()).then(|| model.namespace_labels(namespace));
        Self { namespace, name, what: What::Set(set), around, account: None }
    }

    /// What selectors see of it; nothing of a service's endpoints.
    pub(crate) fn view(&self) -> Option<View<'_>> {
        let namespace = self.around.map(|labels| (self.namespace, labels));
        let view =
            View { own: &NONE, namespace, service_account: None, pod: false, inherited: &[] };
        match &self.what {
            What::Pod(endpoint) => Some(View {
                own: &endpoint.labels,
                service_account: endpoint.service_account.as_deref().map(|it| (it, self.account)),
                pod: true,
                ..view
            }),
            What::Set(set) => Some(View { own: &set.labels, ..view }),
            What::Host(host) => Some(Model::host_view(host)),
            What::Service(..) => None,
        }
    }

    /// The labels of its own, of a member that inherits none.
    pub(crate) fn labels(&self) -> Option<&Labels> {
        match &self.what {
            What::Pod(endpoint) => Some(&endpoint.labels),
            What::Set(set) => Some(&set.labels),
            What::Host(_) | What::Service(..) => None,
        }
    }

    /// The port names that it gives numbers.
    pub(crate) fn named_ports(&self) -> impl Iterator<Item = &NamedPort> {
        let ports = match &self.what {
            What::Pod(endpoint) => Some(&endpoint.named_ports),
            What::Host(host) => Some(&host.named_ports),
            What::Set(_) | What::Service(..) => None,
        };
        ports.into_iter().flatten()
    }

    /// Whether it is a pod or a host endpoint.
    pub(crate) fn is_endpoint(&self) -> bool {
        matches!(self.what, What::Pod(_) | What::Host(_))
    }

    /// Whether it is a network set.
    pub(crate) fn is_set(&self) -> bool {
        matches!(self.what, What::Set(_))
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
            What::Host(host) => hosts(&host.addresses),
            What::Service(_, some) => hosts(&some.addresses),
            What::Set(set) => {
                for net in &set.nets {
                    hand(net.trunc());
                }
            }
        }
    }
}

/// How many pods from the first on are in a namespace, by few looks at their names.
fn run_of(pods: &[(&ObjectName, &Arc<Endpoint>)], namespace: &str) -> usize {
    let is_in = |pod: &(&ObjectName, &Arc<Endpoint>)| pod.0.namespace == namespace;
    let mut to = 1;
    while pods.get(to).is_some_and(is_in) {
        to *= 2;
    }
    let from = to / 2;
    from + pods[from..to.min(pods.len())].partition_point(is_in)
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
        let all: Vec<_> = model.endpoints.iter().collect();
        let mut rest = all.as_slice();
        while let Some((ObjectName { namespace, .. }, _)) = rest.first() {
            let (here, after) = rest.split_at(run_of(rest, namespace));
            rest = after;
            let around = Some(model.namespace_labels(namespace));
            members.run_in(namespace, here.len());
            for (ObjectName { name, .. }, endpoint) in here {
                let mut account = None;
                // Not to look at the pod here saves a miss of the cache for each.
                if !accounts.is_empty() {
                    let named = endpoint.service_account.as_deref();
                    account = named.and_then(|it| accounts.get(&(namespace.as_str(), it))).copied();
                }
                let what = What::Pod(endpoint);
                members.all.push(Member { namespace, name, what, around, account });
            }
        }
        let sets: Vec<_> = model.network_sets.iter().collect();
        for here in sets.chunk_by(|a, b| a.0.namespace == b.0.namespace) {
            for (at, (ObjectName { namespace, name }, set)) in here.iter().enumerate() {
                let around = (!namespace.is_empty()).then(|| model.namespace_labels(namespace));
                match around {
                    None => members.run(1),
                    Some(_) if at == 0 => members.run_in(namespace, here.len()),
                    Some(_) => {}
                }
                let what = What::Set(set);
                members.all.push(Member { namespace, name, what, around, account: None });
            }
        }
        for (name, host) in &model.host_endpoints {
            let what = What::Host(host);
            members.run(1);
            members.all.push(Member { namespace: "", name, what, around: None, account: None });
        }
        members.services = members.all.len();
        for (name, service) in &model.services {
            for some in service.iter() {
                let what = What::Service(name, some);
                let ObjectName { namespace, name } = name;
                members.all.push(Member { namespace, name, what, around: None, account: None });
            }
        }
        members
    }

    /// The next so many members are a run.
    fn run(&mut self, len: usize) {
        self.runs.push(self.all.len()..self.all.len() + len);
    }

    /// The next so many members are a run and those of a namespace.
    fn run_in(&mut self, namespace: &'m str, len: usize) {
        self.namespaces.entry(namespace).or_default().push(self.runs.len());
        self.run(len);
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
                matches!(member.what, What::Host(_)) && *member.name == name.name
            };
            return self.all.iter().position(is_it);
        }
        let is_pods =
            |run: &&Run| matches!(self.all.get(run.start), Some(Member { what: What::Pod(_), .. }));
        let run = self.runs_in(&name.namespace).find(is_pods)?.clone();
        let at = self
            .all
            .get(run.clone())?
            .binary_search_by(|it| it.name.as_str().cmp(&name.name))
            .ok()?;
        Some(run.start + at)
    }
}
