//! The state of a flow: TCP's states as a middle box sees them, and the timeouts.
//!
//! States and timeouts are those of Calico's connection tracking: opening 20 s, established 3600 s, both halves closed
//! 30 s, reset 40 s, UDP 60 s, ICMP 5 s, anything else 600 s. Sequence numbers are not checked, so a segment that was
//! forged from outside the window can advance a state. That shortens or lengthens the timeout but admits nothing,
//! because every SYN is judged and every other packet is admitted by addresses and ports alone. There is one exception:
//! if no masquerading port is free, a connection that sends nothing for two seconds after a reset loses its port,
//! whether the reset was forged or not ([`FlowState::over_after`]).

use zerocopy::FromZeros;

use crate::wire::protocol::{ICMPV4, ICMPV6, TCP, UDP};
use crate::wire::tcp::flag;

/// The control bits of TCP, as in the 14th byte of the header (RFC 9293, section 3.1); 0 for other protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// The sender has no more data to send.
    pub const FIN: Self = Self(flag::FIN);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(flag::SYN);
    /// Reset the connection.
    pub const RST: Self = Self(flag::RST);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(flag::ACK);

    /// Whether all bits of `other` are set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the segment opens a connection: it has SYN without ACK and RST. Policy judges each such segment.
    #[inline]
    pub const fn opens(self) -> bool {
        self.0 & (Self::SYN.0 | Self::ACK.0 | Self::RST.0) == Self::SYN.0
    }
}

impl std::ops::BitOr for TcpFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The direction of a packet relative to its flow's first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FlowDirection {
    /// The direction of the first packet.
    Original = 0,
    /// The direction of replies.
    Reply = 1,
}

impl FlowDirection {
    /// The opposite direction.
    #[inline]
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::Original => Self::Reply,
            Self::Reply => Self::Original,
        }
    }
}

/// The state of a connection. The discriminants are part of the entry's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromZeros)]
#[repr(u8)]
pub enum FlowState {
    /// TCP: the initiator has sent its SYN.
    SynSent = 0,
    /// TCP: the other side has answered with SYN+ACK.
    SynReceived = 1,
    /// TCP: the flow began in the middle of a connection. So far, only the side that sent its first packet has sent.
    PickedUp = 2,
    /// TCP: both sides have sent segments.
    Established = 3,
    /// TCP: the original side has sent FIN.
    OriginalClosed = 4,
    /// TCP: the replying side has sent FIN.
    ReplyClosed = 5,
    /// TCP: both sides have sent FIN, and the last one was acknowledged.
    Closed = 6,
    /// TCP: reset before it was established (a refused connection).
    ResetOpening = 7,
    /// TCP: reset when it was established.
    ResetEstablished = 8,
    /// UDP in one direction only.
    UdpUnanswered = 9,
    /// UDP in both directions.
    UdpAnswered = 10,
    /// ICMP in one direction only.
    IcmpUnanswered = 11,
    /// ICMP in both directions.
    IcmpAnswered = 12,
    /// Another protocol, in one direction only.
    OtherUnanswered = 13,
    /// Another protocol, in both directions.
    OtherAnswered = 14,
    /// TCP: both sides have sent FIN, the original side last. The other side has not acknowledged that FIN yet.
    OriginalLastAck = 15,
    /// TCP: both sides have sent FIN, the replying side last. The other side has not acknowledged that FIN yet.
    ReplyLastAck = 16,
    /// TCP: the initiator has sent its SYN by a masquerading port of the node. The other side may still have a
    /// connection with that port, which belonged to another pod. So only the answer to the SYN belongs to the flow
    /// ([`Admission::OtherConnection`]).
    SynSentOutward = 17,
}

/// How a flow's state admits a packet. The policy stamp is compared afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// The packet belongs to the flow: use the cached verdict.
    Cached,
    /// A SYN of the initiator: evaluate policy again in the flow's original direction, even if the stamp has not
    /// changed.
    Judge,
    /// A SYN of the replying side while the flow is live: evaluate policy for this packet alone, in the packet's own
    /// direction. The entry stays unchanged: a reply must not open a forbidden connection, and a stray SYN must not end
    /// a live one.
    JudgeAlone,
    /// A SYN after the sender's half was closed or the flow was reset: evaluate policy as for a new flow. If it is
    /// allowed, the new entry replaces this one; if not, this one is not changed.
    Recycle,
    /// The packet does not belong to the flow, but to an earlier connection that had the flow's port.
    OtherConnection,
}

