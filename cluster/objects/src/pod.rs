//! The part of `v1` Pod that networking needs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::cursor::{Cursor, Findings};
use super::metadata::{Metadata, annotation, of_template, pairs};
use super::network_policy::{number, protocol};
use super::object::{AnnotatedIps, ContainerPort, HostPort, Kind, Pairs, Phase, Pod};
use super::problem::{Cause, Severity};
use super::settings::{annotations_not_done, tell_annotations};
use super::syntax::{
    ADDRESS, DNS_LABEL, DNS_SUBDOMAIN, PORT_NAME, PORT_NUMBER, address, cidr, is_dns_label,
    is_dns_subdomain, is_port_name,
};
use super::tree::Value;

/// The annotation in which Calico's CNI plugin stores the addresses of a pod, joined by commas. Each is an address or a
/// CIDR of one address.
const POD_IPS: &str = "cni.projectcalico.org/podIPs";
/// The annotation in which Calico's CNI plugin stores the first address of a pod.
const POD_IP: &str = "cni.projectcalico.org/podIP";
/// The annotation in which Amazon's CNI plugin stores the addresses of a pod.
const AWS_POD_IPS: &str = "vpc.amazonaws.com/pod-ips";

const SPEC: &[&str] = &[
    "nodeName",
    "nodeSelector",
    "serviceAccountName",
    "hostNetwork",
    "containers",
    "initContainers",
];
const SPEC_IGNORED: &[&str] = &[
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resourceClaims",
    "resources",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "securityContext",
    "serviceAccount",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];
const CONTAINER: &[&str] = &["name", "ports"];
const CONTAINER_IGNORED: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "resizePolicy",
    "resources",
    "restartPolicy",
    "restartPolicyRules",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
];
const STATUS: &[&str] = &["phase", "hostIP", "podIP", "podIPs"];
const STATUS_IGNORED: &[&str] = &[
    "conditions",
    "containerStatuses",
    "ephemeralContainerStatuses",
    "extendedResourceClaimStatus",
    "hostIPs",
    "initContainerStatuses",
    "message",
    "nominatedNodeName",
    "observedGeneration",
    "qosClass",
    "reason",
    "resize",
    "resourceClaimStatuses",
    "startTime",
];

/// Reads `spec` and `status`.
pub(super) fn decode(root: &Cursor<'_>, metadata: Metadata, out: &mut Findings) -> Pod {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec", "status"], &[]);
    let annotations = metadata.annotations.clone();
    let mut pod = without_status(root, metadata, out);
    pod.not_done = annotations_not_done(&annotations, Kind::Pod);
    if let Some(status) = root.field("status")
        && status.mapping(out, STATUS, STATUS_IGNORED)
    {
        decode_status(&status, &mut pod, out);
    }
    let filled = pod.pod_ip.is_some() || !pod.pod_ips.is_empty();
    pod.annotated_ips = AnnotatedIps {
        pod_ips: annotated(root, &annotations, POD_IPS, filled, out),
        pod_ip: annotated(root, &annotations, POD_IP, filled, out),
        aws_pod_ips: annotated(root, &annotations, AWS_POD_IPS, filled, out),
    };
    pod
}

/// Reads the template of pods in `spec`. If the template's object is `owned` (such as a Deployment's `ReplicaSet`), its
/// owner's template already causes the warnings about annotations, so they are not repeated.
pub(super) fn template(spec: &Cursor<'_>, owned: bool, out: &mut Findings) -> Option<Pod> {
    let template = spec.required(out, "template", "the pods' metadata and spec")?;
    if !template.mapping(out, &["metadata", "spec"], &[]) {
        return None;
    }
    let metadata = template.field("metadata");
    if let Some(metadata) = metadata.filter(|_| !owned) {
        tell_annotations(&metadata, Kind::Pod, out);
    }
    let metadata = metadata.map(|field| of_template(&field, out)).unwrap_or_default();
    Some(without_status(&template, metadata, out))
}

/// Reads the metadata and the `spec` of a pod, without its status.
fn without_status(root: &Cursor<'_>, metadata: Metadata, out: &mut Findings) -> Pod {
    let Metadata { labels, created, deleting, owner, .. } = metadata;
    let mut pod = Pod {
        labels,
        created,
        deleting,
        owner,
        service_account: None,
        node_name: None,
        node_selector: Pairs::new(),
        host_network: false,
        containers: Vec::new(),
        init_containers: Vec::new(),
        phase: None,
        host_ip: None,
        pod_ip: None,
        pod_ips: Vec::new(),
        annotated_ips: AnnotatedIps::default(),
        not_done: Vec::new(),
    };
    if let Some(spec) = root.field("spec") {
        decode_spec(&spec, &mut pod, out);
    }
    pod
}

/// Reads the name in a field. The API writes a name that is not set yet as an empty string.
fn name(spec: &Cursor<'_>, field: &str, out: &mut Findings) -> Option<String> {
    let name = spec.field(field)?.parsed(out, DNS_SUBDOMAIN, |text| {
        (text.is_empty() || is_dns_subdomain(text)).then(|| text.to_owned())
    });
    name.filter(|name| !name.is_empty())
}

fn decode_spec(spec: &Cursor<'_>, pod: &mut Pod, out: &mut Findings) {
    if !spec.mapping(out, SPEC, SPEC_IGNORED) {
        return;
    }
    pod.node_name = name(spec, "nodeName", out);
    if let Some(field) = spec.field("nodeSelector") {
        pod.node_selector = pairs(&field, out, true);
    }
    pod.service_account = name(spec, "serviceAccountName", out);
    pod.host_network =
        spec.field("hostNetwork").and_then(|field| field.boolean(out)).unwrap_or(false);
    if let Some(field) = spec.field("containers") {
        pod.containers = field.items(out, container);
    }
    if let Some(field) = spec.field("initContainers") {
        pod.init_containers = field.items(out, container);
    }
}

