//! A raw `ICMPv6` socket (RFC 4443): the counterpart of [`icmp_raw`](super::icmp_raw) for IPv6.
//!
//! The kernel delivers the message without its IPv6 header, so the port adds one. The addresses in it are correct; the
//! hop limit, traffic class and flow label are not known.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use super::filter;
use super::{Disposition, PacketIo, Received, Reception, Transmitted};
use crate::packet::{Capabilities, Offload, Packet, Pool};
use crate::sys::{addressed, socket};
use crate::wire::ipv6;

/// The size of the receive buffer that is requested, in bytes. Messages are short, and nodes limit the rate at which
/// they send them.
const BUFFER: i32 = 1 << 20;
/// A placeholder, because the hop limit is not known.
const HOP_LIMIT: u8 = 64;

/// A raw socket of `ICMPv6`. It receives errors and echo replies, and sends nothing.
#[derive(Debug)]
pub struct Icmpv6Raw {
    fd: OwnedFd,
}

impl Icmpv6Raw {
    /// Opens a socket in the caller's network namespace.
    ///
    /// Fails with `PermissionDenied` without `CAP_NET_RAW` over the namespace, and with `Unsupported` or another error
    /// if the kernel has no IPv6.
    pub fn open(reception: Reception) -> io::Result<Self> {
        let fd = socket::open(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6)?;
        let filter = match reception {
            Reception::All => &filter::REPORTS[..],
            Reception::Quiet => &filter::NOTHING[..],
        };
        socket::attach_filter(fd.as_fd(), filter)?;
        addressed::ask_for_destinations(fd.as_fd())?;
        socket::enlarge_buffers(fd.as_fd(), BUFFER)?;
        Ok(Self { fd })
    }

    /// Receives one message and adds an IPv6 header in front. The kernel has verified its checksum.
    fn receive_one(&self, packet: &mut Packet) -> io::Result<Disposition> {
        let message = addressed::receive(self.fd.as_fd(), packet.room_mut())?;
        packet.set_len(message.len);
        packet.offload = Offload::default();
        let (Ok(len), true) = (u16::try_from(message.len), message.is_whole) else {
            return Ok(Disposition::Malformed);
        };
        let [source, destination] = [message.source, message.destination].map(|it| it.octets());
        let next_header = libc::IPPROTO_ICMPV6 as u8;
        let header = ipv6::header(source, destination, next_header, HOP_LIMIT, len);
        Ok(if packet.push_front(&header) { Disposition::Ours } else { Disposition::Malformed })
    }
}

impl PacketIo for Icmpv6Raw {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        let mut received = Received::default();
        for _ in 0..limit {
            let Some(mut packet) = pool.take() else { break };
            match self.receive_one(&mut packet) {
                Ok(disposition) => disposition.account(packet, &mut received, pool, into),
                Err(error) => {
                    pool.put(packet);
                    match error.kind() {
                        io::ErrorKind::WouldBlock => received.drained = true,
                        io::ErrorKind::Interrupted => {}
                        io::ErrorKind::InvalidData => received.malformed += 1,
                        _ => return Err(error),
                    }
                    if received.drained {
                        break;
                    }
                }
            }
        }
        Ok(received)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let mut transmitted = Transmitted::default();
        for packet in packets.drain(..) {
            transmitted.count(&packet, false);
            pool.put(packet);
        }
        Ok(transmitted)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.fd.as_raw_fd())
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}
