//! The reason why a connection has ended, its text, and its consequences.

use std::net::IpAddr;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use rustbgpd_fsm::NegotiatedSession;
use rustbgpd_wire::notification::{cease_subcode, description, extract_shutdown_communication};
use rustbgpd_wire::{NotificationCode, NotificationMessage};

use crate::codec::encoding::Family;

/// The reason why a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The TCP connection was lost.
    Lost(String),
    /// This node ended it with a notification. The details are for this node's own log.
    Sent(NotificationMessage, Option<String>),
    /// The peer ended it with a notification.
    Received(NotificationMessage),
    /// The peer began another connection after a restart (RFC 4724, 4.2).
    Replaced,
}

impl Reason {
    /// The time for which the peer's routes are kept (RFC 4724, 4.2; RFC 8538, 4). Returns `None` if they are removed.
    pub(crate) fn retains(&self, negotiated: &NegotiatedSession) -> Option<Duration> {
        let keeps = match self {
            Self::Lost(_) | Self::Replaced => true,
            Self::Sent(it, _) => negotiated.peer_notification_gr && !is_final(it),
            Self::Received(it) => {
                let is_hard =
                    it.code == NotificationCode::Cease && it.subcode == cease_subcode::HARD_RESET;
                negotiated.peer_notification_gr && !is_hard
            }
        };
        let time = Duration::from_secs(negotiated.peer_restart_time.into());
        (keeps && negotiated.peer_gr_capable && !time.is_zero()).then_some(time)
    }

    /// The reason as a clause.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Lost(error) => format!("the connection was lost: {error}"),
            Self::Sent(it, None) => format!("this node says {}", words(it)),
            Self::Sent(it, Some(details)) => format!("this node says {}: {details}", words(it)),
            Self::Received(it) => format!("the peer says {}", words(it)),
            Self::Replaced => "the peer has come back by another connection".to_owned(),
        }
    }
}

/// A Cease of this kind.
pub(crate) fn cease(subcode: u8) -> NotificationMessage {
    NotificationMessage::new(NotificationCode::Cease, subcode, Bytes::new())
}

/// Whether the peer should remove this node's routes after this notification.
fn is_final(it: &NotificationMessage) -> bool {
    let finals = [
        cease_subcode::MAX_PREFIXES,
        cease_subcode::ADMINISTRATIVE_SHUTDOWN,
        cease_subcode::PEER_DECONFIGURED,
    ];
    it.code == NotificationCode::Cease && finals.contains(&it.subcode)
}

/// The notification in the form for a peer that keeps routes after all notifications except a hard reset (RFC 8538, 3.1).
pub(crate) fn harden(it: NotificationMessage) -> NotificationMessage {
    if !is_final(&it) {
        return it;
    }
    let mut data = BytesMut::new();
    data.put_u8(it.code.as_u8());
    data.put_u8(it.subcode);
    data.put_slice(&it.data);
    let (code, subcode) = (NotificationCode::Cease, cease_subcode::HARD_RESET);
    NotificationMessage::new(code, subcode, data.freeze())
}

/// A notification as text: its name, its numbers, and the message of the peer's administrator (RFC 9003).
fn words(it: &NotificationMessage) -> String {
    let name = |code: NotificationCode, subcode: u8| {
        format!("{} ({}/{subcode})", description(code, subcode), code.as_u8())
    };
    let mut text = name(it.code, it.subcode);
    if it.code == NotificationCode::Cease
        && it.subcode == cease_subcode::HARD_RESET
        && let [code, subcode, ..] = *it.data
    {
        text = format!("{text}, {}", name(NotificationCode::from_u8(code), subcode));
    }
    match extract_shutdown_communication(it) {
        Ok(Some(said)) if !said.is_empty() => format!("{text}: \"{}\"", printable(said)),
        _ => text,
    }
}

/// A foreign text, without control characters that could move a terminal's cursor.
fn printable(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// The Cease notification for too many prefixes, with the family and the limit (RFC 4486, 4).
pub(crate) fn maximum_reached(peer: IpAddr, limit: usize) -> NotificationMessage {
    let (afi, safi) = Family::of(peer).on_wire();
    let mut data = BytesMut::new();
    data.put_u16(afi as u16);
    data.put_u8(safi as u8);
    data.put_u32(u32::try_from(limit).unwrap_or(u32::MAX));
    let (code, subcode) = (NotificationCode::Cease, cease_subcode::MAX_PREFIXES);
    NotificationMessage::new(code, subcode, data.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbgpd_wire::notification::encode_shutdown_communication;

    fn negotiated(notification: bool) -> NegotiatedSession {
        let mut it = NegotiatedSession::default();
        (it.peer_gr_capable, it.peer_restart_time) = (true, 120);
        it.peer_notification_gr = notification;
        it
    }

    #[test]
    fn notifications_are_words() {
        let code = NotificationCode::Cease;
        let said = encode_shutdown_communication("back at\nnoon");
        let subcode = cease_subcode::ADMINISTRATIVE_SHUTDOWN;
        let shutdown = NotificationMessage::new(code, subcode, said);
        let plain = Reason::Received(shutdown.clone());
        assert_eq!(plain.words(), "the peer says Administrative Shutdown (6/2): \"back at noon\"");
        let hard = Reason::Received(harden(shutdown));
        assert_eq!(
            hard.words(),
            "the peer says Hard Reset (6/9), Administrative Shutdown (6/2): \"back at noon\""
        );
        let details = Some("it is of AS 65002, and 65001 is configured".to_owned());
        let sent = NotificationMessage::new(NotificationCode::OpenMessage, 2, Bytes::new());
        assert_eq!(
            Reason::Sent(sent, details).words(),
            "this node says Bad Peer AS (2/2): it is of AS 65002, and 65001 is configured"
        );
    }

    #[test]
    fn routes_are_kept_when_tcp_is_lost_and_after_a_notification_if_both_ends_agree_and_it_is_not_hard()
     {
        let (expired, shutdown) = (NotificationCode::HoldTimerExpired, cease(2));
        let expired = NotificationMessage::new(expired, 0, Bytes::new());
        let time = Some(Duration::from_mins(2));
        for notification in [false, true] {
            let kept = |reason: Reason| reason.retains(&negotiated(notification)) == time;
            assert!(kept(Reason::Lost(String::new())));
            assert!(kept(Reason::Replaced));
            assert_eq!(kept(Reason::Received(expired.clone())), notification);
            assert_eq!(kept(Reason::Sent(expired.clone(), None)), notification);
            assert_eq!(kept(Reason::Received(shutdown.clone())), notification);
            assert!(!kept(Reason::Received(harden(shutdown.clone()))));
            assert!(!kept(Reason::Sent(shutdown.clone(), None)));
        }
        assert_eq!(Reason::Replaced.retains(&NegotiatedSession::default()), None);
    }
}
