//! Passwords (RFC 2385) and numbers of hops (RFC 5082), tested by two speakers.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::time::Duration;

use manx_bgp::peer::{Peer, SecretKey};
use manx_linux::netns::{self, sysctl};
use manx_linux::testing::namespaces_allowed;

use super::net::{
    A, A6, B, B6, configuration, in_namespace, ip, is_established, peer, speaker, speaker_at,
    status, stays, wait_for,
};
use crate::listen::{Doors, listen};
use crate::{Configuration, Password, Speaker};

/// A configuration whose peers have these passwords, or none.
fn with_passwords(identifier: &str, peers: &[(Peer, Option<&str>)]) -> Configuration {
    let named = peers.iter().map(|(peer, password)| {
        let (name, key) = ("bgp-secrets".to_owned(), "rack".to_owned());
        Peer { password: password.map(|_| SecretKey { name, key }), ..peer.clone() }
    });
    let mut configuration = configuration(identifier, &named.collect::<Vec<_>>(), &[]);
    configuration.passwords = passwords(peers);
    configuration
}

fn passwords(
    peers: &[(Peer, Option<&str>)],
) -> BTreeMap<std::net::IpAddr, Result<Password, String>> {
    let known = peers.iter().filter_map(|(peer, password)| {
        Some((peer.address, Ok(Password::new(password.as_ref()?.as_bytes()).unwrap())))
    });
    known.collect()
}

fn passive(peer: Peer) -> Peer {
    Peer { is_passive: true, ..peer }
}

fn hops(hops: u8, peer: Peer) -> Peer {
    Peer { hops: Some(hops), ..peer }
}

fn last_error(speaker: &Speaker, peer: &str) -> String {
    status(speaker, peer).last_error.unwrap_or_default()
}

const SILENT: &str =
    "cannot be connected to: no answer, as of a peer that has another password or none";

#[test]
fn the_right_password_is_a_session_by_either_family_whoever_connects() {
    in_namespace(|| {
        for (only_listens, is_port_of_both) in [(A, false), (B, false), ("", false), (A, true)] {
            let a = if is_port_of_both { speaker_at(&["[::]:1790"]) } else { speaker(&[A, A6]) };
            let b = speaker(&[B, B6]);
            let of = |here: &str, peer: Peer| {
                if here == only_listens { passive(peer) } else { peer }
            };
            let port = if is_port_of_both { 1790 } else { 179 };
            let to_a = |peer: Peer| Peer { port, ..of(B, peer) };
            a.configure(with_passwords(
                A,
                &[(of(A, peer(A, B)), Some("four")), (of(A, peer(A6, B6)), Some("six"))],
            ));
            b.configure(with_passwords(
                B,
                &[(to_a(peer(B, A)), Some("four")), (to_a(peer(B6, A6)), Some("six"))],
            ));
            for (speaker, peer) in [(&a, B), (&a, B6), (&b, A), (&b, A6)] {
                wait_for("a session", &true, || is_established(speaker, peer));
            }
        }
    });
}

#[test]
fn another_password_or_none_is_no_session_and_the_reason_is_told() {
    in_namespace(|| {
        for (at_a, at_b) in [(Some("one"), Some("other")), (Some("one"), None), (None, Some("one"))]
        {
            let (a, b) = (speaker(&[A]), speaker(&[B]));
            a.configure(with_passwords(A, &[(peer(A, B), at_a)]));
            b.configure(with_passwords(B, &[(peer(B, A), at_b)]));
            let (with, other) = if at_a.is_some() { (&a, B) } else { (&b, A) };
            wait_for("the reason", &true, || last_error(with, other).ends_with(SILENT));
            stays("no session", &[false; 2], || [is_established(&a, B), is_established(&b, A)]);
            a.configure(with_passwords(A, &[(peer(A, B), at_b)]));
            wait_for("a session", &true, || is_established(&a, B) && is_established(&b, A));
        }
    });
}

