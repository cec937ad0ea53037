//! The members that have an address (pods, host endpoints and network sets), with the properties on which selectors
//! depend.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::OnceLock;

use ipnet::IpNet;

use super::address_owner::Owners;
use super::addresses::node_addresses;
use super::blocks::BlockSource;
use super::matching::{in_net, protocol_number, selected};
use super::selector::{Language, Selector};
use manx_objects::State;
use manx_objects::contents::Stored;
use manx_objects::object::calico::{HostEndpoint, NetworkSet};
use manx_objects::object::{Kind, LabelSelector, Object, ObjectKey, Pairs, Pod};

/// The kind of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Pod,
    HostEndpoint,
    NetworkSet,
}

/// The properties of a member on which selectors, port names and other terms can depend.
pub(super) type Content<'m> =
    (u8, Option<&'m str>, [&'m Pairs; 3], Option<&'m str>, &'m BTreeSet<(String, u8, u16)>);

/// An object with addresses and labels.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) role: Role,
    /// The namespace, or `None` for host endpoints and global network sets.
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// The node, only for a pod or a host endpoint.
    pub(super) node: Option<String>,
    /// `spec.interfaceName`, only for a host endpoint.
    pub(super) interface: Option<String>,
    /// The profiles, only for a host endpoint.
    pub(super) profiles: Vec<String>,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// The nets, only for a network set.
    nets: Vec<IpNet>,
    labels: Pairs,
    namespace_labels: Pairs,
    /// The name of the service account, only for a pod.
    account: Option<String>,
    /// Whether the service account exists. A pod may name an account that does not exist.
    account_exists: bool,
    account_labels: Pairs,
    /// Name, protocol number and port of every named port.
    named_ports: BTreeSet<(String, u8, u16)>,
}

impl Member {
    fn new(role: Role, namespace: Option<String>, name: String, labels: Pairs) -> Self {
        Self {
            role,
            namespace,
            name,
            node: None,
            interface: None,
            profiles: Vec::new(),
            addresses: BTreeSet::new(),
            nets: Vec::new(),
            labels,
            namespace_labels: Pairs::new(),
            account: None,
            account_exists: false,
            account_labels: Pairs::new(),
            named_ports: BTreeSet::new(),
        }
    }

    /// Returns whether policies can select the member. Policies never select a network set, but rules match its
    /// addresses.
    pub(super) fn is_endpoint(&self) -> bool {
        self.role != Role::NetworkSet
    }

    /// Returns name, protocol number and port of every named port.
    pub(super) fn ports(&self) -> impl Iterator<Item = &(String, u8, u16)> {
        self.named_ports.iter()
    }

    /// Returns the prefixes of the member's addresses.
    pub(super) fn occupies(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.addresses.iter().copied().map(IpNet::from).chain(self.nets.iter().copied())
    }

