//! Errors in CNI's form (specification 1.1.0, section 5, "Error").

use manx_api::ErrorKind;
use manx_api::client;
use manx_devices::{device, shelter};
use manx_linux::{netlink, netns};
use serde_json::json;

/// CNI's error codes. Codes from 100 on are a plugin's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// The configuration has a version that the plugin does not support.
    Version = 1,
    /// The configuration has a field that the plugin cannot fulfil.
    UnsupportedField = 2,
    /// The agent does not know the container.
    UnknownContainer = 3,
    /// An environment variable is missing or wrong.
    Environment = 4,
    /// Something cannot be read or written.
    Io = 5,
    /// The configuration is not JSON, or not of the expected form.
    Decode = 6,
    /// The configuration is wrong.
    Config = 7,
    /// The container's namespace is the node's own.
    Namespace = 8,
    /// The failure is temporary: a later attempt should succeed.
    TryAgain = 11,
    /// STATUS: no pod can be attached.
    Unavailable = 50,
    /// STATUS: no pod can be attached, and the attached pods have no network.
    Cut = 51,
    /// The agent refuses: the requested resource belongs to another container, or does not exist.
    Refused = 100,
    /// The machine does not allow the operation.
    Machine = 101,
    /// The agent failed.
    Internal = 102,
    /// CHECK: the network differs from the result of ADD.
    Changed = 103,
}

impl Code {
    /// The short message.
    const fn summary(self) -> &'static str {
        match self {
            Self::Version => "incompatible CNI version",
            Self::UnsupportedField => "unsupported field in the network configuration",
            Self::UnknownContainer => "unknown container",
            Self::Environment => "invalid environment variable",
            Self::Io => "I/O failure",
            Self::Decode => "the network configuration does not parse",
            Self::Config => "invalid network configuration",
            Self::Namespace => "invalid network namespace",
            Self::TryAgain => "try again later",
            Self::Unavailable => "no pod can be attached",
            Self::Cut => "no pod can be attached, and attached pods have no network",
            Self::Refused => "the agent refuses",
            Self::Machine => "the machine does not allow it",
            Self::Internal => "the agent failed",
            Self::Changed => "the pod's network is not as ADD left it",
        }
    }
}

/// The reason why a verb failed.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Error {
    pub code: Code,
    /// For users: what was found, what was expected, and what to do.
    pub text: String,
}

impl Error {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Collects the results of several operations, all of which run even if one fails. The errors are joined, and the first
    /// one gives the code.
    pub(crate) fn of_all<E: Into<Self>>(
        all: impl IntoIterator<Item = Result<(), E>>,
    ) -> Result<(), Self> {
        let errors = all.into_iter().filter_map(Result::err).map(E::into);
        errors
            .reduce(|first, next| Self::new(first.code, format!("{first}; {next}")))
            .map_or(Ok(()), Err)
    }

    /// The error for standard output. Some runtimes show only `msg`, so it contains everything.
    pub(crate) fn to_json(&self, version: &str) -> String {
        let Self { code, text } = self;
        let value = json!({
            "cniVersion": version,
            "code": *code as u32,
            "msg": format!("{}: {text}", code.summary()),
        });
        format!("{value:#}\n")
    }
}

impl Code {
    /// The code for an error kind of the agent or of devices.
    const fn of_kind(kind: ErrorKind) -> Self {
        match kind {
            // These failures end, in this order, when the agent is replaced, when a pod ends, when a pod's object arrives,
            // and when the agent has read the objects.
            ErrorKind::Version
            | ErrorKind::Exhausted
            | ErrorKind::Unavailable
            | ErrorKind::Unknown
            | ErrorKind::Starting => Self::TryAgain,
            ErrorKind::Invalid => Self::Refused,
            ErrorKind::Environment => Self::Machine,
            ErrorKind::Internal => Self::Internal,
        }
    }
}

impl From<device::Error> for Error {
    fn from(error: device::Error) -> Self {
        Self::new(Code::of_kind(error.kind()), error.to_string())
    }
}

impl From<netlink::Error> for Error {
    fn from(error: netlink::Error) -> Self {
        device::Error::from(error).into()
    }
}

impl From<netns::Error> for Error {
    fn from(error: netns::Error) -> Self {
        device::Error::from(error).into()
    }
}

impl From<shelter::Error> for Error {
    fn from(error: shelter::Error) -> Self {
        match error {
            shelter::Error::Netlink(error) => error.into(),
            shelter::Error::Namespace(error) => error.into(),
            shelter::Error::Lock { .. } => Self::new(Code::Io, error.to_string()),
            shelter::Error::GivenBack(_) => Self::new(Code::TryAgain, error.to_string()),
            shelter::Error::IndexTaken { .. } | shelter::Error::Gone(_) => {
                Self::new(Code::Changed, error.to_string())
            }
            // The chain of plugins is wrong.
            shelter::Error::NoHostEnd { .. }
            | shelter::Error::WouldLose { .. }
            | shelter::Error::Name(_) => Self::new(Code::Config, error.to_string()),
        }
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        let code = match &error {
            // The agent is starting, is ending, or is being replaced, together with this program, by another version.
            client::Error::NoAgent { .. }
            | client::Error::Broken { .. }
            | client::Error::Silent(_)
            | client::Error::Slow { .. }
            | client::Error::Protocol { .. } => Code::TryAgain,
            client::Error::Denied(_) | client::Error::Stranger { .. } => Code::Io,
            client::Error::Refused(failure) => Code::of_kind(failure.kind),
        };
        Self::new(code, error.to_string())
    }
}
