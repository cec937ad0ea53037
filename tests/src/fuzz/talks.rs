//! Who speaks to whom, and what they say next: connections whose both ends speak.

use std::net::IpAddr;

use fastrand::Rng;

use super::generate::Generator;
use super::read::{Speech, Words, flag};
use crate::packet::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// Connections that go on at once.
const TALKS: usize = 96;

/// A connection as its ends see it.
#[derive(Debug, Clone, Copy)]
pub struct Talk {
    /// From the side that opened it.
    speech: Speech,
    /// Packets so far.
    stage: u32,
    sequences: [u32; 2],
}

/// What one end says next.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub speech: Speech,
    pub flags: u8,
    pub sequence: u32,
}

impl Generator {
    /// Two ends of one family, at least one of them mostly a pod.
    pub fn ends(&mut self) -> (IpAddr, IpAddr) {
        let family = usize::from(self.rng.u8(..4) == 0 && !self.pods[1].is_empty());
        let some = |of: &[IpAddr], rng: &mut Rng| of.get(rng.usize(..of.len().max(1))).copied();
        let all = some(&self.all[family], &mut self.rng);
        let pod = some(&self.pods[family], &mut self.rng).or(all);
        let other =
            if self.rng.u8(..3) == 0 { all } else { some(&self.pods[family], &mut self.rng) };
        let nobody = IpAddr::from([192, 0, 2, 9]);
        let (one, other) = (pod.unwrap_or(nobody), other.or(all).unwrap_or(nobody));
        if self.rng.u8(..4) == 0 { (other, one) } else { (one, other) }
    }

    /// Ports, or what there is instead.
    pub fn speech(&mut self) -> Speech {
        let (source, destination) = self.ends();
        let v4 = source.is_ipv4();
        match self.rng.u8(..16) {
            it @ 0..13 => {
                let upper = match it {
                    0..7 => TCP,
                    7..11 => UDP,
                    _ => SCTP,
                };
                let to = self.port();
                let from = match self.rng.u8(..16) {
                    0 => self.port(),
                    _ => 1024 + (self.serial.wrapping_mul(7) % 64_000) as u16,
                };
                Speech { source, destination, upper, words: Words::Ports(from, to) }
            }
            13 | 14 => Speech::echo(source, destination, self.serial as u16),
            _ => {
                let upper = if v4 { ICMP } else { ICMPV6 };
                let kind = if v4 { 13 } else { 128 };
                let words = Words::Query { kind, asks: true, id: self.rng.u16(..) };
                Speech { source, destination, upper, words }
            }
        }
    }

    pub(super) fn port(&mut self) -> u16 {
        self.serial += 1;
        self.ports[self.rng.usize(..self.ports.len())]
    }

    /// What somebody says next: mostly of a connection that goes on.
    pub fn turn(&mut self) -> Turn {
        if self.talks.is_empty() || self.rng.u8(..8) == 0 {
            return self.begin();
        }
        let at = self.rng.usize(..self.talks.len());
        let talk = &mut self.talks[at];
        let answers = match talk.stage {
            0 => false,
            1 => true,
            _ => self.rng.bool(),
        };
        let side = usize::from(answers);
        let flags = match (talk.speech.upper, talk.stage, self.rng.u8(..64)) {
            (TCP, 0, _) => flag::SYN,
            (TCP, 1, _) => flag::SYN | flag::ACK,
            (TCP, _, 0 | 1) => flag::FIN | flag::ACK,
            (TCP, _, 2) => flag::RST,
            (TCP, _, 3) => flag::SYN,
            (TCP, _, 4..20) => flag::ACK | flag::PSH,
            (TCP, ..) => flag::ACK,
            _ => 0,
        };
        talk.stage += 1;
        let sequence = talk.sequences[side];
        talk.sequences[side] = sequence.wrapping_add(10_000);
        let speech = if answers { talk.speech.reversed() } else { talk.speech };
        Turn { speech, flags, sequence }
    }

    /// Begins another connection.
    pub(super) fn begin(&mut self) -> Turn {
        let speech = self.speech();
        let sequences = [self.rng.u32(..), self.rng.u32(..)];
        let talk = Talk { speech, stage: 1, sequences };
        if self.talks.len() < TALKS {
            self.talks.push(talk);
        } else {
            let at = self.rng.usize(..TALKS);
            self.talks[at] = talk;
        }
        let flags = if speech.upper == TCP { flag::SYN } else { 0 };
        Turn { speech, flags, sequence: sequences[0] }
    }
}
