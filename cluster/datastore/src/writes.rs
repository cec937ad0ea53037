//! Single objects, read and written. A write is done, or is refused because another writer was first.
//!
//! A source follows objects, and is always a little late. A writer that decides by the value of an object reads it here,
//! and writes it only if it is still the same. So no writer undoes a change that it has not seen.

use manx_objects::object::{Kind, ObjectKey};
use serde_json::Value;

/// Identifies a value of one object: the server gives each value another revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(pub(crate) String);

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
    NotServed(Kind),
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
/// An object has the name by which the server knows it. A value is the object's JSON; the fields of the key (kind, API
/// version, name, namespace) may be left out.
pub trait Writes {
    /// Reads an object; `None` if it does not exist.
    fn get(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Option<(Value, Revision)>, WriteError>> + Send;

    /// Reads all objects of a kind.
    fn list(
        &self,
        kind: Kind,
    ) -> impl Future<Output = Result<Vec<(ObjectKey, Value, Revision)>, WriteError>> + Send;

    /// Makes an object, unless there is one: [`WriteError::Conflict`].
    fn create(
        &self,
        key: &ObjectKey,
        value: Value,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// Replaces an object if it still has this revision; if not: [`WriteError::Conflict`].
    fn compare_and_swap(
        &self,
        key: &ObjectKey,
        revision: &Revision,
        value: Value,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;
}
