//! Traffic during changes of the rig: this test binary, started again inside pods.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket,
};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use manx_dataplane::checksum;
use manx_dataplane::sys::tun;
use manx_dataplane::wire::address::Address;
use manx_dataplane::wire::{ipv6, protocol};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, bind, getsockopt,
    sendto, setsockopt, socket, sockopt,
};

use crate::bench::Bench;

/// The port on which every talker listens, by TCP and UDP.
const PORT: u16 = 17_171;
/// Time between two packets of a pulse.
const PULSE: Duration = Duration::from_millis(40);
/// The time in which a flow must start or recover. TCP waits longer and longer between its
/// attempts.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time for which nothing may be heard if nothing may pass.
const SILENCE: Duration = Duration::from_millis(1200);
/// The time within which packets that were under way before a change still arrive.
const SETTLE: Duration = Duration::from_millis(300);
/// The variable that gives the helper its task.
const TASK: &str = "MANX_TEST_TRAFFIC";

/// A process in the rig that sends, and echoes received data. It writes a line for each event: `in
/// tcp|udp ADDRESS` for data from another talker, `back tcp|udp ADDRESS` for an echo, `lost tcp
/// ADDRESS` for a connection that ended, `bulk BYTES` when all bytes have come back. The test
/// counts these lines.
pub(crate) struct Talker {
    child: Child,
    heard: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Talker {
    /// Starts to send to `peers`, which need not exist yet.
    pub(crate) fn start(bench: &Bench, party: &str, peers: &[IpAddr]) -> Self {
        let peers: Vec<String> = peers.iter().map(IpAddr::to_string).collect();
        Self::spawn(bench, party, &format!("pulse {}", peers.join(" ")))
    }

    /// Sends this many bytes over one connection, at full speed, and reads their echo.
    pub(crate) fn bulk(bench: &Bench, party: &str, peer: IpAddr, bytes: usize) -> Self {
        Self::spawn(bench, party, &format!("bulk {peer} {bytes}"))
    }

    /// Sends datagrams of `len` bytes including their IPv4 header, and writes `too big, path mtu N` when the kernel
    /// reports that.
    pub(crate) fn oversized(bench: &Bench, party: &str, peer: IpAddr, len: usize) -> Self {
        Self::spawn(bench, party, &format!("oversized {peer} {len}"))
    }

    /// Sends datagrams over IPv6 with `source` as their source address.
    pub(crate) fn forger(bench: &Bench, party: &str, source: IpAddr, peer: IpAddr) -> Self {
        Self::spawn(bench, party, &format!("forger {source} {peer}"))
    }

    /// Sets the length of the header before each packet of the pod's device, which is of this kind.
    pub(crate) fn header(bench: &Bench, party: &str, device: &str, len: i32) -> Self {
        Self::spawn(bench, party, &format!("header {device} {len}"))
    }

    fn spawn(bench: &Bench, party: &str, task: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let again =
            [program.to_str().unwrap(), "--exact", "traffic::helper", "--ignored", "--nocapture"];
        let mut child = bench
            .command(&[&["rig", "exec", "--rig", "demo", party, "--"], &again[..]].concat())
            .env(TASK, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let heard = Arc::<Mutex<BTreeMap<String, u64>>>::default();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let count = Arc::clone(&heard);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *count.lock().unwrap().entry(line).or_default() += 1;
            }
        });
        Self { child, heard }
    }

    /// The number of lines that begin with this text.
    pub(crate) fn heard(&self, beginning: &str) -> u64 {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|(line, _)| line.starts_with(beginning)).map(|(_, count)| count).sum()
    }

    /// Waits for lines with this beginning.
    pub(crate) fn await_heard(&self, beginning: &str, times: u64) {
        let before = self.heard(beginning);
        let start = Instant::now();
        while self.heard(beginning) < before + times {
            assert!(
                start.elapsed() < PATIENCE,
                "no {beginning:?}: {:?}",
                self.heard.lock().unwrap()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // The helper ends with its standard input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Asserts that each talker hears its line in `expected` again and again.
pub(crate) fn assert_flows(expected: &[(&Talker, String)]) {
    for (talker, line) in expected {
        talker.await_heard(line, 3);
    }
}

/// Asserts that no line of `unexpected` is heard for a while, starting shortly after this call.
pub(crate) fn assert_silent(unexpected: &[(&Talker, String)]) {
    let counts = || -> Vec<(&str, u64)> {
        unexpected.iter().map(|(talker, line)| (line.as_str(), talker.heard(line))).collect()
    };
    thread::sleep(SETTLE);
    let before = counts();
    thread::sleep(SILENCE);
    assert_eq!(before, counts());
}

/// Not a test: the process that [`Talker`] starts in a pod.
#[test]
#[ignore = "started by other tests inside of a pod"]
fn helper() {
    let Ok(task) = std::env::var(TASK) else { return };
    let words: Vec<&str> = task.split_whitespace().collect();
    let address = |word: &str| SocketAddr::new(word.parse().unwrap(), PORT);
    if words[0] != "header" {
        serve();
    }
    match words.split_first().unwrap() {
        (&"pulse", peers) => {
            for peer in peers.iter().map(|word| address(word)) {
                thread::spawn(move || pulse_tcp(peer));
                thread::spawn(move || pulse_udp(peer).unwrap());
            }
        }
        (&"forger", [source, peer]) => {
            let (source, peer) = (source.parse().unwrap(), peer.parse().unwrap());
            thread::spawn(move || forge(source, peer).unwrap());
        }
        (&"oversized", [peer, len]) => {
            let (peer, len) = (address(peer), len.parse().unwrap());
            thread::spawn(move || oversized(peer, len).unwrap());
        }
        (&"header", [device, len]) => set_header(device, len.parse().unwrap()).unwrap(),
        (&"bulk", [peer, bytes]) => bulk(address(peer), bytes.parse().unwrap()).unwrap(),
        _ => unreachable!("{task}"),
    }
    let _ = io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // If the reader has gone, this process also ends soon.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn serve() {
    let here = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
    let listener = TcpListener::bind(here).unwrap();
    let socket = UdpSocket::bind(here).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || echo(stream));
        }
    });
    thread::spawn(move || echo_udp(&socket));
    let here = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, PORT, 0, 0);
    let only_v6 = socket_v6(here);
    thread::spawn(move || only_v6.map(|socket| echo_udp(&socket)));
}

