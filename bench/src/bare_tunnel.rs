//! A path through two bare forwarders with UDP datagrams between them: what a pod's TUN brings is sent as it is, cut by the kernel
//! wherever an MTU ends, and handed to the other pod's TUN. No header is written but how the packet is to be cut, and nothing
//! is decided: no tunnel by these devices and system calls is faster.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::path::Path as FilePath;

use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::port::virtio::{self, HEADER_LEN};
use manx_dataplane::port::vxlan::{BUFFER, segments_at_once};
use manx_dataplane::port::{Capabilities, PacketIo, Received, Transmitted};
use manx_dataplane::sys::socket::{enlarge_buffers, set_option};
use manx_linux::netns;

use crate::bare;
use crate::cores::Cores;
use crate::error::{Error, io as io_error};
use crate::kernel;
use crate::path::{Between, End, Path};
use crate::world;

/// The port of both.
const PORT: u16 = 4790;
/// Bytes of an outer IPv4 and a UDP header.
const HEADERS: u32 = 20 + 8;
/// What pods of such a path have, as Manx's have behind VXLAN: their MTU, and of how many segments their super-packets may be.
pub(crate) fn of_pods() -> (u32, Option<u32>) {
    let mtu = kernel::MTU - kernel::VXLAN_OVERHEAD;
    (mtu, Some(segments_at_once(mtu)))
}

/// Between two pods on two nodes, each forwarder beside its end.
pub fn path(cores: Cores) -> Result<Path, Error> {
    let folder = world::folder()?;
    let named = |name: &str| kernel::named(folder.path(), name);
    let nodes = [named("node-1")?, named("node-2")?];
    kernel::veth(&nodes[0], "eth0", &nodes[1], "eth0", kernel::MTU)?;
    let underlay = |node: u8| Ipv4Addr::new(172, 18, 0, node);
    let mut processes = Vec::new();
    let mut ends = Vec::new();
    for (netns, (node, peer)) in nodes.iter().zip([(1, 2), (2, 1)]) {
        kernel::address(netns, "eth0", kernel::net(172, 18, 0, node, 24))?;
        let pod = format!("pod-{node}");
        let address = IpAddr::V4(Ipv4Addr::new(10, 97, 0, node));
        ends.push(End { netns: named(&pod)?, address });
        let own = [(folder.path().join(pod), address)];
        let tunnel = [
            format!("--node={}", folder.path().join(format!("node-{node}")).display()),
            format!("--peer={}", underlay(peer)),
        ];
        processes.push(bare::start(&own, cores.of_worker(node == 2), tunnel)?);
    }
    let [from, to] = <[End; 2]>::try_from(ends)
        .map_err(|_| Error::Nothing("two nodes have two ends".to_owned()))?;
    Ok(Path { from, to, between: Between::Bare(processes, folder) })
}

/// The way to another node.
pub(crate) struct Datagrams(UdpSocket);

impl Datagrams {
    /// From this node's namespace to `peer`.
    pub(crate) fn open(node: &FilePath, peer: Ipv4Addr) -> Result<Self, Error> {
        let node = File::open(node).map_err(io_error("the node's namespace cannot be opened"))?;
        netns::run_in(&node, || Self::connected(peer))?.map_err(io_error("no UDP socket"))
    }

    fn connected(peer: Ipv4Addr) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
        socket.connect((peer, PORT))?;
        socket.set_nonblocking(true)?;
        let fd = socket.as_fd();
        enlarge_buffers(fd, BUFFER)?;
        let segment = (kernel::MTU - HEADERS).cast_signed();
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

    fn is_mapped(&self) -> bool {
        false
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}