    /// Returns all properties of the member that terms of rules can depend on.
    pub(super) fn content(&self) -> Content<'_> {
        let labels = [&self.labels, &self.namespace_labels, &self.account_labels];
        let (namespace, account) = (self.namespace.as_deref(), self.account.as_deref());
        (self.role as u8, namespace, labels, account, &self.named_ports)
    }

    /// Returns whether a port with this protocol and number has this name at the member.
    pub(super) fn names_port(&self, name: &str, protocol: u8, number: u16) -> bool {
        self.named_ports.contains(&(name.to_owned(), protocol, number))
    }

    /// Returns whether the member is a pod whose own labels a Kubernetes selector matches.
    pub(super) fn is_pod_of(&self, selector: &LabelSelector) -> bool {
        self.role == Role::Pod && selected(selector, &self.labels)
    }

    /// Returns whether the member is a pod in a namespace that a Kubernetes selector matches.
    pub(super) fn is_pod_in(&self, selector: &LabelSelector) -> bool {
        self.role == Role::Pod && selected(selector, &self.namespace_labels)
    }

    /// Returns whether one of Calico's selectors matches the member.
    pub(super) fn is_taken_by(&self, selector: &Selector, language: Language) -> bool {
        match language {
            Language::Endpoints => selector.holds(true, false, &|key| self.label(key)),
            Language::Namespaces => {
                let has = self.namespace.is_some();
                selector.holds(has, !has, &|key| self.namespace_label(key))
            }
            Language::Accounts => selector.holds(true, false, &|key| self.account_label(key)),
            Language::SubjectsAccounts => {
                selector.holds(self.account.is_some(), false, &|key| self.account_label(key))
            }
        }
    }

    /// Returns whether the member's service account has one of these names.
    pub(super) fn runs_as(&self, names: &[String]) -> bool {
        self.account.as_ref().is_some_and(|account| names.contains(account))
    }

    /// Returns a label in the form that Calico's selectors use. The cluster sets some labels itself. If an object has
    /// its own label with such a key, that label is ignored.
    fn label(&self, key: &str) -> Option<&str> {
        if let Some(key) = key.strip_prefix("pcns.") {
            return self.namespace_label(key);
        }
        if let Some(key) = key.strip_prefix("pcsa.") {
            return self.account_label(key);
        }
        match key {
            "projectcalico.org/namespace" => self.namespace.as_deref(),
            "projectcalico.org/serviceaccount" => self.account.as_deref(),
            "projectcalico.org/orchestrator" => (self.role == Role::Pod).then_some("k8s"),
            _ => self.labels.get(key).map(String::as_str),
        }
    }

    /// Returns a label of the namespace. Calico gives every namespace a label with its name.
    fn namespace_label(&self, key: &str) -> Option<&str> {
        if key == "projectcalico.org/name" {
            return self.namespace.as_deref();
        }
        self.namespace_labels.get(key).map(String::as_str)
    }

    /// Returns a label of the service account. Calico also gives every existing service account a label with its name.
    fn account_label(&self, key: &str) -> Option<&str> {
        if key == "projectcalico.org/name" {
            return self.account.as_deref().filter(|_| self.account_exists);
        }
        self.account_labels.get(key).map(String::as_str)
    }
}

/// All members of a cluster.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) list: Vec<Member>,
    by_address: HashMap<IpAddr, Vec<usize>>,
    /// The indexes by role, namespace and name. The map is filled at first use.
    by_name: OnceLock<HashMap<(Role, String, String), usize>>,
    /// The indexes of the members that have nets.
    sets: Vec<usize>,
    /// For each port name, the numbers that it stands for at any member.
    pub(super) port_names: BTreeMap<String, BTreeSet<u16>>,
    /// Invalid network sets whose labels are known. They may contain any address.
    pub(super) doubtful: Vec<Member>,
    /// Whether there is a network set whose labels are not known.
    pub(super) unknown_sets: bool,
    /// The addresses of invalid pods.
    pub(super) invalid_addresses: BTreeSet<IpAddr>,
    /// The addresses of invalid pods, and of pods that are not endpoints because their namespace or service account is
    /// invalid.
    pub(super) closed_addresses: BTreeSet<IpAddr>,
    /// The known namespaces.
    pub(super) namespaces: BTreeSet<String>,
    /// The labels and all addresses of each node.
    nodes: Vec<(Pairs, BTreeSet<IpAddr>)>,
    /// Whether there is an invalid node, whose labels and addresses are not known.
    unknown_node: bool,
}

