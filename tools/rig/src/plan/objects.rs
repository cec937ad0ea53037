//! The objects of a rig as JSON. An object that is applied again replaces the previous one, as with `kubectl apply`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_api::PodName;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, ObjectKey};
use serde_json::{Value as Json, json};

use super::policy_reference::{PolicyReference, PolicyReferenceError};

/// Objects by their keys, each as JSON.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Objects(pub BTreeMap<ObjectKey, Json>);

impl Objects {
    /// Objects in this order. Objects of a kind that Manx does not read are ignored.
    pub fn from_json(objects: &[Json]) -> Self {
        let mut all = Self::default();
        for object in objects {
            all.collect(object, None);
        }
        all
    }

    /// Adds an object, or all items of a list.
    fn collect(&mut self, object: &Json, default: Option<(&str, &str)>) {
        let text = |key: &str| object[key].as_str();
        let kind = text("kind").or(default.map(|(kind, _)| kind));
        let version = text("apiVersion").or(default.map(|(_, version)| version));
        let (Some(kind), Some(version)) = (kind, version) else { return };
        if let (Some(item), Some(items)) = (kind.strip_suffix("List"), object["items"].as_array()) {
            let default = (!item.is_empty()).then_some((item, version));
            for object in items {
                self.collect(object, default);
            }
            return;
        }
        let mut object = object.clone();
        object["kind"] = kind.into();
        object["apiVersion"] = version.into();
        let metadata = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let known = |of: &Kind| of.name() == kind && of.api_versions().contains(&version);
        let Some(kind) = Kind::ALL.into_iter().find(known) else { return };
        let namespace = match metadata("namespace") {
            _ if !kind.namespaced() => String::new(),
            empty if empty.is_empty() => "default".to_owned(),
            named => named,
        };
        self.0.insert(ObjectKey { kind, namespace, name: metadata("name") }, object);
    }

    /// The objects, read and checked.
    pub fn contents(&self) -> Contents {
        let texts: Vec<(String, String)> =
            self.0.iter().map(|(id, object)| (file_name(id), object.to_string())).collect();
        Contents::from_texts(texts.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    }

    /// Removes an enforced policy and returns it.
    pub fn withhold(
        &mut self,
        policy: &PolicyReference,
    ) -> Result<(ObjectKey, Json), PolicyReferenceError> {
        let key = policy.find(self.0.keys())?;
        let object = self.0.remove(&key).unwrap_or_default();
        Ok((key, object))
    }

    /// Writes the fields of a pod that the scheduler and the kubelet set.
    pub fn place(&mut self, pod: &PodName, node: &str, addresses: &[IpAddr]) -> Option<ObjectKey> {
        let id = ObjectKey::new(Kind::Pod, &pod.namespace, &pod.name);
        let object = self.0.get_mut(&id)?;
        object["spec"]["nodeName"] = node.into();
        if let Some(first) = addresses.first() {
            let all: Vec<Json> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
            object["status"] = json!({ "phase": "Running", "podIP": first, "podIPs": all });
        }
        Some(id)
    }
}

/// The name of an object's file. Calico's NetworkPolicy has the same name as Kubernetes', so the name of the Rust
/// variant is used.
pub(crate) fn file_name(id: &ObjectKey) -> String {
    let ObjectKey { kind, namespace, name } = id;
    format!("{}.{namespace}.{name}.json", format!("{kind:?}").to_lowercase())
}
