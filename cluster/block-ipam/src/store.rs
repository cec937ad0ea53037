//! The store of blocks, affinities and handles, with these operations: get, list, create, compare-and-swap, delete.
//!
//! A writer names the revision that it has read. Nothing is written if the record has another revision now. If a writer
//! crashes, its write was done completely, or not at all, or it is still in progress and will be done later.

use std::fmt;

use ipnet::IpNet;

use crate::affinity::{Affinity, Owner};
use crate::block::Block;
use crate::handle::Handle;

/// The name of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Block(IpNet),
    Affinity(Owner, IpNet),
    Handle(String),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(cidr) => write!(f, "IPAMBlock of {cidr}"),
            Self::Affinity(owner, cidr) => write!(f, "BlockAffinity of {owner} to {cidr}"),
            Self::Handle(id) => write!(f, "IPAMHandle {id}"),
        }
    }
}

/// Any record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Block(Block),
    Affinity(Affinity),
    Handle(Handle),
}

impl Record {
    pub fn key(&self) -> Key {
        match self {
            Self::Block(block) => Key::Block(block.cidr),
            Self::Affinity(Affinity { owner, cidr, .. }) => Key::Affinity(owner.clone(), *cidr),
            Self::Handle(handle) => Key::Handle(handle.id.clone()),
        }
    }
}

/// The records to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    Blocks,
    Affinities,
    AffinitiesOf(Owner),
    Handles,
}

/// The reason why a record was not read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The record has another revision, exists already, or is gone. The caller should read the record again and make a
    /// new decision.
    #[error("another writer was first")]
    Conflict,
    /// The record cannot be parsed. Nothing is decided from it, and it stays as it is.
    #[error("{record} is damaged: {reason}")]
    Damaged {
        /// The record's description.
        record: String,
        /// The fault, and the expected value.
        reason: String,
    },
    /// The store permanently refuses the request.
    #[error("{0}")]
    Refused(String),
    /// The store does not answer. A write may have been done, or may still be done later.
    #[error("{0}")]
    Unreachable(String),
}

/// See the module. If the caller drops the future of a call before it is ready, the operation may be done, not be done,
/// or be done later.
pub trait Store: Sync {
    /// A version of a record. It contains everything that the store needs to write the record again.
    type Revision: Clone + fmt::Debug + Send + Sync;

    /// Reads a record; `None` if there is none.
    fn get(
        &self,
        key: &Key,
    ) -> impl Future<Output = Result<Option<(Record, Self::Revision)>, StoreError>> + Send;

    /// Lists records.
    fn list(
        &self,
        which: &Which,
    ) -> impl Future<Output = Result<Vec<(Record, Self::Revision)>, StoreError>> + Send;

    /// Creates a record. Returns [`StoreError::Conflict`] if it exists.
    fn create(
        &self,
        record: Record,
    ) -> impl Future<Output = Result<Self::Revision, StoreError>> + Send;

    /// Replaces a record, if it still has this revision.
    fn swap(
        &self,
        revision: &Self::Revision,
        record: Record,
    ) -> impl Future<Output = Result<Self::Revision, StoreError>> + Send;

    /// Deletes a record, if it still has this revision. It is not an error if the record is already gone.
    fn delete(
        &self,
        revision: &Self::Revision,
        record: Record,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A record of one type, as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Found<T, R> {
    pub(crate) value: T,
    pub(crate) revision: R,
}

/// A type of record.
pub(crate) trait Kept:
    Clone + Into<Record> + TryFrom<Record, Error = Record> + Send
{
}

macro_rules! kept {
    ($($kind:ident),*) => {$(
        impl From<$kind> for Record {
            fn from(value: $kind) -> Self {
                Self::$kind(value)
            }
        }

        impl TryFrom<Record> for $kind {
            type Error = Record;

            fn try_from(record: Record) -> Result<Self, Record> {
                match record {
                    Record::$kind(value) => Ok(value),
                    other => Err(other),
                }
            }
        }

        impl Kept for $kind {}
    )*};
}

kept!(Block, Affinity, Handle);

fn typed<T: Kept, R>((record, revision): (Record, R)) -> Result<Found<T, R>, StoreError> {
    match T::try_from(record) {
        Ok(value) => Ok(Found { value, revision }),
        Err(other) => Err(StoreError::Damaged {
            record: other.key().to_string(),
            reason: "the store holds another kind of record there".to_owned(),
        }),
    }
}

pub(crate) async fn get<T: Kept, S: Store>(
    store: &S,
    key: &Key,
) -> Result<Option<Found<T, S::Revision>>, StoreError> {
    store.get(key).await?.map(typed).transpose()
}

pub(crate) async fn list<T: Kept, S: Store>(
    store: &S,
    which: &Which,
) -> Result<Vec<Found<T, S::Revision>>, StoreError> {
    store.list(which).await?.into_iter().map(typed).collect()
}

pub(crate) async fn create<T: Kept, S: Store>(
    store: &S,
    value: T,
) -> Result<Found<T, S::Revision>, StoreError> {
    let revision = store.create(value.clone().into()).await?;
    Ok(Found { value, revision })
}

pub(crate) async fn swap<T: Kept, S: Store>(
    store: &S,
    revision: &S::Revision,
    value: T,
) -> Result<Found<T, S::Revision>, StoreError> {
    let revision = store.swap(revision, value.clone().into()).await?;
    Ok(Found { value, revision })
}

pub(crate) async fn delete<T: Kept, S: Store>(
    store: &S,
    found: Found<T, S::Revision>,
) -> Result<(), StoreError> {
    store.delete(&found.revision, found.value.into()).await
}
