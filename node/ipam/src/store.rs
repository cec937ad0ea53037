//! Where records about addresses are kept: read, and changed by compare-and-swap.
//!
//! A record is bytes; a store knows nothing of addresses. A writer names the revision that it has read, and nothing is
//! written if the record has another revision by now. So several writers may change the same records. A writer that
//! crashes has changed each record as a whole, or not at all.

use std::io;

/// The name of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The host that it belongs to.
    pub host: String,
    /// What it is called among the host's.
    pub name: String,
}

/// A version of a record. Every change gives it another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(pub String);

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its name.
    pub key: Key,
    /// Its revision.
    pub revision: Revision,
    /// What it says.
    pub value: Vec<u8>,
}

/// What has become of a compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    /// The record has the new value, and this revision.
    Done(Revision),
    /// It had another revision, and is as it was.
    Conflict,
}

/// Why a record cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{record} cannot be {verb}: {source}")]
pub struct Error {
    /// The record, as people call it.
    pub record: String,
    /// `read` or `written`.
    pub verb: &'static str,
    /// Why.
    pub source: io::Error,
    /// Whether the record is certainly as it was. If not, a write may have been done.
    pub is_undone: bool,
}

/// See the module. A call that is given up has been done or not.
pub trait Store: Send + Sync + 'static {
    /// A record, if there is one.
    fn get(&self, key: &Key) -> impl Future<Output = Result<Option<Record>, Error>> + Send;

    /// Writes a record that has this revision; `None`: that is not there. It is kept when this returns.
    fn compare_and_swap(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        value: Vec<u8>,
    ) -> impl Future<Output = Result<Swap, Error>> + Send;

    /// All records of a host.
    fn list(&self, host: &str) -> impl Future<Output = Result<Vec<Record>, Error>> + Send;

    /// What people call a record: `the address file /run/x.addresses`.
    fn describe(&self, key: &Key) -> String;
}
