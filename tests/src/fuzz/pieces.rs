//! Fragments: as they should be, late, and such as overlap, are tiny or stand nowhere.

use manx_dataplane::packet::Offload;

use super::coverage::Kind;
use super::craft::{self, Style};
use super::generate::{Generator, Home};
use super::read::{Speech, Words};
use super::talks::Turn;

impl Generator {
    /// A packet cut into pieces of so many bytes (a multiple of eight), but for the last.
    fn cut(&mut self, turn: &Turn, style: &Style, sizes: &[usize]) -> Vec<Vec<u8>> {
        let mut whole = Vec::new();
        let style = Style { may_be_cut: true, extra: craft::Extra::Nothing, ..*style };
        craft::write(&mut whole, &turn.speech, &style);
        let v4 = turn.speech.is_v4();
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
        let turn = Turn { flags: 0x10, ..self.turn() };
        let mut style = self.style(&turn);
        style.payload = self.rng.usize(64..2000);
        let size = self.rng.usize(4..120) * 8;
        let mut pieces = self.cut(&turn, &style, &[size]);
        match self.rng.u8(..4) {
            0 => self.rng.shuffle(&mut pieces),
            // Without its first one.
            1 if self.rng.bool() => drop(pieces.remove(0)),
            _ => {}
        }
        // Some come much later: the first one may be forgotten by then, or other tables be published.
        let late = if self.rng.u8(..8) == 0 { pieces.pop() } else { None };
        self.push_pieces(Kind::Fragment, &turn.speech, pieces);
        if let Some(late) = late {
            self.push(Kind::LateFragment, &turn.speech, late, Offload::default(), false);
            self.late.extend(self.made.pop());
        }
    }

    /// One of the fragments that were held back.
    pub fn late_fragment(&mut self) {
        if !self.late.is_empty() {
            let at = self.rng.usize(..self.late.len());
            self.made.push(self.late.swap_remove(at));
        }
    }

    fn push_pieces(&mut self, kind: Kind, speech: &Speech, pieces: Vec<Vec<u8>>) {
        let from = self.made.len();
        for piece in pieces {
            self.push(kind, speech, piece, Offload::default(), false);
        }
        // Mostly one worker reads them all.
        if self.rng.u8(..4) > 0
            && let Some(worker) = self.made.get(from).map(|it| it.worker)
        {
            self.made[from..].iter_mut().for_each(|it| it.worker = worker);
        }
    }

    pub(super) fn odd_fragments(&mut self) {
        let turn = Turn { flags: 0x10, ..self.turn() };
        let mut style = self.style(&turn);
        style.payload = self.rng.usize(64..600);
        let mut pieces = self.cut(&turn, &style, &[64]);
        let mut whole = Vec::new();
        craft::write(&mut whole, &turn.speech, &style);
        let id = style.serial as u32;
        match self.rng.u8(..6) {
            // A tiny first one, and a later one over its header (RFC 1858, RFC 3128).
            0 => pieces = vec![fragment(&whole, 0, 8, true, id), fragment(&whole, 8, 32, true, id)],
            1 => pieces.push(fragment(&whole, 8, 16, true, id)),
            2 => pieces.push(fragment(&whole, 32, 40, true, id)),
            // Two beginnings that say different things.
            3 => {
                let mut other = turn;
                if let Words::Ports(_, to) = &mut other.speech.words {
                    *to ^= 1;
                }
                let more = self.cut(&other, &style, &[64]);
                pieces.insert(1.min(pieces.len()), more[0].clone());
            }
            // Not a multiple of eight; beyond 64 KB; nothing in it.
            4 => {
                pieces = vec![
                    fragment(&whole, 0, 61, true, id),
                    fragment(&whole, 65_528 - 64, 64, false, id),
                ]
            }
            _ => pieces.push(fragment(&whole, 64, 0, false, id)),
        }
        self.push_pieces(Kind::OddFragment, &turn.speech, pieces);
        if self.rng.u8(..4) == 0 {
            // Somebody else's of the same number.
            let at = self.made.len() - 1;
            let (mut copy, (source, _)) = (self.made[at].clone(), self.ends());
            if let Home::Pod { node, port } = self.home(source) {
                (copy.node, copy.port) = (node, port);
                self.made.push(copy);
            }
        }
    }
}

/// A piece of a whole packet: so many bytes of what is behind the IP header, from `at` on.
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
    craft::close_ip(&mut piece);
    piece
}
