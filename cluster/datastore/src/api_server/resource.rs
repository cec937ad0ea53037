//! The resources of the API that contain the objects of a kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList};
use kube::Error;
use kube::api::ListParams;
use kube::core::Request;
use manx_objects::object::Kind;
use serde_json::Value;

use super::connection::Connection;
use super::fault::{own, words};
use crate::served::ServedKind;

/// The resource with a kind's objects at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resource {
    /// The name of the kind in this API version.
    pub(super) kind: &'static str,
    /// `v1` or `group/version`.
    pub(super) api_version: &'static str,
    /// The path of all objects of the kind: `/api/v1/pods`.
    pub(super) path: String,
}

impl Resource {
    /// Returns the path of the objects in a namespace, or of all objects if `namespace` is empty.
    pub(super) fn path_in(&self, namespace: &str) -> String {
        match self.path.rsplit_once('/') {
            Some((group, plural)) if !namespace.is_empty() => {
                format!("{group}/namespaces/{namespace}/{plural}")
            }
            _ => self.path.clone(),
        }
    }
}

/// The resources that were found during a connection.
#[derive(Debug, Default)]
pub(super) struct Resources(Mutex<BTreeMap<ServedKind, Resource>>);

impl Resources {
    /// Returns the resource of a kind; see [`find`]. A kind that the server does not have is looked up again each time.
    pub(super) async fn find(
        &self,
        connection: &Connection,
        kind: ServedKind,
    ) -> kube::Result<Option<Resource>> {
        // A poisoned lock is not a problem, because each call leaves the map in a valid state.
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(resource) = known().get(&kind) {
            return Ok(Some(resource.clone()));
        }
        let found = find(connection, kind).await?;
        if let Some(found) = &found {
            known().insert(kind, found.clone());
        }
        Ok(found)
    }
}

/// Finds the resource of a kind. Returns `None` if the server has none ([`may_be_missing`]). If the server has several
/// versions of the kind, the first one of [`served_versions`] is used.
///
/// If a kind of policy counted as missing although it has objects, these policies would not be enforced, and traffic
/// would pass. So a kind counts as missing only if all of these conditions hold. Otherwise a missing kind is an error:
/// - The server's lists of groups and of resources do not contain the kind. An answer "not found" alone is not enough,
///   because it may come from something between client and server.
/// - The server was ready before this answer (`/readyz`). A starting server serves its lists before they are complete,
///   for CRDs and for extension API servers. An extension API server has no CRD. But its group is in the list of a
///   ready server as long as its `APIService` object exists, whether the extension server answers or not.
/// - There is no established CRD that says that the kind is served. Objects of a CRD cannot exist before the CRD is
///   established.
pub(super) async fn find(
    connection: &Connection,
    kind: ServedKind,
) -> kube::Result<Option<Resource>> {
    if !comes_by_crd(kind) {
        return find_served(connection, kind).await;
    }
    let ready = connection.bytes(get("/readyz")?).await;
    if let Some(found) = find_served(connection, kind).await? {
        return Ok(Some(found));
    }
    if let Err(error) = ready {
        let words = words(&error);
        return Err(own(format!(
            "the server does not serve it, and is not ready, so it may do so yet (/readyz: {words})"
        )));
    }
    match find_definition(connection, kind).await? {
        Some(name) => Err(own(format!(
            "CustomResourceDefinition {name} is there, and the server does not serve it yet"
        ))),
        None => Ok(None),
    }
}

/// Finds a kind's resource in the server's discovery lists.
pub(super) async fn find_served(
    connection: &Connection,
    kind: ServedKind,
) -> kube::Result<Option<Resource>> {
    let groups = connection.ask::<APIGroupList>(get("/apis")?).await?.groups;
    let served = |version: &str| {
        let all = groups.iter().flat_map(|group| &group.versions);
        // The core group is in no list, but every server has it.
        !version.contains('/') || all.clone().any(|it| it.group_version == version)
    };
    for api_version in served_versions(kind).filter(|version| served(version)) {
        let group = group_path(api_version);
        let list: APIResourceList = connection.ask(get(&group)?).await?;
        // A name with a slash is a subresource, such as `pods/status`.
        let mut resources = list.resources.into_iter().filter(|it| !it.name.contains('/'));
        let kind = kind.name_in(api_version);
        if let Some(resource) = resources.find(|resource| resource.kind == kind) {
            let path = format!("{group}/{}", resource.name);
            return Ok(Some(Resource { kind, api_version, path }));
        }
    }
    Ok(None)
}