impl Members {
    pub(super) fn new(objects: &BTreeMap<ObjectKey, Stored>, source: BlockSource) -> Self {
        let surroundings = Surroundings::new(objects);
        let owners = Owners::new(objects, source);
        let mut members = Self::default();
        for (key, stored) in objects {
            if key.kind == Kind::Namespace {
                members.namespaces.insert(key.name.clone());
            } else if key.kind.namespaced() {
                members.namespaces.insert(key.namespace.clone());
            }
            match &stored.state {
                State::Valid(object) => match &**object {
                    Object::Pod(pod) => match surroundings.pod(key, pod, owners.of(key)) {
                        Some(member) => members.list.push(member),
                        None => members.closed_addresses.extend(owners.of(key)),
                    },
                    Object::Node(node) => {
                        members.nodes.push((node.labels.clone(), node_addresses(node, source)));
                    }
                    Object::HostEndpoint(host) => {
                        members.list.push(surroundings.host_endpoint(key, host));
                    }
                    Object::NetworkSet(set) => match surroundings.network_set(key, set) {
                        Some(member) => members.list.push(member),
                        None => members.unknown_sets = true,
                    },
                    _ => {}
                },
                State::Invalid(invalid) => match key.kind {
                    Kind::Pod => {
                        let closed = owners.closed(&invalid.reported, &invalid.annotated);
                        members.invalid_addresses.extend(&closed);
                        members.closed_addresses.extend(closed);
                    }
                    Kind::Node => members.unknown_node = true,
                    Kind::NetworkSet | Kind::GlobalNetworkSet => {
                        let labels = invalid.labels.clone();
                        let set = labels.map(|labels| NetworkSet { labels, nets: Vec::new() });
                        match set.and_then(|set| surroundings.network_set(key, &set)) {
                            Some(member) => members.doubtful.push(member),
                            None => members.unknown_sets = true,
                        }
                    }
                    _ => {}
                },
            }
        }
        for (index, member) in members.list.iter().enumerate() {
            for address in &member.addresses {
                members.by_address.entry(*address).or_default().push(index);
            }
            if !member.nets.is_empty() {
                members.sets.push(index);
            }
            for (name, _, port) in &member.named_ports {
                members.port_names.entry(name.clone()).or_default().insert(*port);
            }
        }
        members
    }

    /// Returns the addresses of the nodes that a selector matches, or `None` if they are not known.
    pub(super) fn addresses_of_nodes(&self, selector: &LabelSelector) -> Option<BTreeSet<IpAddr>> {
        let matching = self.nodes.iter().filter(|(labels, _)| selected(selector, labels));
        let addresses = matching.flat_map(|(_, addresses)| addresses).copied().collect();
        (!self.unknown_node).then_some(addresses)
    }

    /// Returns all members that have this address.
    pub(super) fn holders(&self, address: IpAddr) -> Vec<usize> {
        let mut holders = self.by_address.get(&address).cloned().unwrap_or_default();
        for index in &self.sets {
            if self.list[*index].nets.iter().any(|net| in_net(*net, address)) {
                holders.push(*index);
            }
        }
        holders
    }

    /// Returns the member with this name.
    pub(super) fn named(&self, role: Role, namespace: &str, name: &str) -> Option<usize> {
        let by_name = self.by_name.get_or_init(|| {
            let members = self.list.iter().enumerate();
            let key = |member: &Member| {
                (member.role, member.namespace.clone().unwrap_or_default(), member.name.clone())
            };
            members.map(|(index, member)| (key(member), index)).collect()
        });
        by_name.get(&(role, namespace.to_owned(), name.to_owned())).copied()
    }

    /// Returns the pod with this name, if it has this address.
    pub(super) fn pod(&self, namespace: &str, name: &str, address: IpAddr) -> Option<usize> {
        let of_address = self.by_address.get(&address)?;
        of_address.iter().copied().find(|index| {
            let member = &self.list[*index];
            member.role == Role::Pod
                && member.namespace.as_deref() == Some(namespace)
                && member.name == name
        })
    }
}

/// The objects from which members inherit labels and named ports.
struct Surroundings<'a> {
    namespaces: BTreeMap<&'a str, &'a Pairs>,
    accounts: BTreeMap<(&'a str, &'a str), &'a Pairs>,
    profiles: BTreeMap<&'a str, &'a Pairs>,
    /// The invalid namespaces and service accounts. It is not known which selectors match their members.
    broken: BTreeSet<&'a ObjectKey>,
}

