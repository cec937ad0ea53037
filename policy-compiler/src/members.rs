//! Who stands behind which addresses, and what predicates see of them.
//!
//! A *member* is a pod, a network set, a host endpoint, or some endpoints of a service. It has a number as long as nothing
//! of what predicates see of it changes; a member that is relabelled, or another one in its place, has another number.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::model::{
    Endpoint, HostEndpoint, Labels, Model, NAMESPACE, NAMESPACE_PREFIX, NamedPort, NetworkSet,
    ORCHESTRATOR, ObjectName, ServiceEndpoints, View,
};
use crate::selector::{LabelSource, Selector};

/// The number of a member. It is never given to another.
pub(crate) type MemberId = u32;

/// Index into [`Members::all`].
pub(crate) type Position = usize;

/// A member of the cluster.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// Its name; of some endpoints of a service the service's.
    pub(crate) name: ObjectName,
    /// What it is.
    pub(crate) what: What,
    /// The labels of its namespace and of its service account.
    around: Around,
    pub(crate) id: MemberId,
}

/// What a member is.
#[derive(Debug, Clone)]
pub(crate) enum What {
    Pod(Arc<Endpoint>),
    Set(Arc<NetworkSet>),
    /// With the labels of its profiles.
    Host(Arc<HostEndpoint>, Arc<Labels>),
    Service(Arc<ServiceEndpoints>),
}

/// The labels that a member inherits from where it belongs.
#[derive(Debug, Clone, Default)]
struct Around {
    namespace: Option<Arc<Labels>>,
    account: Option<Arc<Labels>>,
}

impl Around {
    fn is(&self, other: &Self) -> bool {
        let same = |a: &Option<Arc<Labels>>, b: &Option<Arc<Labels>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        };
        same(&self.namespace, &other.namespace) && same(&self.account, &other.account)
    }
}

impl Member {
    /// Whether predicates see the same of both, which have one name.
    fn looks_like(&self, what: &What, around: &Around) -> bool {
        let same = match (&self.what, what) {
            (What::Pod(a), What::Pod(b)) => {
                Arc::ptr_eq(a, b)
                    || (a.labels == b.labels
                        && a.service_account == b.service_account
                        && a.named_ports == b.named_ports)
            }
            (What::Set(a), What::Set(b)) => Arc::ptr_eq(a, b) || a.labels == b.labels,
            (What::Host(a, inherited), What::Host(b, inherited_b)) => {
                inherited == inherited_b
                    && (Arc::ptr_eq(a, b)
                        || (a.labels == b.labels && a.named_ports == b.named_ports))
            }
            (What::Service(a), What::Service(b)) => a.ports == b.ports,
            _ => false,
        };
        same && self.around.is(around)
    }

    /// What selectors see of it; nothing of a service's endpoints.
    pub(crate) fn view(&self) -> Option<View<'_>> {
        static NONE: Labels = Labels::new();
        let namespace = self.around.namespace.as_deref();
        let namespace = namespace.map(|labels| (self.name.namespace.as_str(), labels));
        match &self.what {
            What::Pod(endpoint) => Some(View {
                own: &endpoint.labels,
                namespace,
                service_account: endpoint
                    .service_account
                    .as_deref()
                    .map(|account| (account, self.around.account.as_deref())),
                pod: true,
                inherited: &NONE,
            }),
            What::Set(set) => Some(View {
                own: &set.labels,
                namespace,
                service_account: None,
                pod: false,
                inherited: &NONE,
            }),
            What::Host(host, inherited) => Some(Model::host_view(host, inherited)),
            What::Service(_) => None,
        }
    }

    /// The port names that it gives numbers.
    pub(crate) fn named_ports(&self) -> impl Iterator<Item = &NamedPort> {
        let ports = match &self.what {
            What::Pod(endpoint) => Some(&endpoint.named_ports),
            What::Host(host, _) => Some(&host.named_ports),
            What::Set(_) | What::Service(_) => None,
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
            What::Service(some) => hosts(&some.addresses),
            What::Set(set) => {
                for net in &set.nets {
                    hand(net.trunc());
                }
            }
        }
    }
}

