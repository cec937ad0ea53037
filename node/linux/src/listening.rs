//! The sockets at which processes of a network namespace listen (`man proc_pid_net`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::netlink::Transport;

/// The lists of the calling thread's namespace.
const LISTS: &str = "/proc/thread-self/net";
/// The states in which a socket gets what nobody has connected: `TCP_LISTEN`, and `TCP_CLOSE` of UDP (`tcp_states.h`).
const LISTENING: [&str; 2] = ["0A", "07"];

/// Whether a process in the calling thread's namespace gets what is sent to a port of an address. The lists do not have
/// SCTP's sockets: its ports count as free.
pub fn listens(transport: Transport, address: IpAddr, port: u16) -> io::Result<bool> {
    let (lists, state) = match transport {
        Transport::Tcp => (["tcp", "tcp6"], LISTENING[0]),
        Transport::Udp => (["udp", "udp6"], LISTENING[1]),
        Transport::Sctp => return Ok(false),
    };
    for name in lists {
        let list = match std::fs::read_to_string(Path::new(LISTS).join(name)) {
            Ok(list) => list,
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if list.lines().skip(1).filter_map(|line| listener(line, state)).any(|(at, listened)| {
            listened == port && (at.is_unspecified() || at.to_canonical() == address)
        }) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The local address and port in a line of a list, if its socket has this state.
fn listener(line: &str, state: &str) -> Option<(IpAddr, u16)> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, _remote, found) = (fields.next()?, fields.next()?, fields.next()?);
    let (address, port) = local.split_once(':')?;
    if found != state {
        return None;
    }
    Some((parse_address(address)?, u16::from_str_radix(port, 16).ok()?))
}

/// An address, as words of 32 bits in the byte order of the machine.
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
    use std::net::{TcpListener, UdpSocket};

    use super::*;
    use crate::netns;
    use crate::testing::namespaces_allowed;

    #[test]
    fn a_port_is_taken_where_a_process_listens() {
        if !namespaces_allowed() {
            return;
        }
        let lo = netns::create().unwrap();
        crate::netlink::in_netns(&lo, async |netlink| {
            let link = netlink.existing("lo").await?;
            netlink.set_up(link.index).await
        })
        .unwrap();
        netns::run_in(&lo, || {
            let _one = TcpListener::bind("127.0.0.2:80").unwrap();
            let _all = TcpListener::bind("[::]:81").unwrap();
            let _v6 = TcpListener::bind("[::1]:82").unwrap();
            let _udp = UdpSocket::bind("127.0.0.1:53").unwrap();
            let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
            // A connected socket gets nothing of others.
            peer.connect("127.0.0.1:53").unwrap();
            let client = peer.local_addr().unwrap().port();
            let taken = |transport, address: &str, port| {
                listens(transport, address.parse().unwrap(), port).unwrap()
            };
            assert!(taken(Transport::Tcp, "127.0.0.2", 80));
            assert!(
                !taken(Transport::Tcp, "127.0.0.1", 80) && !taken(Transport::Udp, "127.0.0.2", 80)
            );
            assert!(taken(Transport::Tcp, "127.0.0.1", 81) && taken(Transport::Tcp, "::1", 81));
            assert!(taken(Transport::Tcp, "::1", 82) && !taken(Transport::Tcp, "127.0.0.1", 82));
            assert!(
                taken(Transport::Udp, "127.0.0.1", 53) && !taken(Transport::Tcp, "127.0.0.1", 53)
            );
            assert!(!taken(Transport::Udp, "127.0.0.1", client));
        })
        .unwrap();
    }
}
