//! The endpoint slice controller of the rig: makes the `EndpointSlices` of the services that have a selector.
//!
//! Source: Kubernetes documentation, "Service", "`EndpointSlices`": the endpoints are the pods of the service's
//! namespace that match the selector. A target port that is a name has each pod's own number, so pods with different
//! numbers are in different slices.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::live::Objects;
use manx_objects::object::{Kind, ObjectKey};

/// The label of a slice that names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of a slice that names its writer: this rig, or the controller of the cluster that the manifests came from.
/// Slices of other writers are not touched.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const OWN: &str = manx_assume::MANAGER;
const CONTROLLER: &str = "endpointslice-controller.k8s.io";

/// The slices of all services with selectors, for the pods as they are now; and the keys of slices that a controller
/// wrote and that are no longer among them.
pub fn endpoint_slices(objects: &Objects) -> (Objects, BTreeSet<ObjectKey>) {
    let mut slices = Objects::default();
    for (key, service) in objects.0.iter().filter(|(key, _)| key.kind == Kind::Service) {
        let selector = service["spec"]["selector"].as_object().filter(|it| !it.is_empty());
        let Some(selector) = selector else { continue };
        let selected = objects.0.iter().filter(|(pod, object)| {
            let labels = &object["metadata"]["labels"];
            pod.kind == Kind::Pod
                && pod.namespace == key.namespace
                && selector.iter().all(|(label, value)| labels[label] == *value)
        });
        let mut groups: BTreeMap<(bool, String), (Json, Vec<Json>)> = BTreeMap::new();
        for (_, pod) in selected {
            let ports = ports(service, pod);
            for address in pod["status"]["podIPs"].as_array().into_iter().flatten() {
                let Some(address) = address["ip"].as_str() else { continue };
                let group = (address.contains(':'), ports.to_string());
                let (_, endpoints) =
                    groups.entry(group).or_insert_with(|| (ports.clone(), Vec::new()));
                endpoints.push(json!({ "addresses": [address], "conditions": { "ready": true } }));
            }
        }
        for (index, ((v6, _), (ports, endpoints))) in groups.into_iter().enumerate() {
            let name = format!("{}-{index}", key.name);
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": name,
                    "namespace": key.namespace,
                    "labels": { SERVICE_NAME: key.name, MANAGED_BY: OWN },
                },
                "addressType": if v6 { "IPv6" } else { "IPv4" },
                "endpoints": endpoints,
                "ports": ports,
            });
            let namespace = key.namespace.clone();
            slices.0.insert(ObjectKey { kind: Kind::EndpointSlice, namespace, name }, slice);
        }
    }
    let managed = objects.0.iter().filter(|(key, object)| {
        let manager = object["metadata"]["labels"][MANAGED_BY].as_str();
        key.kind == Kind::EndpointSlice && manager.is_some_and(|it| [OWN, CONTROLLER].contains(&it))
    });
    let stale = managed.map(|(key, _)| key.clone()).filter(|key| !slices.0.contains_key(key));
    let stale = stale.collect();
    (slices, stale)
}

/// The ports of a pod for a service: the target ports or, without these, the service's own ports. A name that the pod
/// gives to no port of the protocol is left out.
fn ports(service: &Json, pod: &Json) -> Json {
    let listed = service["spec"]["ports"].as_array().into_iter().flatten();
    let of_pod = listed.filter_map(|port| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        let target = match &port["targetPort"] {
            Json::Null => port["port"].clone(),
            Json::String(name) => named(pod, name, protocol)?,
            number => number.clone(),
        };
        Some(json!({ "name": port["name"].as_str().unwrap_or(""), "protocol": protocol, "port": target }))
    });
    of_pod.collect()
}

fn named(pod: &Json, name: &str, protocol: &str) -> Option<Json> {
    let containers = ["containers", "initContainers"];
    let all = containers.iter().filter_map(|key| pod["spec"][key].as_array()).flatten();
    let mut ports = all.filter_map(|container| container["ports"].as_array()).flatten();
    let port = ports.find(|port| {
        port["name"] == name && port["protocol"].as_str().unwrap_or("TCP") == protocol
    })?;
    Some(port["containerPort"].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, app: &str, http: u16, addresses: &[&str]) -> Json {
        let ips: Vec<Json> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "shop", "labels": { "app": app } },
            "spec": { "containers": [{ "name": "c", "ports": [{ "name": "http", "containerPort": http }] }] },
            "status": { "podIPs": ips },
        })
    }

    fn service(selector: &Json) -> Json {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "shop" },
            "spec": { "selector": selector, "ports": [
                { "name": "http", "port": 80, "targetPort": "http" },
                { "name": "dns", "port": 53, "protocol": "UDP" },
                { "name": "admin", "port": 1, "targetPort": 9000 },
                { "name": "nobodys", "port": 2, "targetPort": "nothing" },
            ]},
        })
    }

    /// Address type, addresses and ports of each slice.
    fn slices(objects: &[Json]) -> Vec<String> {
        let (slices, _) = endpoint_slices(&Objects::from_json(objects));
        let shown = slices.0.values().map(|slice| {
            let endpoints = slice["endpoints"].as_array().unwrap().iter();
            let addresses: Vec<&str> =
                endpoints.map(|it| it["addresses"][0].as_str().unwrap()).collect();
            let ports = slice["ports"].as_array().unwrap().iter();
            let ports: Vec<String> = ports
                .map(|it| format!("{} {}", it["protocol"].as_str().unwrap(), it["port"]))
                .collect();
            let family = slice["addressType"].as_str().unwrap();
            format!("{family} {}: {}", addresses.join(" "), ports.join(", "))
        });
        shown.collect()
    }

    #[test]
    fn a_services_endpoints_are_the_pods_that_it_selects_by_the_ports_that_each_has() {
        let objects = [
            service(&json!({ "app": "web" })),
            pod("a", "web", 8080, &["10.0.0.1", "fd00::1"]),
            pod("b", "web", 8080, &["10.0.0.2"]),
            pod("c", "web", 9090, &["10.0.0.3"]),
            pod("d", "other", 8080, &["10.0.0.4"]),
            pod("e", "web", 8080, &[]),
        ];
        assert_eq!(
            slices(&objects),
            [
                "IPv4 10.0.0.1 10.0.0.2: TCP 8080, UDP 53, TCP 9000",
                "IPv4 10.0.0.3: TCP 9090, UDP 53, TCP 9000",
                "IPv6 fd00::1: TCP 8080, UDP 53, TCP 9000",
            ]
        );
    }

    #[test]
    fn a_service_without_a_selector_keeps_the_slices_that_people_wrote() {
        let slice = |name: &str, labels: Json| {
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": { "name": name, "namespace": "shop", "labels": labels },
                "addressType": "IPv4",
            })
        };
        let objects = [
            service(&json!({})),
            pod("a", "web", 8080, &["10.0.0.1"]),
            slice("own", json!({ SERVICE_NAME: "web" })),
            slice("mirrored", json!({ MANAGED_BY: "endpointslicemirroring-controller.k8s.io" })),
            slice("web-7", json!({ SERVICE_NAME: "web", MANAGED_BY: CONTROLLER })),
        ];
        let (slices, stale) = endpoint_slices(&Objects::from_json(&objects));
        assert!(slices.0.is_empty());
        let stale: Vec<&str> = stale.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(stale, ["web-7"]);
    }
}
