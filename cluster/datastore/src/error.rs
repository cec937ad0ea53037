//! The errors of sources of objects.

use std::path::PathBuf;

/// The reason why a source cannot be opened, read once, or written to. Later faults are not returned as errors;
/// [`Source::stale`](crate::Source::stale) reports them.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The directory does not exist.
    #[error(
        "there is no directory {0} to read manifests from: make it, or name another by --datastore"
    )]
    NoDirectory(PathBuf),
    /// A part of a directory could not be read.
    #[error(
        "the datastore {0} cannot be read whole, and until it is nothing may pass: {1}; correct it and start again"
    )]
    NotInSync(PathBuf, String),
    /// The kubeconfig, or a file that it names, cannot be used.
    #[error("kubeconfig {file}: {reason}")]
    Kubeconfig { file: String, reason: String },
    /// No setting names the server.
    #[error(
        "no API server is named, and this is no pod of a cluster ({0}): expected --kubeconfig FILE (KUBECONFIG), or \
         --api-endpoint URL (K8S_API_ENDPOINT) with a certificate or token"
    )]
    Nowhere(String),
    /// The objects cannot be read.
    #[error("{kind} of {server} cannot be read: {reason}")]
    Unreadable {
        server: String,
        /// The kind of objects.
        kind: &'static str,
        /// The server's message, or the reason why there is no answer.
        reason: String,
    },
    /// An object cannot be created.
    #[error("no {kind} can be made at {server}: {reason}")]
    Unmade {
        server: String,
        /// The kind of the object.
        kind: &'static str,
        reason: String,
    },
    /// No client can be made from the settings.
    #[error("no client can be made for {server}: {reason}")]
    Client { server: String, reason: String },
}