#[test]
fn a_changed_password_begins_that_session_alone_anew() {
    in_namespace(|| {
        let (a, b) = (speaker(&[A, A6]), speaker(&[B, B6]));
        let configure = |four: &str, six: &str| {
            a.configure(with_passwords(A, &[(peer(A, B), Some(four)), (peer(A6, B6), Some(six))]));
            b.configure(with_passwords(B, &[(peer(B, A), Some(four)), (peer(B6, A6), Some(six))]));
        };
        let is_up = || is_established(&a, B) && is_established(&a, B6);
        configure("four", "six");
        wait_for("sessions", &true, is_up);
        let since = [B, B6].map(|it| status(&a, it).since);
        configure("four", "six");
        stays("the sessions", &since, || [B, B6].map(|it| status(&a, it).since));
        configure("other", "six");
        wait_for("the session ends", &true, || status(&a, B).since != since[0]);
        wait_for("sessions", &true, is_up);
        assert_eq!(status(&a, B6).since, since[1], "the other one was not touched");
        // If only one end has a password, there is no session.
        b.configure(with_passwords(B, &[(peer(B, A), Some("third")), (peer(B6, A6), Some("six"))]));
        wait_for("no session", &false, || is_established(&a, B) || is_established(&b, A));
        stays("none", &[false; 2], || [is_established(&a, B), is_established(&b, A)]);
        assert_eq!(status(&a, B6).since, since[1], "the other one was not touched");
    });
}

#[test]
fn a_peer_whose_password_is_not_known_has_no_session_and_says_why() {
    in_namespace(|| {
        let (a, b) = (speaker(&[A]), speaker(&[B]));
        let mut unknown = with_passwords(A, &[(peer(A, B), Some("one"))]);
        let known = std::mem::take(&mut unknown.passwords);
        a.configure(unknown.clone());
        // There is no session, neither with the password nor without one.
        for at_b in [None, Some("one")] {
            b.configure(with_passwords(B, &[(peer(B, A), at_b)]));
            let words = "the peer's password, rack of Secret bgp-secrets, has not been read yet";
            wait_for("the reason", &words.to_owned(), || last_error(&a, B));
            stays("no session", &[false; 2], || [is_established(&a, B), is_established(&b, A)]);
        }
        let missing = Err("found no Secret".to_owned());
        unknown.passwords.insert(B.parse().unwrap(), missing);
        a.configure(unknown.clone());
        wait_for("the reason", &"found no Secret".to_owned(), || last_error(&a, B));
        unknown.passwords = known;
        a.configure(unknown);
        wait_for("a session", &true, || is_established(&a, B));
    });
}

/// The connection was complete before the listening socket had the password.
#[test]
fn connections_that_wait_when_passwords_change_are_taken_before_the_peer_has_a_door() {
    in_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let at: SocketAddr = (A.parse::<std::net::IpAddr>().unwrap(), 179).into();
        let (listener, doors) = (listen(at).unwrap(), Doors::default());
        let mut streams = [(); 3].map(|()| TcpStream::connect(at).unwrap());
        listener.take_waiting(&doors);
        assert_eq!(doors.refused(), 3);
        for stream in &mut streams {
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let read = stream.read(&mut [0]);
            assert!(matches!(read, Ok(0)), "{read:?}");
        }
        listener.take_waiting(&doors);
        assert_eq!(doors.refused(), 3);
    });
}

#[test]
fn peers_on_a_link_have_a_session_over_one_hop_by_either_family_whoever_connects() {
    in_namespace(|| {
        for (only_listens, is_port_of_both) in [(A, false), (B, false), ("", false), (A, true)] {
            let a = if is_port_of_both { speaker_at(&["[::]:1790"]) } else { speaker(&[A, A6]) };
            let b = speaker(&[B, B6]);
            let port = if is_port_of_both { 1790 } else { 179 };
            let of = |here: &str, peer: Peer| {
                hops(1, if here == only_listens { passive(peer) } else { peer })
            };
            let to_a = |peer: Peer| Peer { port, ..of(B, peer) };
            a.configure(configuration(A, &[of(A, peer(A, B)), of(A, peer(A6, B6))], &[]));
            b.configure(configuration(B, &[to_a(peer(B, A)), to_a(peer(B6, A6))], &[]));
            for (speaker, peer) in [(&a, B), (&a, B6), (&b, A), (&b, A6)] {
                wait_for("a session", &true, || is_established(speaker, peer));
            }
        }
    });
}

