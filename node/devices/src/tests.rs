//! All kinds of device, with sockets at their ends and only a copying loop between their queues.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, io, thread};

use manx_dataplane::packet::Pool;
use manx_dataplane::port::tuntap::Kind;
use manx_dataplane::sys;
use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};
use manx_dataplane::wire::ipv4::View;

use manx_api::{Device, ErrorKind};
use manx_dataplane::port::PacketIo;
use manx_dataplane::worker::Polling;
use manx_linux::testing::{namespaces_allowed, tun_allowed, users_allowed};
use manx_linux::{netlink, netns};

use crate::device::{AgentNamespace, DeviceSpec, Error, OpenDevice, device_of, mac};
use crate::pod_device::{self, PodDevice};
use crate::testing::*;

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
        // A pod may also rename its interface.
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
        // TCP shows that checksums and super-packets are carried correctly.
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
    // While the namespace is open, no other one gets its number.
    let _old = netns::open(&pod.path).unwrap();
    assert!(device.matches(&pod.path, there(&pod.path), "eth0"));
    netns::delete(&pod.path).unwrap();
    assert!(!device.matches(&pod.path, there(&pod.path), "eth0"));
    netns::create_named(&pod.path).unwrap();
    assert!(!device.matches(&pod.path, there(&pod.path), "eth0"));
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
            first.matches(&pod.path, there(&pod.path), "eth0")
                && !first.matches(&pod.path, there(&pod.path), "net1")
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
        let gone = Pod::new(&["10.7.0.9"]);
        netns::delete(&gone.path).unwrap();
        assert_eq!(gone.attach(&agent, device).err().unwrap().kind(), ErrorKind::Invalid);
        let far_ends = netlink::in_netns(&agent, async |netlink| netlink.links().await).unwrap();
        assert_eq!(far_ends.len(), if device == Device::Veth { 2 } else { 1 });
    }
}

#[test]
fn whoever_tries_all_the_time_gets_no_queue_before_the_device_has_its_owner() {
    if !namespaces_allowed() || !tun_allowed() || !users_allowed() {
        return;
    }
    for (device, kind) in [(Device::Tun, libc::IFF_TUN), (Device::Tap, libc::IFF_TAP)] {
        tries_all_the_time(device, kind);
    }
}

fn tries_all_the_time(device: Device, kind: i32) {
    let several = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
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
            let (made, queues) = pod.attach_with(2, Polling::Adaptive, &agent, device).unwrap();
            drop(queues);
            made.detach(&agent).unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        thief.join().unwrap()
    });
    assert!(!got, "after {} tries", tries.into_inner());
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
    // The kernel removes namespaces a moment later.
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

#[test]
fn a_hardware_address_ends_as_the_first_address_or_as_the_name() {
    let of = |device, interface, addresses: &[&str]| {
        let (mtu, segments, queues, polling) = (1400, None, 1, Polling::Adaptive);
        let addresses = &ips(addresses);
        mac(&DeviceSpec { interface, device, addresses, mtu, segments, queues, polling })
    };
    for device in [Device::Tap, Device::Veth] {
        let of = |interface, addresses: &[&str]| of(device, interface, addresses).unwrap();
        assert_eq!(of("eth0", &["10.244.1.7", "fd00::1"]), [0x0a, 0x58, 10, 244, 1, 7]);
        assert_eq!(of("eth0", &["fd00::12:3456"]), [0x0a, 0x58, 0, 0x12, 0x34, 0x56]);
        assert_eq!(of("manx0", &[]), *b"\x0a\x58anx0");
        assert_eq!(of("p", &[]), [0x0a, 0x58, 0, 0, 0, 0]);
    }
    assert_eq!(of(Device::Tun, "eth0", &["10.244.1.7"]), None);
}

#[test]
fn pods_of_one_family_know_their_gateway_and_speak() {
    if !namespaces_allowed() {
        return;
    }
    for device in devices() {
        for addresses in [["10.7.0.2", "10.7.0.3"], ["fd07::2", "fd07::3"]] {
            let agent = AgentNamespace::create().unwrap();
            let [a, b] = addresses.map(|address| Pod::new(&[address]));
            let (_device_a, queues_a) = a.attach(&agent, device).unwrap();
            let (_device_b, queues_b) = b.attach(&agent, device).unwrap();
            let known = netlink::in_netns(netns::open(&a.path).unwrap(), async |netlink| {
                netlink.neighbours().await
            });
            let known: Vec<_> = known.unwrap().iter().filter_map(|it| it.mac).collect();
            assert_eq!(known.contains(&[0xee; 6]), device.is_ethernet(), "{device} {known:?}");
            let _wire = Wire::between(queues_a, queues_b);
            let [from, to] = [&a, &b].map(|pod| pod.run(|| bound(pod.addresses[0])));
            assert!(
                reaches(&from, &to, LONG) && reaches(&to, &from, LONG),
                "{device} {addresses:?}"
            );
        }
    }
}

