//! The file of the settings: its name, and its errors.

use manx_objects::tree::{Node, Position};

/// The file's name in the rig's directory.
pub const FILE: &str = "rig.yaml";

/// A `rig.yaml` that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{FILE}{}: {message}", at.map(|at| format!(":{at}")).unwrap_or_default())]
pub struct SettingsError {
    /// The place of the error.
    pub at: Option<Position>,
    pub message: String,
}

/// An error about a value, with what is expected and what was found.
pub(super) fn wrong(node: &Node, expected: &str) -> SettingsError {
    let message = format!("expected {expected}, found {}", node.value.describe());
    SettingsError { at: Some(node.at), message }
}
