//! The ports that the sockets of a network namespace use (`man proc_pid_net`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::netlink::Transport;

/// The lists of the calling thread's namespace, each with its protocol and with the state of a socket that accepts packets
/// from any peer: `TCP_LISTEN`, and `TCP_CLOSE` for UDP (`tcp_states.h`).
const LISTS: [(&str, Transport, &str); 4] = [
    ("tcp", Transport::Tcp, "0A"),
    ("tcp6", Transport::Tcp, "0A"),
    ("udp", Transport::Udp, "07"),
    ("udp6", Transport::Udp, "07"),
];
const FOLDER: &str = "/proc/thread-self/net";
/// `TCP_TIME_WAIT`: no process has such a socket any more.
const ENDED: &str = "06";

/// The way in which a process uses a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortUse {
    /// A connection from this port is open.
    Connected,
    /// A process accepts packets there from any peer.
    Listening,
}

/// The used ports at the time of reading. SCTP's ports are not known and count as free.
#[derive(Debug, Default)]
pub struct UsedPorts(BTreeMap<(Transport, u16), BTreeSet<(IpAddr, PortUse)>>);

impl UsedPorts {
    /// Reads the ports of the calling thread's namespace.
    pub fn read() -> io::Result<Self> {
        let mut all = Self::default();
        for (name, transport, listening) in LISTS {
            let list = match std::fs::read_to_string(Path::new(FOLDER).join(name)) {
                Ok(list) => list,
                // A kernel without IPv6 has no such list.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for (address, port, state) in list.lines().skip(1).filter_map(socket) {
                let used = if state == listening { PortUse::Listening } else { PortUse::Connected };
                if state != ENDED {
                    all.0.entry((transport, port)).or_default().insert((address, used));
                }
            }
        }
        Ok(all)
    }

    /// The use of this port at this address. Returns `None` if no socket uses it.
    pub fn used(&self, transport: Transport, address: IpAddr, port: u16) -> Option<PortUse> {
        let sockets = self.0.get(&(transport, port))?.iter();
        let same = sockets.filter(|(at, _)| at.is_unspecified() || at.to_canonical() == address);
        same.map(|(_, used)| *used).max()
    }
}

/// The local address and port, and the state, from a line of a list.
fn socket(line: &str) -> Option<(IpAddr, u16, &str)> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, _remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (address, port) = local.split_once(':')?;
    Some((parse_address(address)?, u16::from_str_radix(port, 16).ok()?, state))
}

/// Parses an address, written as 32-bit words in the machine's byte order.
fn parse_address(hex: &str) -> Option<IpAddr> {
    let words = (0..hex.len()).step_by(8).map(|at| hex.get(at..at + 8));
    let words = words.map(|word| u32::from_str_radix(word?, 16).ok());
    let octets: Vec<u8> =
        words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    if let Ok(v4) = <[u8; 4]>::try_from(&octets[..]) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(&octets[..]).ok().map(|v6| Ipv6Addr::from(v6).into())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::netns;
    use crate::testing::{namespaces_allowed, with_loopback};

    #[test]
    fn a_port_is_used_where_a_process_listens_or_is_connected_from() {
        if !namespaces_allowed() {
            return;
        }
        let lo = with_loopback();
        netns::run_in(&lo, || {
            let one = TcpListener::bind("127.0.0.2:80").unwrap();
            let _all = TcpListener::bind("[::]:81").unwrap();
            let _v6 = TcpListener::bind("[::1]:82").unwrap();
            let _udp = UdpSocket::bind("127.0.0.1:53").unwrap();
            let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
            peer.connect("127.0.0.1:53").unwrap();
            let stream = TcpStream::connect("127.0.0.2:80").unwrap();
            let _accepted = one.accept().unwrap();
            let sockets = UsedPorts::read().unwrap();
            let used = |transport, address: &str, port| {
                sockets.used(transport, address.parse().unwrap(), port)
            };
            let (tcp, udp) = (Transport::Tcp, Transport::Udp);
            let listens = Some(PortUse::Listening);
            assert_eq!(used(tcp, "127.0.0.2", 80), listens);
            assert_eq!((used(tcp, "127.0.0.1", 80), used(udp, "127.0.0.2", 80)), (None, None));
            assert_eq!((used(tcp, "127.0.0.1", 81), used(tcp, "::1", 81)), (listens, listens));
            assert_eq!((used(tcp, "::1", 82), used(tcp, "127.0.0.1", 82)), (listens, None));
            assert_eq!((used(udp, "127.0.0.1", 53), used(tcp, "127.0.0.1", 53)), (listens, None));
            for (transport, local) in
                [(udp, peer.local_addr().unwrap()), (tcp, stream.local_addr().unwrap())]
            {
                let found = sockets.used(transport, local.ip(), local.port());
                assert_eq!(found, Some(PortUse::Connected), "{local}");
            }
        })
        .unwrap();
    }
}
