//! What the runtime is told when it does not work.

use std::io;

use manx_api::{ErrorKind, client};
use serde_json::json;

use crate::{VERSIONS, request};

/// Why a request was not done. The codes are those of the CNI specification ("Error"); from 100 on they are the
/// plugin's own.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is of another version.
    #[error("found cniVersion {found:?}, expected {}", VERSIONS.join(", "))]
    Version {
        /// What it says.
        found: String,
    },
    /// The configuration asks for what this kind of device does not have.
    #[error("{0}")]
    Unsupported(String),
    /// The agent has nothing of this container.
    #[error("{0}")]
    Unknown(String),
    /// A variable is missing or of no use.
    #[error("variable {name}: found {found}, expected {expected}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What it holds.
        found: String,
        /// What is wanted.
        expected: &'static str,
    },
    /// Standard input cannot be read.
    #[error("the network configuration on standard input cannot be read: {0}")]
    Input(io::Error),
    /// The configuration does not parse.
    #[error("the network configuration on standard input does not parse: {0}")]
    Configuration(#[from] serde_json::Error),
    /// A value of the configuration is of no use.
    #[error("network configuration, {field}: found {found}, expected {expected}")]
    Value {
        /// The field's path.
        field: &'static str,
        /// What it holds.
        found: String,
        /// What is wanted.
        expected: &'static str,
    },
    /// The agent is not there, or does not answer.
    #[error("the node agent cannot be asked: {0}")]
    NoAgent(client::Error),
    /// The node cannot take pods now (STATUS).
    #[error("the node takes no pods now: {0}")]
    NotReady(String),
    /// The agent refuses.
    #[error("the node agent refuses: {0}")]
    Refused(client::Error),
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        match &error {
            client::Error::Refused(_) => Self::Refused(error),
            _ => Self::NoAgent(error),
        }
    }
}

impl Error {
    /// The code.
    pub const fn code(&self) -> u32 {
        match self {
            Self::Version { .. } => 1,
            Self::Unsupported(_) => 2,
            Self::Unknown(_) => 3,
            Self::Variable { .. } => 4,
            Self::Input(_) => 5,
            Self::Configuration(_) => 6,
            Self::Value { .. } => 7,
            Self::NoAgent(_) => 11,
            Self::NotReady(_) => 50,
            Self::Refused(client::Error::Refused(failure)) => match failure.kind {
                // Another pod's end makes room; the pod's object may come.
                ErrorKind::Exhausted | ErrorKind::Unknown => 11,
                ErrorKind::Version => 100,
                ErrorKind::Invalid => 101,
                ErrorKind::Environment => 102,
                ErrorKind::Internal => 999,
            },
            Self::Refused(_) => 999,
        }
    }

    /// The error as the runtime reads it, in the version of the request with this network configuration.
    pub fn render(&self, configuration: &str) -> String {
        let version = request::version_of(configuration);
        json!({ "cniVersion": version, "code": self.code(), "msg": self.to_string() }).to_string()
    }
}
