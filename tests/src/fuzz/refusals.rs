//! TCP resets that a node sends itself, for services without a backend.

use manx_dataplane::tables::PortId;

use super::coverage::{Coverage, Event};
use super::input::{Input, Outcome};
use super::oracle::Law;
use super::own_errors::{back, is_whole};
use super::read::{Part, flag};
use super::wire::{Refusal, Wire};
use crate::packet::TCP;

/// Whether a packet is the node's own reset of an input's connection. The input then counts as answered.
///
/// # Errors
/// The packet is a reset of the node, and is wrong.
pub fn find(
    law: &Law<'_>,
    inputs: &mut [Input],
    port: PortId,
    wire: &Wire<'_>,
    coverage: &mut Coverage,
) -> Result<bool, Refusal> {
    let read = &wire.read;
    let is_bare = read.part == Part::Whole && read.total == read.at + 20;
    if !law.terms.translates || read.tuple.upper != TCP || !is_bare || read.flags & flag::RST == 0 {
        return Ok(false);
    }
    let mut wrong = None;
    for at in 0..inputs.len() {
        let input = &inputs[at];
        let is_about = back(input.sent.port) == port
            && input.read.is_some_and(|it| it.tuple == read.tuple.reversed());
        if !is_about || !answers(wire, input) {
            continue;
        }
        let twin = match input.outcome {
            Outcome::Unknown => None,
            Outcome::CameOut if input.translated => {
                let Some(twin) = inputs.iter().position(|it| is_twin(it, input)) else { continue };
                Some(twin)
            }
            _ => continue,
        };
        if !law.epochs.iter().any(|epoch| law.may_refuse(epoch, input)) {
            wrong =
                wrong.or(Some(("a reset of a connection that may be there".to_owned(), Some(at))));
            continue;
        }
        is_whole(wire).map_err(|fault| (fault.to_owned(), Some(at)))?;
        if let Some(twin) = twin {
            inputs[twin].outcome = Outcome::CameOut;
            inputs[twin].translated = true;
        }
        inputs[at].outcome = Outcome::Answered;
        coverage.count(Event::Refused);
        return Ok(true);
    }
    wrong.map_or(Ok(false), Err)
}

/// Whether an input that has not come out may be the one that did, instead of `other`. The two
/// differ only in their destination port and checksum, and a translation replaces that port.
fn is_twin(input: &Input, other: &Input) -> bool {
    let (Some(read), Some(of_other)) = (&input.read, &other.read) else { return false };
    let changed = |at: usize| [at + 2, at + 3, at + 16, at + 17];
    let (bytes, others) = (input.packet(), other.packet());
    input.outcome == Outcome::Unknown
        && input.sent.port == other.sent.port
        && (read.at, read.tuple.upper, bytes.len()) == (of_other.at, TCP, others.len())
        && (0..bytes.len()).all(|at| bytes[at] == others[at] || changed(read.at).contains(&at))
}

/// Whether a packet has the form of a node's own reset: no options, and no payload.
pub fn is_bare_reset(bytes: &[u8]) -> bool {
    let flags = match (bytes.first().map(|it| it >> 4), bytes.len()) {
        (Some(4), 40) if bytes[9] == TCP => bytes[33],
        (Some(6), 60) if bytes[6] == TCP => bytes[53],
        _ => 0,
    };
    flags & flag::RST != 0
}

/// Whether a reset has the flags and the sequence numbers that its receiver expects (RFC 9293, section 3.10.7.1).
fn answers(wire: &Wire<'_>, input: &Input) -> bool {
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
        word.map_or(0, |it| u32::from_be_bytes(*it))
    };
    let Some(read) = &input.read else { return false };
    let (ours, theirs) = (&wire.bytes[wire.read.at..], &input.packet()[read.at..]);
    if read.flags & flag::RST != 0 {
        return false;
    }
    if read.flags & flag::ACK != 0 {
        return wire.read.flags == flag::RST && word(ours, 4) == word(theirs, 8);
    }
    let has = |flag: u8| u32::from(read.flags & flag != 0);
    let payload = read.total.saturating_sub(read.headers(input.packet())) as u32;
    let len = payload + has(flag::SYN) + has(flag::FIN);
    wire.read.flags == flag::RST | flag::ACK
        && word(ours, 4) == 0
        && word(ours, 8) == word(theirs, 4).wrapping_add(len)
}
