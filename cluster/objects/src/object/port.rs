//! Protocols and ports, as every Kubernetes kind writes them.

/// A transport protocol of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

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