fn container(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Vec<ContainerPort>> {
    if !cursor.mapping(out, CONTAINER, CONTAINER_IGNORED) {
        return None;
    }
    if let Some(name) = cursor.required(out, "name", DNS_LABEL) {
        name.parsed(out, DNS_LABEL, |text| is_dns_label(text).then_some(()));
    }
    let Some(field) = cursor.field("ports") else { return Some(Vec::new()) };
    let mut names = BTreeSet::new();
    Some(field.items(out, |item, out| {
        let port = container_port(item, out)?;
        if let Some(name) = &port.name
            && !names.insert(name.clone())
        {
            let message = format!("the name {name:?} is another port's of this container");
            item.error(out, Cause::Conflict(message));
        }
        Some(port)
    }))
}

fn container_port(cursor: &Cursor<'_>, out: &mut Findings) -> Option<ContainerPort> {
    const FIELDS: &[&str] = &["name", "containerPort", "protocol", "hostIP", "hostPort"];
    if !cursor.mapping(out, FIELDS, &[]) {
        return None;
    }
    let name = cursor.field("name").and_then(|field| {
        field.parsed(out, PORT_NAME, |text| is_port_name(text).then(|| text.to_owned()))
    });
    let protocol = cursor.field("protocol").and_then(|field| protocol(&field, out));
    let host = host_port(cursor, out);
    let field = cursor.required(out, "containerPort", PORT_NUMBER)?;
    Some(ContainerPort { name, port: number(&field, out, PORT_NUMBER)?, protocol, host })
}

/// Reads the port of the node. The API treats 0 as an absent port.
fn host_port(cursor: &Cursor<'_>, out: &mut Findings) -> Option<HostPort> {
    let address = empty_or_address(cursor, "hostIP", out);
    let field = cursor.field("hostPort").filter(|it| it.node.value != Value::Integer(0))?;
    let port = number(&field, out, PORT_NUMBER)?;
    Some(HostPort { port, address: address.filter(|it| !it.is_unspecified()) })
}

fn decode_status(status: &Cursor<'_>, pod: &mut Pod, out: &mut Findings) {
    pod.phase = status.field("phase").and_then(|field| {
        field.parsed(out, "Pending, Running, Succeeded, Failed or Unknown", |text| match text {
            "Pending" => Some(Phase::Pending),
            "Running" => Some(Phase::Running),
            // The API has no phase `Completed`, but Calico takes it as finished (`libcalico-go`, `IsFinished`).
            "Succeeded" | "Completed" => Some(Phase::Succeeded),
            "Failed" => Some(Phase::Failed),
            "Unknown" => Some(Phase::Unknown),
            _ => None,
        })
    });
    pod.host_ip = empty_or_address(status, "hostIP", out);
    pod.pod_ip = empty_or_address(status, "podIP", out);
    if let Some(field) = status.field("podIPs") {
        pod.pod_ips = field.items(out, |item, out| {
            if !item.mapping(out, &["ip"], &[]) {
                return None;
            }
            item.required(out, "ip", ADDRESS)?.parsed(out, ADDRESS, address)
        });
    }
}

/// Returns the address in a field. The field may be empty, as the fields of `status` are before the pod has an address.
fn empty_or_address(cursor: &Cursor<'_>, field: &str, out: &mut Findings) -> Option<IpAddr> {
    let field = cursor.field(field)?;
    field
        .parsed(out, ADDRESS, |text| match text {
            "" => Some(None),
            text => address(text).map(Some),
        })
        .flatten()
}

/// Returns the addresses that can be read from an annotation. Returns `None` if the annotation is absent or no address
/// can be read. If a part of the annotation is not legal, the pod is invalid, and nothing passes from or to the
/// addresses in the other parts. If `filled` is set, the status contains the pod's addresses. Calico then does not look
/// at annotations, so an illegal part causes only a warning.
fn annotated(
    root: &Cursor<'_>,
    annotations: &Pairs,
    name: &str,
    filled: bool,
    out: &mut Findings,
) -> Option<Vec<IpAddr>> {
    let text = annotations.get(name)?;
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut legal = true;
    let mut addresses = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (address, alone) = address_or_cidr(part).unzip();
        legal &= alone == Some(true);
        addresses.extend(address);
    }
    if !legal || (name == POD_IP && addresses.len() > 1) {
        let several = if name == POD_IP { "one address" } else { "addresses joined by commas" };
        if filled {
            let expected = format!("{several}; not used, because status has the pod's addresses");
            annotation(root, name, &expected, Severity::Warning, out);
        } else {
            annotation(root, name, several, Severity::Error, out);
        }
    }
    // An empty annotation means that the addresses are released. An annotation without a legal address does not mean
    // this, so it gives `None`.
    addresses.shrink_to_fit();
    (!addresses.is_empty()).then_some(addresses)
}

/// Parses an address or a CIDR. Returns the address, and whether the text stands for this address alone.
fn address_or_cidr(text: &str) -> Option<(IpAddr, bool)> {
    let of_cidr = |net: IpNet| (net.addr(), net.prefix_len() == net.max_prefix_len());
    address(text).map(|address| (address, true)).or_else(|| cidr(text).map(of_cidr))
}
