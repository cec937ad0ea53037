//! Protocols and ports, as every Kubernetes kind writes them.

pub use manx_policy_compiler::model::Protocol;

/// `port` and `endPort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortNumber {
    /// A number, and perhaps the end of a range, which is not below the number.
    Number {
        port: u16,
        /// `endPort`.
        end: Option<u16>,
    },
    Name(String),
}
