//! Which resources of the API hold the objects of a kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::Client;
use kube::core::Request;
use manx_objects::object::Kind;

/// Where the objects of a kind are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resource {
    /// The kind.
    pub(super) kind: Kind,
    /// `v1` or `group/version`.
    pub(super) api_version: &'static str,
    /// The path of all of them: `/api/v1/pods`.
    pub(super) path: String,
}

impl Resource {
    /// The path of those in a namespace; of all if it is empty.
    pub(super) fn path_in(&self, namespace: &str) -> String {
        match self.path.rsplit_once('/') {
            Some((group, plural)) if !namespace.is_empty() => {
                format!("{group}/namespaces/{namespace}/{plural}")
            }
            _ => self.path.clone(),
        }
    }
}

/// Finds the resource of a kind; `None`: the server has none, because its CRD is not installed. If the server has
/// several versions of it, the first one of [`served_versions`] counts.
///
/// Only what the server itself says makes a kind missing: its list of groups lacks the group, or the group's list lacks
/// the kind. "Not found" alone may come from something on the way, and is an error.
pub(super) async fn find(client: &Client, kind: Kind) -> kube::Result<Option<Resource>> {
    let groups = client.list_api_groups().await?.groups;
    let served = |version: &str| {
        let all = groups.iter().flat_map(|group| &group.versions);
        // The core group stands in no list, and every server has it.
        !version.contains('/') || all.clone().any(|it| it.group_version == version)
    };
    for api_version in served_versions(kind).filter(|version| served(version)) {
        let group = group_path(api_version);
        let request = Request::new(group.clone()).list(&kube::api::ListParams::default());
        let list = client.request::<APIResourceList>(request.map_err(kube::Error::BuildRequest)?);
        let list = list.await?;
        // A name with a slash is a subresource: pods/status.
        let mut resources = list.resources.into_iter().filter(|it| !it.name.contains('/'));
        if let Some(resource) = resources.find(|resource| resource.kind == kind.name()) {
            let path = format!("{group}/{}", resource.name);
            return Ok(Some(Resource { kind, api_version, path }));
        }
    }
    Ok(None)
}

/// Whether a server may lack the kind.
pub(super) fn comes_by_crd(kind: Kind) -> bool {
    let groups = ["projectcalico.org/", "policy.networking.k8s.io/"];
    kind.api_versions().iter().all(|version| groups.iter().any(|group| version.contains(group)))
}

/// The versions in the order in which they are looked for. Of Calico's two, the stored one comes first: the other may
/// be an extension API server that shows the same objects.
fn served_versions(kind: Kind) -> impl Iterator<Item = &'static str> {
    kind.api_versions().iter().rev().copied()
}

fn group_path(api_version: &str) -> String {
    if api_version.contains('/') {
        format!("/apis/{api_version}")
    } else {
        format!("/api/{api_version}")
    }
}
