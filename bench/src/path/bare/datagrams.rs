//! The port of a bare forwarder to another node: UDP datagrams.
//!
//! A packet from a pod's TUN is sent unchanged, in datagrams that the kernel cuts at the MTU, and is written to the
//! other pod's TUN. The only header is the virtio header, which says how the receiver may cut the packet. The forwarder
//! makes no decision. No tunnel with these devices and system calls can be faster.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::path::Path as FilePath;

use manx_dataplane::packet::{Capabilities, Packet, Pool};
use manx_dataplane::port::udp_tunnel::{BUFFER, segments_at_once};
use manx_dataplane::port::virtio::{self, HEADER_LEN};
use manx_dataplane::port::{PacketIo, Received, Transmitted};
use manx_dataplane::sys::socket::{enlarge_buffers, set_option};
use manx_linux::netns;

use crate::error::{Error, io as io_error};
use crate::path::constants::{MTU, VXLAN_OVERHEAD};

/// The UDP port of both nodes.
const PORT: u16 = 4790;
/// The length of an outer IPv4 header and a UDP header, in bytes.
const HEADERS: u32 = 20 + 8;

/// The MTU of the pods, and the largest number of segments of a super-packet. Both are the same as for Manx's pods
/// behind VXLAN.
pub(super) fn pod_limits() -> (u32, Option<u32>) {
    let mtu = MTU - VXLAN_OVERHEAD;
    (mtu, Some(segments_at_once(mtu)))
}

/// A socket that is connected to another node.
pub(super) struct Datagrams(UdpSocket);

impl Datagrams {
    /// Opens a socket in this node's namespace that is connected to the node `peer`.
    pub(super) fn open(node: &FilePath, peer: Ipv4Addr) -> Result<Self, Error> {
        let node = File::open(node).map_err(io_error("the node's namespace cannot be opened"))?;
        netns::run_in(&node, || Self::connect(peer))?.map_err(io_error("no UDP socket"))
    }

    fn connect(peer: Ipv4Addr) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
        socket.connect((peer, PORT))?;
        socket.set_nonblocking(true)?;
        let fd = socket.as_fd();
        enlarge_buffers(fd, BUFFER)?;
        let segment = (MTU - HEADERS).cast_signed();
        set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, segment)?;
        set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1)?;
        Ok(Self(socket))
    }
}

impl PacketIo for Datagrams {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        let mut received = Received::default();
        while into.len() < limit
            && let Some(mut packet) = pool.take()
        {
            let Ok(len) = self.0.recv(packet.room_mut()) else {
                pool.put(packet);
                received.drained = true;
                break;
            };
            packet.set_len(len);
            let header = packet.bytes().first_chunk().copied();
            packet.pull_front(HEADER_LEN);
            if header.is_some_and(|header| virtio::mark(&mut packet, &header, 0).is_ok()) {
                into.push(packet);
            } else {
                received.malformed += 1;
                pool.put(packet);
            }
        }
        Ok(received)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let mut transmitted = Transmitted::default();
        for mut packet in packets.drain(..) {
            let header = virtio::encode(packet.offload, packet.bytes(), 0);
            let sent = packet.push_front(&header) && self.0.send(packet.bytes()).is_ok();
            transmitted.sent += usize::from(sent);
            transmitted.refused += usize::from(!sent);
            pool.put(packet);
        }
        Ok(transmitted)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}
