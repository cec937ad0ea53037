//! Peers that behave as no real speaker does.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::net::{
    A, B, address, configuration, in_namespace, is_established, learned, peer, speaker, status,
    wait_for,
};
use crate::Speaker;

/// Builds a message from its type and its body.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(19 + body.len()).unwrap();
    [&[0xff; 16], &length.to_be_bytes()[..], &[kind], body].concat()
}

/// Builds an OPEN without capabilities, with AS 64512, this hold time and the identifier 10.0.0.2.
fn open(hold_time: u8) -> Vec<u8> {
    message(1, &[4, 252, 0, 0, hold_time, 10, 0, 0, 2, 0])
}

const KEEPALIVE: u8 = 4;
const NOTIFICATION: u8 = 3;

/// Reads one message.
fn read(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut header = [0; 19];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; usize::from(u16::from_be_bytes([header[16], header[17]])) - 19];
    stream.read_exact(&mut body).unwrap();
    (header[18], body)
}

/// Starts a speaker at `A` that waits for a peer at `B`.
fn waiting() -> Speaker {
    let a = speaker(&[A]);
    let mut passive = peer(A, B);
    passive.is_passive = true;
    a.configure(configuration(A, &[passive], &[]));
    wait_for("the configuration", &1, || a.sessions().len());
    a
}

/// Opens a connection from `B`.
fn connect() -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((address(B), 0).into()).unwrap();
        socket.connect((address(A), 179).into()).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Establishes a session by hand.
fn established(a: &Speaker, hold_time: u8) -> TcpStream {
    let mut stream = connect();
    stream.write_all(&open(hold_time)).unwrap();
    assert_eq!(read(&mut stream).0, 1);
    assert_eq!(read(&mut stream).0, KEEPALIVE);
    stream.write_all(&message(KEEPALIVE, &[])).unwrap();
    wait_for("a session", &true, || is_established(a, B));
    stream
}

/// Builds the OPEN of a peer that has kept its routes over a restart of two minutes at most.
fn open_of_restarted() -> Vec<u8> {
    let families = [1, 4, 0, 1, 0, 1];
    let restart = [64, 6, 0x80, 120, 0, 1, 1, 0x80];
    let capabilities = [&families[..], &restart].concat();
    let parameter = [&[2, u8::try_from(capabilities.len()).unwrap()], &capabilities[..]].concat();
    let mut body = vec![4, 252, 0, 0, 90, 10, 0, 0, 2, u8::try_from(parameter.len()).unwrap()];
    body.extend(parameter);
    message(1, &body)
}

/// Builds an UPDATE with ORIGIN, an empty path, the next hop 10.0.0.2 and a prefix.
fn route(origin: u8, prefix: &[u8]) -> Vec<u8> {
    let attributes =
        [0x40, 1, 1, origin, 0x40, 2, 0, 0x40, 3, 4, 10, 0, 0, 2, 0x40, 5, 4, 0, 0, 0, 100];
    let length = [0, 0, 0, u8::try_from(attributes.len()).unwrap()];
    message(2, &[&length, &attributes[..], prefix].concat())
}

#[test]
fn a_malformed_attribute_costs_the_routes_and_not_the_session() {
    in_namespace(|| {
        let a = waiting();
        let mut stream = established(&a, 90);
        stream.write_all(&route(0, &[24, 192, 0, 2])).unwrap();
        wait_for("a route", &vec!["192.0.2.0/24 via 10.0.0.2".to_owned()], || learned(&a));
        stream.write_all(&route(7, &[24, 192, 0, 2])).unwrap();
        wait_for("no route", &Vec::new(), || learned(&a));
        let status = status(&a, B);
        assert_eq!(status.malformed, 1);
        assert!(is_established(&a, B));
        // A peer without capabilities does not support graceful restart.
        assert_eq!(status.established.unwrap().restart_time, None);
    });
}

#[test]
fn a_message_that_cannot_be_read_is_answered_with_the_right_notification() {
    in_namespace(|| {
        let a = waiting();
        for (wrong, expected) in [
            (message(9, &[]), [1, 3]),
            (vec![0; 19], [1, 1]),
            (message(2, &[0, 9, 0, 0]), [3, 1]),
            (route(0, &[33, 1, 2, 3, 4, 5]), [3, 10]),
            (open(90), [5, 0]),
        ] {
            let mut stream = established(&a, 90);
            stream.write_all(&wrong).unwrap();
            let (kind, body) = loop {
                let it = read(&mut stream);
                if it.0 == NOTIFICATION {
                    break it;
                }
            };
            assert_eq!((kind, &body[..2]), (NOTIFICATION, &expected[..]), "{wrong:?}");
            drop(stream);
            wait_for("the end", &false, || is_established(&a, B));
        }
    });
}

#[test]
fn a_silent_peer_is_gone_after_the_hold_time() {
    in_namespace(|| {
        let a = waiting();
        let mut stream = established(&a, 3);
        let mut kinds = Vec::new();
        let body = loop {
            let (kind, body) = read(&mut stream);
            kinds.push(kind);
            if kind == NOTIFICATION {
                break body;
            }
        };
        assert_eq!(body[0], 4, "Hold Timer Expired");
        // This node sends a KEEPALIVE at least once a second, which is a third of the hold time.
        assert!(kinds.ends_with(&[KEEPALIVE, KEEPALIVE, NOTIFICATION]), "{kinds:?}");
        let words = "this node says Hold Timer Expired (4/0)";
        wait_for("the reason", &words.to_owned(), || status(&a, B).last_error.unwrap_or_default());
    });
}

