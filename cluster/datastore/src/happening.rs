//! What happens at a node, for people who look at its Node object.

/// Something that has happened at the agent's own node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening {
    /// What it is, as one word for programs (Kubernetes, `events.k8s.io/v1`, `reason`).
    pub reason: &'static str,
    /// What the agent did then, likewise (`action`).
    pub action: &'static str,
    /// Whether it is something to look after.
    pub is_warning: bool,
    /// The sentence. What goes beyond 1,024 bytes is cut off.
    pub text: String,
}
