//! The content of this node's OPEN to a peer.

use std::net::Ipv4Addr;
use std::time::Duration;

use manx_bgp::peer::Peer;
use rustbgpd_fsm::{PeerConfig, default_send_hold_time};
use rustbgpd_wire::constants::MIN_HOLD_TIME;
use rustbgpd_wire::{Capability, OpenMessage};

use crate::codec::encoding::Family;

/// The longest restart time that the capability can contain (RFC 4724, 3: twelve bits).
const LONGEST_RESTART: u16 = 4095;

/// This node's state for peers that may have kept its routes (RFC 4724, 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Comeback {
    /// Whether the process was restarted.
    pub(crate) is_restart: bool,
    /// Whether packets were forwarded all the time.
    pub(crate) has_forwarded: bool,
}

/// The reason why there can be no session with a peer. This node neither connects to such a peer nor accepts its
/// connections.
pub(crate) fn impossible(peer: &Peer) -> Option<&'static str> {
    if peer.system == 0 || peer.own_system == 0 {
        return Some("0 is no autonomous system (RFC 7607)");
    }
    None
}

/// The configuration of a connection's state machine.
pub(crate) fn config(peer: &Peer, identifier: Ipv4Addr) -> PeerConfig {
    let family = Family::of(peer.address);
    let mut config = PeerConfig::new(peer.own_system, peer.system, identifier);
    config.hold_time = hold_time(peer.hold_time);
    config.send_hold_time = default_send_hold_time(config.hold_time);
    config.families = vec![family.on_wire()];
    config.required_families = vec![family.on_wire()];
    // A peer that names no family supports IPv4 (RFC 4760, 8).
    config.disable_ipv4_unicast = family == Family::V6;
    let restart = u16::try_from(peer.restart_time.as_secs()).unwrap_or(u16::MAX);
    config.gr_restart_time = restart.min(LONGEST_RESTART);
    config.graceful_restart = restart > 0;
    config
}

/// The proposed hold time in seconds: 0, or at least 3 (RFC 4271, 4.2).
fn hold_time(time: Duration) -> u16 {
    match u16::try_from(time.as_secs()).unwrap_or(u16::MAX) {
        0 if time.is_zero() => 0,
        seconds => seconds.max(MIN_HOLD_TIME),
    }
}

/// Completes an OPEN: adds whether this node has restarted, and removes the capabilities that this speaker does not have.
pub(crate) fn complete(open: &mut OpenMessage, comeback: Comeback) {
    // With this capability (RFC 7313) this node would have to mark the begin and the end of each refresh.
    open.capabilities.retain(|it| *it != Capability::EnhancedRouteRefresh);
    for capability in &mut open.capabilities {
        if let Capability::GracefulRestart { restart_state, families, .. } = capability {
            *restart_state = comeback.is_restart;
            for family in families {
                family.forwarding_preserved = comeback.has_forwarded;
            }
        }
    }
}