/// A pod without IPv6 has no such socket.
fn socket_v6(here: SocketAddrV6) -> io::Result<UdpSocket> {
    let (family, kind) = (AddressFamily::Inet6, SockType::Datagram);
    let socket = socket(family, kind, SockFlag::empty(), None)?;
    setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    bind(socket.as_raw_fd(), &SockaddrIn6::from(here))?;
    Ok(socket.into())
}

fn echo_udp(socket: &UdpSocket) {
    let mut buffer = [0; 2048];
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        say(&format!("in udp {}", from.ip()));
        let _ = socket.send_to(&buffer[..len], from);
    }
}

/// A raw socket sends the bytes that it gets, including the IP header.
fn forge(source: Ipv6Addr, peer: Ipv6Addr) -> io::Result<()> {
    let (family, kind) = (AddressFamily::Inet6, SockType::Raw);
    let raw = socket(family, kind, SockFlag::empty(), SockProtocol::Raw)?;
    let ports = [PORT.to_be_bytes(), PORT.to_be_bytes()].concat();
    let mut datagram = [&ports[..], &[0, 12, 0, 0], b"fake"].concat();
    let (from, to) = (Address::v6(source.octets()), Address::v6(peer.octets()));
    let sum = manx_dataplane::wire::address::pseudo(from, to, protocol::UDP, 12)
        + checksum::sum(&datagram);
    datagram[6..8].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    let header = ipv6::header(source.octets(), peer.octets(), protocol::UDP, 64, 12);
    let to = SockaddrIn6::from(SocketAddrV6::new(peer, 0, 0, 0));
    loop {
        sendto(raw.as_raw_fd(), &[&header[..], &datagram].concat(), &to, MsgFlags::empty())?;
        say("forged");
        thread::sleep(PULSE);
    }
}