impl<'a> Surroundings<'a> {
    fn new(objects: &'a BTreeMap<ObjectKey, Stored>) -> Self {
        let mut all = Self {
            namespaces: BTreeMap::new(),
            accounts: BTreeMap::new(),
            profiles: BTreeMap::new(),
            broken: BTreeSet::new(),
        };
        for (key, stored) in objects {
            let Some(object) = stored.state.valid() else {
                all.broken.insert(key);
                continue;
            };
            match object {
                Object::Namespace(namespace) => {
                    all.namespaces.insert(&key.name, &namespace.labels);
                }
                Object::ServiceAccount(account) => {
                    all.accounts.insert((&key.namespace, &key.name), &account.labels);
                }
                Object::Profile(profile) => {
                    all.profiles.insert(&key.name, &profile.labels);
                }
                _ => {}
            }
        }
        all
    }

    fn is_broken(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        self.broken.contains(&ObjectKey::new(kind, namespace, name))
    }

    /// Returns the labels of a namespace. A namespace without a manifest has only the label that the API server sets on
    /// every namespace.
    fn namespace_labels(&self, name: &str) -> Option<Pairs> {
        if self.is_broken(Kind::Namespace, "", name) {
            return None;
        }
        Some(self.namespaces.get(name).copied().cloned().unwrap_or_else(|| {
            Pairs::from([("kubernetes.io/metadata.name".to_owned(), name.to_owned())])
        }))
    }

    /// Returns the member of a pod, or `None` if the pod is not an endpoint.
    fn pod(&self, key: &ObjectKey, pod: &Pod, addresses: BTreeSet<IpAddr>) -> Option<Member> {
        if addresses.is_empty() {
            return None;
        }
        let account = pod.service_account.as_deref().unwrap_or("default");
        if self.is_broken(Kind::ServiceAccount, &key.namespace, account) {
            return None;
        }
        let account_labels = self.accounts.get(&(key.namespace.as_str(), account));
        let mut member = Member::new(
            Role::Pod,
            Some(key.namespace.clone()),
            key.name.clone(),
            pod.labels.clone(),
        );
        for port in pod.containers.iter().flatten().chain(pod.init_containers.iter().flatten()) {
            if let Some(name) = &port.name {
                let protocol = protocol_number(port.protocol);
                member.named_ports.insert((name.clone(), protocol, port.port));
            }
        }
        member.node.clone_from(&pod.node_name);
        member.addresses = addresses;
        member.namespace_labels = self.namespace_labels(&key.namespace)?;
        member.account = Some(account.to_owned());
        // Kubernetes creates the account `default` in every namespace, so manifests rarely contain it.
        member.account_exists = account_labels.is_some() || account == "default";
        member.account_labels = account_labels.copied().cloned().unwrap_or_default();
        Some(member)
    }

    /// Returns the member of a network set, or `None` if the set's namespace is invalid, so that any selector may match
    /// the set.
    fn network_set(&self, key: &ObjectKey, set: &NetworkSet) -> Option<Member> {
        let namespace = (!key.namespace.is_empty()).then(|| key.namespace.clone());
        let mut member =
            Member::new(Role::NetworkSet, namespace, key.name.clone(), set.labels.clone());
        if member.namespace.is_some() {
            member.namespace_labels = self.namespace_labels(&key.namespace)?;
        }
        member.nets.clone_from(&set.nets);
        Some(member)
    }

    /// Returns the member of a host endpoint. Its own labels take precedence over the labels of its profiles, and
    /// labels of an earlier profile take precedence over those of a later one.
    fn host_endpoint(&self, key: &ObjectKey, host: &HostEndpoint) -> Member {
        let mut labels = host.labels.to_map();
        for profile in &host.profiles {
            for (key, value) in self.profiles.get(profile.as_str()).into_iter().copied().flatten() {
                labels.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        let mut member = Member::new(Role::HostEndpoint, None, key.name.clone(), labels.into());
        member.node = Some(host.node.clone());
        member.interface.clone_from(&host.interface);
        member.profiles.clone_from(&host.profiles);
        member.addresses = host.expected_ips.iter().copied().collect();
        member.named_ports = host.ports.iter().cloned().collect();
        member
    }
}