/// The members of a cluster: pods, then sets, then host endpoints, then services, each in the order of their names.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) all: Vec<Member>,
    /// The members of each namespace: a run of pods and one of sets.
    namespaces: BTreeMap<String, [Range<Position>; 2]>,
    /// Those that are in no namespace.
    elsewhere: Vec<Position>,
    next: MemberId,
}

impl Members {
    /// The members of `model`. Those that look as they did in `before` keep their numbers.
    pub(crate) fn of(model: &Model, before: Self) -> Self {
        let mut members = Self { next: before.next.max(1), ..Self::default() };
        members.all.reserve(model.endpoints.len() + model.network_sets.len());
        let mut old = before.all.into_iter().peekable();
        let namespaces: BTreeMap<&str, Arc<Labels>> = model
            .namespaces
            .iter()
            .map(|(name, labels)| (name.as_str(), Arc::new(labels.clone())))
            .collect();
        let none = Arc::new(Labels::new());
        let of_namespace = |name: &str| {
            (!name.is_empty()).then(|| Arc::clone(namespaces.get(name).unwrap_or(&none)))
        };
        let accounts: AHashMap<&ObjectName, Arc<Labels>> = model
            .service_accounts
            .iter()
            .map(|(name, labels)| (name, Arc::new(labels.clone())))
            .collect();
        let mut current: (&str, Option<Arc<Labels>>) = ("", None);
        for (name, endpoint) in &model.endpoints {
            if current.0 != name.namespace {
                current = (&name.namespace, of_namespace(&name.namespace));
            }
            let account = endpoint.service_account.as_deref().filter(|_| !accounts.is_empty());
            let account = account
                .and_then(|account| {
                    accounts.get(&ObjectName::new(name.namespace.as_str(), account))
                })
                .cloned();
            let around = Around { namespace: current.1.clone(), account };
            members.add(&mut old, 0, name, What::Pod(Arc::clone(endpoint)), around);
        }
        for (name, set) in &model.network_sets {
            let around = Around { namespace: of_namespace(&name.namespace), account: None };
            members.add(&mut old, 1, name, What::Set(Arc::clone(set)), around);
        }
        for (name, host) in &model.host_endpoints {
            let inherited = Arc::new(model.inherited(host));
            let name = ObjectName::new("", name.as_str());
            let what = What::Host(Arc::clone(host), inherited);
            members.add(&mut old, 2, &name, what, Around::default());
        }
        for (name, service) in &model.services {
            for some in service.iter() {
                let what = What::Service(Arc::new(some.clone()));
                members.add(&mut old, 3, name, what, Around::default());
            }
        }
        members
    }

    /// `kind` orders the members of different kinds as [`Members::all`] does.
    fn add(
        &mut self,
        old: &mut std::iter::Peekable<std::vec::IntoIter<Member>>,
        kind: u8,
        name: &ObjectName,
        what: What,
        around: Around,
    ) {
        let kind_of = |what: &What| match what {
            What::Pod(_) => 0,
            What::Set(_) => 1,
            What::Host(..) => 2,
            What::Service(_) => 3,
        };
        let before = |old: &Member| (kind_of(&old.what), &old.name) < (kind, name);
        while old.next_if(before).is_some() {}
        let same = old.next_if(|old| {
            kind_of(&old.what) == kind && old.name == *name && old.looks_like(&what, &around)
        });
        let (name, id) = same.map_or_else(
            || {
                self.next += 1;
                (name.clone(), self.next - 1)
            },
            |old| (old.name, old.id),
        );
        let position = self.all.len();
        let run = match what {
            What::Pod(_) => Some(0),
            What::Set(_) if !name.namespace.is_empty() => Some(1),
            _ => None,
        };
        match run {
            None => self.elsewhere.push(position),
            Some(run) => {
                if let Some(runs) = self.namespaces.get_mut(&name.namespace) {
                    if runs[run].is_empty() {
                        runs[run] = position..position;
                    }
                    runs[run].end = position + 1;
                } else {
                    let mut runs = [0..0, 0..0];
                    runs[run] = position..position + 1;
                    self.namespaces.insert(name.namespace.clone(), runs);
                }
            }
        }
        self.all.push(Member { name, what, around, id });
    }

