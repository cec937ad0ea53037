//! Protects a connection from its first packet on, by a password (RFC 2385) and by a number of hops (RFC 5082).
//!
//! The socket options are Linux' (tcp(7), ip(7)). Neither the standard library nor `nix` has all of them. A macro of `nix`
//! makes the calls. During a call the kernel reads the bytes of a value, and no value here contains a pointer.

use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::setsockopt_impl;
use nix::sys::socket::sockopt::{IpMulticastTtl, Ipv4Ttl, Ipv6MulticastHops, Ipv6Ttl, SetStruct};
use nix::sys::socket::{GetSockOpt as _, SetSockOpt as _};

use crate::password::Password;

/// The TTL that a directly connected peer sends. Routers only decrease a TTL.
const FULL: c_int = 255;

/// `struct tcp_md5sig` of `linux/tcp.h`. The fields below are set, and all others are zero.
type Signature = [u8; 216];
/// The family of the peer's address, as in a `sockaddr`.
const FAMILY: Range<usize> = 0..2;
/// An IPv4 address, as in a `sockaddr_in`.
const V4: Range<usize> = 4..8;
/// An IPv6 address, as in a `sockaddr_in6`.
const V6: Range<usize> = 8..24;
/// The length of the password in bytes. Zero removes the password.
const LENGTH: Range<usize> = 130..132;
/// The password.
const KEY: Range<usize> = 136..216;

#[derive(Clone)]
struct PeerPassword;
setsockopt_impl!(
    PeerPassword,
    libc::IPPROTO_TCP,
    libc::TCP_MD5SIG,
    Signature,
    SetStruct<Signature>
);

/// The option for the least TTL of packets that a socket accepts.
#[derive(Clone)]
struct LeastTtl;
setsockopt_impl!(LeastTtl, libc::IPPROTO_IP, libc::IP_MINTTL, c_int, SetStruct<c_int>);

/// The same for IPv6.
#[derive(Clone)]
struct LeastHopLimit;
setsockopt_impl!(
    LeastHopLimit,
    libc::IPPROTO_IPV6,
    libc::IPV6_MINHOPCOUNT,
    c_int,
    SetStruct<c_int>
);

/// Sets the password by which packets to and from a peer are signed, or removes it. The kernel drops the peer's packets if
/// their signature is wrong or missing, and signed packets if there is no password. A listening socket has one password for
/// each peer, and an accepted connection inherits it. `is_ipv6` says that the socket is an IPv6 socket, in which IPv4
/// addresses are mapped.
///
/// # Errors
/// This node's kernel does not support it. The text names the remedy.
pub(crate) fn set_password(
    socket: &impl AsFd,
    is_ipv6: bool,
    peer: IpAddr,
    password: Option<&Password>,
) -> Result<(), String> {
    let peer = match peer {
        IpAddr::V4(it) if is_ipv6 => it.to_ipv6_mapped().into(),
        peer => peer,
    };
    PeerPassword.set(socket, &signature(peer, password)).map_err(password_refused)
}

fn signature(peer: IpAddr, password: Option<&Password>) -> Signature {
    let mut all = [0; size_of::<Signature>()];
    let family = match peer {
        IpAddr::V4(it) => {
            all[V4].copy_from_slice(&it.octets());
            libc::AF_INET as libc::sa_family_t
        }
        IpAddr::V6(it) => {
            all[V6].copy_from_slice(&it.octets());
            libc::AF_INET6 as libc::sa_family_t
        }
    };
    all[FAMILY].copy_from_slice(&family.to_ne_bytes());
    let password = password.map(Password::bytes).unwrap_or_default();
    all[LENGTH].copy_from_slice(&(password.len() as u16).to_ne_bytes());
    all[KEY][..password.len()].copy_from_slice(password);
    all
}

fn password_refused(error: Errno) -> String {
    match error {
        Errno::ENOPROTOOPT => "this node's kernel has no passwords for TCP (RFC 2385): use one with CONFIG_TCP_MD5SIG, or remove the password at both ends".to_owned(),
        Errno::ENOMEM => "this node's kernel keeps no further password: raise its setting net.core.optmem_max".to_owned(),
        error => format!("this node's kernel refuses the password: {error}"),
    }
}