/// For each direction, a set of states, one bit each. A state in the set admits every packet of that direction without
/// SYN, FIN and RST, and does not change.
const STEADY: [u32; 2] = [steady(FlowDirection::Original), steady(FlowDirection::Reply)];

const fn steady(direction: FlowDirection) -> u32 {
    let (mut states, mut at) = (0, 0);
    while at < FlowState::ALL.len() {
        let state = FlowState::ALL[at];
        let is_cached = matches!(state.admission(TcpFlags::ACK, direction), Admission::Cached);
        if is_cached && state as u8 == state.after(TcpFlags::ACK, direction) as u8 {
            states |= 1 << state as u8;
        }
        at += 1;
    }
    states
}

/// The shortest [timeout](FlowState::timeout) of all states, in seconds.
pub(super) const LEAST_TIMEOUT: u32 = {
    let (mut least, mut at) = (u32::MAX, 0);
    while at < FlowState::ALL.len() {
        let timeout = FlowState::ALL[at].timeout(false);
        least = if timeout < least { timeout } else { least };
        at += 1;
    }
    least
};

impl FlowState {
    /// Every state, in the order of the discriminants.
    pub const ALL: [Self; 18] = [
        Self::SynSent,
        Self::SynReceived,
        Self::PickedUp,
        Self::Established,
        Self::OriginalClosed,
        Self::ReplyClosed,
        Self::Closed,
        Self::ResetOpening,
        Self::ResetEstablished,
        Self::UdpUnanswered,
        Self::UdpAnswered,
        Self::IcmpUnanswered,
        Self::IcmpAnswered,
        Self::OtherUnanswered,
        Self::OtherAnswered,
        Self::OriginalLastAck,
        Self::ReplyLastAck,
        Self::SynSentOutward,
    ];

    /// The state after a flow's first packet.
    ///
    /// A TCP flow whose first packet is not a SYN gets the state `PickedUp`. It has the short timeout until the other
    /// side sends, so that stray segments cannot fill the table with long-lived entries.
    #[inline]
    pub const fn first(protocol: u8, flags: TcpFlags) -> Self {
        match protocol {
            TCP if flags.has(TcpFlags::RST) => Self::ResetOpening,
            TCP if flags.opens() => Self::SynSent,
            TCP => Self::PickedUp,
            UDP => Self::UdpUnanswered,
            ICMPV4 | ICMPV6 => Self::IcmpUnanswered,
            _ => Self::OtherUnanswered,
        }
    }

    /// The state after the first packet of a flow that is masqueraded by a port of the node.
    #[inline]
    pub(super) const fn outward(self) -> Self {
        match self {
            Self::SynSent => Self::SynSentOutward,
            other => other,
        }
    }

    /// Whether this is a state of TCP.
    pub const fn is_tcp(self) -> bool {
        self.is_of(TCP)
    }

    /// Whether flows of this protocol can have this state.
    pub(super) const fn is_of(self, protocol: u8) -> bool {
        match self {
            Self::UdpUnanswered | Self::UdpAnswered => protocol == UDP,
            Self::IcmpUnanswered | Self::IcmpAnswered => matches!(protocol, ICMPV4 | ICMPV6),
            Self::OtherUnanswered | Self::OtherAnswered => {
                !matches!(protocol, TCP | UDP | ICMPV4 | ICMPV6)
            }
            Self::SynSent
            | Self::SynReceived
            | Self::PickedUp
            | Self::Established
            | Self::OriginalClosed
            | Self::ReplyClosed
            | Self::Closed
            | Self::ResetOpening
            | Self::ResetEstablished
            | Self::OriginalLastAck
            | Self::ReplyLastAck
            | Self::SynSentOutward => protocol == TCP,
        }
    }

    /// The state after an admitted packet.
    #[inline]
    #[must_use]
    pub const fn next(self, flags: TcpFlags, direction: FlowDirection) -> Self {
        if self.stays(flags, direction) { self } else { self.after(flags, direction) }
    }

    /// Whether a packet belongs to the flow and leaves the state unchanged. This is true of nearly all packets. `false`
    /// means that this is not known.
    #[inline]
    pub const fn stays(self, flags: TcpFlags, direction: FlowDirection) -> bool {
        const CHANGING: u8 = TcpFlags::FIN.0 | TcpFlags::SYN.0 | TcpFlags::RST.0;
        flags.0 & CHANGING == 0 && STEADY[direction as usize] >> self as u8 & 1 != 0
    }

