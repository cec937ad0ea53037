//! The cause of a failure, which determines the exit code.

use serde::{Deserialize, Serialize};

/// The cause of a failure. It determines the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The fault of the input or of the caller.
    Input,
    /// The environment does not allow an operation.
    Environment,
    /// A fault of Manx.
    Own,
}