    /// The position of a pod or, without a namespace, of a host endpoint.
    pub(crate) fn endpoint(&self, name: &ObjectName) -> Option<Position> {
        if name.namespace.is_empty() {
            let is_it = |position: &&Position| {
                matches!(self.all[**position].what, What::Host(..))
                    && self.all[**position].name == *name
            };
            return self.elsewhere.iter().find(is_it).copied();
        }
        let [pods, _] = self.namespaces.get(&name.namespace)?;
        let run = self.all.get(pods.clone())?;
        let at = run.binary_search_by(|member| member.name.name.cmp(&name.name)).ok()?;
        Some(pods.start + at)
    }
}

/// Members by what a selector must find in them.
pub(crate) struct Index<'m> {
    members: &'m Members,
    /// By key, for those that were asked for: by value.
    by_label: AHashMap<String, AHashMap<String, Vec<Position>>>,
}

impl<'m> Index<'m> {
    pub(crate) fn new(members: &'m Members) -> Self {
        Self { members, by_label: AHashMap::new() }
    }

    /// The members that match a selector, in no order.
    pub(crate) fn matching(&mut self, selector: &Selector) -> Vec<Position> {
        let members = self.members;
        let mut matching = Vec::new();
        let mut ask = |position: Position| {
            let view = members.all.get(position).and_then(Member::view);
            if view.is_some_and(|view| selector.matches(&view)) {
                matching.push(position);
            }
        };
        let runs = |name: &str| members.namespaces.get(name).into_iter().flatten().cloned();
        if let Some(namespaces) = selector.required_values(NAMESPACE) {
            namespaces.into_iter().flat_map(runs).flatten().for_each(ask);
            return matching;
        }
        // A label of namespaces is looked up for all of their members at once; that of pods tells nobody from anybody.
        let mut required = selector.required_labels();
        required.sort_by_key(|(key, values)| {
            (*key == ORCHESTRATOR, !key.starts_with(NAMESPACE_PREFIX), values.is_none())
        });
        let Some((key, values)) = required.into_iter().next() else {
            (0..members.all.len()).for_each(ask);
            return matching;
        };
        if key.starts_with(NAMESPACE_PREFIX) {
            // A label of the namespace is one of all of its members.
            for runs in members.namespaces.values() {
                let first = runs.iter().find(|run| !run.is_empty()).map(|run| run.start);
                let member = first.and_then(|position| members.all.get(position));
                let view = member.and_then(Member::view);
                let found = view.as_ref().and_then(|view| view.label(key));
                let fits = found.is_some_and(|found| {
                    values.as_ref().is_none_or(|values| values.contains(&found))
                });
                if fits {
                    runs.iter().cloned().flatten().for_each(&mut ask);
                }
            }
            return matching;
        }
        let by_value = self.by_label.entry(key.to_owned()).or_insert_with_key(|key| {
            let mut by_value: AHashMap<String, Vec<Position>> = AHashMap::new();
            for (position, member) in members.all.iter().enumerate() {
                let view = member.view();
                if let Some(value) = view.as_ref().and_then(|view| view.label(key)) {
                    if let Some(known) = by_value.get_mut(value) {
                        known.push(position);
                    } else {
                        by_value.insert(value.to_owned(), vec![position]);
                    }
                }
            }
            by_value
        });
        match values {
            Some(values) => {
                let found = values.into_iter().filter_map(|value| by_value.get(value)).flatten();
                found.for_each(|position| ask(*position));
            }
            None => by_value.values().flatten().for_each(|position| ask(*position)),
        }
        matching
    }
}
