//! The ends that packets may have: those of the input, and those that come later.
//!
//! A later end is a pod without labels, in each namespace and in one that nobody knows yet: a policy for all pods is
//! meant for it, too. If the input has no pods at all, there is for each selector a pod with just the labels that the
//! selector requires.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use manx_policy_compiler::model::{
    Family, KUBERNETES, LabelView, Labels, Model, NAMESPACE, NAMESPACE_PREFIX, NamedPort,
    ORCHESTRATOR, SERVICE_ACCOUNT,
};
use manx_policy_compiler::selector::{LabelSource, Selector};

use crate::check::scene::{Role, Scene};

/// An end.
pub(in crate::check) struct End<'m> {
    view: View<'m>,
    pub(super) ports: Vec<&'m NamedPort>,
    pub(super) kind: EndKind,
    /// Its addresses, as far as they are known.
    pub(super) nets: Vec<IpNet>,
    /// What messages call it.
    pub(super) name: String,
}

/// What it is to policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndKind {
    Pod,
    Host,
    Set,
}

enum View<'m> {
    Member(LabelView<'m>),
    /// A pod that has these labels only.
    Minimal(Labels),
}

/// A namespace that nobody knows.
const UNKNOWN: &str = "(another)";

/// For how many combinations of values of its labels a selector has minimal pods, at most.
const MOST_COMBINATIONS: usize = 16;

static NONE: Labels = Labels::new();

impl LabelSource for End<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        match &self.view {
            View::Member(view) => view.label(key),
            View::Minimal(labels) => labels.label(key),
        }
    }
}

/// The ends of the input and the later ones; the last is the pod in the namespace that nobody knows. `selectors` are
/// those that minimal pods are made for.
pub(super) fn all<'s>(
    scene: &'s Scene<'_>,
    namespaces: BTreeSet<&'s str>,
    selectors: impl Iterator<Item = &'s Selector>,
) -> Vec<End<'s>> {
    let model = scene.model();
    let mut all: Vec<End<'s>> = Vec::new();
    for member in scene.members() {
        let kind = match member.role {
            Role::OnHost => continue,
            Role::Set => EndKind::Set,
            Role::Endpoint if member.labels.pod => EndKind::Pod,
            Role::Endpoint => EndKind::Host,
        };
        let name = member.title();
        let view = View::Member(member.labels);
        all.push(End { view, ports: member.ports, kind, nets: member.nets, name });
    }
    let pod =
        |view, name| End { view, ports: Vec::new(), kind: EndKind::Pod, nets: Vec::new(), name };
    if all.iter().all(|end| end.kind == EndKind::Set) {
        let minimal: BTreeSet<Labels> =
            selectors.flat_map(|of| minimal_labels(of, model)).collect();
        let name = || "a pod with the labels that are asked for".to_owned();
        all.extend(minimal.into_iter().map(|labels| pod(View::Minimal(labels), name())));
    }
    for namespace in namespaces.into_iter().chain([UNKNOWN]) {
        let view = LabelView {
            own: &NONE,
            namespace: Some((namespace, model.namespace_labels(namespace))),
            service_account: Some(("default", None)),
            pod: true,
            inherited: &[],
        };
        let name = match namespace {
            UNKNOWN => "a pod without labels".to_owned(),
            _ => format!("a pod without labels in namespace {namespace}"),
        };
        all.push(pod(View::Member(view), name));
    }
    all
}

/// The labels of pods that have just what a selector requires, one for each combination of values. None if there are
/// too many, or if this is not enough for the selector.
fn minimal_labels(selector: &Selector, model: &Model) -> Vec<Labels> {
    let mut all = vec![Labels::new()];
    for (key, values) in selector.required_labels() {
        let values = values.unwrap_or_else(|| vec![UNKNOWN]);
        let with = |labels: &Labels, value: &str| {
            let mut labels = labels.clone();
            labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
            labels
        };
        all = all.iter().flat_map(|it| values.iter().map(|value| with(it, value))).collect();
        if all.len() > MOST_COMBINATIONS {
            return Vec::new();
        }
    }
    for labels in &mut all {
        let namespace = labels.entry(NAMESPACE.to_owned()).or_insert_with(|| UNKNOWN.to_owned());
        let inherited = model.namespace_labels(namespace).clone();
        for (key, value) in inherited {
            labels.insert(NAMESPACE_PREFIX.to_owned() + &key, value);
        }
        labels.insert(ORCHESTRATOR.to_owned(), KUBERNETES.to_owned());
        labels.entry(SERVICE_ACCOUNT.to_owned()).or_insert_with(|| "default".to_owned());
    }
    all.retain(|labels| selector.matches(labels));
    all
}

/// The address of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::check) enum Address {
    /// In no net that anybody names, unless it is a net of all addresses.
    Unnamed,
    /// Not known: it may be any.
    Unknown,
    /// This one.
    At(IpAddr),
}

impl Address {
    /// Whether it is in a net, which is of this family; `None` if that is not known.
    pub(super) fn is_in(self, net: &IpNet, family: Family) -> Option<bool> {
        if Family::from_address(net.addr()) != family {
            return Some(false);
        }
        match self {
            Self::At(address) => Some(net.contains(&address)),
            _ if net.prefix_len() == 0 => Some(true),
            Self::Unnamed => Some(false),
            Self::Unknown => None,
        }
    }
}

/// The addresses at either side of the bounds of a net.
pub(super) fn around(net: &IpNet) -> impl Iterator<Item = IpAddr> + use<> {
    let beside = |address: IpAddr, by: i8| -> Option<IpAddr> {
        Some(match address {
            IpAddr::V4(it) => {
                Ipv4Addr::from_bits(it.to_bits().checked_add_signed(by.into())?).into()
            }
            IpAddr::V6(it) => {
                Ipv6Addr::from_bits(it.to_bits().checked_add_signed(by.into())?).into()
            }
        })
    };
    let (first, last) = (net.network(), net.broadcast());
    [Some(first), Some(last), beside(first, -1), beside(last, 1)].into_iter().flatten()
}
