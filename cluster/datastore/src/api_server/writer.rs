//! Reads and writes single objects of the API server. A revision consists of `resourceVersion` and `uid`.

use std::collections::BTreeMap;
use std::fmt;

use kube::api::{
    DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use kube::core::{Request, request};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::access::Access;
use super::connection::Connection;
use super::fault::{code, is_passing, words};
use super::follow::{SILENCE, WATCH, read_pages};
use super::own_addresses;
use super::resource::{Resource, Resources};
use crate::error::SourceError;
use crate::served::{ServedKey, ServedKind};
use crate::writes::{Revision, WriteError, Writes};

/// The version with which a watch begins with all existing objects.
const FROM_THE_START: &str = "0";

/// Reads and writes single objects of one API server. When the server does not answer, the caller should open another
/// writer, which reads certificates and tokens again.
pub struct Writer {
    connection: Connection,
    resources: Resources,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    /// Makes a writer, without sending a request yet.
    ///
    /// # Errors
    /// Returns an error if `access` and the kubeconfig name no server.
    pub async fn open(access: &Access) -> Result<Self, SourceError> {
        Ok(Self { connection: access.connect().await?, resources: Resources::default() })
    }

    /// Writes annotations of a Node with a patch of `nodes/status`, which may change annotations but not the spec.
    /// `None` removes an annotation.
    pub async fn annotate_node(
        &self,
        name: &str,
        annotations: &BTreeMap<&'static str, Option<String>>,
    ) -> Result<(), WriteError> {
        self.ask(own_addresses::patch(name, annotations)).await?;
        Ok(())
    }

    /// Watches the objects of a kind. `seen` is first called for each existing object, and then for each object that
    /// changes or is removed, in its last state. The server ends the watch after some minutes, and this function then
    /// returns. The next watch begins with all objects again. So a caller that misses a change gets the object's new
    /// state after a few minutes at most. A caller that misses a removal is never informed of it.
    ///
    /// # Errors
    /// Returns an error if the server does not answer, does not serve the kind, or refuses the request.
    pub async fn watch(
        &self,
        kind: ServedKind,
        mut seen: impl FnMut(&ServedKey, &Value),
    ) -> Result<(), WriteError> {
        let resource = self.resource(kind).await?;
        let params = WatchParams::default().timeout(WATCH);
        let request = Request::new(resource.path).watch(&params, FROM_THE_START);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let mut lines = self.connection.watch(request).await?;
        loop {
            let Ok(event) = timeout(SILENCE, lines.next()).await else {
                let silence = SILENCE.as_secs();
                return Err(WriteError::Unreachable(format!(
                    "nothing came for {silence} s, neither an event nor the watch's end"
                )));
            };
            match event? {
                None => return Ok(()),
                Some(
                    WatchEvent::Added(object)
                    | WatchEvent::Modified(object)
                    | WatchEvent::Deleted(object),
                ) => seen(&key(kind, &object), &object),
                Some(WatchEvent::Bookmark(_)) => {}
                Some(WatchEvent::Error(status)) => return Err(kube::Error::Api(status).into()),
            }
        }
    }

    async fn resource(&self, kind: ServedKind) -> Result<Resource, WriteError> {
        let found = self.resources.find(&self.connection, kind).await?;
        found.ok_or(WriteError::NotServed(kind))
    }

    pub(super) async fn ask(
        &self,
        request: Result<hyper::Request<Vec<u8>>, request::Error>,
    ) -> kube::Result<Value> {
        self.connection.ask(request.map_err(kube::Error::BuildRequest)?).await
    }
}

impl Writes for Writer {
    async fn api_version(&self, kind: ServedKind) -> Result<&'static str, WriteError> {
        Ok(self.resource(kind).await?.api_version)
    }

    async fn get(&self, key: &ServedKey) -> Result<Option<(Value, Revision)>, WriteError> {
        let path = self.resource(key.kind).await?.path_in(&key.namespace);
        let found = Request::new(path).get(&key.name, &GetParams::default());
        match self.ask(found).await {
            Err(error) if code(&error) == Some(404) => Ok(None),
            found => {
                let found = found?;
                let revision = revision(&found)?;
                Ok(Some((found, revision)))
            }
        }
    }

    async fn list(
        &self,
        kind: ServedKind,
        labels: &str,
    ) -> Result<Vec<(ServedKey, Value, Revision)>, WriteError> {
        let resource = self.resource(kind).await?;
        let (all, _) = read_pages(&self.connection, &resource, labels, |object| object).await?;
        let one = |object| {
            let revision = revision(&object)?;
            Ok((key(kind, &object), object, revision))
        };
        all.into_iter().map(one).collect()
    }

    async fn read_each<T: Send>(
        &self,
        kind: ServedKind,
        labels: &str,
        read: impl Fn(&ServedKey, Value) -> T + Send + Sync,
    ) -> Result<Vec<T>, WriteError> {
        let resource = self.resource(kind).await?;
        let one = |object| read(&key(kind, &object), object);
        let (all, _) = read_pages(&self.connection, &resource, labels, one).await?;
        Ok(all)
    }

    async fn create(&self, key: &ServedKey, value: Value) -> Result<Revision, WriteError> {
        let resource = self.resource(key.kind).await?;
        let body = body(&resource, key, value);
        let path = Request::new(resource.path_in(&key.namespace));
        revision(&self.ask(path.create(&PostParams::default(), body)).await?)
    }

    async fn compare_and_swap(
        &self,
        key: &ServedKey,
        revision: &Revision,
        mut value: Value,
    ) -> Result<Revision, WriteError> {
        let resource = self.resource(key.kind).await?;
        // Without a version, the server would replace any version of the object.
        value["metadata"]["resourceVersion"] = revision.version.as_str().into();
        // A version belongs to a single object, so the uid is not needed. With a uid, the server would answer 409 for
        // an object that is gone.
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("uid");
        }
        let body = body(&resource, key, value);
        let path = Request::new(resource.path_in(&key.namespace));
        match self.ask(path.replace(&key.name, &PostParams::default(), body)).await {
            Err(error) if code(&error) == Some(404) => Err(WriteError::Gone),
            replaced => self::revision(&replaced?),
        }
    }

    async fn write_status(
        &self,
        key: &ServedKey,
        revision: &Revision,
        fields: Value,
    ) -> Result<Revision, WriteError> {
        let path = self.resource(key.kind).await?.path_in(&key.namespace);
        // The server checks the version that a patch contains. A merge patch replaces lists as a whole.
        let metadata = json!({ "resourceVersion": revision.version });
        let patch = Patch::Merge(json!({ "metadata": metadata, "status": fields }));
        let request = Request::new(path);
        let patched =
            request.patch_subresource("status", &key.name, &PatchParams::default(), &patch);
        match self.ask(patched).await {
            Err(error) if code(&error) == Some(404) => Err(WriteError::Gone),
            patched => self::revision(&patched?),
        }
    }

    async fn delete(&self, key: &ServedKey, revision: &Revision) -> Result<(), WriteError> {
        let path = self.resource(key.kind).await?.path_in(&key.namespace);
        let Revision { version, uid } = revision.clone();
        let preconditions = Some(Preconditions { resource_version: Some(version), uid });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.ask(Request::new(path).delete(&key.name, &params)).await {
            Err(error) if code(&error) == Some(404) => Ok(()),
            deleted => Ok(deleted.map(drop)?),
        }
    }
}

