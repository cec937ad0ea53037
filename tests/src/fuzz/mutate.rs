//! Random bytes, and packets with random changes.

use manx_dataplane::tables::PortId;

use super::coverage::Kind;
use super::generate::Generator;
use super::read::IPIP;
use super::writer::fix_ipv4_checksum;

impl Generator {
    pub(super) fn noise(&mut self) {
        let len = self.rng.usize(..120);
        let mut bytes: Vec<u8> = (0..len).map(|_| self.rng.u8(..)).collect();
        if let Some(first) = bytes.first_mut() {
            *first = self.pick(&[0x45, 0x45, 0x46, 0x60, *first]);
        }
        if bytes.len() > 4 && self.rng.bool() {
            (bytes[2], bytes[3]) = (0, len as u8);
            fix_ipv4_checksum(&mut bytes);
        }
        let node = self.rng.usize(..2);
        let port = PortId(self.rng.u16(..7));
        self.push_at(node, port, Kind::Noise, bytes, false);
    }

    /// Changes something in the packets from `from` on.
    pub fn mutate(&mut self, from: usize) {
        for at in from..self.made.len() {
            let mut made = self.made[at].clone();
            for _ in 0..self.rng.usize(1..4) {
                self.change(&mut made.bytes);
            }
            if self.rng.bool() {
                fix_ipv4_checksum(&mut made.bytes);
            }
            if self.rng.u8(..4) == 0 {
                made.offload.segmentation = None;
            }
            (made.kind, made.is_clean) = (Kind::Mutated, false);
            self.made[at] = made;
        }
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        if len == 0 {
            return;
        }
        // Headers are changed more often than payload.
        let at =
            if self.rng.bool() { self.rng.usize(..len.min(60)) } else { self.rng.usize(..len) };
        match self.rng.u8(..8) {
            0..3 => bytes[at] ^= 1 << self.rng.u8(..8),
            3 => bytes[at] = self.rng.u8(..),
            4 => bytes.truncate(at),
            5 => bytes.resize(len + self.rng.usize(1..40), 0),
            6 => {
                // The length fields of IP and UDP.
                let at = self.pick(&[2, 4, 24, 44]);
                if let Some(field) = bytes.get_mut(at..at + 2) {
                    let value = self.pick(&[0, 8, len as u16, len as u16 + 1, 0xffff]);
                    field.copy_from_slice(&value.to_be_bytes());
                }
            }
            _ => {
                let at = self.pick(&[0, 6, 9, 20, 32, 40, 53]);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = self.pick(&[0, 1, 4, 6, 17, 44, 0x20, 0x45, 0x60, IPIP, 0xff]);
                }
            }
        }
    }
}
