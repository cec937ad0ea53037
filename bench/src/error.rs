//! The errors of measurements.

use std::io;

use manx_api::client;
use manx_linux::netlink;
use manx_linux::netns;

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    /// An interface, address or route could not be set up.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// A setting under `/proc/sys/net` failed.
    #[error(transparent)]
    Sysctl(#[from] netns::sysctl::Error),
    /// An agent's answer is an error.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A system call or file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed.
        what: String,
        source: io::Error,
    },
    /// A process did not become ready in time, or has failed.
    #[error("{what}\n{log}")]
    Process {
        /// The step that failed, in words.
        what: String,
        /// The last lines of its log.
        log: String,
    },
    /// A precondition, or a measurement that uses no devices, failed.
    #[error("{0}")]
    Failed(String),
    /// No packet arrived: the path does not carry this traffic, so there is no figure.
    #[error("nothing arrived: {0}")]
    Nothing(String),
}

/// Returns a function for `map_err` on the system's errors.
pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// Returns a function for `map_err` on errors that carry only an `errno`.
pub fn errno(what: impl Into<String>) -> impl FnOnce(nix::errno::Errno) -> Error {
    let what = what.into();
    move |errno| Error::Io { what, source: errno.into() }
}

/// Any error of a part that measures without devices. Its text becomes an [`Error::Failed`].
pub type Failure = Box<dyn std::error::Error>;
