//! Single objects, read and written. A write is done, or is refused because another writer was first.
//!
//! A source follows objects, and is always a little late. A writer that decides by the value of an object reads it here,
//! and writes it only if it is still the same. So no writer undoes a change that it has not seen.

use serde_json::Value;

use crate::served::{ServedKey, ServedKind};

/// Identifies a value of one object: the server gives each value another revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The server's version of the value.
    pub(crate) version: String,
    /// Identifies the object among all that ever had its key; `None`: the server has no such identity.
    pub(crate) uid: Option<String>,
}

impl Revision {
    /// The server's version of the value.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The server's identity of the object among all that ever had its key.
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }
}

/// The reason why an object was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another writer was first: the object exists, or has another revision. Read it, and decide anew.
    #[error("another writer was first")]
    Conflict,
    /// The object that was to be replaced is gone.
    #[error("the object is gone")]
    Gone,
    /// The server does not serve this kind, which may be installed later.
    #[error("the server serves no {0}")]
    NotServed(ServedKind),
    /// The server refuses it for good, with this message.
    #[error("{0}")]
    Refused(String),
    /// The server does not answer, or cannot do it now, for this reason. The write may have been done: read the object
    /// to find out.
    #[error("{0}")]
    Unreachable(String),
}

/// A store in which objects are read and written.
///
/// An object has the name by which the server knows it. A value is the object's JSON, in the [API version] that the
/// server serves; the fields of the key (kind, API version, name, namespace) may be left out of a value that is written.
///
/// A write that names a revision is done only if the object still has it. [`WriteError::Conflict`] then says that
/// another writer was first, or that the write was sent twice: read the object, and decide anew.
///
/// [API version]: Self::api_version
pub trait Writes {
    /// The API version of the kind's values, which decides how some fields are written: `spec.deleted` of a
    /// `BlockAffinity` is the text `"true"` or `"false"` in `crd.projectcalico.org/v1`, and a boolean in
    /// `projectcalico.org/v3`. It stays the same for as long as the store is open.
    fn api_version(
        &self,
        kind: ServedKind,
    ) -> impl Future<Output = Result<&'static str, WriteError>> + Send;

    /// Reads an object; `None` if it does not exist.
    fn get(
        &self,
        key: &ServedKey,
    ) -> impl Future<Output = Result<Option<(Value, Revision)>, WriteError>> + Send;

    /// Reads the objects of a kind that a label selector of Kubernetes matches (`color=red,size!=big`); an empty one
    /// matches all.
    fn list(
        &self,
        kind: ServedKind,
        labels: &str,
    ) -> impl Future<Output = Result<Vec<(ServedKey, Value, Revision)>, WriteError>> + Send;

    /// Reads the objects of a kind as [`list`](Self::list), one after the other, and keeps only what `read` makes of each:
    /// a cluster has more pods than memory has room for.
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

    /// Makes an object, unless there is one: [`WriteError::Conflict`].
    fn create(
        &self,
        key: &ServedKey,
        value: Value,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// Replaces an object if it still has this revision; if not: [`WriteError::Conflict`].
    fn compare_and_swap(
        &self,
        key: &ServedKey,
        revision: &Revision,
        value: Value,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// Replaces fields of an object's `status` if the object still has this revision; if not: [`WriteError::Conflict`]. Its
    /// other fields stay. The kind has the subresource `status`.
    fn write_status(
        &self,
        key: &ServedKey,
        revision: &Revision,
        fields: Value,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// Deletes an object if it still has this revision; if not: [`WriteError::Conflict`]. An object that is gone is no
    /// error, so a delete without an answer may be sent again. An object with finalizers stays until these are removed.
    fn delete(
        &self,
        key: &ServedKey,
        revision: &Revision,
    ) -> impl Future<Output = Result<(), WriteError>> + Send;
}
