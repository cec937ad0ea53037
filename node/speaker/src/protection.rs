//! What protects a connection from its first packet on: a password (RFC 2385), and a number of hops (RFC 5082).
//!
//! The options of sockets are Linux' (tcp(7), ip(7)). Neither the standard library nor `nix` has all of them. The macro
//! of `nix` makes the calls: during one, the kernel reads the bytes of a value, and no value here has a pointer in it.

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

/// The TTL of who is to be known as near: no router raises one.
const FULL: c_int = 255;

/// `struct tcp_md5sig` of `linux/tcp.h`, with these fields; all others are zero.
type Signature = [u8; 216];
/// The family of the peer's address, as of a `sockaddr`.
const FAMILY: Range<usize> = 0..2;
/// An IPv4 address, as in a `sockaddr_in`.
const V4: Range<usize> = 4..8;
/// An IPv6 address, as in a `sockaddr_in6`.
const V6: Range<usize> = 8..24;
/// The number of bytes of the password. Zero: there is none any more.
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

/// The least TTL of what a socket takes.
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

/// Sets the password that packets to and from a peer are signed with, or that there is none any more. The kernel drops
/// packets of the peer that are not signed with it, and those that are signed while there is none. A listening socket has
/// one password for each peer, and a connection of the peer takes it over. `is_ipv6`: the socket is of IPv6; IPv4 addresses
/// are mapped there.
///
/// # Errors
/// What this node's kernel cannot, and what to do.
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

/// Has a socket send with the full TTL. All sockets of sessions do: a peer with TTL security takes nothing else, not even
/// the end of a connection, and would keep half of one until its hold time is over. Nobody else minds.
/// `is_ipv4`, here and below: the peer's address is of IPv4, whatever the socket is.
pub(crate) fn send_full_ttl(socket: &impl AsFd, is_ipv4: bool) -> io::Result<()> {
    if is_ipv4 { Ipv4Ttl.set(socket, &FULL) } else { Ipv6Ttl.set(socket, &FULL) }?;
    Ok(())
}

/// Has a socket that is to connect take nothing from farther away than a number of hops.
pub(crate) fn limit_hops(socket: &impl AsFd, is_ipv4: bool, hops: u8) -> io::Result<()> {
    let least = least(hops);
    if is_ipv4 { LeastTtl.set(socket, &least) } else { LeastHopLimit.set(socket, &least) }?;
    Ok(())
}

/// As [`limit_hops`], for a connection that the peer has begun. No byte of it has been read.
///
/// What has come before the socket takes less counts, too: the packet that completed the handshake came from near, and who
/// sent it knew the numbers of the sequence. The kernel keeps its TTL as that of the socket's multicast packets.
///
/// # Errors
/// Why the connection is to be closed.
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

/// The TTL that is left after so many hops: a peer on a link is one away, and none has lowered it.
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
