//! Reads and writes single objects. A write either succeeds, or is refused because another writer was first.
//!
//! A source that follows objects is always a little late. So a writer whose decision depends on an object reads the
//! object here, and writes it only if it has not changed. Then no writer reverts a change that it has not seen.

use serde_json::Value;

use crate::served::{ServedKey, ServedKind};

/// Identifies one value of an object: the server gives each value another revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The server's version of the value.
    pub(crate) version: String,
    /// Identifies the object among all objects that have ever had its key. `None` if the server has no such identity.
    pub(crate) uid: Option<String>,
}

impl Revision {
    /// Returns the server's version of the value.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the server's identity of the object among all objects that have ever had its key.
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }
}

/// The reason why an object was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another writer was first: the object exists, or has another revision. The caller should read it and make a new
    /// decision.
    #[error("another writer was first")]
    Conflict,
    /// The object that was to be replaced is gone.
    #[error("the object is gone")]
    Gone,
    /// The server does not serve this kind. The kind may be installed later.
    #[error("the server serves no {0}")]
    NotServed(ServedKind),
    /// The server permanently refuses the request, with this message.
    #[error("{0}")]
    Refused(String),
    /// The server does not answer or cannot do this now, for this reason. The write may have been done; the caller can
    /// read the object to find out.
    #[error("{0}")]
    Unreachable(String),
}

/// A store in which objects are read and written.
///
/// An object is identified by the name that the server uses. A value is the object's JSON in the [API version] that the
/// server serves. A value that is written may omit the fields of the key (kind, API version, name, namespace).
///
/// A write that names a revision is done only if the object still has this revision. [`WriteError::Conflict`] then
/// means that another writer was first, or that the write was sent twice. The caller should read the object and make a
/// new decision.
///
/// [API version]: Self::api_version
pub trait Writes {
    /// Returns the API version of the kind's values. It determines how some fields are written: `spec.deleted` of a
    /// `BlockAffinity` is the text `"true"` or `"false"` in `crd.projectcalico.org/v1`, and a boolean in
    /// `projectcalico.org/v3`. It does not change as long as the store is open.
    fn api_version(
        &self,
        kind: ServedKind,
    ) -> impl Future<Output = Result<&'static str, WriteError>> + Send;

    /// Reads an object; `None` if it does not exist.
    fn get(
        &self,
        key: &ServedKey,
    ) -> impl Future<Output = Result<Option<(Value, Revision)>, WriteError>> + Send;

    /// Reads the objects of a kind that a label selector of Kubernetes matches (`color=red,size!=big`). An empty
    /// selector matches all.
    fn list(
        &self,
        kind: ServedKind,
        labels: &str,
    ) -> impl Future<Output = Result<Vec<(ServedKey, Value, Revision)>, WriteError>> + Send;

    /// Like [`list`](Self::list), but reads the objects one after the other and stores only the results of `read`. This
    /// matters because all pods of a cluster may not fit into memory.
    fn read_each<T: Send>(
        &self,
        kind: ServedKind,
        labels: &str,
        read: impl Fn(&ServedKey, Value) -> T + Send + Sync,
    ) -> impl Future<Output = Result<Vec<T>, WriteError>> + Send
    where
        Self: Sync,
    {
        async move {
            let all = self.list(kind, labels).await?;
            Ok(all.into_iter().map(|(key, value, _)| read(&key, value)).collect())
        }
    }

    /// Creates an object. Returns [`WriteError::Conflict`] if it exists.
    fn create(
        &self,
        key: &ServedKey,
        value: Value,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// Replaces an object if it still has this revision, and otherwise returns [`WriteError::Conflict`].
    fn compare_and_swap(
        &self,
        key: &ServedKey,
        revision: &Revision,
        value: Value,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// Replaces fields of an object's `status` if the object still has this revision, and otherwise returns
    /// [`WriteError::Conflict`]. The other fields of the status stay. The kind must have the subresource `status`.
    fn write_status(
        &self,
        key: &ServedKey,
        revision: &Revision,
        fields: Value,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// Deletes an object if it still has this revision, and otherwise returns [`WriteError::Conflict`]. It is not an
    /// error if the object is already gone, so a delete whose answer was lost may be sent again. An object with
    /// finalizers stays until they are removed.
    fn delete(
        &self,
        key: &ServedKey,
        revision: &Revision,
    ) -> impl Future<Output = Result<(), WriteError>> + Send;
}