/// Opens another queue of the device, sets the header, and closes the queue again, so the flows
/// return to the agent's queues.
fn set_header(device: &str, len: i32) -> io::Result<()> {
    let queue = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let kind = if device == "tap" { libc::IFF_TAP } else { libc::IFF_TUN };
    let several = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
    tun::set_interface(queue.as_fd(), "eth0", several)?;
    tun::set_vnet_header_len(queue.as_fd(), len)
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let from = stream.peer_addr()?.ip();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        say(&format!("in tcp {from}"));
        stream.write_all(&buffer[..len])?;
    }
}

fn connected(peer: SocketAddr) -> TcpStream {
    loop {
        if let Ok(stream) = TcpStream::connect_timeout(&peer, Duration::from_millis(500)) {
            return stream;
        }
        thread::sleep(PULSE);
    }
}

/// One connection, which lasts as long as the process.
fn pulse_tcp(peer: SocketAddr) {
    let stream = connected(peer);
    let end = || -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = stream.try_clone()?;
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while matches!(reader.read(&mut buffer), Ok(1..)) {
                say(&format!("back tcp {}", peer.ip()));
            }
            say(&format!("lost tcp {}", peer.ip()));
        });
        loop {
            (&stream).write_all(&[7; 8])?;
            thread::sleep(PULSE);
        }
    };
    if end().is_err() {
        say(&format!("lost tcp {}", peer.ip()));
    }
}

fn pulse_udp(peer: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
    let reader = socket.try_clone()?;
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = reader.recv_from(&mut buffer) {
            say(&format!("back udp {}", from.ip()));
        }
    });
    loop {
        // Errors come from peers that do not listen yet, or from a missing route.
        let _ = socket.send_to(&[7; 8], peer);
        thread::sleep(PULSE);
    }
}

/// The kernel sends with DF as long as the packet fits the interface (`IP_PMTUDISC_WANT`), and
/// reports an error to a connected socket once.
fn oversized(peer: SocketAddr, len: usize) -> io::Result<()> {
    const HEADERS: usize = 28;
    let socket = UdpSocket::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
    socket.connect(peer)?;
    socket.set_read_timeout(Some(PULSE))?;
    let too_big = |error: &io::Error| error.raw_os_error() == Some(libc::EMSGSIZE);
    let mut told = false;
    loop {
        let sent = socket.send(&vec![7; len - HEADERS]);
        let heard = socket.recv(&mut [0; 2048]);
        told |= [sent, heard].iter().any(|outcome| outcome.as_ref().is_err_and(too_big));
        if told {
            let mtu = getsockopt(&socket, sockopt::IpMtu).map_err(io::Error::from)?;
            say(&format!("too big, path mtu {mtu}"));
        }
        thread::sleep(PULSE);
    }
}

fn bulk(peer: SocketAddr, bytes: usize) -> io::Result<()> {
    let stream = connected(peer);
    let mut writer = stream.try_clone()?;
    thread::spawn(move || {
        let block: Vec<u8> = (0..1 << 18).map(|n: u32| n as u8).collect();
        let mut left = bytes;
        while left > 0 {
            let len = left.min(block.len());
            if writer.write_all(&block[..len]).is_err() {
                return;
            }
            left -= len;
        }
    });
    let mut buffer = vec![0; 1 << 18];
    let mut read = 0;
    while read < bytes {
        let len = (&stream).read(&mut buffer)?;
        assert!(len > 0, "closed after {read} bytes");
        assert!((0..len).all(|at| buffer[at] == (read + at) as u8), "changed on the way");
        read += len;
    }
    say(&format!("bulk {bytes}"));
    Ok(())
}
