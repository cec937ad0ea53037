//! Two speakers, or three. All of them connect and listen.

use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use manx_bgp::export::OwnRoute;

use super::net::{
    A, A6, B, B6, configuration, in_namespace, ip, is_established, learned, net, peer, speaker,
    status, stays, wait_for,
};
use crate::Speaker;
use crate::status::SessionState;

const BLOCK_A: &str = "10.100.1.0/26";
const BLOCK_B: &str = "10.100.2.0/26";

/// Two speakers with an IPv4 session. Each of them has a block.
fn pair() -> [Speaker; 2] {
    let (a, b) = (speaker(&[A]), speaker(&[B]));
    a.configure(configuration(A, &[peer(A, B)], &[BLOCK_A]));
    b.configure(configuration(B, &[peer(B, A)], &[BLOCK_B]));
    wait_for("a has b's block", &vec![format!("{BLOCK_B} via {B}")], || learned(&a));
    wait_for("b has a's block", &vec![format!("{BLOCK_A} via {A}")], || learned(&b));
    [a, b]
}

fn last_error(speaker: &Speaker, peer: &str) -> String {
    status(speaker, peer).last_error.unwrap_or_default()
}

#[test]
fn routes_of_both_families_are_exchanged_and_follow_changes() {
    in_namespace(|| {
        let (a, b) = (speaker(&[A, A6]), speaker(&[B, B6]));
        let (to_a, to_b) = ([peer(B, A), peer(B6, A6)], [peer(A, B), peer(A6, B6)]);
        let blocks = [BLOCK_A, "fd10:1::/122"];
        a.configure(configuration(A, &to_b, &blocks));
        b.configure(configuration(B, &to_a, &[BLOCK_B]));
        let expected = vec![format!("{BLOCK_A} via {A}"), format!("fd10:1::/122 via {A6}")];
        wait_for("b has both", &expected, || learned(&b));
        wait_for("a has b's", &vec![format!("{BLOCK_B} via {B}")], || learned(&a));
        let told = status(&a, B6);
        assert_eq!((told.state, told.counts.announced), (SessionState::Established, 1));
        let agreed = told.established.unwrap();
        assert_eq!(agreed.hold_time, Duration::from_secs(90));
        assert_eq!(agreed.restart_time, Some(Duration::from_mins(2)));
        assert_eq!((agreed.identifier, agreed.here), (B.parse().unwrap(), A6.parse().unwrap()));
        let since = [B, B6].map(|it| status(&a, it).since);
        a.configure(configuration(A, &to_b, &["10.100.3.0/26"]));
        wait_for("b follows", &vec![format!("10.100.3.0/26 via {A}")], || learned(&b));
        assert_eq!(since, [B, B6].map(|it| status(&a, it).since), "no session was touched");
    });
}

#[test]
fn a_speaker_that_listens_at_all_addresses_takes_both_families_and_tells_changes() {
    in_namespace(|| {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        let a = Speaker::start(
            &["[::]:1790".parse().unwrap()],
            || Ok(()),
            move || {
                counter.fetch_add(1, Ordering::Relaxed);
            },
        );
        let (a, b) = (a.unwrap(), speaker(&[B, B6]));
        let passive = |here, at| {
            let mut it = peer(here, at);
            it.is_passive = true;
            it
        };
        a.configure(configuration(A, &[passive(A, B), passive(A6, B6)], &[BLOCK_A]));
        let mut to_a = [peer(B, A), peer(B6, A6)];
        for it in &mut to_a {
            it.port = 1790;
        }
        b.configure(configuration(B, &to_a, &[BLOCK_B]));
        wait_for("a has b's", &vec![format!("{BLOCK_B} via {B}")], || learned(&a));
        wait_for("the session of IPv6", &true, || is_established(&a, B6));
        assert!(calls.load(Ordering::Relaxed) > 0);
    });
}

/// Whichever connections cross, exactly one session is established, and it stays.
#[test]
fn connections_that_cross_end_in_one_session() {
    in_namespace(|| {
        for _ in 0..10 {
            let [a, b] = pair();
            let since = || [status(&a, B).since, status(&b, A).since];
            let before = since();
            stays("the session", &before, since);
        }
    });
}

#[test]
fn a_speaker_that_ends_says_so_and_its_routes_go_at_once() {
    in_namespace(|| {
        let [a, b] = pair();
        drop(a);
        wait_for("no routes", &Vec::new(), || learned(&b));
        let words = "the peer says Hard Reset (6/9), Administrative Shutdown (6/2)";
        // Attempts to connect during that time fail.
        assert!(
            [words, "10.0.0.1:179 cannot be connected to: Connection refused (os error 111)"]
                .contains(&last_error(&b, A).as_str())
        );
    });
}

