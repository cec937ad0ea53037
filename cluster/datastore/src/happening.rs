//! Something that happened at a node, for people who look at the Node object.

/// Something that happened at the agent's own node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening {
    /// The type of happening, as one word for programs (Kubernetes, `events.k8s.io/v1`, `reason`).
    pub reason: &'static str,
    /// What the agent did, as one word for programs (`action`).
    pub action: &'static str,
    /// Whether people should act on it.
    pub is_warning: bool,
    /// The text. It is cut after 1,024 bytes.
    pub text: String,
}
