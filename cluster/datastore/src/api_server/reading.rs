//! An object as the API server sends it.

use std::sync::Arc;

use manx_objects::object::Kind;
use serde_json::Value;

use super::resource::Resource;
use crate::followed::{self, Reading};

/// Reads an object that the server has sent. The items of a list do not contain their kind; the resource determines it.
pub(super) fn read(
    server: &Arc<str>,
    kind: Kind,
    resource: &Resource,
    mut object: Value,
) -> Reading {
    prune(kind, &mut object);
    if let Value::Object(fields) = &mut object {
        fields.insert("apiVersion".to_owned(), resource.api_version.into());
        fields.insert("kind".to_owned(), resource.kind.into());
    }
    let key = followed::key(kind, &object);
    followed::read(server, key, object.to_string())
}

/// Removes parts of an object that agents do not need, so that the object is smaller and changes less often. These are
/// metadata that every write changes, and most fields of Pods and Nodes.
fn prune(kind: Kind, object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    match kind {
        Kind::Pod => {
            keep(object, "spec", POD_SPEC);
            keep(object, "status", POD_STATUS);
            for list in ["containers", "initContainers"] {
                let containers = object.get_mut("spec").and_then(|spec| spec.get_mut(list));
                for container in containers.and_then(Value::as_array_mut).into_iter().flatten() {
                    keep_of(container, CONTAINER);
                }
            }
        }
        Kind::Node => {
            keep(object, "spec", &["podCIDR", "podCIDRs", "taints"]);
            keep(object, "status", &["addresses"]);
        }
        _ => {}
    }
}

const POD_SPEC: &[&str] =
    &["nodeName", "serviceAccountName", "hostNetwork", "containers", "initContainers"];
const POD_STATUS: &[&str] = &["phase", "hostIP", "podIP", "podIPs"];
const CONTAINER: &[&str] = &["name", "ports"];

fn keep(object: &mut Value, field: &str, fields: &[&str]) {
    if let Some(value) = object.get_mut(field) {
        keep_of(value, fields);
    }
}

fn keep_of(value: &mut Value, fields: &[&str]) {
    if let Value::Object(map) = value {
        map.retain(|key, _| fields.contains(&key.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use manx_objects::State;
    use manx_objects::object::Object;
    use serde_json::json;

    use super::*;

    fn pod(object: Value) -> Reading {
        let resource = Resource { kind: "Pod", api_version: "v1", path: String::new() };
        read(&Arc::from("https://192.0.2.1:6443/"), Kind::Pod, &resource, object)
    }

    #[test]
    fn what_manx_does_not_use_makes_no_other_text() {
        let web = |version: &str, status: Value| {
            let metadata =
                json!({ "namespace": "shop", "name": "web", "resourceVersion": version });
            pod(json!({ "metadata": metadata, "status": status })).fingerprint
        };
        let before = web("17", json!({ "podIP": "10.0.0.1" }));
        let ready = json!({ "podIP": "10.0.0.1", "conditions": [{ "type": "Ready" }] });
        assert_eq!(web("18", ready), before);
        assert_ne!(web("17", json!({ "podIP": "10.0.0.2" })), before);
    }

    #[test]
    fn of_a_pod_only_what_is_used_is_kept() {
        let object = json!({
            "metadata": {
                "namespace": "shop", "name": "web", "managedFields": [{"manager": "kubelet"}],
                "resourceVersion": "17", "labels": {"app": "web"},
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "web", "volumes": [{"name": "v"}],
                "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}],
            },
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": []},
        });
        let reading = pod(object);
        insta::assert_snapshot!(reading.text, @r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"app":"web"},"name":"web","namespace":"shop"},"spec":{"containers":[{"name":"c","ports":[{"containerPort":80}]}],"nodeName":"n1","serviceAccountName":"web"},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"}]}}"#);
        assert_eq!(reading.problems, []);
        let State::Valid(object) = reading.entry.unwrap().state else { panic!() };
        let Object::Pod(pod) = &*object else { panic!() };
        assert_eq!(pod.containers[0].len(), 1);
    }
}
