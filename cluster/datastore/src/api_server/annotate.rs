//! Writes the addresses that this node has assigned to its pods into the pods' objects. Other nodes then know the
//! addresses before kubelet reports them.
//!
//! The annotations are Calico's (`libcalico-go`, `AnnotationPodIP`, `AnnotationPodIPs`). As in Calico, they are written
//! with a patch of `pods/status`, which may change annotations but not the spec.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::api::{GetParams, Patch, PatchParams};
use kube::core::Request;
use manx_objects::object::ObjectKey;
use serde_json::{Value, json};

use super::connection::Connection;
use super::fault::{code, is_passing, words};
use crate::followed::{Pause, Waiting};

/// The annotation with the first address.
const POD_IP: &str = "cni.projectcalico.org/podIP";
/// The annotation with all addresses.
const POD_IPS: &str = "cni.projectcalico.org/podIPs";

/// Writes the waiting values while the connection lasts. A write that the server refuses is given up, because kubelet
/// also reports the addresses. Every other failure is tried again.
pub(super) async fn keep_writing(
    connection: &Connection,
    node: &str,
    waiting: &Waiting<Vec<IpAddr>>,
) {
    let (mut pause, mut last) = (Pause::default(), None);
    loop {
        let (pod, addresses) = waiting.next(last.as_ref()).await;
        last = Some(pod.clone());
        match write(connection, node, &pod, &addresses).await {
            Ok(()) => {}
            // Another object has taken the name, or another writer was faster. The next attempt reads the current
            // object.
            Err(error) if is_passing(&error) => {
                tracing::debug!(%pod, error = words(&error), "a pod's addresses are written again");
                pause.wait().await;
                continue;
            }
            Err(error) => tracing::warn!(
                %pod,
                error = words(&error),
                "other nodes learn this pod's addresses from kubelet only: the annotation could not be written"
            ),
        }
        pause = Pause::default();
        waiting.done(&pod, &addresses);
    }
}

/// Writes a pod's annotations. A pod that is gone, or that runs on another node under the same name, is not changed.
async fn write(
    connection: &Connection,
    node: &str,
    pod: &ObjectKey,
    addresses: &[IpAddr],
) -> kube::Result<()> {
    let request = Request::new(format!("/api/v1/namespaces/{}/pods", pod.namespace));
    let get = request.get(&pod.name, &GetParams::default());
    let found: Value = match connection.ask(get.map_err(kube::Error::BuildRequest)?).await {
        Err(error) if code(&error) == Some(404) => return Ok(()),
        found => found?,
    };
    let Some(patch) = patch(&found, node, addresses) else { return Ok(()) };
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    let request = request.patch_subresource("status", &pod.name, &params, &patch);
    let patched = connection.ask::<Value>(request.map_err(kube::Error::BuildRequest)?).await;
    match patched {
        Err(error) if code(&error) == Some(404) => Ok(()),
        patched => patched.map(drop),
    }
}

/// Returns the patch that writes these addresses into the annotations. Empty annotations mean that the addresses are
/// released. Returns `None` if nothing must be written. The patch contains the uid, so that the server refuses it if
/// another pod has the name then.
fn patch(found: &Value, node: &str, addresses: &[IpAddr]) -> Option<Value> {
    let metadata = &found["metadata"];
    let of = |addresses: &[IpAddr]| {
        let single = |address: &IpAddr| match address {
            IpAddr::V4(v4) => format!("{v4}/32"),
            IpAddr::V6(v6) => format!("{v6}/128"),
        };
        addresses.iter().map(single).collect::<Vec<_>>().join(",")
    };
    let wanted = [(POD_IP, of(&addresses[..addresses.len().min(1)])), (POD_IPS, of(addresses))];
    let has = |name: &str| metadata["annotations"][name].as_str().unwrap_or_default().to_owned();
    let is_here = found["spec"]["nodeName"] == node;
    let differs = wanted.iter().any(|(name, text)| has(name) != *text);
    (is_here && differs).then(|| {
        json!({ "metadata": {
            "uid": metadata["uid"],
            "annotations": BTreeMap::from(wanted),
        } })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: &Value) -> Value {
        json!({
            "metadata": { "uid": "u-1", "annotations": annotations },
            "spec": { "nodeName": "n1" },
        })
    }

    #[test]
    fn the_annotations_are_calicos_and_the_patch_is_of_this_very_pod() {
        let addresses = ["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        let patch = patch(&pod(&json!({ "other": "stays" })), "n1", &addresses).unwrap();
        insta::assert_snapshot!(patch, @r#"{"metadata":{"annotations":{"cni.projectcalico.org/podIP":"10.0.0.5/32","cni.projectcalico.org/podIPs":"10.0.0.5/32,fd00::5/128"},"uid":"u-1"}}"#);
    }

    #[test]
    fn released_addresses_are_emptied_annotations() {
        let has = json!({ POD_IP: "10.0.0.5/32", POD_IPS: "10.0.0.5/32" });
        let patch = patch(&pod(&has), "n1", &[]).unwrap();
        insta::assert_snapshot!(patch, @r#"{"metadata":{"annotations":{"cni.projectcalico.org/podIP":"","cni.projectcalico.org/podIPs":""},"uid":"u-1"}}"#);
    }

    #[test]
    fn nothing_is_written_that_is_there_or_that_is_another_nodes() {
        let address = ["10.0.0.5".parse().unwrap()];
        let has = json!({ POD_IP: "10.0.0.5/32", POD_IPS: "10.0.0.5/32" });
        assert_eq!(patch(&pod(&has), "n1", &address), None);
        assert_eq!(patch(&pod(&json!({})), "n1", &[]), None, "there is nothing to empty");
        assert_eq!(patch(&pod(&json!({})), "n2", &address), None);
    }
}
