//! Protocols and ports, as every Kubernetes kind writes them.

pub use manx_policy_compiler::model::Protocol;

/// `port` and `endPort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortNumber {
    /// A number, or a range of numbers if `end` is present; `end` is not less than `port`.
    Number {
        port: u16,
        /// `endPort`.
        end: Option<u16>,
    },
    Name(String),
}
