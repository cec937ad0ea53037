//! Fragments: correct ones, late ones, and those that overlap, are tiny or do not fit into a packet.

use manx_dataplane::packet::Offload;

use super::conversations::NextPacket;
use super::coverage::Kind;
use super::generate::{Generator, Home};
use super::read::{FlowTuple, TransportKey};
use super::writer::{self, Style};

impl Generator {
    /// The fragments of a packet. Their payloads have these sizes in turn (multiples of eight), except the last.
    fn cut(&mut self, next: &NextPacket, style: &Style, sizes: &[usize]) -> Vec<Vec<u8>> {
        let mut whole = Vec::new();
        let style = Style { may_be_cut: true, extra: writer::Extra::Nothing, ..*style };
        writer::write(&mut whole, &next.tuple, &style);
        let v4 = next.tuple.is_v4();
        let header = if v4 { 20 } else { 40 };
        let (mut pieces, mut at) = (Vec::new(), 0);
        let carried = whole.len() - header;
        let mut sizes = sizes.iter().copied().cycle();
        while at < carried {
            let len = sizes.next().unwrap_or(8).min(carried - at);
            let more = at + len < carried;
            pieces.push(fragment(&whole, at, len, more, style.serial as u32));
            at += len;
        }
        pieces
    }

    pub fn fragments(&mut self) {
        let next = NextPacket { flags: 0x10, ..self.next_packet() };
        let mut style = self.style(&next);
        style.payload = self.rng.usize(64..2000);
        let size = self.rng.usize(4..120) * 8;
        let mut pieces = self.cut(&next, &style, &[size]);
        match self.rng.u8(..4) {
            0 => self.rng.shuffle(&mut pieces),
            // The first fragment is missing.
            1 if self.rng.bool() => drop(pieces.remove(0)),
            _ => {}
        }
        // Some fragments come much later. By then the first fragment may be forgotten, or other tables may be
        // published.
        let late = if self.rng.u8(..8) == 0 { pieces.pop() } else { None };
        self.push_pieces(Kind::Fragment, &next.tuple, pieces);
        if let Some(late) = late {
            self.push(Kind::LateFragment, &next.tuple, late, Offload::default(), false);
            self.late.extend(self.made.pop());
        }
    }

    /// Sends one of the fragments that were held back.
    pub fn late_fragment(&mut self) {
        if !self.late.is_empty() {
            let at = self.rng.usize(..self.late.len());
            self.made.push(self.late.swap_remove(at));
        }
    }

    fn push_pieces(&mut self, kind: Kind, tuple: &FlowTuple, pieces: Vec<Vec<u8>>) {
        let from = self.made.len();
        for piece in pieces {
            self.push(kind, tuple, piece, Offload::default(), false);
        }
        // Usually one worker reads all of them.
        if self.rng.u8(..4) > 0
            && let Some(worker) = self.made.get(from).map(|it| it.worker)
        {
            self.made[from..].iter_mut().for_each(|it| it.worker = worker);
        }
    }

    pub(super) fn odd_fragments(&mut self) {
        let next = NextPacket { flags: 0x10, ..self.next_packet() };
        let mut style = self.style(&next);
        style.payload = self.rng.usize(64..600);
        let mut pieces = self.cut(&next, &style, &[64]);
        let mut whole = Vec::new();
        writer::write(&mut whole, &next.tuple, &style);
        let id = style.serial as u32;
        match self.rng.u8(..6) {
            // A tiny first fragment, and a later one that overlaps its header (RFC 1858, RFC 3128).
            0 => pieces = vec![fragment(&whole, 0, 8, true, id), fragment(&whole, 8, 32, true, id)],
            1 => pieces.push(fragment(&whole, 8, 16, true, id)),
            2 => pieces.push(fragment(&whole, 32, 40, true, id)),
            // There are two first fragments with different ports.
            3 => {
                let mut other = next;
                if let TransportKey::Ports(_, to) = &mut other.tuple.transport {
                    *to ^= 1;
                }
                let more = self.cut(&other, &style, &[64]);
                pieces.insert(1.min(pieces.len()), more[0].clone());
            }
            // A size that is no multiple of eight, an end beyond 64 KB, or no payload.
            4 => {
                pieces = vec![
                    fragment(&whole, 0, 61, true, id),
                    fragment(&whole, 65_528 - 64, 64, false, id),
                ]
            }
            _ => pieces.push(fragment(&whole, 64, 0, false, id)),
        }
        self.push_pieces(Kind::OddFragment, &next.tuple, pieces);
        if self.rng.u8(..4) == 0 {
            // A fragment with the same identification from another port.
            let at = self.made.len() - 1;
            let (mut copy, (source, _)) = (self.made[at].clone(), self.ends());
            if let Home::Pod { node, port } = self.home(source) {
                (copy.node, copy.port) = (node, port);
                self.made.push(copy);
            }
        }
    }
}

/// A fragment of a packet: `len` bytes of the IP payload from `at` on.
fn fragment(whole: &[u8], at: usize, len: usize, more: bool, id: u32) -> Vec<u8> {
    let v4 = whole[0] >> 4 == 4;
    let header = if v4 { 20 } else { 40 };
    let carried = &whole[header..];
    let from = at.min(carried.len());
    let mut piece = whole[..header].to_vec();
    let units = (at / 8) as u16;
    if v4 {
        piece[4..6].copy_from_slice(&(id as u16).to_be_bytes());
        let word = units | if more { 0x2000 } else { 0 };
        piece[6..8].copy_from_slice(&word.to_be_bytes());
    } else {
        piece[6] = 44;
        piece.extend_from_slice(&[whole[6], 0]);
        piece.extend_from_slice(&(units << 3 | u16::from(more)).to_be_bytes());
        piece.extend_from_slice(&id.to_be_bytes());
    }
    piece.extend_from_slice(&carried[from..(from + len).min(carried.len())]);
    writer::fix_ip_header(&mut piece);
    piece
}
