//! Pods with TUN and TAP devices.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use manx_dataplane::packet::{Checksum, Packet, Pool};
use manx_dataplane::port::link::{Link, Mac};
use manx_dataplane::port::tuntap::{Kind, Queue};

use crate::namespaces::{Need, Netns, Ports, Pump, inside, lacking, output};
use crate::pods::{A4, A6, B4, B6, exchange_all, takes_datagrams_that_were_put_together};

/// Both kinds of device.
pub(crate) const KINDS: [Kind; 2] = [Kind::Tun, Kind::Tap];
/// The hardware address of every pod's gateway.
const GATEWAY_MAC: Mac = [0xee; 6];

/// A pod with a device, and the device's queues.
pub(crate) struct TunTapPod {
    pub(crate) netns: Netns,
    pub(crate) queues: Vec<Queue>,
    link: Link,
}

impl TunTapPod {
    /// Creates the pod with the device `eth0`.
    fn new(kind: Kind, address4: Ipv4Addr, address6: Ipv6Addr, queues: usize) -> io::Result<Self> {
        let netns = Netns::new();
        let queues = netns.run(move || Queue::create(kind, "eth0", queues))?;
        let [.., last] = address4.octets();
        let peer = [2, 0, 0, 0, 0, last];
        if kind == Kind::Tap {
            netns.ip(&format!("link set eth0 address 02:00:00:00:00:{last:02x}"));
            netns.run(|| std::fs::write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0").unwrap());
        }
        netns.ip("link set eth0 mtu 1500 up");
        netns.ip(&format!("addr add {address4}/32 dev eth0"));
        netns.ip(&format!("addr add {address6}/128 dev eth0 nodad"));
        let [via4, via6] = match kind {
            Kind::Tun => ["", ""],
            Kind::Tap => ["via 169.254.1.1 onlink", "via fe80::1"],
        };
        netns.ip(&format!("route add default {via4} dev eth0"));
        netns.ip(&format!("-6 route add default {via6} dev eth0"));
        netns.run(move || await_local(address6));
        let addresses = vec![address4.into(), address6.into()];
        Ok(Self { netns, queues, link: Link { own: GATEWAY_MAC, peer, addresses } })
    }

    /// Its queues as ports.
    pub(crate) fn into_ports(self) -> (Netns, Ports) {
        let Self { netns, queues, link } = self;
        (netns, queues.into_iter().map(|queue| queue.into_port(|| link.clone())).collect())
    }
}

/// Waits until the namespace accepts packets for the address. The kernel notices the carrier of a new device a moment after the
/// device is up, and adds the address's local route only then.
fn await_local(address: Ipv6Addr) {
    let until = Instant::now() + Duration::from_secs(5);
    while output("ip", &format!("-6 route show table local {address}")).is_empty() {
        assert!(Instant::now() < until, "{address} has no local route");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn two_pods(kind: Kind, queues: usize) -> Option<[TunTapPod; 2]> {
    Some([a_pod(kind, A4, A6, queues)?, a_pod(kind, B4, B6, queues)?])
}

/// A pod with a device. Returns `None` if there is no TUN, which is printed.
pub(crate) fn a_pod(
    kind: Kind,
    address4: Ipv4Addr,
    address6: Ipv6Addr,
    queues: usize,
) -> Option<TunTapPod> {
    match TunTapPod::new(kind, address4, address6, queues) {
        Ok(pod) => Some(pod),
        Err(e) => {
            assert!(
                matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound),
                "{kind} fails for another reason than the environment: {e}"
            );
            lacking(Need::Tun, &format!("/dev/net/tun: {e}"));
            None
        }
    }
}

/// Calls `check` for each kind in separate namespaces.
fn inside_each(test: &str, check: impl Fn(Kind)) {
    inside(test, || KINDS.into_iter().for_each(check));
}

#[test]
fn super_packets_pass_both_ways() {
    inside_each("tuntap::super_packets_pass_both_ways", |kind| {
        let Some([a, b]) = two_pods(kind, 1) else { return };
        let ((a, a_ports), (b, b_ports)) = (a.into_ports(), b.into_ports());
        let udp = a_ports[0].capabilities().udp_segmentation;
        let pump = Pump::start(a_ports, b_ports);
        exchange_all(&a, &b);
        for crossed in pump.stop() {
            assert!(
                crossed.tcp4 > 50 && crossed.tcp6 > 50 && crossed.longest > 20_000,
                "{kind}: {crossed:?}"
            );
            assert_eq!((crossed.malformed, crossed.refused), (0, 0), "{kind}: {crossed:?}");
            // The gateway's hardware address, by ARP and by neighbour solicitation.
            let answered = match kind {
                Kind::Tun => 0..=0,
                Kind::Tap => 2..=usize::MAX,
            };
            assert!(answered.contains(&crossed.answered), "{kind}: {crossed:?}");
        }
        assert!(udp || output("uname", "-r").starts_with("5."), "USO is there since 6.2");
    });
}

#[test]
fn datagrams_that_leave_as_one_arrive_as_they_were() {
    inside_each("tuntap::datagrams_that_leave_as_one_arrive_as_they_were", |kind| {
        let Some(b) = a_pod(kind, B4, B6, 1) else { return };
        let (b, mut ports) = b.into_ports();
        takes_datagrams_that_were_put_together(&b, &mut *ports[0]);
    });
}

#[test]
fn queues_share_the_flows_and_survive_being_passed_on() {
    inside_each("tuntap::queues_share_the_flows_and_survive_being_passed_on", |kind| {
        let Some([mut a, b]) = two_pods(kind, 2) else { return };
        assert_eq!((a.queues[0].name(), a.queues.len()), ("eth0", 2));
        let passed = a.queues.into_iter().map(|queue| Queue::from_fd(OwnedFd::from(queue)));
        a.queues = passed.collect::<io::Result<_>>().unwrap();
        let found = &a.queues[1];
        assert_eq!((found.name(), found.kind(), found.has_several()), ("eth0", kind, true));
        let ((a, a_ports), (b, b_ports)) = (a.into_ports(), b.into_ports());
        let pump = Pump::start(a_ports, b_ports);
        exchange_all(&a, &b);
        let crossed = pump.stop();
        assert_eq!(crossed[0].malformed + crossed[1].malformed, 0, "{kind}");
    });
}

#[test]
fn many_packets_arrive_at_once_and_in_order() {
    inside_each("tuntap::many_packets_arrive_at_once_and_in_order", |kind| {
        let Some(b) = a_pod(kind, B4, B6, 1) else { return };
        let (b, mut ports) = b.into_ports();
        let socket = b.udp(SocketAddr::new(B4.into(), 7002));
        let mut pool = Pool::new(200);
        let mut packets: Vec<Packet> = (0..150u8)
            .map(|tag| {
                let builder = PacketBuilder::ipv4(A4.octets(), B4.octets(), 64).udp(7001, 7002);
                let mut bytes = Vec::new();
                builder.write(&mut bytes, &[tag; 20]).unwrap();
                pool.take_filled(&bytes).unwrap()
            })
            .collect();
        packets[77].offload.checksum = Checksum::Partial { start: 20, offset: 2000 };
        let done = ports[0].transmit(&mut pool, &mut packets).unwrap();
        assert_eq!((done.sent, done.refused), (149, 1), "{kind}: one contradicts itself");
        let mut buffer = [0; 100];
        for tag in (0..150).filter(|tag| *tag != 77) {
            assert_eq!(socket.recv(&mut buffer).unwrap(), 20);
            assert_eq!(buffer[0], tag);
        }
        assert_eq!(pool.available(), 200);
    });
}

#[test]
fn a_device_that_is_down_refuses_and_a_deleted_one_fails() {
    inside_each("tuntap::a_device_that_is_down_refuses_and_a_deleted_one_fails", |kind| {
        for many in [1, 100] {
            let Some(pod) = a_pod(kind, A4, A6, 1) else { return };
            let (pod, mut ports) = pod.into_ports();
            let mut pool = Pool::new(many);
            let fill = |pool: &mut Pool| -> Vec<Packet> {
                (0..many).map(|_| pool.take_filled(&[0x45; 40]).unwrap()).collect()
            };
            let mut packets = fill(&mut pool);
            pod.ip("link set eth0 down");
            let down = ports[0].transmit(&mut pool, &mut packets).unwrap();
            assert_eq!((down.sent, down.refused), (0, many), "{kind}");
            pod.ip("link del eth0");
            let mut packets = fill(&mut pool);
            assert!(ports[0].transmit(&mut pool, &mut packets).is_err(), "{kind}");
            assert!(ports[0].receive(&mut pool, &mut packets, 1).is_err(), "{kind}");
            assert_eq!(pool.available(), many);
        }
    });
}
