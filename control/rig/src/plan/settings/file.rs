//! The file of the settings: its name, and what is wrong in it.

use manx_objects::tree::{Node, Position};

/// The file's name in the rig's directory.
pub const FILE: &str = "rig.yaml";

/// A `rig.yaml` that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{FILE}{}: {message}", at.map(|at| format!(":{at}")).unwrap_or_default())]
pub struct SettingsError {
    /// The place.
    pub at: Option<Position>,
    /// What is wrong.
    pub message: String,
}

/// What is expected of a value, and what it is.
pub(super) fn wrong(node: &Node, expected: &str) -> SettingsError {
    let message = format!("expected {expected}, found {}", node.value.describe());
    SettingsError { at: Some(node.at), message }
}