/// Two routers announce the same prefix. Without one of them the other one's route remains.
#[test]
fn ways_by_two_that_are_as_good_are_learned_together() {
    in_namespace(|| {
        const C: &str = "10.0.0.3";
        ip(&format!("address add {C}/32 dev lo"));
        let (prefix, other) = ("10.96.1.0/26", "10.96.2.0/26");
        let [a, b, c] = [A, B, C].map(|it| speaker(&[it]));
        a.configure(configuration(A, &[peer(A, B)], &[prefix, other]));
        b.configure(configuration(B, &[peer(B, A), peer(B, C)], &[]));
        c.configure(configuration(C, &[peer(C, B)], &[prefix]));
        let rows = |all: &[(&str, &str)]| -> Vec<String> {
            all.iter().map(|(prefix, next_hop)| format!("{prefix} via {next_hop}")).collect()
        };
        let all = rows(&[(prefix, A), (prefix, C), (other, A)]);
        wait_for("both ways", &all, || learned(&b));
        drop(a);
        wait_for("the other way", &rows(&[(prefix, C)]), || learned(&b));
    });
}

/// RFC 4724: routes that are announced again stay without a gap. The others are removed when all routes were sent.
#[test]
fn a_speaker_that_leaves_for_a_restart_keeps_its_routes_at_its_peers() {
    in_namespace(|| {
        let (a, b) = (speaker(&[A]), speaker(&[B]));
        a.configure(configuration(A, &[peer(A, B)], &[BLOCK_A, "10.100.9.0/26"]));
        b.configure(configuration(B, &[peer(B, A)], &[BLOCK_B]));
        let both = vec![format!("{BLOCK_A} via {A}"), format!("10.100.9.0/26 via {A}")];
        wait_for("b has a's blocks", &both, || learned(&b));
        a.leave();
        wait_for("b has lost a", &false, || is_established(&b, A));
        stays("b's routes", &both, || learned(&b));
        let words = last_error(&b, A);
        assert!(words.contains("connection") || words.contains("connected"), "{words}");
        let a = speaker(&[A]);
        let mut restarted = configuration(A, &[peer(A, B)], &[BLOCK_A]);
        restarted.restarted = true;
        a.configure(restarted);
        let mut seen = Vec::new();
        wait_for("b has what is left", &vec![format!("{BLOCK_A} via {A}")], || {
            seen = learned(&b);
            assert!(seen.contains(&format!("{BLOCK_A} via {A}")), "a gap: {seen:?}");
            seen.clone()
        });
    });
}

/// A restarted process that does not claim to have kept forwarding is taken not to have.
#[test]
fn the_routes_of_a_speaker_that_did_not_forward_go_when_it_is_back() {
    in_namespace(|| {
        let [a, b] = pair();
        a.leave();
        wait_for("b has lost a", &false, || is_established(&b, A));
        let a = speaker(&[A]);
        a.configure(configuration(A, &[peer(A, B)], &[]));
        wait_for("no routes", &Vec::new(), || learned(&b));
    });
}

#[test]
fn routes_that_nobody_tells_again_go_when_the_restart_time_is_over() {
    in_namespace(|| {
        let (a, b) = (speaker(&[A]), speaker(&[B]));
        let mut brief = peer(A, B);
        brief.restart_time = Duration::from_secs(1);
        a.configure(configuration(A, &[brief], &[BLOCK_A]));
        b.configure(configuration(B, &[peer(B, A)], &[]));
        let block = vec![format!("{BLOCK_A} via {A}")];
        wait_for("b has a's block", &block, || learned(&b));
        a.leave();
        wait_for("b has lost a", &false, || is_established(&b, A));
        stays("b's routes", &block, || learned(&b));
        wait_for("no routes", &Vec::new(), || learned(&b));
    });
}