/// Makes a socket send with the full TTL. All sessions do this. A peer with TTL security accepts no other packets, not even
/// the end of a connection, and would keep half of a connection until its hold time is over. Other peers ignore the TTL.
/// `is_ipv4`, here and below, says that the peer's address is IPv4, whatever the socket's family is.
pub(crate) fn send_full_ttl(socket: &impl AsFd, is_ipv4: bool) -> io::Result<()> {
    if is_ipv4 { Ipv4Ttl.set(socket, &FULL) } else { Ipv6Ttl.set(socket, &FULL) }?;
    Ok(())
}

/// Makes a socket that will connect accept only packets from at most this number of hops away.
pub(crate) fn limit_hops(socket: &impl AsFd, is_ipv4: bool, hops: u8) -> io::Result<()> {
    let least = least(hops);
    if is_ipv4 { LeastTtl.set(socket, &least) } else { LeastHopLimit.set(socket, &least) }?;
    Ok(())
}

/// Like [`limit_hops`], for a connection that the peer began. No byte of the connection was read yet.
///
/// Packets that arrived before the limit was set are checked, too. The packet that completed the handshake must have come
/// from near, and its sender knew the sequence numbers. The kernel stores its TTL as the TTL of the socket's multicast
/// packets.
///
/// # Errors
/// The reason why the connection must be closed.
pub(crate) fn limit_hops_of_accepted(
    socket: &impl AsFd,
    is_ipv4: bool,
    hops: u8,
) -> Result<(), String> {
    let limited = limit_hops(socket, is_ipv4, hops).and_then(|()| came_with(socket, is_ipv4));
    match limited {
        Ok(ttl) if ttl >= least(hops) => Ok(()),
        Ok(ttl) => Err(format!(
            "the peer's connection came with a TTL of {ttl}, expected {} or more: it is farther away than ttlSecurity says, or has no TTL security",
            least(hops)
        )),
        Err(error) => Err(format!("this node's kernel cannot count hops (RFC 5082): {error}")),
    }
}

fn came_with(socket: &impl AsFd, is_ipv4: bool) -> io::Result<c_int> {
    Ok(if is_ipv4 { IpMulticastTtl.get(socket)?.into() } else { Ipv6MulticastHops.get(socket)? })
}

/// The least TTL of packets from this number of hops away. A peer on the same link is one hop away, and no router has
/// decreased its TTL.
fn least(hops: u8) -> c_int {
    FULL + 1 - c_int::from(hops.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_has_the_layout_of_the_kernel() {
        let password = Password::new(b"abc").unwrap();
        let v4 = signature("192.0.2.1".parse().unwrap(), Some(&password));
        assert_eq!(v4[..8], [2, 0, 0, 0, 192, 0, 2, 1]);
        assert_eq!(v4[128..140], [0, 0, 3, 0, 0, 0, 0, 0, b'a', b'b', b'c', 0]);
        let v6 = signature("2001:db8::1".parse().unwrap(), None);
        assert_eq!((&v6[..2], &v6[8..12], v6[23]), (&[10, 0][..], &[0x20, 1, 0xd, 0xb8][..], 1));
        assert!(v6[24..].iter().all(|it| *it == 0));
    }

    #[test]
    fn a_peer_on_a_link_has_lowered_no_ttl() {
        assert_eq!([0, 1, 2, 254, 255].map(least), [255, 255, 254, 2, 1]);
    }

    #[test]
    fn what_a_kernel_cannot_is_told_with_what_to_do() {
        let told = [Errno::ENOPROTOOPT, Errno::ENOMEM, Errno::EPERM].map(password_refused);
        assert_eq!(
            told,
            [
                "this node's kernel has no passwords for TCP (RFC 2385): use one with CONFIG_TCP_MD5SIG, or remove the password at both ends",
                "this node's kernel keeps no further password: raise its setting net.core.optmem_max",
                "this node's kernel refuses the password: EPERM: Operation not permitted",
            ]
        );
    }
}