/// The addresses of two hosts, and the router's addresses on its links to them.
const HOSTS: [&str; 2] = ["10.1.0.1", "10.2.0.1"];
const HOSTS6: [&str; 2] = ["fd01::1", "fd02::1"];

/// Makes two namespaces with the hosts' addresses. The calling thread's namespace is the one hop between them.
fn two_hosts() -> [OwnedFd; 2] {
    for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        sysctl::set(key, "1").unwrap();
    }
    [0, 1].map(|at| {
        let (host, net) = (netns::create().unwrap(), at + 1);
        let link = format!("host{at}");
        let of_host = format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd());
        ip(&format!("link add {link} type veth peer name wire netns {of_host}"));
        let add = |link: &str, end: u8| {
            ip(&format!("address add 10.{net}.0.{end}/24 dev {link}"));
            ip(&format!("address add fd0{net}::{end}/64 dev {link} nodad"));
            ip(&format!("link set {link} up"));
        };
        add(&link, 9);
        netns::run_in(host.as_fd(), || {
            add("wire", 1);
            ip(&format!("route add default via 10.{net}.0.9"));
            ip(&format!("-6 route add default via fd0{net}::9"));
        })
        .unwrap();
        host
    })
}

#[test]
fn a_peer_that_is_farther_away_has_no_session_and_the_reason_is_told() {
    if !namespaces_allowed() {
        return;
    }
    netns::run_in(netns::create().unwrap(), || {
        let [at_a, at_b] = two_hosts();
        let start = |host: &OwnedFd, at: usize| {
            netns::run_in(host.as_fd(), || speaker(&[HOSTS[at], HOSTS6[at]])).unwrap()
        };
        let (a, b) = (start(&at_a, 0), start(&at_b, 1));
        let [[a4, b4], [a6, b6]] = [HOSTS, HOSTS6];
        let set = |speaker: &Speaker, peers: [Peer; 2], most: Option<u8>| {
            let peers = peers.map(|peer| Peer { hops: most, ..peer });
            let identifier = if peers[0].address.to_string() == b4 { a4 } else { b4 };
            speaker.configure(configuration(identifier, &peers, &[]));
        };
        let (to_b, to_a) = ([peer(a4, b4), peer(a6, b6)], [peer(b4, a4), peer(b6, a6)]);
        let up = || {
            [(&a, b4), (&a, b6), (&b, a4), (&b, a6)].map(|(speaker, it)| is_established(speaker, it))
        };
        set(&a, to_b.clone(), Some(1));
        set(&b, to_a.clone(), Some(1));
        let words = "no answer, as of a peer that is farther away than ttlSecurity says (1)";
        for at in [b4, b6] {
            wait_for("the reason", &true, || last_error(&a, at).ends_with(words));
        }
        stays("no session", &[false; 4], up);
        // The other end does not require it. It sends with the full TTL, as all speakers here do, but it is too far away.
        set(&a, to_b.clone().map(passive), Some(1));
        set(&b, to_a.clone(), None);
        let words = "the peer's connection came with a TTL of 254, expected 255 or more: it is farther away than ttlSecurity says, or has no TTL security";
        for at in [b4, b6] {
            wait_for("the reason", &words.to_owned(), || last_error(&a, at));
        }
        stays("no session", &[false; 4], up);
        set(&a, to_b, Some(2));
        set(&b, to_a, Some(2));
        wait_for("sessions over two hops", &[true; 4], up);
    })
    .unwrap();
}
