//! Reads the users of addresses from the pods, nodes and Services of a server.
//!
//! Only the necessary fields are read, and objects are read one after the other, because all pods of a cluster may not
//! fit into memory. If the addresses of a pod cannot be read, the pod counts as one that is starting: it is assumed to
//! use every address that is allocated to it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_datastore::{ServedKey, Writes};
use manx_objects::object::{Kind, TUNNEL_ADDRESSES};
use serde_json::Value;

use super::{Objects, error};
use crate::block::Attributes;
use crate::garbage::UserSource;
use crate::handle::Handle;
use crate::store::StoreError;
use crate::users::{NodeUser, PodUser, Users};

/// The annotations in which CNI plugins store the addresses of a pod.
const ANNOTATIONS: [&str; 2] = ["cni.projectcalico.org/podIPs", "cni.projectcalico.org/podIP"];

impl<W: Writes + Sync> Objects<W> {
    /// Returns the names of the nodes.
    ///
    /// # Errors
    /// Returns an error if the server does not answer or refuses the request.
    pub async fn node_names(&self) -> Result<Vec<String>, StoreError> {
        let name = |key: &ServedKey, _| key.name.clone();
        self.writes.read_each(Kind::Node.into(), "", name).await.map_err(error)
    }
}

impl<W: Writes + Sync> UserSource for Objects<W> {
    async fn all(&self) -> Result<Users, StoreError> {
        let node = |key: &ServedKey, object: Value| (key.name.clone(), node(&object));
        let nodes = self.writes.read_each(Kind::Node.into(), "", node).await.map_err(error)?;
        let pod = |key: &ServedKey, object: Value| {
            pod(&object).map(|pod| ((key.namespace.clone(), key.name.clone()), pod))
        };
        let pods = self.writes.read_each(Kind::Pod.into(), "", pod).await.map_err(error)?;
        let service = |key: &ServedKey, object: Value| {
            let handle = service(key, &object)?;
            Some(((key.namespace.clone(), key.name.clone()), handle))
        };
        let services = self.writes.read_each(Kind::Service.into(), "", service).await;
        Ok(Users {
            pods: pods.into_iter().flatten().collect(),
            nodes: nodes.into_iter().collect(),
            services: services.map_err(error)?.into_iter().flatten().collect(),
        })
    }

    async fn named_by(&self, owner: &Attributes) -> Result<Users, StoreError> {
        let mut users = Users::default();
        if let Some(name) = owner.get("node") {
            let key = ServedKey::new(Kind::Node, "", name);
            if let Some((object, _)) = self.writes.get(&key).await.map_err(error)? {
                users.nodes = BTreeMap::from([(name.clone(), node(&object))]);
            }
        }
        if let (Some(namespace), Some(name)) = (owner.get("namespace"), owner.get("pod")) {
            let key = ServedKey::new(Kind::Pod, namespace, name);
            let found = self.writes.get(&key).await.map_err(error)?;
            if let Some(pod) = found.and_then(|(object, _)| pod(&object)) {
                users.pods = BTreeMap::from([((namespace.clone(), name.clone()), pod)]);
            }
        }
        if let (Some(namespace), Some(name)) = (owner.get("namespace"), owner.get("service")) {
            let key = ServedKey::new(Kind::Service, namespace, name);
            let found = self.writes.get(&key).await.map_err(error)?;
            if let Some(handle) = found.and_then(|(object, _)| service(&key, &object)) {
                users.services = BTreeMap::from([((namespace.clone(), name.clone()), handle)]);
            }
        }
        Ok(users)
    }
}

/// Returns the handle of a Service's addresses.
fn service(key: &ServedKey, object: &Value) -> Option<String> {
    let uid = object["metadata"]["uid"].as_str()?;
    Some(Handle::of_service(&key.namespace, &key.name, uid))
}

/// Returns a node as a user of addresses. An annotation that cannot be read counts as no address. The tunnel's address
/// still stays allocated while its node exists.
fn node(object: &Value) -> NodeUser {
    let annotations = &object["metadata"]["annotations"];
    let texts = TUNNEL_ADDRESSES.iter().filter_map(|(name, _)| annotations[*name].as_str());
    NodeUser { tunnel_addresses: texts.filter_map(|text| text.parse().ok()).collect() }
}

/// Returns a pod as a user of addresses, or `None` if it is on its node's own network.
fn pod(object: &Value) -> Option<PodUser> {
    let (spec, status) = (&object["spec"], &object["status"]);
    if spec["hostNetwork"] == true {
        return None;
    }
    let node = spec["nodeName"].as_str().filter(|node| !node.is_empty());
    let phase = status["phase"].as_str().unwrap_or_default();
    Some(PodUser {
        node: node.map(ToOwned::to_owned),
        addresses: addresses(object).unwrap_or_default(),
        is_finished: matches!(phase, "Succeeded" | "Failed"),
    })
}

/// Returns the addresses of a pod, or `None` if one of them cannot be read.
fn addresses(object: &Value) -> Option<Vec<IpAddr>> {
    let status = &object["status"];
    let listed = status["podIPs"].as_array().into_iter().flatten().map(|it| &it["ip"]);
    let of_status = listed.chain([&status["podIP"]]).filter_map(Value::as_str);
    let annotations = ANNOTATIONS.map(|name| &object["metadata"]["annotations"][name]);
    let annotated = annotations.into_iter().filter_map(Value::as_str);
    let all = of_status.chain(annotated.flat_map(|text| text.split(',')));
    let address = |text: &str| text.split('/').next().unwrap_or_default().trim().parse().ok();
    all.filter(|text| !text.trim().is_empty()).map(address).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_has_the_addresses_of_its_status_and_of_its_annotations() {
        let user = pod(&json!({
            "metadata": { "annotations": {
                "cni.projectcalico.org/podIP": "10.0.0.2/32",
                "cni.projectcalico.org/podIPs": "10.0.0.2/32, fd00::2/128",
            } },
            "spec": { "nodeName": "a" },
            "status": { "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }] },
        }));
        let addresses = ["10.0.0.1", "10.0.0.1", "10.0.0.2", "fd00::2", "10.0.0.2"];
        let expected = PodUser {
            node: Some("a".to_owned()),
            addresses: addresses.map(|it| it.parse().unwrap()).to_vec(),
            is_finished: false,
        };
        assert_eq!(user, Some(expected));
        assert_eq!(pod(&json!({ "spec": { "hostNetwork": true } })), None);
        let starts =
            json!({ "metadata": { "annotations": { "cni.projectcalico.org/podIP": "" } } });
        assert_eq!(pod(&starts), Some(PodUser::default()));
        let damaged = json!({ "status": { "podIP": "10.0.0.1", "podIPs": [{ "ip": "x" }] } });
        assert_eq!(pod(&damaged), Some(PodUser::default()), "which keeps what it has");
        let done = pod(&json!({ "status": { "phase": "Failed" } })).unwrap();
        assert!(done.is_finished);
    }
}
