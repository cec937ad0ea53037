//! The messages about sockets, and the check of BGP's port.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpSocket;

use super::lack::{Capability, Check, Lack};

/// The port at which an agent with `--bgp` listens, unless `BGPConfiguration/default` sets another one.
const BGP: u16 = 179;

const REMEDY: &str = "run it as root, inside a user namespace (as the rig does), or with CAP_NET_ADMIN and CAP_NET_RAW; in a container: \
                      docker run --cap-add NET_ADMIN --cap-add NET_RAW";

/// The message if packet sockets are refused.
pub fn packet_sockets_refused(error: &io::Error) -> Lack {
    Lack {
        capability: Capability::PacketSockets,
        found: format!("packet sockets with virtio headers cannot be opened ({error})"),
        cost: "neither veth pods nor a packet socket on the uplink are to be had".to_owned(),
        remedy: match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => "load the driver: sudo modprobe af_packet".to_owned(),
            _ => REMEDY.to_owned(),
        },
    }
}

/// The message if raw sockets are refused.
pub fn raw_sockets_refused(error: &io::Error) -> Lack {
    Lack {
        capability: Capability::RawSockets,
        found: format!("raw sockets of protocol 4 cannot be opened ({error})"),
        cost: "IPIP between nodes is not to be had".to_owned(),
        remedy: REMEDY.to_owned(),
    }
}

/// Checks whether an agent could listen at BGP's port. The socket is only bound and does not listen, so it accepts no
/// connection.
pub(super) fn bgp_port() -> Check {
    judge_bgp_port(take_port(BGP))
}

/// Binds a port of all addresses for a moment, as an agent does. It binds both families, or IPv4 alone on a kernel without
/// IPv6.
fn take_port(port: u16) -> io::Result<()> {
    let take = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // As in the agent, connections of an ended process do not block the port.
        socket.set_reuseaddr(true)?;
        socket.bind(address)
    };
    match take((Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
            ) =>
        {
            take((Ipv4Addr::UNSPECIFIED, port).into())
        }
        taken => taken,
    }
}

fn judge_bgp_port(taken: io::Result<()>) -> Check {
    let lack = |found: String, cost: &str, remedy: &str| {
        let (cost, remedy) = (cost.to_owned(), remedy.to_owned());
        Err(Lack { capability: Capability::BgpPort, found, cost, remedy })
    };
    match taken {
        Ok(()) => Ok(format!("TCP port {BGP} is free, and may be listened at")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => lack(
            format!("a process listens at TCP port {BGP}"),
            "no other agent with --bgp starts here, unless BGPConfiguration/default has another listenPort",
            "if it is this node's agent, nothing is wrong (`manx node status`); else end that process, such as calico-node's BIRD \
             (ss -ltnp 'sport = 179' names it)",
        ),
        Err(error) => lack(
            format!("TCP port {BGP} may not be listened at ({error})"),
            "an agent with --bgp does not start",
            "run it as root or with CAP_NET_BIND_SERVICE; in a container: docker run --cap-add NET_BIND_SERVICE",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::netns;
    use crate::testing::{namespaces_allowed, with_loopback};

    #[test]
    fn a_port_is_free_until_somebody_listens_at_any_address_of_any_family() {
        if !namespaces_allowed() {
            return;
        }
        let lo = with_loopback();
        netns::run_in(&lo, || {
            for taken in ["0.0.0.0:179", "[::]:179", "127.0.0.1:179", "[::1]:179"] {
                take_port(BGP).unwrap();
                let listener = TcpListener::bind(taken).unwrap();
                let error = take_port(BGP).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{taken}");
                drop(listener);
            }
        })
        .unwrap();
    }

    #[test]
    fn what_is_wrong_with_bgps_port_has_its_sentence() {
        let told = [
            judge_bgp_port(Err(io::Error::from_raw_os_error(libc::EADDRINUSE))),
            judge_bgp_port(Err(io::Error::from_raw_os_error(libc::EACCES))),
        ];
        let told = told.map(|check| check.unwrap_err().to_string()).join("\n");
        insta::assert_snapshot!(told, @r"
        a process listens at TCP port 179: no other agent with --bgp starts here, unless BGPConfiguration/default has another listenPort; if it is this node's agent, nothing is wrong (`manx node status`); else end that process, such as calico-node's BIRD (ss -ltnp 'sport = 179' names it)
        TCP port 179 may not be listened at (Permission denied (os error 13)): an agent with --bgp does not start; run it as root or with CAP_NET_BIND_SERVICE; in a container: docker run --cap-add NET_BIND_SERVICE
        ");
        assert!(judge_bgp_port(Ok(())).is_ok());
    }

    #[test]
    fn each_refusal_has_its_sentence() {
        let told = [
            packet_sockets_refused(&io::Error::from_raw_os_error(libc::EPERM)),
            packet_sockets_refused(&io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
            raw_sockets_refused(&io::Error::from_raw_os_error(libc::EPERM)),
        ];
        insta::assert_snapshot!(told.map(|lack| lack.to_string()).join("\n"), @r"
        packet sockets with virtio headers cannot be opened (Operation not permitted (os error 1)): neither veth pods nor a packet socket on the uplink are to be had; run it as root, inside a user namespace (as the rig does), or with CAP_NET_ADMIN and CAP_NET_RAW; in a container: docker run --cap-add NET_ADMIN --cap-add NET_RAW
        packet sockets with virtio headers cannot be opened (Address family not supported by protocol (os error 97)): neither veth pods nor a packet socket on the uplink are to be had; load the driver: sudo modprobe af_packet
        raw sockets of protocol 4 cannot be opened (Operation not permitted (os error 1)): IPIP between nodes is not to be had; run it as root, inside a user namespace (as the rig does), or with CAP_NET_ADMIN and CAP_NET_RAW; in a container: docker run --cap-add NET_ADMIN --cap-add NET_RAW
        ");
    }
}