#[test]
fn many_connections_of_a_peer_hold_up_no_session() {
    in_namespace(|| {
        let a = waiting();
        let mut all: Vec<TcpStream> = (0..50).map(|_| connect()).collect();
        let mut last = all.pop().unwrap();
        let _ = last.write_all(&open(90));
        drop(all);
        // Whether the last connection was accepted depends on how quickly the others came.
        wait_for("a session", &true, || {
            drop(connect());
            let mut stream = connect();
            stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            let mut try_it = || -> std::io::Result<()> {
                stream.write_all(&open(90))?;
                stream.write_all(&message(KEEPALIVE, &[]))?;
                let mut bytes = [0; 64];
                stream.read_exact(&mut bytes)
            };
            let _ = try_it();
            is_established(&a, B)
        });
    });
}

/// RFC 4724, 4.2: a peer that restarts comes back before TCP knows that its connection is dead.
#[test]
fn a_second_connection_takes_the_place_of_the_session_if_the_peer_does_graceful_restarts() {
    in_namespace(|| {
        let a = waiting();
        let open_with = |open: &[u8]| {
            let mut stream = connect();
            stream.write_all(open).unwrap();
            assert_eq!(read(&mut stream).0, 1);
            let (kind, body) = read(&mut stream);
            if kind == KEEPALIVE {
                stream.write_all(&message(KEEPALIVE, &[])).unwrap();
            }
            (stream, kind, body)
        };
        let (mut first, kind, _) = open_with(&open_of_restarted());
        assert_eq!(kind, KEEPALIVE);
        wait_for("a session", &true, || is_established(&a, B));
        first.write_all(&route(0, &[24, 192, 0, 2, 24, 192, 0, 3])).unwrap();
        wait_for("routes", &2, || learned(&a).len());
        let (mut second, kind, _) = open_with(&open_of_restarted());
        assert_eq!(kind, KEEPALIVE, "the second connection is taken");
        wait_for("a session", &true, || is_established(&a, B));
        assert_eq!(learned(&a).len(), 2, "the routes are kept");
        second.write_all(&route(0, &[24, 192, 0, 3])).unwrap();
        second.write_all(&message(2, &[0, 0, 0, 0])).unwrap();
        let left = vec!["192.0.3.0/24 via 10.0.0.2".to_owned()];
        wait_for("what was told again", &left, || learned(&a));
        drop((first, second));
        wait_for("the end", &false, || is_established(&a, B));
        // A peer that does not support graceful restart keeps its first session.
        let kept = established(&a, 90);
        let (_, kind, body) = open_with(&open(90));
        assert_eq!((kind, &body[..2]), (NOTIFICATION, &[6, 7][..]));
        assert!(is_established(&a, B));
        drop(kept);
    });
}

/// tshark, an independent program, decodes the messages of two speakers.
#[test]
fn tshark_finds_nothing_wrong() {
    let test = "tshark_finds_nothing_wrong";
    in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bgp.pcapng");
        let capture = Command::new("tshark")
            .args(["-q", "-i", "lo", "-f", "tcp port 179", "-w"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn();
        let mut capture = match capture {
            Ok(capture) => capture,
            Err(error) => {
                let reason = format!("tshark (apt-get install tshark): {error}");
                return manx_fixtures::skip::skip(manx_fixtures::skip::Need::Tshark, test, &reason);
            }
        };
        wait_for("the capture begins", &true, || file.exists());
        std::thread::sleep(Duration::from_millis(500));
        let (a, b) = (speaker(&[A, "fd00::1"]), speaker(&[B, "fd00::2"]));
        let to_b = [peer(A, B), peer("fd00::1", "fd00::2")];
        let blocks = ["10.100.1.0/26", "10.100.2.0/26", "fd10:1::/122"];
        a.configure(configuration(A, &to_b, &blocks));
        b.configure(configuration(
            B,
            &[peer(B, A), peer("fd00::2", "fd00::1")],
            &["10.100.3.0/26"],
        ));
        wait_for("all routes", &3, || learned(&b).len());
        a.configure(configuration(A, &to_b, &blocks[..1]));
        wait_for("some routes", &1, || learned(&b).len());
        drop(a);
        wait_for("no routes", &0, || learned(&b).len());
        std::thread::sleep(Duration::from_millis(500));
        let pid = nix::unistd::Pid::from_raw(i32::try_from(capture.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        capture.wait().unwrap();
        let fields = |filter: &str| {
            let output = Command::new("tshark")
                .args(["-r"])
                .arg(&file)
                .args(["-Y", filter, "-T", "fields", "-e", "bgp.type", "-e", "_ws.expert.message"])
                .output()
                .unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let kinds = fields("bgp");
        for kind in ["1", "2", "3", "4"] {
            assert!(kinds.contains(kind), "no message of type {kind}: {kinds}");
        }
        let wrong = fields("bgp && (_ws.malformed || _ws.expert.severity >= 6291456)");
        assert_eq!(wrong, "", "what tshark complains about");
    });
}
