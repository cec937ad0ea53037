//! Helpers for tests that make devices. Built for tests only.
#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test stops where it cannot go on"
)]

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use manx_api::Device;
use manx_dataplane::packet::Pool;
use manx_dataplane::worker::Polling;
use manx_linux::netns;
use manx_linux::testing::tun_allowed;

use crate::device::{self, AgentNamespace, DeviceSpec, Error, Queues};
use crate::pod_device::{self, PodDevice};

/// A wait that is long enough for a datagram that arrives.
pub const SHORT: Duration = Duration::from_millis(200);
/// A wait that is long enough for everything that arrives at all.
pub const LONG: Duration = Duration::from_secs(5);

/// The kinds that this environment allows.
pub fn devices() -> Vec<Device> {
    let all = Device::ALL.into_iter();
    if tun_allowed() {
        all.collect()
    } else {
        all.filter(|it| device::kind(*it).is_none()).collect()
    }
}

pub fn there(path: &Path) -> Option<netns::Identity> {
    fs::metadata(path).ok().as_ref().map(netns::Identity::from)
}

pub fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A pod's namespace with a name of its own.
pub struct Pod {
    pub path: PathBuf,
    /// The addresses of its interface.
    pub addresses: Vec<IpAddr>,
    _folder: tempfile::TempDir,
}

impl Pod {
    pub fn new(addresses: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("netns");
        netns::create_named(&path).unwrap();
        Self { path, addresses: ips(addresses), _folder: folder }
    }

    /// Gives the pod `eth0`, with one queue.
    pub fn attach(
        &self,
        agent: &AgentNamespace,
        device: Device,
    ) -> Result<(PodDevice, Queues), Error> {
        self.attach_for(Polling::Adaptive, agent, device)
    }

    /// Like [`Self::attach`], for workers that sleep or do not.
    pub fn attach_for(
        &self,
        polling: Polling,
        agent: &AgentNamespace,
        device: Device,
    ) -> Result<(PodDevice, Queues), Error> {
        self.attach_with(1, polling, agent, device)
    }

    /// Like [`Self::attach`], with several queues.
    pub fn attach_with(
        &self,
        queues: usize,
        polling: Polling,
        agent: &AgentNamespace,
        device: Device,
    ) -> Result<(PodDevice, Queues), Error> {
        let wanted = DeviceSpec { device, queues, polling, ..self.wanted() };
        pod_device::attach(agent, &self.path, &wanted).map(|(device, held)| (device, held.queues))
    }

    /// The description of a TUN device for the pod, with one queue.
    pub fn wanted(&self) -> DeviceSpec<'_> {
        DeviceSpec {
            interface: "eth0",
            addresses: &self.addresses,
            mtu: 1400,
            segments: Some(3),
            device: Device::Tun,
            queues: 1,
            polling: Polling::Adaptive,
        }
    }

    /// Runs `work` in the pod's namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(netns::open(&self.path).unwrap(), work).unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        netns::delete(&self.path).unwrap();
    }
}

/// Carries packets between two queues until it is dropped, then closes the queues.
pub struct Wire {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Starts to carry packets.
    pub fn between(mut left: Queues, mut right: Queues) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut pool = Pool::new(64);
            let mut batch = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let _ = left[0].receive(&mut pool, &mut batch, 32).unwrap();
                let _ = right[0].transmit(&mut pool, &mut batch).unwrap();
                let _ = right[0].receive(&mut pool, &mut batch, 32).unwrap();
                let _ = left[0].transmit(&mut pool, &mut batch).unwrap();
                thread::sleep(Duration::from_micros(200));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

pub fn bound(address: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    socket
}

/// Whether a datagram gets from `from` to `to` within `patience`. Late datagrams of earlier calls do not count.
pub fn reaches(from: &UdpSocket, to: &UdpSocket, patience: Duration) -> bool {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let end = std::time::Instant::now() + patience;
    let to_address: SocketAddr = to.local_addr().unwrap();
    while std::time::Instant::now() < end {
        // Without a route the kernel reports an error at once. With one, the receiver's timeout paces the loop.
        if from.send_to(&call, to_address).is_err() {
            thread::sleep(SHORT);
        }
        let mut heard = [0; 8];
        if matches!(to.recv_from(&mut heard), Ok((8, sender)) if sender == from.local_addr().unwrap())
            && heard == call
        {
            return true;
        }
    }
    false
}