#[test]
fn a_wrong_autonomous_system_and_an_identifier_that_both_have_are_named_at_both_ends() {
    in_namespace(|| {
        let (a, b) = (speaker(&[A]), speaker(&[B]));
        let mut wrong = peer(A, B);
        wrong.system = 65001;
        a.configure(configuration(A, &[wrong], &[]));
        b.configure(configuration(B, &[peer(B, A)], &[]));
        let words =
            "this node says Bad Peer AS (2/2): the peer is of AS 64512, and AS 65001 is configured";
        wait_for("a's reason", &words.to_owned(), || last_error(&a, B));
        wait_for("b's reason", &"the peer says Bad Peer AS (2/2)".to_owned(), || last_error(&b, A));
        a.configure(configuration(B, &[peer(A, B)], &[]));
        let mine = "this node says Bad BGP Identifier (2/3): the peer's identifier is 10.0.0.2, and this node's is 10.0.0.2";
        let theirs = "the peer says Bad BGP Identifier (2/3)";
        wait_for("the reason", &true, || [mine, theirs].contains(&last_error(&a, B).as_str()));
        a.configure(configuration(A, &[peer(A, B)], &[]));
        wait_for("a session", &true, || is_established(&a, B));
    });
}

#[test]
fn a_peer_that_is_no_longer_one_is_told_and_others_are_not_touched() {
    in_namespace(|| {
        let (a, b) = (speaker(&[A, A6]), speaker(&[B, B6]));
        let to_b = [peer(A, B), peer(A6, B6)];
        a.configure(configuration(A, &to_b, &[BLOCK_A]));
        b.configure(configuration(B, &[peer(B, A), peer(B6, A6)], &[]));
        wait_for("both sessions", &true, || is_established(&b, A) && is_established(&b, A6));
        wait_for("a route", &1, || learned(&b).len());
        let since = status(&b, A6).since;
        a.configure(configuration(A, &to_b[1..], &[BLOCK_A]));
        wait_for("no routes", &Vec::new(), || learned(&b));
        wait_for("no session", &false, || is_established(&b, A));
        wait_for("one session", &1, || a.sessions().len());
        assert_eq!(status(&b, A6).since, since);
        // The peer still tries to connect, and each connection is closed at once.
        wait_for("it is refused", &true, || a.refused_connections() > 0);
    });
}

#[test]
fn a_peer_that_tells_too_much_is_told_and_nothing_of_it_stays() {
    in_namespace(|| {
        let (a, b) = (speaker(&[A]), speaker(&[B]));
        let mut few = configuration(A, &[peer(A, B)], &[]);
        few.table.prefixes = 2;
        a.configure(few);
        let blocks = [BLOCK_B, "10.100.3.0/26", "10.100.4.0/26"];
        b.configure(configuration(B, &[peer(B, A)], &blocks));
        let words = "this node says Maximum Number of Prefixes Reached (6/1): the peer tells more than 2 prefixes";
        wait_for("a's reason", &words.to_owned(), || last_error(&a, B));
        let words = "the peer says Hard Reset (6/9), Maximum Number of Prefixes Reached (6/1)";
        wait_for("b's reason", &words.to_owned(), || last_error(&b, A));
        wait_for("no routes", &Vec::new(), || learned(&a));
    });
}

/// A table with many routes that change meanwhile arrives in its final state.
#[test]
fn a_large_table_arrives_whole() {
    in_namespace(|| {
        let (a, b) = (speaker(&[A]), speaker(&[B]));
        let own = |from: u32| {
            let prefix = |it: u32| Ipv4Net::new(Ipv4Addr::from(0x0a60_0000 + it * 64), 26);
            let of = |it: u32| (IpNet::V4(prefix(it).unwrap()), OwnRoute::Block);
            (from..from + 16_000).map(of).collect()
        };
        let mut many = configuration(A, &[peer(A, B)], &[]);
        many.table.exports.own = own(0);
        a.configure(many.clone());
        b.configure(configuration(B, &[peer(B, A)], &[]));
        wait_for("a session", &true, || is_established(&b, A));
        many.table.exports.own = own(100);
        a.configure(many);
        wait_for("all routes", &(16_000, true, false), || {
            let all = b.next_hops(|_| true);
            let has = |prefix: IpNet| all.iter().any(|(it, _)| *it == prefix);
            (all.len(), has(net("10.96.25.0/26")), has(net("10.96.0.0/26")))
        });
        assert_eq!(status(&a, B).counts.announced, 16_000);
        assert_eq!(status(&b, A).counts.received, 16_000);
    });
}

#[test]
fn a_connection_of_nobody_is_closed_at_once_and_counted() {
    in_namespace(|| {
        let a = speaker(&[A]);
        a.configure(configuration(A, &[peer(A, B)], &[]));
        let stranger = TcpStream::connect((A, 179)).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut byte = [0];
        let read = std::io::Read::read(&mut &stranger, &mut byte);
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        wait_for("it is counted", &1, || a.refused_connections());
    });
}
