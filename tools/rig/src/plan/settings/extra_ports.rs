//! `ports` of `rig.yaml`: ports on which pods listen and that no container declares.
//!
//! An entry selects the pods of a workload, a single pod, or the pods with some labels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::file::{FILE, SettingsError, wrong};
use crate::plan::error::PlanError;
use crate::plan::port::Port;
use crate::plan::spec::PodSpec;
use manx_api::PodName;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_objects::tree::{Entry, Node, Value};
use manx_policy_compiler::model::Protocol;

/// Additional ports of some pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraPorts {
    /// The place in the file, for messages.
    pub at: String,
    pub pods: Wanted,
    pub ports: BTreeSet<Port>,
}

/// The pods that an entry selects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wanted {
    /// `workload`: the pods of the workload, or the pod, with this namespace and name.
    Workload(String, String),
    /// `selector`: the pods with all of these labels; with `namespace` those of that namespace.
    Selector(BTreeMap<String, String>, Option<String>),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(namespace, name) => write!(f, "workload {namespace}/{name}"),
            Self::Selector(labels, namespace) => {
                let labels: Vec<String> =
                    labels.iter().map(|(label, value)| format!("{label}: {value}")).collect();
                write!(f, "selector {{{}}}", labels.join(", "))?;
                namespace.iter().try_for_each(|it| write!(f, " in namespace {it}"))
            }
        }
    }
}

/// Reads the list.
pub(super) fn parse(node: &Node) -> Result<Vec<ExtraPorts>, SettingsError> {
    const SHAPE: &str = "a list of ports, e.g. `- {workload: shop/web, ports: [8080, 53/UDP]}`";
    let Value::Sequence(items) = &node.value else { return Err(wrong(node, SHAPE)) };
    items
        .iter()
        .map(|item| match &item.value {
            Value::Mapping(entries) => parse_item(item, entries),
            _ => Err(wrong(item, "workload or selector, and ports")),
        })
        .collect()
}

fn parse_item(item: &Node, entries: &[Entry]) -> Result<ExtraPorts, SettingsError> {
    let (mut workload, mut selector, mut namespace, mut ports) = (None, None, None, None);
    for entry in entries {
        let node = &entry.node;
        match &*entry.key {
            "workload" => workload = Some(parse_workload(node)?),
            "selector" => selector = Some(parse_selector(node)?),
            "namespace" => namespace = Some(text(node, "a namespace's name")?.to_owned()),
            "ports" => ports = Some(parse_ports(node)?),
            key => {
                let message = format!(
                    "the key `{key}` is unknown: expected workload or selector, namespace, and ports"
                );
                return Err(SettingsError { at: Some(entry.at), message });
            }
        }
    }
    let at = Some(item.at);
    let error = |message: &str| SettingsError { at, message: message.to_owned() };
    let pods = match (workload, selector, namespace) {
        (Some((namespace, name)), None, None) => Wanted::Workload(namespace, name),
        (None, Some(labels), namespace) => Wanted::Selector(labels, namespace),
        (Some(_), None, Some(_)) => {
            return Err(error("namespace goes with selector: write workload: NAMESPACE/NAME"));
        }
        (None, None, _) => {
            return Err(error("neither workload nor selector: expected one of them"));
        }
        (Some(_), Some(_), _) => {
            return Err(error("both workload and selector: expected one of them"));
        }
    };
    let ports = ports.ok_or_else(|| error("without ports: expected ports: [8080, 53/UDP]"))?;
    Ok(ExtraPorts { at: format!("{FILE}:{}", item.at), pods, ports })
}

fn text<'a>(node: &'a Node, expected: &str) -> Result<&'a str, SettingsError> {
    match &node.value {
        Value::String(text) => Ok(text),
        _ => Err(wrong(node, expected)),
    }
}

fn parse_workload(node: &Node) -> Result<(String, String), SettingsError> {
    const EXPECTED: &str = "the NAMESPACE/NAME of a workload or pod";
    let (namespace, name) = match text(node, EXPECTED)?.split_once('/') {
        Some(parts) => parts,
        None => ("default", text(node, EXPECTED)?),
    };
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err(wrong(node, EXPECTED));
    }
    Ok((namespace.to_owned(), name.to_owned()))
}

fn parse_selector(node: &Node) -> Result<BTreeMap<String, String>, SettingsError> {
    const EXPECTED: &str = "labels with their values, e.g. {app: web}";
    match &node.value {
        Value::Mapping(entries) if !entries.is_empty() => entries
            .iter()
            .map(|it| {
                Ok((it.key.to_string(), text(&it.node, "a label's value, a text")?.to_owned()))
            })
            .collect(),
        _ => Err(wrong(node, EXPECTED)),
    }
}

