//! Raw IP sockets, for SCTP on kernels without it and for echoes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use tokio::net::UdpSocket;

/// The protocols of raw sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawProtocol {
    /// ICMP over IPv4, ICMPv6 over IPv6.
    Icmp,
    Sctp,
}

/// A raw socket of one family. Sent and received bytes begin after the IP header.
#[derive(Debug)]
pub(super) struct RawSocket {
    /// A raw socket is read and written like a datagram socket whose ports are 0 (raw(7)).
    socket: UdpSocket,
    v4: bool,
}

impl RawSocket {
    /// Opens a socket in the calling thread's network namespace. Call it within a tokio runtime.
    pub(super) fn open(protocol: RawProtocol, v4: bool) -> io::Result<Self> {
        let family = if v4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let protocol = match (protocol, v4) {
            (RawProtocol::Icmp, true) => SockProtocol::Icmp,
            (RawProtocol::Icmp, false) => SockProtocol::IcmpV6,
            (RawProtocol::Sctp, _) => SockProtocol::Sctp,
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Raw, flags, protocol)?;
        Ok(Self { socket: UdpSocket::from_std(socket.into())?, v4 })
    }

    /// Sends a packet. The kernel fills in an ICMPv6 checksum (RFC 3542, section 3.1), the caller any other.
    pub(super) async fn send_to(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        self.socket.send_to(packet, SocketAddr::new(to, 0)).await.map(drop)
    }

    /// Receives a packet: the bytes after the IP header, and the source address.
    pub(super) async fn recv_from(&self) -> io::Result<(Vec<u8>, IpAddr)> {
        let mut buffer = vec![0; 2048];
        loop {
            let (length, from) = self.socket.recv_from(&mut buffer).await?;
            // An IPv4 raw socket also returns the header (raw(7)), an IPv6 one does not (RFC 3542, section 3).
            let start = if self.v4 { usize::from(buffer[0] & 0x0f) * 4 } else { 0 };
            if start <= length {
                return Ok((buffer[start..length].to_vec(), from.ip()));
            }
        }
    }
}

/// The source address that the kernel would choose towards `to`; nothing is sent.
pub(super) fn source_towards(to: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(to, 9))?;
    Ok(socket.local_addr()?.ip())
}