    #[inline(never)]
    const fn after(self, flags: TcpFlags, direction: FlowDirection) -> Self {
        use FlowDirection::{Original, Reply};
        match self {
            Self::UdpUnanswered | Self::UdpAnswered => match direction {
                Original => self,
                Reply => Self::UdpAnswered,
            },
            Self::IcmpUnanswered | Self::IcmpAnswered => match direction {
                Original => self,
                Reply => Self::IcmpAnswered,
            },
            Self::OtherUnanswered | Self::OtherAnswered => match direction {
                Original => self,
                Reply => Self::OtherAnswered,
            },
            Self::SynSent
            | Self::SynReceived
            | Self::PickedUp
            | Self::Established
            | Self::OriginalClosed
            | Self::ReplyClosed
            | Self::Closed
            | Self::ResetOpening
            | Self::ResetEstablished
            | Self::OriginalLastAck
            | Self::ReplyLastAck
            | Self::SynSentOutward => self.next_tcp(flags, direction),
        }
    }

    const fn next_tcp(self, flags: TcpFlags, direction: FlowDirection) -> Self {
        use FlowDirection::{Original, Reply};
        if flags.has(TcpFlags::RST) {
            return match self {
                Self::SynSent
                | Self::SynSentOutward
                | Self::SynReceived
                | Self::PickedUp
                | Self::ResetOpening => Self::ResetOpening,
                // Both sides have ended the connection already.
                Self::Closed | Self::OriginalLastAck | Self::ReplyLastAck => Self::Closed,
                _ => Self::ResetEstablished,
            };
        }
        // A SYN without ACK is judged by policy. It does not change the state of a live flow.
        if flags.opens() {
            return self;
        }
        let fin = flags.has(TcpFlags::FIN);
        match (self, direction) {
            // Only the answer to the SYN proves that the other side exists. A bare ACK of a stale connection (RFC 9293,
            // 3.10.7.3) does not prove it, and neither does the initiator's own next segment.
            (Self::SynSent | Self::SynSentOutward, Reply) if flags.has(TcpFlags::SYN) => {
                Self::SynReceived
            }
            (Self::SynReceived | Self::ResetOpening, Reply) => Self::SynReceived,
            (Self::PickedUp | Self::ResetOpening, Original) => Self::PickedUp,
            (Self::OriginalClosed, Reply) if fin => Self::ReplyLastAck,
            (Self::ReplyClosed, Original) if fin => Self::OriginalLastAck,
            // A segment that this side sends after its own FIN carries no new data, so it acknowledges the other side's
            // FIN. A FIN that is sent again because it was lost may acknowledge nothing new.
            (Self::ReplyLastAck, Original) | (Self::OriginalLastAck, Reply) if !fin => Self::Closed,
            (
                Self::SynSent
                | Self::SynSentOutward
                | Self::OriginalClosed
                | Self::ReplyClosed
                | Self::Closed
                | Self::OriginalLastAck
                | Self::ReplyLastAck,
                _,
            ) => self,
            (Self::SynReceived | Self::Established | Self::ResetEstablished, Original) if fin => {
                Self::OriginalClosed
            }
            (Self::PickedUp | Self::Established | Self::ResetEstablished, Reply) if fin => {
                Self::ReplyClosed
            }
            _ => Self::Established,
        }
    }

    /// The seconds of silence after which the flow is over. A translated flow cannot continue from the middle of a
    /// connection, so it has the long timeouts that are usual for translation: for TCP that of kube-proxy, for UDP and
    /// ICMP those of RFC 4787 and RFC 5508.
    #[inline]
    pub const fn timeout(self, is_translated: bool) -> u32 {
        match self {
            Self::Established if is_translated => 86_400,
            Self::UdpUnanswered | Self::UdpAnswered if is_translated => 120,
            Self::IcmpUnanswered | Self::IcmpAnswered if is_translated => 60,
            Self::SynSent | Self::SynSentOutward | Self::SynReceived | Self::PickedUp => 20,
            Self::Established | Self::OriginalClosed | Self::ReplyClosed => 3600,
            Self::Closed | Self::OriginalLastAck | Self::ReplyLastAck => 30,
            Self::ResetOpening | Self::ResetEstablished => 40,
            Self::UdpUnanswered | Self::UdpAnswered => 60,
            Self::IcmpUnanswered | Self::IcmpAnswered => 5,
            Self::OtherUnanswered | Self::OtherAnswered => 600,
        }
    }