/// Returns the key by which the server knows an object.
fn key(kind: ServedKind, object: &Value) -> ServedKey {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    ServedKey::new(kind, text("namespace"), text("name"))
}

/// Returns the JSON of an object, with the fields of its key.
fn body(resource: &Resource, key: &ServedKey, mut value: Value) -> Vec<u8> {
    value["apiVersion"] = resource.api_version.into();
    value["kind"] = resource.kind.into();
    value["metadata"]["name"] = key.name.as_str().into();
    if !key.namespace.is_empty() {
        value["metadata"]["namespace"] = key.namespace.as_str().into();
    }
    value.to_string().into_bytes()
}

fn revision(object: &Value) -> Result<Revision, WriteError> {
    let text = |field: &str| {
        let text = object["metadata"][field].as_str().filter(|it| !it.is_empty());
        text.map(ToOwned::to_owned)
    };
    let revision = text("resourceVersion").map(|version| Revision { version, uid: text("uid") });
    revision.ok_or_else(|| {
        let name = &object["metadata"]["name"];
        WriteError::Unreachable(format!(
            "the server sent the object {name} without metadata.resourceVersion, expected one: what answers is no API \
             server"
        ))
    })
}

/// Converts the error of a request that creates, replaces or deletes an object.
impl From<kube::Error> for WriteError {
    fn from(error: kube::Error) -> Self {
        match code(&error) {
            Some(409) => Self::Conflict,
            _ if is_passing(&error) => Self::Unreachable(words(&error)),
            _ => Self::Refused(words(&error)),
        }
    }
}

#[cfg(test)]
mod tests;
