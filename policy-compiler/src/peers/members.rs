//! The members of the cluster, with their addresses and labels.
//!
//! A *member* is a pod, a network set, a host endpoint, or some endpoints of a service. Members are borrowed from the
//! model. A cluster has many of them, so nothing is copied.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::model::{
    Endpoint, HostEndpoint, LabelView, Model, NamedPort, NetworkSet, ObjectName, ServiceEndpoints,
};
use crate::selector::Labels;

/// An index into [`Members::all`].
pub(crate) type Position = usize;

/// A member of the cluster.
#[derive(Debug)]
pub(crate) struct Member<'m> {
    namespace: &'m str,
    /// A reference to the `String` itself: to make a `&str` from it, the memory of every pod's name would have to be
    /// read.
    name: &'m String,
    pub(crate) object: MemberObject<'m>,
    /// The labels of its namespace, if it has a namespace.
    namespace_labels: Option<&'m Labels>,
    /// The labels of its service account, if the account has any.
    account_labels: Option<&'m Labels>,
}

/// The object behind a member.
#[derive(Debug)]
pub(crate) enum MemberObject<'m> {
    Pod(&'m Endpoint),
    Set(&'m NetworkSet),
    Host(&'m HostEndpoint),
    /// Some endpoints of a service, with the service's name.
    Service(&'m ObjectName, &'m ServiceEndpoints),
}

static NO_LABELS: Labels = Labels::new();

impl<'m> Member<'m> {
    /// A pod of a model, or a pod that has just left it.
    pub(crate) fn pod(model: &'m Model, name: &'m ObjectName, pod: &'m Endpoint) -> Self {
        let account = pod.service_account.as_deref().filter(|_| !model.service_accounts.is_empty());
        let account = account.and_then(|account| {
            model.service_accounts.get(&ObjectName::new(name.namespace.as_str(), account))
        });
        let around = Some(model.namespace_labels(&name.namespace));
        Self {
            namespace: &name.namespace,
            name: &name.name,
            object: MemberObject::Pod(pod),
            namespace_labels: around,
            account_labels: account,
        }
    }

    /// A network set of a model.
    pub(crate) fn set(model: &'m Model, name: &'m ObjectName, set: &'m NetworkSet) -> Self {
        let ObjectName { namespace, name } = name;
        let around = (!namespace.is_empty()).then(|| model.namespace_labels(namespace));
        Self {
            namespace,
            name,
            object: MemberObject::Set(set),
            namespace_labels: around,
            account_labels: None,
        }
    }

    /// The labels that selectors match. `None` for the endpoints of a service.
    pub(crate) fn view(&self) -> Option<LabelView<'_>> {
        let namespace = self.namespace_labels.map(|labels| (self.namespace, labels));
        let view = LabelView {
            own: &NO_LABELS,
            namespace,
            service_account: None,
            pod: false,
            inherited: &[],
        };
        match &self.object {
            MemberObject::Pod(endpoint) => Some(LabelView {
                own: &endpoint.labels,
                service_account: endpoint
                    .service_account
                    .as_deref()
                    .map(|it| (it, self.account_labels)),
                pod: true,
                ..view
            }),
            MemberObject::Set(set) => Some(LabelView { own: &set.labels, ..view }),
            MemberObject::Host(host) => Some(Model::host_view(host)),
            MemberObject::Service(..) => None,
        }
    }

    /// The own labels of a pod or a network set. `None` for other members.
    pub(crate) fn own_labels(&self) -> Option<&Labels> {
        match &self.object {
            MemberObject::Pod(endpoint) => Some(&endpoint.labels),
            MemberObject::Set(set) => Some(&set.labels),
            MemberObject::Host(_) | MemberObject::Service(..) => None,
        }
    }

    /// The ports to which it gives names.
    pub(crate) fn named_ports(&self) -> impl Iterator<Item = &NamedPort> {
        let ports = match &self.object {
            MemberObject::Pod(endpoint) => Some(&endpoint.named_ports),
            MemberObject::Host(host) => Some(&host.named_ports),
            MemberObject::Set(_) | MemberObject::Service(..) => None,
        };
        ports.into_iter().flatten()
    }

    /// Whether it is a pod or a host endpoint.
    pub(crate) fn is_endpoint(&self) -> bool {
        matches!(self.object, MemberObject::Pod(_) | MemberObject::Host(_))
    }

    /// Whether it is a network set.
    pub(crate) fn is_set(&self) -> bool {
        matches!(self.object, MemberObject::Set(_))
    }

    /// Visits the prefixes of the member.
    pub(crate) fn for_each_net(&self, mut visit: impl FnMut(IpNet)) {
        let mut single = |address: &IpAddr| visit(IpNet::from(*address));
        match &self.object {
            MemberObject::Pod(endpoint) => endpoint.addresses.iter().for_each(&mut single),
            MemberObject::Host(host) => host.addresses.iter().for_each(&mut single),
            MemberObject::Service(_, some) => some.addresses.iter().for_each(&mut single),
            MemberObject::Set(set) => {
                for net in &set.nets {
                    visit(net.trunc());
                }
            }
        }
    }
}

/// The number of pods at the start of the list that are in a namespace. Reads the names of only a few of them.
fn count_in_namespace(pods: &[(&ObjectName, &Arc<Endpoint>)], namespace: &str) -> usize {
    let is_in = |pod: &(&ObjectName, &Arc<Endpoint>)| pod.0.namespace == namespace;
    let mut to = 1;
    while pods.get(to).is_some_and(is_in) {
        to *= 2;
    }
    let from = to / 2;
    from + pods[from..to.min(pods.len())].partition_point(is_in)
}

/// Adjacent members that inherit the same labels from their namespace and their kind of object. A member without a
/// namespace is a run of its own.
pub(crate) type Run = Range<Position>;

/// The members of a cluster: pods, then sets, then host endpoints, then services, each sorted by name.
#[derive(Debug)]
pub(crate) struct Members<'m> {
    pub(crate) all: Vec<Member<'m>>,
    /// All members that selectors see, in runs.
    pub(crate) runs: Vec<Run>,
    /// The indexes of the runs of each namespace: at most one of pods and one of sets.
    namespaces: AHashMap<&'m str, Vec<usize>>,
    /// The position of the first network set.
    pub(crate) sets: Position,
    /// The position of the first service; selectors do not see services.
    pub(crate) services: Position,
}

