//! The objects of Kubernetes and Calico as they are written: this crate turns text into wire types, with the position
//! of every value.
//!
//! The layers, in order, with the limits of each:
//! - `json`, [`yaml`]: text to [`tree`]; they know nothing of Kubernetes.
//! - [`scalar`]: the value of a plain scalar; the only place where YAML's version matters.
//! - decoders, one for each kind: they turn a tree into an [`object`] and check it as the API server does; they apply
//!   no defaults.
//! - `intent`: parts of a policy that are valid but probably not what the author meant.
//! - [`settings`]: the effect that each field of Calico's kinds has in Manx, if it has any.
//! - [`read`]: all objects of a file. An invalid object is still there, as [`State::Invalid`], so that it can fail
//!   closed; the other objects of the file load.
//! - [`locate`]: the place of a field in the text, for problems that are found only when all objects are compared.
//! - [`contents`]: all objects of a cluster, from any source.
//!
//! This crate reads no file, applies no default and does not know what a policy means.
//!
//! Not supported: YAML tags other than those of JSON's types; JSON's surrogate escapes (`\ud83d\ude00`) in a text that
//! is not entirely JSON.

mod calico;
mod claimed_kind;
mod cluster;
pub mod code;
pub mod contents;
mod cursor;
mod decode;
mod endpoint_slice;
mod endpoints;
mod few;
mod intent;
mod invalid;
mod json;
mod label_selector;
mod locate;
mod metadata;
mod namespace;
mod network_policy;
mod node;
pub mod object;
mod other_workload;
mod pod;
pub mod problem;
mod read;
mod revision_order;
pub mod scalar;
mod service;
pub mod settings;
mod severity;
mod syntax;
#[cfg(test)]
mod tests;
pub mod tree;
#[cfg(test)]
mod trees;
mod unrelated;
mod workload;
pub mod yaml;

pub use cursor::Tally;
pub use few::few;
pub use invalid::Invalid;
pub use locate::locate;
pub use namespace::NAMESPACE_NAME;
pub use read::{Entry, Manifest, State, read};
