//! Writes objects as manifests. This is the inverse of the reader.

use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::object::{
    ContainerPort, EncapsulationMode, EndpointSlice, IpPool, Node, Object, ObjectKey, Owner, Pod,
    SliceEndpoint,
};
use saphyr::{Scalar, Yaml, YamlEmitter};
use serde_json::{Map, Value as Json, json};

/// The label of an `EndpointSlice` that names the slice's controller. Its value is [`MANAGER`]. A controller that
/// follows the pods may replace the slice.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The value of the label `endpointslice.kubernetes.io/managed-by` in slices that are made here.
pub const MANAGER: &str = "manx";

/// Merges the fields of one object into another: mappings field by field, everything else as a whole.
pub fn merge(object: &mut Json, fields: Json) {
    match (object, fields) {
        (Json::Object(object), Json::Object(fields)) => {
            for (key, value) in fields {
                merge(object.entry(key).or_insert(Json::Null), value);
            }
        }
        (object, fields) => *object = fields,
    }
}

/// Returns the YAML document of an object.
pub(crate) fn yaml(object: &Json) -> String {
    let mut text = String::new();
    // Writing to a string does not fail, and objects have no key that is a mapping.
    let _ = YamlEmitter::new(&mut text).dump(&tree(object));
    text + "\n"
}

fn tree(value: &Json) -> Yaml<'_> {
    match value {
        Json::Null => Yaml::Value(Scalar::Null),
        Json::Bool(value) => Yaml::Value(Scalar::Boolean(*value)),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Yaml::Value(Scalar::Integer(number)),
            None => Yaml::Value(Scalar::String(number.to_string().into())),
        },
        Json::String(text) => Yaml::Value(Scalar::String(text.as_str().into())),
        Json::Array(items) => Yaml::Sequence(items.iter().map(tree).collect()),
        Json::Object(fields) => Yaml::Mapping(
            fields
                .iter()
                .map(|(key, value)| (Yaml::Value(Scalar::String(key.as_str().into())), tree(value)))
                .collect(),
        ),
    }
}

pub(crate) fn identity(key: &ObjectKey) -> Json {
    let mut metadata = json!({ "name": key.name });
    if key.kind.namespaced() {
        metadata["namespace"] = key.namespace.as_str().into();
    }
    let version = key.kind.api_versions()[0];
    json!({ "apiVersion": version, "kind": key.kind.name(), "metadata": metadata })
}

/// Returns an object of a kind that is added to the input.
pub(crate) fn of_object(key: &ObjectKey, object: &Object) -> Json {
    let mut manifest = identity(key);
    let fields = match object {
        Object::Node(node) => of_node(node),
        Object::Pod(pod) => of_pod(pod),
        Object::IpPool(pool) => of_pool(pool),
        Object::EndpointSlice(slice) => of_slice(slice),
        _ => Json::Object(Map::new()),
    };
    merge(&mut manifest, fields);
    manifest
}

fn of_node(node: &Node) -> Json {
    json!({
        "metadata": { "labels": node.labels.to_map() },
        "spec": spec_of_node(&node.pod_cidrs),
        "status": { "addresses": node_addresses(&node.internal_ips, &node.external_ips) },
    })
}

/// Returns `spec` of a node with these blocks.
pub(crate) fn spec_of_node(blocks: &[IpNet]) -> Json {
    let texts: Vec<String> = blocks.iter().map(ToString::to_string).collect();
    match texts.first() {
        Some(first) => json!({ "podCIDR": first, "podCIDRs": texts }),
        None => json!({}),
    }
}

/// Returns `status.addresses` of a node.
pub(crate) fn node_addresses(internal: &[IpAddr], external: &[IpAddr]) -> Json {
    let of_type = |addresses: &[IpAddr], kind: &str| -> Vec<Json> {
        addresses.iter().map(|address| json!({ "type": kind, "address": address })).collect()
    };
    Json::from([of_type(internal, "InternalIP"), of_type(external, "ExternalIP")].concat())
}

/// Returns `status` of a pod with these addresses.
pub(crate) fn status_of_pod(addresses: &[IpAddr]) -> Json {
    let all: Vec<Json> = addresses.iter().map(|address| json!({ "ip": address })).collect();
    json!({ "podIP": addresses.first(), "podIPs": all })
}

fn of_pod(pod: &Pod) -> Json {
    let mut metadata = json!({ "labels": pod.labels.to_map() });
    if let Some(Owner { kind, name }) = &pod.owner {
        let owner = json!({ "kind": kind, "name": name, "controller": true });
        metadata["ownerReferences"] = json!([owner]);
    }
    let mut spec = json!({ "containers": containers(&pod.containers) });
    if !pod.init_containers.is_empty() {
        spec["initContainers"] = containers(&pod.init_containers);
    }
    if !pod.node_selector.is_empty() {
        spec["nodeSelector"] = json!(pod.node_selector.to_map());
    }
    if let Some(account) = &pod.service_account {
        spec["serviceAccountName"] = account.as_str().into();
    }
    if let Some(node) = &pod.node_name {
        spec["nodeName"] = node.as_str().into();
    }
    if pod.host_network {
        spec["hostNetwork"] = true.into();
    }
    json!({ "metadata": metadata, "spec": spec })
}

fn containers(containers: &[Vec<ContainerPort>]) -> Json {
    let container = |(index, ports): (usize, &Vec<ContainerPort>)| {
        let ports: Json = ports.iter().map(container_port).collect();
        json!({ "name": format!("container-{index}"), "ports": ports })
    };
    containers.iter().enumerate().map(container).collect()
}

fn container_port(port: &ContainerPort) -> Json {
    let mut fields = json!({ "containerPort": port.port });
    if let Some(name) = &port.name {
        fields["name"] = name.as_str().into();
    }
    if let Some(of) = port.protocol {
        fields["protocol"] = of.name().into();
    }
    fields
}

fn of_pool(pool: &IpPool) -> Json {
    let mode = |mode: EncapsulationMode| match mode {
        EncapsulationMode::Always => "Always",
        EncapsulationMode::CrossSubnet => "CrossSubnet",
        EncapsulationMode::Never => "Never",
    };
    let mut spec = json!({ "cidr": pool.cidr.to_string(), "ipipMode": pool.ipip_mode.map(mode) });
    if let Some(size) = pool.block_size {
        spec["blockSize"] = size.into();
    }
    json!({ "spec": spec })
}

/// Returns an endpoint. It has no hints and does not terminate, because no manifest contains these facts.
fn of_endpoint(endpoint: &SliceEndpoint) -> Json {
    let mut fields = json!({ "addresses": [endpoint.address] });
    if !endpoint.ready {
        fields["conditions"] = json!({ "ready": false });
    }
    if let Some(node) = &endpoint.node {
        fields["nodeName"] = (**node).into();
    }
    fields
}

fn of_slice(slice: &EndpointSlice) -> Json {
    let endpoints: Json = slice.endpoints.iter().map(of_endpoint).collect();
    let ports: Json = slice
        .ports
        .iter()
        .map(|it| {
            let name = it.name.as_deref().unwrap_or_default();
            json!({ "name": name, "protocol": it.protocol.name(), "port": it.port })
        })
        .collect();
    let v6 = slice.addresses.first().is_some_and(IpAddr::is_ipv6);
    json!({
        "metadata": { "labels": { "kubernetes.io/service-name": slice.service, MANAGED_BY: MANAGER } },
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "endpoints": endpoints,
        "ports": ports,
    })
}
