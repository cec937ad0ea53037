//! Both kinds of device, with sockets at their ends and nothing but a copying loop between their queues.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, thread};

use manx_dataplane::packet::Pool;
use manx_dataplane::sys;
use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};
use manx_dataplane::wire::ipv4::View;

use super::*;
use crate::host_device::{self, HostDevice};
use crate::pod_device::{self, PodDevice};
use manx_calculation::topology::{Desired, HostRoute};
use manx_linux::testing::{namespaces_allowed, tun_allowed, users_allowed};

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(5);

/// The kinds that this environment allows.
fn devices() -> Vec<Device> {
    if tun_allowed() { vec![Device::Tun, Device::Veth] } else { vec![Device::Veth] }
}

/// The identity of the namespace at a path.
fn there(path: &Path) -> Option<netns::Identity> {
    fs::metadata(path).ok().as_ref().map(netns::Identity::from)
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A pod's namespace under a name of its own.
struct Pod {
    path: PathBuf,
    addresses: Vec<IpAddr>,
    _folder: tempfile::TempDir,
}

impl Pod {
    fn new(addresses: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("netns");
        netns::create_named(&path).unwrap();
        Self { path, addresses: ips(addresses), _folder: folder }
    }

    fn attach(&self, agent: &AgentNamespace, device: Device) -> Result<(PodDevice, Queues), Error> {
        self.attach_for(Polling::Adaptive, agent, device)
    }

    fn attach_for(
        &self,
        polling: Polling,
        agent: &AgentNamespace,
        device: Device,
    ) -> Result<(PodDevice, Queues), Error> {
        self.attach_with(1, polling, agent, device)
    }

    fn attach_with(
        &self,
        queues: usize,
        polling: Polling,
        agent: &AgentNamespace,
        device: Device,
    ) -> Result<(PodDevice, Queues), Error> {
        let wanted = DeviceSpec {
            interface: "eth0",
            addresses: &self.addresses,
            mtu: 1400,
            segments: Some(3),
            device,
            queues,
            polling,
        };
        pod_device::attach(agent, &self.path, &wanted).map(|(device, held)| (device, held.queues))
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(netns::open(&self.path).unwrap(), work).unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        netns::delete(&self.path).unwrap();
    }
}

/// Carries packets between two queues until dropped; then the queues are closed.
struct Wire {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    fn between(mut left: Queues, mut right: Queues) -> Self {
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

fn bound(address: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    socket
}

/// Whether a datagram comes through from `from` to `to` within `patience`: one of this call's, not a late one of
/// another's.
fn reaches(from: &UdpSocket, to: &UdpSocket, patience: Duration) -> bool {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let end = std::time::Instant::now() + patience;
    let to_address: SocketAddr = to.local_addr().unwrap();
    while std::time::Instant::now() < end {
        // Without a way out the kernel says so at once; with one, the receiver's timeout paces the loop.
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

#[test]
fn who_never_sleeps_reads_a_veth_from_a_ring() {
    if !namespaces_allowed() {
        return;
    }
    let agent = AgentNamespace::create().unwrap();
    for (polling, mapped) in [(Polling::Adaptive, false), (Polling::Busy, true)] {
        let pod = Pod::new(&["10.7.0.2"]);
        let (device, queues) = pod.attach_for(polling, &agent, Device::Veth).unwrap();
        assert_eq!(queues[0].is_mapped(), mapped, "{polling:?}");
        device.detach(&agent).unwrap();
    }
}

/// Writes a UDP packet to this socket's address into a queue.
fn write(queue: &mut Box<dyn PacketIo>, to: &UdpSocket) {
    let SocketAddr::V4(to) = to.local_addr().unwrap() else { panic!("of IPv4") };
    let mut bytes = [0; 29];
    (bytes[0], bytes[3], bytes[8], bytes[9], bytes[25]) = (0x45, 29, 64, 17, 9);
    bytes[12..16].copy_from_slice(&[192, 0, 2, 1]);
    bytes[16..20].copy_from_slice(&to.ip().octets());
    bytes[22..24].copy_from_slice(&to.port().to_be_bytes());
    View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
    let mut packets = vec![Pool::new(1).take_filled(&bytes).unwrap()];
    let _ = queue.transmit(&mut Pool::new(1), &mut packets).unwrap();
}

#[test]
fn devices_of_one_name_that_are_made_at_once_lie_each_in_its_own_namespace_with_all_queues() {
    if !namespaces_allowed() {
        return;
    }
    for (device, queues) in devices().into_iter().flat_map(|device| [(device, 1), (device, 2)]) {
        let agent = AgentNamespace::create().unwrap();
        let pods: Vec<Pod> = (2..18).map(|n| Pod::new(&[&format!("10.7.0.{n}")])).collect();
        let barrier = Barrier::new(pods.len());
        let made: Vec<_> = thread::scope(|scope| {
            let make = |pod: &Pod| {
                barrier.wait();
                pod.attach_with(queues, Polling::Adaptive, &agent, device).unwrap()
            };
            let made: Vec<_> = pods.iter().map(|pod| scope.spawn(move || make(pod))).collect();
            made.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for (pod, (device, mut opened)) in pods.iter().zip(made) {
            let socket = pod.run(|| bound(pod.addresses[0]));
            assert_eq!(opened.len(), queues);
            for queue in &mut opened {
                write(queue, &socket);
                assert_eq!(socket.recv(&mut [0; 9]).unwrap(), 1, "its own pod gets it");
            }
            drop(opened);
            device.detach(&agent).unwrap();
        }
    }
}

#[test]
fn a_detached_device_is_gone_while_workers_still_hold_its_queues() {
    if !namespaces_allowed() {
        return;
    }
    for device in devices() {
        let agent = AgentNamespace::create().unwrap();
        let pod = Pod::new(&["10.7.0.2"]);
        let links = |change: &str| {
            let changed = pod.run(|| Command::new("sh").args(["-c", change]).status().unwrap());
            assert!(changed.success(), "{change}");
            let of_pod = netns::open(&pod.path).unwrap();
            let links = netlink::in_netns(&of_pod, async |netlink| netlink.links().await).unwrap();
            links.len()
        };
        let none = links("true");
        let mut held = Vec::new();
        // A pod may also give it another name.
        for change in ["true", "ip link set eth0 down && ip link set eth0 name mine", "true"] {
            let (attached, queues) = pod.attach_with(2, Polling::Adaptive, &agent, device).unwrap();
            assert_eq!(links(change), none + 1, "{device:?}");
            attached.detach(&agent).unwrap();
            held.push(queues);
            assert_eq!(links("true"), none, "{device:?}: {change}");
        }
    }
}

#[test]
fn pods_speak_through_their_devices_and_no_other_way() {
    if !namespaces_allowed() {
        return;
    }
    for device in devices() {
        let agent = AgentNamespace::create().unwrap();
        let a = Pod::new(&["10.7.0.2", "fd07::2"]);
        let b = Pod::new(&["10.7.0.3", "fd07::3"]);
        let (device_a, queues_a) = a.attach(&agent, device).unwrap();
        let (device_b, queues_b) = b.attach(&agent, device).unwrap();
        let wire = Wire::between(queues_a, queues_b);
        let mut sockets = Vec::new();
        for (from, to) in a.addresses.iter().zip(&b.addresses) {
            let from = a.run(|| bound(*from));
            let to = b.run(|| bound(*to));
            assert!(reaches(&from, &to, LONG) && reaches(&to, &from, LONG), "{device:?} {to:?}");
            sockets.push((from, to));
        }
        // TCP: checksums and super-packets are carried along.
        let listener = b.run(|| TcpListener::bind((b.addresses[0], 0)).unwrap());
        let server = listener.local_addr().unwrap();
        let sent = thread::scope(|scope| {
            let received = scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                io::copy(&mut stream, &mut io::sink()).unwrap()
            });
            a.run(|| {
                let mut stream = TcpStream::connect_timeout(&server, LONG).unwrap();
                io::Write::write_all(&mut stream, &vec![7; 1 << 20]).unwrap();
            });
            received.join().unwrap()
        });
        assert_eq!(sent, 1 << 20);

        drop(wire);
        for (from, to) in &sockets {
            assert!(!reaches(from, to, 3 * SHORT), "{device:?}: the agent's queues are closed");
        }
        device_a.detach(&agent).unwrap();
        device_b.detach(&agent).unwrap();
        device_b.detach(&agent).unwrap();
        let left = netlink::in_netns(netns::open(&a.path).unwrap(), async |netlink| {
            netlink.link("eth0").await
        });
        assert_eq!(left.unwrap(), None, "{device:?}");
        let far_ends = netlink::in_netns(&agent, async |netlink| netlink.links().await).unwrap();
        assert_eq!(far_ends.len(), 1, "only lo: {far_ends:?}");
    }
}

#[test]
fn the_kernel_forwards_nothing_between_veths_that_manx_does_not_read() {
    if !namespaces_allowed() {
        return;
    }
    let agent = AgentNamespace::create().unwrap();
    let a = Pod::new(&["10.7.0.2", "fd07::2"]);
    let b = Pod::new(&["10.7.0.3", "fd07::3"]);
    // The queues stay open and are not read.
    let _a = a.attach(&agent, Device::Veth).unwrap();
    let _b = b.attach(&agent, Device::Veth).unwrap();
    for (from, to) in a.addresses.iter().zip(&b.addresses) {
        let (from, to) = (a.run(|| bound(*from)), b.run(|| bound(*to)));
        assert!(!reaches(&from, &to, 3 * SHORT));
    }
}

#[test]
fn a_namespace_made_anew_at_the_same_path_is_another() {
    if !namespaces_allowed() {
        return;
    }
    let agent = AgentNamespace::create().unwrap();
    let pod = Pod::new(&["10.7.0.2"]);
    let (device, _queues) = pod.attach(&agent, Device::Veth).unwrap();
    // While the namespace is held, no other one gets its number.
    let _old = netns::open(&pod.path).unwrap();
    assert!(device.is(&pod.path, there(&pod.path), "eth0"));
    netns::delete(&pod.path).unwrap();
    assert!(!device.is(&pod.path, there(&pod.path), "eth0"));
    netns::create_named(&pod.path).unwrap();
    assert!(!device.is(&pod.path, there(&pod.path), "eth0"));
}

#[test]
fn a_name_that_is_taken_is_refused_and_nothing_is_left_behind() {
    if !namespaces_allowed() {
        return;
    }
    for device in devices() {
        let agent = AgentNamespace::create().unwrap();
        let pod = Pod::new(&["10.7.0.2"]);
        let (first, _queues) = pod.attach(&agent, device).unwrap();
        assert!(
            first.is(&pod.path, there(&pod.path), "eth0")
                && !first.is(&pod.path, there(&pod.path), "net1")
        );
        let error = pod.attach(&agent, device).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            error.to_string(),
            format!(
                "there is an interface eth0 in the pod's network namespace {} already, and it is not Manx's: remove it (ip link \
                 delete eth0) or ask for another name",
                pod.path.display()
            )
        );
        let gone = Pod {
            addresses: ips(&["10.7.0.9"]),
            path: "/nonexistent".into(),
            _folder: tempfile::tempdir().unwrap(),
        };
        assert_eq!(gone.attach(&agent, device).err().unwrap().kind(), ErrorKind::Invalid);
        std::mem::forget(gone);
        let far_ends = netlink::in_netns(&agent, async |netlink| netlink.links().await).unwrap();
        assert_eq!(far_ends.len(), if device == Device::Veth { 2 } else { 1 });
    }
}

#[test]
fn whoever_tries_all_the_time_gets_no_queue_before_the_device_has_its_owner() {
    if !namespaces_allowed() || !tun_allowed() || !users_allowed() {
        return;
    }
    let several = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
    let agent = AgentNamespace::create().unwrap();
    let pod = Pod::new(&["10.7.0.2"]);
    let (tries, ends) = (AtomicUsize::new(0), AtomicBool::new(false));
    let got = thread::scope(|scope| {
        let thief = scope.spawn(|| {
            pod.run(|| {
                keep_only(CapabilitySet::empty()).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    let queue = fs::File::options().read(true).write(true).open("/dev/net/tun");
                    let queue = queue.unwrap();
                    if sys::tun::set_interface(queue.as_fd(), "eth0", several).is_ok() {
                        return true;
                    }
                    tries.fetch_add(1, Ordering::Relaxed);
                }
                false
            })
        });
        while tries.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        for _ in 0..50 {
            let (device, queues) =
                pod.attach_with(2, Polling::Adaptive, &agent, Device::Tun).unwrap();
            drop(queues);
            device.detach(&agent).unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        thief.join().unwrap()
    });
    assert!(!got, "after {} tries", tries.into_inner());
}

#[test]
fn the_node_reaches_pods_by_the_host_port_and_its_routes_are_reconciled() {
    if !namespaces_allowed() {
        return;
    }
    for device in devices() {
        let agent = AgentNamespace::create().unwrap();
        let node = Pod::new(&[]);
        let pod = Pod::new(&["10.7.0.2", "fd07::2"]);
        let wanted = DeviceSpec {
            interface: host_device::NAME,
            addresses: &[],
            mtu: 1400,
            segments: None,
            device,
            queues: 1,
            polling: Polling::Adaptive,
        };
        let (host, host_held) = node.run(|| HostDevice::attach(&agent, &wanted, "eth0").unwrap());
        let (_pod_device, pod_queues) = pod.attach(&agent, device).unwrap();
        let wire = Wire::between(host_held.queues, pod_queues);

        // A neighbour by which a second node is reached without a tunnel.
        let peer = Peer { name: "far", netns: None, mac: None };
        let veth = Veth { name: "uplink", mac: None, mtu: 1500, peer };
        let uplink = netlink::in_netns(netns::open(&node.path).unwrap(), async |netlink| {
            netlink.add_veth(&veth).await?;
            let link = netlink.existing("uplink").await?;
            netlink.add_address(link.index, "172.18.0.2/24".parse().unwrap()).await?;
            netlink.set_up(link.index).await?;
            Ok(link.index)
        })
        .unwrap();

        let [v4, v6] = ["10.7.0.1", "fd07::1"].map(|text| text.parse::<IpAddr>().unwrap());
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let second = "172.18.0.3".parse().unwrap();
        let mut desired = Desired {
            addresses: vec![v4, v6],
            blocks: vec![
                (net("10.7.0.0/24"), HostRoute::Manx { source: Some(v4) }),
                (net("fd07::/64"), HostRoute::Manx { source: Some(v6) }),
                (net("10.7.1.0/24"), HostRoute::Node { address: second }),
                (net("10.7.2.0/24"), HostRoute::Node { address: "192.0.2.1".parse().unwrap() }),
            ],
            own: [v4, v6].into(),
        };
        let changes = host.reconcile(&desired).unwrap();
        assert_eq!(changes.set.len(), 3, "{changes:?}");
        assert!(
            changes.set.iter().any(|route| (route.device, route.via) == (uplink, Some(second)))
        );
        assert_eq!(changes.unreachable, [net("10.7.2.0/24")]);
        assert_eq!(host.reconcile(&desired).unwrap().set, [], "again changes nothing");

        for address in &pod.addresses {
            let there = pod.run(|| bound(*address));
            let here = node.run(|| {
                let any = if address.is_ipv4() { v4 } else { v6 };
                bound(any)
            });
            assert!(
                reaches(&here, &there, LONG) && reaches(&there, &here, LONG),
                "{device:?} {address}"
            );
            let source = node.run(|| {
                let socket =
                    UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })
                        .unwrap();
                socket.connect(there.local_addr().unwrap()).unwrap();
                socket.local_addr().unwrap().ip()
            });
            assert_eq!(
                source,
                if address.is_ipv4() { v4 } else { v6 },
                "the tunnel address is the source"
            );
        }

        desired.blocks = vec![
            (net("fd07::/64"), HostRoute::Manx { source: None }),
            (net("10.7.1.0/24"), HostRoute::Manx { source: None }),
        ];
        let changes = host.reconcile(&desired).unwrap();
        assert_eq!((changes.set.len(), changes.removed.len()), (2, 1), "{changes:?}");
        desired.addresses = vec![v6];
        assert_eq!(host.reconcile(&desired).unwrap(), host_device::Reconciled::default());
        let addresses = netlink::in_netns(netns::open(&node.path).unwrap(), async |netlink| {
            netlink.addresses().await
        });
        let holds = |address| {
            addresses.as_ref().unwrap().iter().any(|held| held.net == IpNet::from(address))
        };
        assert!(holds(v6) && !holds(v4));
        drop(wire);
        host.detach(&agent).unwrap();
        let left = netlink::in_netns(netns::open(&node.path).unwrap(), async |netlink| {
            netlink.manx_routes().await
        });
        assert_eq!(left.unwrap(), []);
    }
}

#[test]
fn the_agents_namespace_goes_with_the_agent() {
    if !namespaces_allowed() {
        return;
    }
    let agent = AgentNamespace::create().unwrap();
    let pod = Pod::new(&["10.7.0.2"]);
    let (_device, queues) = pod.attach(&agent, Device::Veth).unwrap();
    drop((agent, queues));
    // The kernel takes namespaces apart in its own time.
    let gone = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(50));
        let link = netlink::in_netns(netns::open(&pod.path).unwrap(), async |netlink| {
            netlink.link("eth0").await
        });
        link.unwrap().is_none()
    });
    assert!(gone);
    assert!(fs::metadata(&pod.path).is_ok());
}
