//! The configuration of a speaker.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_bgp::peer::{Peer, SecretKey};

use crate::password::Password;

/// The configuration of a speaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// The table's part: peers, own routes, and export policies.
    pub table: manx_bgp::table::Configuration,
    /// The passwords of the peers that have one, or the reason why a password is missing. A peer that needs a password and
    /// has none here has no session yet.
    pub passwords: BTreeMap<IpAddr, Result<Password, String>>,
    /// Whether an earlier process of this node had sessions, and packets have been forwarded ever since. If so, this
    /// node says so in its OPEN, and peers that have kept this node's routes keep them until it has sent all routes
    /// again (RFC 4724, 4.1).
    pub restarted: bool,
}

impl Configuration {
    /// A peer's password, if it has one. Returns an error if there can be no session, with the reason.
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

    /// Whether another configuration also has this peer, without a change that ends its session.
    pub(crate) fn keeps_session(&self, peer: IpAddr, other: &Self) -> bool {
        self.table.identifier == other.table.identifier
            && self.table.asks_same_of(peer, &other.table)
            && self.passwords.get(&peer) == other.passwords.get(&peer)
    }
}
