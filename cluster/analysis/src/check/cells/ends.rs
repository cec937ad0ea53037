//! The ends of packets, which are their sources and destinations: objects of the input, and pods that may be added
//! later.
//!
//! A later pod has no labels. There is one in each namespace, and one in a namespace that the input does not name,
//! because a policy for all pods is meant for such pods, too. If the input has no pods at all, each selector gets
//! minimal pods: pods with exactly the labels that the selector requires.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use manx_policy_compiler::model::{
    Family, KUBERNETES, LabelView, Labels, Model, NAMESPACE, NAMESPACE_PREFIX, NamedPort,
    ORCHESTRATOR, SERVICE_ACCOUNT,
};
use manx_policy_compiler::selector::{LabelSource, Selector};

use crate::check::scene::{Role, Scene};

/// One end of a packet.
pub(in crate::check) struct End<'m> {
    view: View<'m>,
    pub(super) ports: Vec<&'m NamedPort>,
    pub(super) kind: EndKind,
    /// The addresses of the end that are known.
    pub(super) nets: Vec<IpNet>,
    /// The end's name in messages.
    pub(super) name: String,
}

/// The kind of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndKind {
    Pod,
    Host,
    Set,
}

enum View<'m> {
    Member(LabelView<'m>),
    /// A pod that has exactly these labels.
    Minimal(Labels),
}

/// The name that stands for a namespace that the input does not name.
const UNKNOWN: &str = "(another)";

/// The maximum number of label combinations for which a selector gets minimal pods.
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

/// Returns the ends of the input, followed by the later pods. The last end is the pod in the namespace that the input
/// does not name. Minimal pods are made for `selectors`.
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

/// Returns the labels of the minimal pods of a selector: one set for each combination of the values that the selector
/// requires. The result is empty if there are too many combinations, or if these labels do not match the selector.
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
    /// An address in no net that the input names, except nets that contain all addresses.
    Unnamed,
    /// The address is not known and may be any.
    Unknown,
    At(IpAddr),
}

impl Address {
    /// Returns whether the address is in a net of this family, or `None` if this is not known.
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

/// Returns the addresses just outside and just inside both ends of a net.
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
