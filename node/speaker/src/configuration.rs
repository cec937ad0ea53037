//! What a speaker is to do.

/// What a speaker is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// The table's part: peers, own routes, what leaves the node.
    pub table: manx_bgp::table::Configuration,
    /// Whether this node was a peer of others before this process, and has forwarded packets all the time since. Peers that
    /// kept its routes then keep them until they are told all (RFC 4724, 4.1).
    pub restarted: bool,
}
