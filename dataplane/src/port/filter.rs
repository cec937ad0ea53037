//! Classic BPF programs that the kernel runs over a frame before it enters a socket's queue.
//!
//! A packet socket's program sees the frame from its Ethernet header on. The kernel has already removed an outer VLAN
//! tag and stores it separately. A raw socket's program sees the packet from its IP header on. For IPv6 it sees the
//! bytes after that header.

use super::link::ethertype;
use crate::sys::socket::Instruction;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Loads from this address and above return facts about the frame instead of its bytes (`SKF_AD_*`).
const ANCILLARY: u32 = 0xffff_f000;
const PACKET_TYPE: u32 = ANCILLARY + 4;
const VLAN_TAG_PRESENT: u32 = ANCILLARY + 48;

const WHOLE: u32 = u32::MAX;
const PROTOCOL_IPIP: u32 = 4;
/// The more-fragments flag and the offset. Both are 0 in a whole packet (RFC 791, 3.1).
const FRAGMENT_BITS: u32 = 0x3fff;

const ECHO_REPLY_V6: u32 = 129;
/// A bit that is set in the types that are not errors.
const INFORMATION_V6: u32 = 0x80;

/// Passes nothing.
pub(super) const NOTHING: [Instruction; 1] = [give(0)];

/// Passes frames without a VLAN tag.
pub(super) const UNTAGGED: [Instruction; 4] =
    [load(LOAD_WORD, VLAN_TAG_PRESENT), equal(0, 0, 1), give(WHOLE), give(0)];

/// Passes whole, untagged IPv4 packets of protocol 4 to this host's own hardware address.
pub(super) const TUNNEL: [Instruction; 12] = [
    load(LOAD_WORD, PACKET_TYPE),
    equal(libc::PACKET_HOST as u32, 0, 9),
    load(LOAD_WORD, VLAN_TAG_PRESENT),
    equal(0, 0, 7),
    load(LOAD_HALF, 12),
    equal(ethertype::IPV4 as u32, 0, 5),
    load(LOAD_BYTE, 14 + 9),
    equal(PROTOCOL_IPIP, 0, 3),
    load(LOAD_HALF, 14 + 6),
    Instruction { code: JUMP_ANY_BIT, jump_true: 1, jump_false: 0, operand: FRAGMENT_BITS },
    give(WHOLE),
    give(0),
];

/// Passes errors of `ICMPv6` and echo replies, among the messages that a raw socket sees without their IPv6 header (RFC
/// 4443, section 2.1).
pub(super) const REPORTS: [Instruction; 5] = [
    load(LOAD_BYTE, 0),
    equal(ECHO_REPLY_V6, 1, 0),
    Instruction { code: JUMP_ANY_BIT, jump_true: 1, jump_false: 0, operand: INFORMATION_V6 },
    give(WHOLE),
    give(0),
];

const fn load(code: u16, operand: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, operand }
}

const fn equal(operand: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code: JUMP_EQUAL, jump_true, jump_false, operand }
}

const fn give(operand: u32) -> Instruction {
    Instruction { code: RETURN, jump_true: 0, jump_false: 0, operand }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This is the rule of the kernel (`bpf_check_classic`), which refuses any other program.
    #[test]
    fn every_jump_lands_inside_and_every_path_returns() {
        for program in [&NOTHING[..], &UNTAGGED, &TUNNEL, &REPORTS] {
            assert_eq!(program.last().map(|i| i.code), Some(RETURN));
            for (at, i) in program
                .iter()
                .enumerate()
                .filter(|(_, i)| i.code == JUMP_EQUAL || i.code == JUMP_ANY_BIT)
            {
                for jump in [i.jump_true, i.jump_false] {
                    assert!(at + 1 + (jump as usize) < program.len());
                }
            }
        }
    }

    #[test]
    fn every_refusal_of_the_tunnel_filter_ends_in_the_last_instruction() {
        for (at, i) in TUNNEL.iter().enumerate() {
            match i.code {
                JUMP_EQUAL => assert_eq!(at + 1 + i.jump_false as usize, TUNNEL.len() - 1),
                JUMP_ANY_BIT => assert_eq!(at + 1 + i.jump_true as usize, TUNNEL.len() - 1),
                _ => {}
            }
        }
    }
}
