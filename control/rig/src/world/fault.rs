//! Whose fault a failure is.

use serde::{Deserialize, Serialize};

/// Whose fault a failure is; it decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The fault of the input or of the caller.
    Input,
    /// The environment does not allow it.
    Environment,
    /// A fault of Manx.
    Own,
}