    /// Whether the other side has not answered yet but may still do so.
    pub const fn is_opening(self) -> bool {
        matches!(
            self,
            Self::SynSent
                | Self::SynSentOutward
                | Self::SynReceived
                | Self::PickedUp
                | Self::UdpUnanswered
                | Self::IcmpUnanswered
                | Self::OtherUnanswered
        )
    }

    /// Whether both sides have sent packets and the connection is not over. A full table evicts other flows first.
    #[inline]
    pub const fn is_established(self) -> bool {
        match self {
            Self::Established
            | Self::OriginalClosed
            | Self::ReplyClosed
            | Self::UdpAnswered
            | Self::IcmpAnswered
            | Self::OtherAnswered => true,
            Self::SynSent
            | Self::SynSentOutward
            | Self::SynReceived
            | Self::PickedUp
            | Self::Closed
            | Self::ResetOpening
            | Self::ResetEstablished
            | Self::UdpUnanswered
            | Self::IcmpUnanswered
            | Self::OtherUnanswered
            | Self::OriginalLastAck
            | Self::ReplyLastAck => false,
        }
    }

    /// Whether both sides have sent packets, so that the connection is more than an attempt.
    #[inline]
    pub const fn is_answered(self) -> bool {
        self.is_established()
            || matches!(
                self,
                Self::SynReceived
                    | Self::Closed
                    | Self::ResetEstablished
                    | Self::OriginalLastAck
                    | Self::ReplyLastAck
            )
    }

    /// The seconds of silence after which the connection is over, so that another one may have its ports before its
    /// [`timeout`](Self::timeout). `None`: the connection is not over. Anybody who knows the ports can forge a reset,
    /// and a connection that continues undoes a forged reset with its next segment.
    #[inline]
    pub const fn over_after(self) -> Option<u32> {
        match self {
            Self::Closed => Some(0),
            Self::ResetOpening | Self::ResetEstablished => Some(2),
            _ => None,
        }
    }

    /// Whether a packet that does not open a connection may belong to a flow in this state.
    #[inline]
    const fn takes(self, flags: TcpFlags, direction: FlowDirection) -> bool {
        if !matches!(self, Self::SynSentOutward) {
            return true;
        }
        let answers = flags.has(TcpFlags::RST) || flags.has(TcpFlags(flag::SYN | flag::ACK));
        matches!(direction, FlowDirection::Reply) && answers
    }

    /// How this state admits a packet.
    #[inline]
    pub const fn admission(self, flags: TcpFlags, direction: FlowDirection) -> Admission {
        use FlowDirection::{Original, Reply};
        if !flags.opens() {
            return if self.takes(flags, direction) {
                Admission::Cached
            } else {
                Admission::OtherConnection
            };
        }
        match (self, direction) {
            (
                Self::Closed
                | Self::ResetOpening
                | Self::ResetEstablished
                | Self::OriginalLastAck
                | Self::ReplyLastAck,
                _,
            )
            | (Self::OriginalClosed, Original)
            | (Self::ReplyClosed, Reply) => Admission::Recycle,
            (_, Original) => Admission::Judge,
            (_, Reply) => Admission::JudgeAlone,
        }
    }

    /// The name in status and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SynSent => "syn-sent",
            Self::SynReceived => "syn-received",
            Self::PickedUp => "picked-up",
            Self::Established => "established",
            Self::OriginalClosed => "original-closed",
            Self::ReplyClosed => "reply-closed",
            Self::Closed => "closed",
            Self::ResetOpening => "reset-opening",
            Self::ResetEstablished => "reset",
            Self::UdpUnanswered => "udp-unanswered",
            Self::UdpAnswered => "udp-answered",
            Self::IcmpUnanswered => "icmp-unanswered",
            Self::IcmpAnswered => "icmp-answered",
            Self::OtherUnanswered => "unanswered",
            Self::OtherAnswered => "answered",
            Self::OriginalLastAck => "original-last-ack",
            Self::ReplyLastAck => "reply-last-ack",
            Self::SynSentOutward => "syn-sent-outward",
        }
    }
}

#[cfg(test)]
mod tests {
    use FlowDirection::{Original, Reply};
    use FlowState::*;
    use proptest::prelude::*;

    use super::*;