fn parse_ports(node: &Node) -> Result<BTreeSet<Port>, SettingsError> {
    const EXPECTED: &str = "a port, 1 to 65535, with /TCP, /UDP or /SCTP if it is not TCP";
    let Value::Sequence(items) = &node.value else {
        return Err(wrong(node, "a list of ports, e.g. [8080, 53/UDP]"));
    };
    let port = |item: &Node| match &item.value {
        Value::Integer(number) => u16::try_from(*number).ok().map(|it| (it, Protocol::Tcp)),
        Value::String(text) => {
            let (number, name) = text.split_once('/')?;
            let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)?;
            Some((number.parse().ok()?, protocol))
        }
        _ => None,
    };
    items
        .iter()
        .map(|item| match port(item) {
            Some((number @ 1.., protocol)) => Ok(Port { protocol, number }),
            _ => Err(wrong(item, EXPECTED)),
        })
        .collect()
}

/// Adds the ports to the pods. An entry that selects no pod is an error.
pub(in crate::plan) fn add(
    all: &[ExtraPorts],
    contents: &Contents,
    pods: &mut BTreeMap<PodName, PodSpec>,
) -> Result<(), PlanError> {
    for more in all {
        let meant = pods.iter_mut().filter(|(pod, _)| more.pods.means(pod, contents));
        let meant = meant.map(|(_, spec)| spec.ports.extend(&more.ports)).count();
        if meant == 0 {
            let (at, wanted) = (more.at.clone(), more.pods.to_string());
            return Err(PlanError::PortsOfNoPod { at, wanted });
        }
    }
    Ok(())
}

impl Wanted {
    fn means(&self, pod: &PodName, contents: &Contents) -> bool {
        let key = ObjectKey::new(Kind::Pod, &pod.namespace, &pod.name);
        match self {
            Self::Workload(namespace, name) => {
                let workload = || contents.workload(&key).map(|owner| owner.name);
                pod.namespace == *namespace
                    && (pod.name == *name || workload().as_ref() == Some(name))
            }
            Self::Selector(labels, namespace) => {
                let Some(Object::Pod(object)) = contents.valid(&key) else { return false };
                namespace.as_ref().is_none_or(|it| *it == pod.namespace)
                    && labels.iter().all(|(label, value)| object.labels.get(label) == Some(value))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::settings::Settings;
    use crate::plan::spec;

    const PODS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: web-5f-a, namespace: shop, labels: {app: web, pod-template-hash: 5f},
  ownerReferences: [{kind: ReplicaSet, name: web-5f, controller: true}]}, spec: {containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-5f-b, namespace: shop, labels: {app: web, pod-template-hash: 5f},
  ownerReferences: [{kind: ReplicaSet, name: web-5f, controller: true}]}, spec: {containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: other, labels: {app: web}}, spec: {containers: [{name: c}]}}
";

    fn added(settings: &str) -> Result<Vec<String>, PlanError> {
        let contents = Contents::from_texts([("pods", PODS)]);
        let mut pods = spec::pods(&contents);
        add(&Settings::parse(settings).unwrap().ports, &contents, &mut pods)?;
        let shown = pods.into_iter().map(|(pod, spec)| {
            let ports: Vec<String> = spec.ports.iter().map(ToString::to_string).collect();
            format!("{pod}: {}", ports.join(", "))
        });
        Ok(shown.collect())
    }

    #[test]
    fn an_entry_means_the_pods_of_a_workload_one_pod_or_those_with_labels() {
        assert_eq!(
            added(
                "ports:\n- {workload: shop/web, ports: [80]}\n- {workload: other/web, ports: [81/TCP]}\n\
                 - {selector: {app: web}, ports: [53/UDP]}\n- {selector: {app: web}, namespace: other, ports: [9/SCTP]}"
            )
            .unwrap(),
            [
                "other/web: TCP 81, UDP 53, SCTP 9",
                "shop/web-5f-a: TCP 80, UDP 53",
                "shop/web-5f-b: TCP 80, UDP 53",
            ]
        );
    }

    #[test]
    fn an_entry_that_means_no_pod_is_refused_with_its_place() {
        let workload = added("mtu: 1400\nports:\n- {workload: web, ports: [80]}").unwrap_err();
        let labels = added("ports: [{selector: {app: db}, namespace: shop, ports: [80]}]");
        let tail = "expected a pod or workload of that name, or pods with those labels, that are not finished";
        assert_eq!(
            workload.to_string(),
            format!("rig.yaml:3:3: no pod matches workload default/web: {tail}")
        );
        assert_eq!(
            labels.unwrap_err().to_string(),
            format!("rig.yaml:1:9: no pod matches selector {{app: db}} in namespace shop: {tail}")
        );
    }
}
