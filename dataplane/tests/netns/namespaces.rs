//! Runs tests in their own namespaces. A test runs again as a child of `unshare`, which is root inside the namespaces
//! and has no rights outside. Threads enter further network namespaces.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use manx_dataplane::packet::{Packet, Pool, SegmentKind};
use manx_dataplane::port::PacketIo;
use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};
pub(crate) use manx_fixtures::skip::{Need, skip};
use nix::sched::{CloneFlags, setns, unshare};

const INSIDE: &str = "MANX_TEST_INSIDE_NETNS";
/// The output of a child that cannot run because of the environment, not because of the code.
const SKIPPED: &str = "SKIPPED: ";
/// The number of seconds after which a test is ended, which is longer than any of these tests takes.
const BOUND: &str = "60";

/// Runs `body` in fresh user, network and mount namespaces, or prints why this is not possible. `test` is the name of
/// the test.
pub(crate) fn inside(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        ip("link set lo up");
        body();
        return;
    }
    again(test, Need::Namespaces, &["--user", "--map-root-user", "--net"]);
}

/// Like [`inside`], but only in a fresh network namespace, for a test that needs more than one user.
pub(crate) fn inside_with_users(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        ip("link set lo up");
        body();
        return;
    }
    again(test, Need::Root, &["--net"]);
}

/// Runs the test again, in namespaces that `unshare` creates.
fn again(test: &str, need: Need, namespaces: &[&str]) {
    if let Err(reason) = allowed(namespaces) {
        return skip(need, test, &reason);
    }
    let output = Command::new("timeout")
        .args(["-k", "1", BOUND, "unshare"])
        .args(namespaces)
        .args(["--kill-child", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "in its namespaces:\n{out}\n{err}");
    assert!(out.contains("1 passed"), "the test did not run in its namespaces:\n{out}\n{err}");
    for line in err.lines().filter_map(|line| line.strip_prefix(SKIPPED)) {
        let lacking = Need::ALL.into_iter().find(|need| line.starts_with(need.variable()));
        skip(lacking.unwrap_or(need), test, line);
    }
}

/// Ends the test from inside the namespaces, because the rest of it cannot run here.
pub(crate) fn lacking(need: Need, reason: &str) {
    eprintln!("{SKIPPED}{}: {reason}", need.variable());
}

fn allowed(namespaces: &[&str]) -> Result<(), String> {
    let probe = Command::new("unshare")
        .args(namespaces)
        .args(["--", "ip", "link", "set", "lo", "up"])
        .output()
        .map_err(|e| format!("unshare (util-linux) does not start: {e}"))?;
    if probe.status.success() {
        return Ok(());
    }
    Err(format!(
        "no namespaces ({}), or no ip: {}",
        namespaces.join(" "),
        String::from_utf8_lossy(&probe.stderr).trim()
    ))
}

/// Runs `ip ARGUMENTS` in the calling thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns what a command prints in the calling thread's namespace.
pub(crate) fn output(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A network namespace, which disappears with the last thing in it.
#[derive(Clone)]
pub(crate) struct Netns(Arc<File>);

impl Netns {
    pub(crate) fn new() -> Self {
        std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ip("link set lo up");
            Self(Arc::new(File::open("/proc/thread-self/ns/net").unwrap()))
        })
        .join()
        .unwrap()
    }

    /// The path for `ip link … netns PATH`.
    pub(crate) fn path(&self) -> String {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
            .display()
            .to_string()
    }

    /// Runs `body` on a thread in the namespace and waits for it.
    pub(crate) fn run<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        match self.spawn(body).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let namespace = self.clone();
        std::thread::spawn(move || {
            setns(&*namespace.0, CloneFlags::CLONE_NEWNET).unwrap();
            body()
        })
    }

    pub(crate) fn ip(&self, arguments: &str) {
        let arguments = arguments.to_owned();
        self.run(move || ip(&arguments));
    }

    /// A UDP socket in the namespace, bound to `address`, which waits at most 2 s.
    pub(crate) fn udp(&self, address: SocketAddr) -> UdpSocket {
        self.run(move || {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            socket
        })
    }
}

/// The queues of a device.
pub(crate) type Ports = Vec<Box<dyn PacketIo>>;

/// Turns ports of one kind into ports of any kind.
pub(crate) fn boxed<P: PacketIo + 'static>(ports: Vec<P>) -> Ports {
    ports.into_iter().map(|port| Box::new(port) as Box<dyn PacketIo>).collect()
}

/// The packets that a pump carried in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Crossed {
    pub(crate) packets: usize,
    pub(crate) tcp4: usize,
    pub(crate) tcp6: usize,
    pub(crate) udp: usize,
    pub(crate) longest: usize,
    pub(crate) refused: usize,
    pub(crate) malformed: usize,
    pub(crate) answered: usize,
}

/// Copies packets between two sets of queues, queue to queue, until it is stopped: a bare forwarder.
pub(crate) struct Pump {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<[Crossed; 2]>,
}

impl Pump {
    pub(crate) fn start(mut a: Ports, mut b: Ports) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            // This thread gives up its capabilities, because a worker's thread has none either.
            keep_only(CapabilitySet::empty()).unwrap();
            let mut pool = Pool::new(256);
            let mut packets = Vec::new();
            let mut crossed = [Crossed::default(); 2];
            while !stopped.load(Ordering::Relaxed) {
                let mut moved = 0;
                for (a, b) in a.iter_mut().zip(&mut b) {
                    moved += copy(&mut **a, &mut **b, &mut pool, &mut packets, &mut crossed[0]);
                    moved += copy(&mut **b, &mut **a, &mut pool, &mut packets, &mut crossed[1]);
                }
                if moved == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            assert_eq!(pool.available(), 256, "every buffer is back");
            crossed
        });
        Self { stop, thread }
    }

    /// Stops the pump. Returns the packets that it carried from the first to the second set, and in the other
    /// direction.
    pub(crate) fn stop(self) -> [Crossed; 2] {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn copy(
    from: &mut dyn PacketIo,
    to: &mut dyn PacketIo,
    pool: &mut Pool,
    packets: &mut Vec<Packet>,
    crossed: &mut Crossed,
) -> usize {
    let received = from.receive(pool, packets, 64).unwrap();
    crossed.malformed += received.malformed;
    crossed.answered += received.answered;
    for packet in packets.iter() {
        crossed.packets += 1;
        crossed.longest = crossed.longest.max(packet.len());
        match packet.offload.segmentation.map(|s| s.kind) {
            Some(SegmentKind::Tcp4) => crossed.tcp4 += 1,
            Some(SegmentKind::Tcp6) => crossed.tcp6 += 1,
            Some(SegmentKind::Udp) => crossed.udp += 1,
            None => {}
        }
    }
    let moved = packets.len();
    crossed.refused += to.transmit(pool, packets).unwrap().refused;
    moved
}

/// Repeats `holds` until it is true, for at most 20 s. The kernel creates links one after the other, including those of
/// tests that run at the same time.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "never came true: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Receives until `count` packets have arrived or 2 s are over.
pub(crate) fn receive(port: &mut impl PacketIo, pool: &mut Pool, count: usize) -> Vec<Packet> {
    let start = Instant::now();
    let mut packets = Vec::new();
    while packets.len() < count && start.elapsed() < Duration::from_secs(2) {
        let received = port.receive(pool, &mut packets, 64).unwrap();
        if received.drained {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    packets
}
