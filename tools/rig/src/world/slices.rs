//! The endpoint slice controller of the rig: keeps the `EndpointSlices` of the services that have a selector.
//!
//! [`manx_assume::endpoint_slices`] makes the slices, as for an input without slices, from the running pods.

use std::collections::BTreeSet;

use crate::plan::objects::Objects;
use manx_objects::object::{Kind, ObjectKey};

/// The label of a slice that names its controller: this rig, or the controller of the cluster from which the manifests
/// came. Slices of other controllers are not changed.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const OWN: &str = manx_assume::MANAGER;
const CONTROLLER: &str = "endpointslice-controller.k8s.io";

/// The slices of all services with selectors or Endpoints, for the current pods, and the keys of existing slices of
/// this rig or of a cluster's controller that are not among them.
pub fn endpoint_slices(objects: &Objects) -> (Objects, BTreeSet<ObjectKey>) {
    let slices = Objects(manx_assume::endpoint_slices(&objects.contents()));
    let managed = objects.0.iter().filter(|(key, object)| {
        let manager = object["metadata"]["labels"][MANAGED_BY].as_str();
        key.kind == Kind::EndpointSlice && manager.is_some_and(|it| [OWN, CONTROLLER].contains(&it))
    });
    let stale = managed.map(|(key, _)| key.clone()).filter(|key| !slices.0.contains_key(key));
    let stale = stale.collect();
    (slices, stale)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    /// The label of a slice that names its service.
    const SERVICE_NAME: &str = "kubernetes.io/service-name";

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