/// Returns the name of a CRD that says that the server serves the kind.
async fn find_definition(
    connection: &Connection,
    kind: ServedKind,
) -> kube::Result<Option<String>> {
    for (group, name) in definitions(kind) {
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        let list = Request::new(DEFINITIONS).list(&params).map_err(Error::BuildRequest)?;
        let list: Value = connection.ask(list).await?;
        if list["kind"] != "CustomResourceDefinitionList" {
            return Err(own(format!(
                "asked for CustomResourceDefinitions, the server sent {}",
                list["kind"]
            )));
        }
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        if items.iter().any(|it| it["metadata"]["name"] == *name && serves(it, kind, group)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Returns whether the server serves the kind in a version that Manx reads, according to its CRD.
fn serves(definition: &Value, kind: ServedKind, group: &str) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let established = list(&definition["status"]["conditions"])
        .iter()
        .any(|it| it["type"] == "Established" && it["status"] == "True");
    let is_read = |it: &Value| {
        let version = format!("{group}/{}", it["name"].as_str().unwrap_or_default());
        it["served"] == true && kind.api_versions().contains(&&*version)
    };
    established && list(&definition["spec"]["versions"]).iter().any(is_read)
}

/// The path of CRDs.
pub(super) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Returns the groups of a kind, and the name of its CRD in each: the plural of the kind (formed as for Kubernetes' and
/// Calico's kinds), a dot, and the group. A kind that does not come from a CRD has none.
pub(super) fn definitions(kind: ServedKind) -> impl Iterator<Item = (&'static str, String)> {
    let versions = kind.api_versions().iter().filter(|_| comes_by_crd(kind));
    let groups = versions.filter_map(|version| {
        let (group, _) = version.split_once('/')?;
        Some((group, kind.name_in(version).to_ascii_lowercase()))
    });
    // All versions of one group have the same CRD.
    let groups: BTreeSet<(&str, String)> = groups.collect();
    groups.into_iter().map(|(group, name)| match name.strip_suffix('y') {
        Some(stem) => (group, format!("{stem}ies.{group}")),
        None if name.ends_with('s') => (group, format!("{name}es.{group}")),
        None => (group, format!("{name}s.{group}")),
    })
}

fn get(path: &str) -> kube::Result<hyper::Request<Vec<u8>>> {
    Request::new(path).list(&ListParams::default()).map_err(Error::BuildRequest)
}

/// Returns whether a server may lack the kind, because its CRD is not installed or the server is older than Kubernetes
/// 1.33.
pub(super) fn may_be_missing(kind: ServedKind) -> bool {
    comes_by_crd(kind) || kind == Kind::ServiceCidr.into()
}

/// Returns whether the kind comes from a CRD.
pub(super) fn comes_by_crd(kind: ServedKind) -> bool {
    let groups = ["projectcalico.org/", "policy.networking.k8s.io/"];
    kind.api_versions().iter().all(|version| groups.iter().any(|group| version.contains(group)))
}

/// Returns the versions in the order in which they are looked up. For Calico's two versions, the stored one comes
/// first. The other one may come from an extension API server that shows the same objects.
fn served_versions(kind: ServedKind) -> impl Iterator<Item = &'static str> {
    kind.api_versions().iter().rev().copied()
}

fn group_path(api_version: &str) -> String {
    if api_version.contains('/') {
        format!("/apis/{api_version}")
    } else {
        format!("/api/{api_version}")
    }
}

#[cfg(test)]
mod tests {
    use manx_objects::object::Kind;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_names_of_definitions_are_those_that_are_installed() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/manx.yaml");
        let text = std::fs::read_to_string(manifest).unwrap();
        let installed: Vec<&str> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("metadata: {name: ")?.split('}').next())
            .filter(|name| name.ends_with(".projectcalico.org"))
            .collect();
        assert!(installed.len() >= 10, "{installed:?}");
        for name in installed {
            let kinds = Kind::ALL.into_iter().map(ServedKind::from).chain(ServedKind::IPAM);
            let kinds = kinds.chain([ServedKind::NodeStatus]);
            let mut names = kinds.flat_map(definitions);
            assert!(names.any(|(_, it)| it == name), "{name}");
        }
    }

    #[test]
    fn a_definition_counts_when_it_is_established_and_serves_a_version_that_is_read() {
        let of = |established: &str, version: &str, served: bool| {
            json!({
                "spec": { "versions": [{ "name": version, "served": served }] },
                "status": { "conditions": [{ "type": "Established", "status": established }] },
            })
        };
        let serves = |it: &Value| serves(it, Kind::Tier.into(), "projectcalico.org");
        assert!(serves(&of("True", "v3", true)));
        assert!(!serves(&of("False", "v3", true)));
        assert!(!serves(&of("True", "v3", false)));
        assert!(!serves(&of("True", "v4", true)));
        assert!(!serves(&json!({})));
    }
}
