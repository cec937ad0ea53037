//! Stores of records about addresses. A record is read, and changed by compare-and-swap.
//!
//! A record is bytes; a store knows nothing of addresses. A writer names the revision that it has read. If the record has
//! another revision by now, nothing is written. So several writers may change the same record. If a writer crashes, the
//! record has either changed as a whole or not at all.

use std::io;

/// The name of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The host that it belongs to.
    pub host: String,
    /// Its name among the host's records.
    pub name: String,
}

/// A version of a record. Every change gives the record a new version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(pub String);

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub key: Key,
    pub revision: Revision,
    pub value: Vec<u8>,
}

/// The result of a compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    /// The record has the new value and this revision.
    Done(Revision),
    /// The record had another revision, and was not changed.
    Conflict,
}

/// The reason why a record cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{record} cannot be {verb}: {source}")]
pub struct Error {
    /// The record's description for people.
    pub record: String,
    /// `read` or `written`.
    pub verb: &'static str,
    pub source: io::Error,
    /// Whether the record is certainly unchanged. Otherwise the write may have been done.
    pub is_undone: bool,
}

/// See the module. A call whose future is dropped may have been done or not.
pub trait Store: Send + Sync + 'static {
    /// Reads a record, if there is one.
    fn get(&self, key: &Key) -> impl Future<Output = Result<Option<Record>, Error>> + Send;

    /// Writes a record if it has the `expected` revision; `None` means that there must be no record. The value is durable
    /// when this returns.
    fn compare_and_swap(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        value: Vec<u8>,
    ) -> impl Future<Output = Result<Swap, Error>> + Send;

    /// Reads all records of a host.
    fn list(&self, host: &str) -> impl Future<Output = Result<Vec<Record>, Error>> + Send;

    /// Describes a record for people: `the address file /run/x.addresses`.
    fn describe(&self, key: &Key) -> String;
}