    const NONE: TcpFlags = TcpFlags(0);
    const SYN: TcpFlags = TcpFlags::SYN;
    const ACK: TcpFlags = TcpFlags::ACK;
    const RST: TcpFlags = TcpFlags::RST;
    const SYN_ACK: TcpFlags = TcpFlags(0x12);
    const FIN_ACK: TcpFlags = TcpFlags(0x11);

    /// A state, then the next state after ACK, FIN+ACK, SYN+ACK and RST from the original side, then the same from the
    /// replying side.
    const TRANSITIONS: [(FlowState, [FlowState; 4], [FlowState; 4]); 11] = [
        (
            SynSent,
            [SynSent, SynSent, SynSent, ResetOpening],
            [SynSent, SynSent, SynReceived, ResetOpening],
        ),
        (
            SynReceived,
            [Established, OriginalClosed, Established, ResetOpening],
            [SynReceived, SynReceived, SynReceived, ResetOpening],
        ),
        (
            PickedUp,
            [PickedUp, PickedUp, PickedUp, ResetOpening],
            [Established, ReplyClosed, Established, ResetOpening],
        ),
        (
            Established,
            [Established, OriginalClosed, Established, ResetEstablished],
            [Established, ReplyClosed, Established, ResetEstablished],
        ),
        (
            OriginalClosed,
            [OriginalClosed, OriginalClosed, OriginalClosed, ResetEstablished],
            [OriginalClosed, ReplyLastAck, OriginalClosed, ResetEstablished],
        ),
        (
            ReplyClosed,
            [ReplyClosed, OriginalLastAck, ReplyClosed, ResetEstablished],
            [ReplyClosed, ReplyClosed, ReplyClosed, ResetEstablished],
        ),
        (Closed, [Closed; 4], [Closed; 4]),
        (
            OriginalLastAck,
            [OriginalLastAck, OriginalLastAck, OriginalLastAck, Closed],
            [Closed, OriginalLastAck, Closed, Closed],
        ),
        (
            ReplyLastAck,
            [Closed, ReplyLastAck, Closed, Closed],
            [ReplyLastAck, ReplyLastAck, ReplyLastAck, Closed],
        ),
        (
            ResetOpening,
            [PickedUp, PickedUp, PickedUp, ResetOpening],
            [SynReceived, SynReceived, SynReceived, ResetOpening],
        ),
        (
            ResetEstablished,
            [Established, OriginalClosed, Established, ResetEstablished],
            [Established, ReplyClosed, Established, ResetEstablished],
        ),
    ];

    #[test]
    fn tcp_states_follow_the_table_and_a_syn_moves_none() {
        for (state, original, reply) in TRANSITIONS {
            for (direction, row) in [(Original, original), (Reply, reply)] {
                for (flags, expected) in [ACK, FIN_ACK, SYN_ACK, RST].into_iter().zip(row) {
                    assert_eq!(
                        state.next(flags, direction),
                        expected,
                        "{state:?} {flags:?} {direction:?}"
                    );
                }
                assert_eq!(state.next(SYN, direction), state);
            }
        }
    }

    #[test]
    fn other_protocols_are_unanswered_until_a_reply() {
        for (protocol, unanswered, answered) in [
            (17, UdpUnanswered, UdpAnswered),
            (1, IcmpUnanswered, IcmpAnswered),
            (58, IcmpUnanswered, IcmpAnswered),
            (132, OtherUnanswered, OtherAnswered),
        ] {
            assert_eq!(FlowState::first(protocol, NONE), unanswered);
            assert_eq!(unanswered.next(NONE, Original), unanswered);
            assert_eq!(unanswered.next(NONE, Reply), answered);
            assert_eq!(answered.next(NONE, Original), answered);
            assert_eq!(answered.admission(NONE, Reply), Admission::Cached);
        }
    }

    #[test]
    fn the_timeouts_are_those_of_the_manual() {
        for (is_translated, seconds) in [
            (false, [20, 20, 20, 3600, 3600, 3600, 30, 40, 40, 60, 60, 5, 5, 600, 600, 30, 30, 20]),
            (
                true,
                [
                    20, 20, 20, 86_400, 3600, 3600, 30, 40, 40, 120, 120, 60, 60, 600, 600, 30, 30,
                    20,
                ],
            ),
        ] {
            assert_eq!(FlowState::ALL.map(|state| state.timeout(is_translated)), seconds);
        }
    }

