//! Parses each selector once, and makes the sets of members that rules and policies select.

use ipnet::IpNet;

use super::members::{Member, Members, Role};
use super::rules::{CalicoTerms, ClusterPeer, Entity, KubernetesPeer, Rule, Terms};
use super::selector::{self, Language, Selector};
use super::service_slices::ServiceSlices;
use super::set::Set;
use manx_objects::object::calico::{self, Action, EntityRule};
use manx_objects::object::cluster::{self, ClusterAction, ClusterMatch};
use manx_objects::object::{self, Peer};

/// The reason why it is not known which packets a rule matches.
#[derive(Debug)]
pub(super) struct Unknown(pub(super) String);

/// Makes sets of members.
#[derive(Debug)]
pub(super) struct Preparer<'a> {
    pub(super) members: &'a Members,
    pub(super) services: &'a ServiceSlices,
}

impl Preparer<'_> {
    /// Returns the endpoints that a Calico policy selects. A namespaced policy selects only endpoints of its namespace.
    ///
    /// In a global policy with a selector of namespaces or accounts, `all()` never selects host endpoints. The reason
    /// is that Calico replaces `all()`: with a namespace selector, each `all()` of the selector and of the namespace
    /// selector becomes `has(projectcalico.org/namespace)`; with an account selector, each remaining one becomes
    /// `has(projectcalico.org/serviceaccount)`.
    pub(super) fn subject(wire: &calico::Subject, namespace: Option<&str>) -> Result<Set, Unknown> {
        let global = namespace.is_none();
        let written = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let mut selector = written(&wire.selector);
        for (other, instead) in [
            (&wire.namespace_selector, "has(projectcalico.org/namespace)"),
            (&wire.service_account_selector, "has(projectcalico.org/serviceaccount)"),
        ] {
            if global && written(other).is_some() {
                selector = selector.map(|text| text.replace("all()", instead));
            }
        }
        let selector = read(selector.as_deref(), Language::Endpoints)?;
        let namespaces = read(wire.namespace_selector.as_deref(), Language::Namespaces)?;
        let of_accounts = if global { Language::SubjectsAccounts } else { Language::Accounts };
        let accounts = read(wire.service_account_selector.as_deref(), of_accounts)?;
        Ok(Set::new(namespace, move |member| {
            member.is_endpoint()
                && takes(selector.as_ref(), Language::Endpoints, member)
                && takes(namespaces.as_ref(), Language::Namespaces, member)
                && takes(accounts.as_ref(), of_accounts, member)
        }))
    }

    /// Converts a rule of a Kubernetes policy. Such rules always allow.
    pub(super) fn kubernetes(index: usize, wire: &object::Rule, namespace: &str) -> Rule {
        let peers = wire.peers.as_deref().unwrap_or(&[]).iter().map(|peer| match peer {
            Peer::IpBlock(block) => KubernetesPeer::Block(block.clone()),
            Peer::Selectors { pods, namespaces } => {
                let within = namespaces.is_none().then_some(namespace);
                let (pods, namespaces) = (pods.clone(), namespaces.clone());
                KubernetesPeer::Pods(Set::new(within, move |member| {
                    member.role == Role::Pod
                        && namespaces.as_ref().is_none_or(|selector| member.is_pod_in(selector))
                        && pods.as_ref().is_none_or(|selector| member.is_pod_of(selector))
                }))
            }
        });
        let terms = Terms::Kubernetes {
            wire: wire.clone(),
            peers: peers.collect(),
            ports: wire.ports.clone().unwrap_or_default(),
        };
        Rule { index, action: Action::Allow, terms }
    }

    /// Converts a rule of a cluster-wide policy. If the rule contains something that cannot be evaluated, an Accept
    /// matches nothing, and a Deny or Pass denies everything.
    pub(super) fn cluster(&self, index: usize, wire: &cluster::ClusterRule) -> Rule {
        let action = match wire.action {
            ClusterAction::Accept => Action::Allow,
            ClusterAction::Deny => Action::Deny,
            ClusterAction::Pass => Action::Pass,
        };
        let closed = match action {
            Action::Allow => Rule { index, action, terms: Terms::Nothing },
            _ => Rule { index, action: Action::Deny, terms: Terms::Everything },
        };
        let ClusterMatch::Of { peers, protocols } = &wire.matches else { return closed };
        let sets = peers.iter().map(|peer| {
            Some(match peer {
                cluster::ClusterPeer::Networks(nets) => ClusterPeer::Networks(nets.clone()),
                cluster::ClusterPeer::Nodes(labels) => {
                    let addresses = self.members.addresses_of_nodes(labels)?;
                    ClusterPeer::Networks(addresses.into_iter().map(IpNet::from).collect())
                }
                cluster::ClusterPeer::Pods(pods) => {
                    let pods = pods.clone();
                    ClusterPeer::Pods(Set::new(None, move |member| {
                        member.is_pod_in(&pods.namespaces) && member.is_pod_of(&pods.pods)
                    }))
                }
            })
        });
        let Some(sets) = sets.collect() else { return closed };
        let terms = Terms::Cluster {
            wire: peers.clone(),
            peers: sets,
            protocols: protocols.clone().unwrap_or_default(),
        };
        Rule { index, action, terms }
    }

    /// Converts a rule of a Calico policy in `namespace`, of a global policy, or of a profile.
    pub(super) fn calico(
        &self,
        index: usize,
        wire: &calico::Rule,
        namespace: Option<&str>,
    ) -> Result<Rule, Unknown> {
        let terms = Terms::Calico(Box::new(CalicoTerms {
            source: self.entity(&wire.source, namespace)?,
            destination: self.entity(&wire.destination, namespace)?,
            wire: wire.clone(),
        }));
        Ok(Rule { index, action: wire.action, terms })
    }

    /// In a namespaced policy, every selector is limited to the policy's namespace, unless the rule has a
    /// `namespaceSelector`. A `notSelector` alone also limits the rule to the namespace, although the labels that it
    /// excludes may occur in any namespace.
    fn entity(&self, wire: &EntityRule, namespace: Option<&str>) -> Result<Entity, Unknown> {
        let selector = read(wire.selector.as_deref(), Language::Endpoints)?;
        let not_selector = read(wire.not_selector.as_deref(), Language::Endpoints)?;
        let namespaces = read(wire.namespace_selector.as_deref(), Language::Namespaces)?;
        let (names, accounts) = match &wire.service_accounts {
            Some(accounts) => {
                (accounts.names.clone(), read(accounts.selector.as_deref(), Language::Accounts)?)
            }
            None => (Vec::new(), None),
        };
        let selects =
            selector.is_some() || namespaces.is_some() || accounts.is_some() || !names.is_empty();
        let is_positive = selects || (not_selector.is_some() && namespace.is_some());
        let is_negative = not_selector.is_some();
        // A network set has no service account, so a selector of accounts matches either all sets or none.
        let of_no_account = |accounts: &Selector| accounts.holds(true, false, &|_| None);
        let accounts_take_sets = names.is_empty() && accounts.as_ref().is_some_and(of_no_account);
        let asks_for_sets =
            selector.is_some() || is_negative || namespaces.is_some() || accounts_take_sets;
        let within = namespace.filter(|_| namespaces.is_none());
        let positive = Set::new(within, move |member| {
            takes(namespaces.as_ref(), Language::Namespaces, member)
                && takes(selector.as_ref(), Language::Endpoints, member)
                && takes(accounts.as_ref(), Language::Accounts, member)
                && (names.is_empty() || member.runs_as(&names))
        });
        let negative = Set::new(None, move |member| {
            not_selector
                .as_ref()
                .is_some_and(|selector| member.is_taken_by(selector, Language::Endpoints))
        });
        let mut doubtful = self.members.doubtful.iter();
        let doubt = doubtful.any(|set| (is_positive && positive.has(set)) || negative.has(set));
        if doubt || (self.members.unknown_sets && asks_for_sets) {
            return Err(Unknown("a network set that it may refer to is not valid".to_owned()));
        }
        let service = match &wire.service {
            None => None,
            Some(service) => {
                let namespace = service.namespace.as_deref().or(namespace).unwrap_or_default();
                let members = self.services.members(namespace, &service.name).ok_or_else(|| {
                    Unknown(format!("an EndpointSlice in namespace {namespace} is not valid"))
                })?;
                Some(members)
            }
        };
        Ok(Entity {
            positive: is_positive.then_some(positive),
            negative: is_negative.then_some(negative),
            service,
        })
    }
}

/// Parses a selector. An empty text counts as absent, as in Calico's API.
fn read(text: Option<&str>, language: Language) -> Result<Option<Selector>, Unknown> {
    text.filter(|text| !text.is_empty())
        .map(|text| selector::parse(text, language))
        .transpose()
        .map_err(|error| Unknown(format!("one of its selectors cannot be read: {error}")))
}

/// Returns whether a selector matches a member. Without a selector, every member matches.
fn takes(selector: Option<&Selector>, language: Language, member: &Member) -> bool {
    selector.is_none_or(|selector| member.is_taken_by(selector, language))
}
