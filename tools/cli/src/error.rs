//! The errors of commands.

use manx_api::client;
use manx_api::{ErrorKind, Failure};
use manx_datastore::SourceError;
use manx_linux::doctor::Lack;

/// The exit code of an unexpected result, of a denial, and of a failure of Manx itself.
pub const DEVIATION: u8 = 1;
/// The exit code of wrong usage or invalid input.
pub const INVALID: u8 = 2;
/// The exit code of a command that the environment does not allow.
pub const ENVIRONMENT: u8 = 3;

/// The reason why a command failed. Each kind has its exit code; 0 means "as expected".
///
/// The text says what was found, what was expected, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The result is not as expected, or it is a denial, and the command has already reported it. Exit code 1.
    #[error("not as expected")]
    Deviation,
    /// A program that the command has run ended with this exit code, and has reported the reason itself.
    #[error("exit code {0}")]
    Ended(u8),
    /// The input is not valid, and the command has already reported it. Exit code 2.
    #[error("the input is not valid")]
    Refused,
    /// The environment does not allow the command, which has already reported it. Exit code 3.
    #[error("the environment does not allow it")]
    Obstructed,
    /// Something failed during the work: an agent that disconnected, a file that cannot be written. Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// The usage or the input is wrong. Exit code 2.
    #[error("{0}")]
    Invalid(String),
    /// The environment does not allow the command. Exit code 3.
    #[error("{0}")]
    Environment(String),
}

impl Error {
    /// The process's exit code.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Deviation | Self::Failed(_) => DEVIATION,
            Self::Invalid(_) | Self::Refused => INVALID,
            Self::Environment(_) | Self::Obstructed => ENVIRONMENT,
            Self::Ended(code) => *code,
        }
    }

    /// Whether the command has already reported the error, so that nothing more is printed.
    pub const fn is_reported(&self) -> bool {
        matches!(self, Self::Deviation | Self::Refused | Self::Obstructed | Self::Ended(_))
    }
}

impl Error {
    /// The error of this kind.
    pub fn of_kind(kind: ErrorKind, message: String) -> Self {
        match kind {
            ErrorKind::Version | ErrorKind::Invalid => Self::Invalid(message),
            ErrorKind::Environment | ErrorKind::Starting => Self::Environment(message),
            ErrorKind::Unknown
            | ErrorKind::Exhausted
            | ErrorKind::Unavailable
            | ErrorKind::Internal => Self::Failed(message),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::of_kind(failure.kind, failure.message)
    }
}

impl From<manx_agent::Error> for Error {
    fn from(error: manx_agent::Error) -> Self {
        Self::of_kind(error.kind(), error.to_string())
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        Self::of_kind(error.kind(), error.to_string())
    }
}

impl From<SourceError> for Error {
    fn from(error: SourceError) -> Self {
        Self::Environment(error.to_string())
    }
}

impl From<Lack> for Error {
    fn from(lack: Lack) -> Self {
        Self::Environment(lack.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_exit_code() {
        let code = |kind| Error::from(Failure { kind, message: String::new() }).code();
        assert_eq!(code(ErrorKind::Version), 2);
        assert_eq!(code(ErrorKind::Invalid), 2);
        assert_eq!(code(ErrorKind::Exhausted), 1);
        assert_eq!(code(ErrorKind::Environment), 3);
        assert_eq!(code(ErrorKind::Internal), 1);
        assert_eq!(Error::Deviation.code(), 1);
        assert_eq!(Error::Obstructed.code(), 3);
        assert_eq!(Error::Refused.code(), 2);
        assert!(
            [Error::Deviation, Error::Refused, Error::Obstructed].iter().all(Error::is_reported)
        );
    }
}
