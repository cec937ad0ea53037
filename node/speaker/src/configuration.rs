//! What a speaker is to do.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_bgp::peer::{Peer, SecretKey};

use crate::password::Password;

/// What a speaker is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// The table's part: peers, own routes, what leaves the node.
    pub table: manx_bgp::table::Configuration,
    /// The passwords of the peers that have one, or why there is none. A peer whose password is not here has no session yet.
    pub passwords: BTreeMap<IpAddr, Result<Password, String>>,
    /// Whether this node was a peer of others before this process, and has forwarded packets all the time since. Peers that
    /// kept its routes then keep them until they are told all (RFC 4724, 4.1).
    pub restarted: bool,
}

impl Configuration {
    /// A peer's password, if it has one. `Err`: why there can be no session.
    pub(crate) fn password(&self, peer: &Peer) -> Result<Option<&Password>, String> {
        match (&peer.password, self.passwords.get(&peer.address)) {
            (None, _) => Ok(None),
            (Some(_), Some(Ok(password))) => Ok(Some(password)),
            (Some(_), Some(Err(reason))) => Err(reason.clone()),
            (Some(SecretKey { name, key }), None) => {
                Err(format!("the peer's password, {key} of Secret {name}, has not been read yet"))
            }
        }
    }

    /// Whether another configuration has this peer, too, and its session goes on.
    pub(crate) fn keeps_session(&self, peer: IpAddr, other: &Self) -> bool {
        self.table.identifier == other.table.identifier
            && self.table.asks_same_of(peer, &other.table)
            && self.passwords.get(&peer) == other.passwords.get(&peer)
    }
}