    #[test]
    fn every_state_has_its_own_number_and_name() {
        let mut names = std::collections::BTreeSet::new();
        for (index, state) in FlowState::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, index);
            assert!(names.insert(state.name()));
        }
    }

    #[test]
    fn a_syn_is_always_judged_and_recycles_what_its_sender_has_closed() {
        for (state, _, _) in TRANSITIONS {
            for direction in [Original, Reply] {
                let expected = match (state, direction) {
                    (
                        Closed | ResetOpening | ResetEstablished | OriginalLastAck | ReplyLastAck,
                        _,
                    )
                    | (OriginalClosed, Original)
                    | (ReplyClosed, Reply) => Admission::Recycle,
                    (_, Original) => Admission::Judge,
                    (_, Reply) => Admission::JudgeAlone,
                };
                assert_eq!(state.admission(SYN, direction), expected, "{state:?} {direction:?}");
                for flags in [ACK, SYN_ACK, FIN_ACK, RST, RST | SYN] {
                    assert_eq!(state.admission(flags, direction), Admission::Cached);
                }
            }
        }
    }

    /// The next owner of a port can neither read nor write on the connection of the owner before it.
    #[test]
    fn by_a_port_of_the_node_nothing_passes_before_the_answer_to_the_syn() {
        assert_eq!(FlowState::first(TCP, SYN).outward(), SynSentOutward);
        for flags in (0..=255).map(TcpFlags).filter(|it| !it.opens()) {
            for direction in [Original, Reply] {
                let is_answer = flags.has(RST) || flags.has(SYN_ACK);
                let is_of_flow = direction == Reply && is_answer;
                let admission = SynSentOutward.admission(flags, direction);
                assert_eq!(admission == Admission::Cached, is_of_flow, "{flags:?} {direction:?}");
                assert!(is_of_flow || admission == Admission::OtherConnection);
                assert!(!SynSentOutward.stays(flags, direction));
            }
        }
        assert_eq!(SynSentOutward.next(SYN_ACK, Reply), SynReceived);
        assert_eq!(SynSentOutward.next(RST, Reply), ResetOpening);
        assert_eq!(SynSentOutward.admission(SYN, Original), Admission::Judge);
        assert_eq!(SynSentOutward.admission(SYN, Reply), Admission::JudgeAlone);
    }

    /// Only a connection that is over may give its ports to another one.
    #[test]
    fn a_connection_is_over_after_both_fins_and_the_last_acknowledgement_or_a_reset_and_silence() {
        for (first, last) in [(Original, Reply), (Reply, Original)] {
            let mut state = Established;
            // The last ACK of data crosses the other side's FIN, so that FIN is sent again.
            for (flags, direction) in
                [(FIN_ACK, first), (ACK, last), (FIN_ACK, first), (FIN_ACK, last), (FIN_ACK, last)]
            {
                state = state.next(flags, direction);
                assert_eq!(state.over_after(), None, "{state:?}");
            }
            // A data segment that is sent again acknowledges nothing new.
            assert_eq!(state.next(ACK, last).over_after(), None);
            for (flags, side) in [(ACK, first), (RST, first), (RST, last)] {
                assert_eq!(state.next(flags, side).over_after(), Some(0));
            }
        }
        let over = FlowState::ALL.into_iter().filter(|it| it.over_after().is_some());
        assert_eq!(over.collect::<Vec<_>>(), [Closed, ResetOpening, ResetEstablished]);
        assert_eq!([SynSent, Established].map(|it| it.next(RST, Reply).over_after()), [Some(2); 2]);
    }

    #[test]
    fn a_reset_is_undone_by_later_traffic() {
        assert_eq!(Established.next(RST, Reply).next(ACK, Reply), Established);
        assert_eq!(SynSent.next(RST, Reply).next(SYN_ACK, Reply), SynReceived);
    }

    proptest! {
        /// No sequence of packets from one side alone earns a long timeout or protection from eviction.
        #[test]
        fn established_means_that_both_sides_have_spoken(
            protocol: u8,
            first: u8,
            packets in prop::collection::vec((any::<u8>(), any::<bool>()), 0..20),
        ) {
            let mut state = FlowState::first(protocol, TcpFlags(first));
            let mut both = false;
            prop_assert!(!state.is_established());
            for (flags, reply) in packets {
                state = state.next(TcpFlags(flags), if reply { Reply } else { Original });
                both |= reply;
                prop_assert!(both || !state.is_established());
                prop_assert!(both || state.timeout(true) < 3600);
            }
        }
    }
}