impl<'m> Members<'m> {
    pub(crate) fn from_model(model: &'m Model) -> Self {
        let mut members = Self {
            all: Vec::with_capacity(model.endpoints.len() + model.network_sets.len()),
            runs: Vec::new(),
            namespaces: AHashMap::new(),
            sets: 0,
            services: 0,
        };
        members.push_pods(model);
        members.sets = members.all.len();
        members.push_sets(model);
        members.push_hosts(model);
        members.services = members.all.len();
        members.push_services(model);
        members
    }

    /// Adds the pods, in one run for each namespace.
    fn push_pods(&mut self, model: &'m Model) {
        let accounts: AHashMap<(&str, &str), &Labels> = model
            .service_accounts
            .iter()
            .map(|(name, labels)| ((name.namespace.as_str(), name.name.as_str()), labels))
            .collect();
        let all: Vec<_> = model.endpoints.iter().collect();
        let mut rest = all.as_slice();
        while let Some((ObjectName { namespace, .. }, _)) = rest.first() {
            let (here, after) = rest.split_at(count_in_namespace(rest, namespace));
            rest = after;
            let around = Some(model.namespace_labels(namespace));
            self.push_run_in(namespace, here.len());
            for (ObjectName { name, .. }, endpoint) in here {
                let mut account = None;
                // Without accounts the pod is not read here, which saves a cache miss for each pod.
                if !accounts.is_empty() {
                    let named = endpoint.service_account.as_deref();
                    account = named.and_then(|it| accounts.get(&(namespace.as_str(), it))).copied();
                }
                let what = MemberObject::Pod(endpoint);
                self.all.push(Member {
                    namespace,
                    name,
                    object: what,
                    namespace_labels: around,
                    account_labels: account,
                });
            }
        }
    }

    /// Adds the network sets, in one run for each namespace.
    fn push_sets(&mut self, model: &'m Model) {
        let sets: Vec<_> = model.network_sets.iter().collect();
        for here in sets.chunk_by(|a, b| a.0.namespace == b.0.namespace) {
            for (at, (ObjectName { namespace, name }, set)) in here.iter().enumerate() {
                let around = (!namespace.is_empty()).then(|| model.namespace_labels(namespace));
                match around {
                    None => self.push_run(1),
                    Some(_) if at == 0 => self.push_run_in(namespace, here.len()),
                    Some(_) => {}
                }
                let what = MemberObject::Set(set);
                self.all.push(Member {
                    namespace,
                    name,
                    object: what,
                    namespace_labels: around,
                    account_labels: None,
                });
            }
        }
    }

    /// Adds the host endpoints.
    fn push_hosts(&mut self, model: &'m Model) {
        for (name, host) in &model.host_endpoints {
            let what = MemberObject::Host(host);
            self.push_run(1);
            self.all.push(Member {
                namespace: "",
                name,
                object: what,
                namespace_labels: None,
                account_labels: None,
            });
        }
    }

    /// Adds the endpoints of services.
    fn push_services(&mut self, model: &'m Model) {
        for (name, service) in &model.services {
            for some in service.iter() {
                let what = MemberObject::Service(name, some);
                let ObjectName { namespace, name } = name;
                self.all.push(Member {
                    namespace,
                    name,
                    object: what,
                    namespace_labels: None,
                    account_labels: None,
                });
            }
        }
    }

    /// Turns the next `len` members into a run.
    fn push_run(&mut self, len: usize) {
        self.runs.push(self.all.len()..self.all.len() + len);
    }

    /// Turns the next `len` members into a run of a namespace.
    fn push_run_in(&mut self, namespace: &'m str, len: usize) {
        self.namespaces.entry(namespace).or_default().push(self.runs.len());
        self.push_run(len);
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
                matches!(member.object, MemberObject::Host(_)) && *member.name == name.name
            };
            return self.all.iter().position(is_it);
        }
        let is_pods = |run: &&Run| {
            matches!(self.all.get(run.start), Some(Member { object: MemberObject::Pod(_), .. }))
        };
        let run = self.runs_in(&name.namespace).find(is_pods)?.clone();
        let at = self
            .all
            .get(run.clone())?
            .binary_search_by(|it| it.name.as_str().cmp(&name.name))
            .ok()?;
        Some(run.start + at)
    }
}