/// The queues of a device that another process has made.
fn made_elsewhere(kind: Kind, pod: &Pod, interface: &str, queues: usize) -> Vec<OwnedFd> {
    let wanted = DeviceSpec { interface, queues, device: device_of(kind), ..pod.wanted() };
    let netns = netns::open(&pod.path).unwrap();
    pod_device::make(&netns, &pod.path, &wanted).unwrap()
}

/// Adopts the queues of `eth0` of a pod with this many queues.
fn adopt(
    kind: Kind,
    pod: &Pod,
    queues: Vec<OwnedFd>,
    wanted: usize,
) -> Result<(PodDevice, OpenDevice), Error> {
    let wanted = DeviceSpec { queues: wanted, device: device_of(kind), ..pod.wanted() };
    pod_device::adopt(queues, &pod.path, there(&pod.path).unwrap(), &wanted)
}

#[test]
fn the_queues_of_another_maker_are_taken_over() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    for (kind, queues) in [(Kind::Tun, 1), (Kind::Tun, 2), (Kind::Tap, 1), (Kind::Tap, 2)] {
        let agent = AgentNamespace::create().unwrap();
        let (a, b) = (Pod::new(&["10.7.0.2"]), Pod::new(&["10.7.0.3"]));
        let mut sides = Vec::new();
        for pod in [&a, &b] {
            let made = made_elsewhere(kind, pod, "eth0", queues);
            let (device, held) = adopt(kind, pod, made, queues).unwrap();
            assert!(device.matches(&pod.path, there(&pod.path), "eth0"));
            assert_eq!(device.device(), device_of(kind));
            // The agent does not remove the device.
            device.detach(&agent).unwrap();
            sides.push(held.queues);
        }
        let (at_a, at_b) = (sides.remove(0), sides.remove(0));
        if queues == 1 {
            let [from, to] = [&a, &b].map(|pod| pod.run(|| bound(pod.addresses[0])));
            let _wire = Wire::between(at_a, at_b);
            assert!(reaches(&from, &to, LONG) && reaches(&to, &from, LONG), "{kind}");
        } else {
            drop((at_a, at_b));
        }
        for pod in [&a, &b] {
            let left = netlink::in_netns(netns::open(&pod.path).unwrap(), async |netlink| {
                netlink.link("eth0").await
            });
            assert!(left.unwrap().is_none(), "{kind}: the device goes with its last queue");
        }
    }
}

#[test]
fn queues_of_another_device_kind_or_number_are_refused() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let pod = Pod::new(&["10.7.0.2"]);
    let file = || OwnedFd::from(fs::File::open("/dev/null").unwrap());
    let fresh =
        || OwnedFd::from(fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap());
    let made = |kind, interface, queues| made_elsewhere(kind, &pod, interface, queues);
    let check_refused = |kind, queues, wanted, found: &str| {
        let error = adopt(kind, &pod, queues, wanted).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(found), "{error}");
    };
    for (kind, other) in [(Kind::Tun, Kind::Tap), (Kind::Tap, Kind::Tun)] {
        check_refused(kind, vec![], 1, "there are 0");
        check_refused(kind, made(kind, "eth0", 1), 2, "there are 1");
        let found = format!("one is of eth1, a {kind} device of one queue; expected 1 of a {kind}");
        check_refused(kind, made(kind, "eth1", 1), 1, &found);
        let one = made(kind, "eth0", 2).into_iter().take(1).collect();
        let found = format!("one is of eth0, a {kind} device of several queues");
        check_refused(kind, one, 1, &found);
        let found =
            format!("one is of eth0, a {other} device of one queue; expected 1 of a {kind}");
        check_refused(kind, made(other, "eth0", 1), 1, &found);
        check_refused(kind, vec![file()], 1, "Inappropriate ioctl");
        check_refused(kind, vec![fresh()], 1, "bad state");
    }
}
