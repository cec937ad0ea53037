//! Tests what a process in a pod can do to the pod's own TUN or TAP device, and what it cannot do.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::port::tuntap::{Kind, owner};
use manx_dataplane::sys;
use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};

use crate::namespaces::{Need, Netns, Ports, eventually, inside, inside_with_users, ip, lacking};
use crate::pods::{A4, B4, B6};
use crate::tuntap::{KINDS, a_pod};

/// A time that is long enough for anything that arrives at all.
const PATIENCE: Duration = Duration::from_millis(300);

/// The flags with which a process requests a device with one queue, and one with several.
fn flags(kind: Kind) -> [i32; 2] {
    let kind = match kind {
        Kind::Tun => libc::IFF_TUN,
        Kind::Tap => libc::IFF_TAP,
    };
    let one = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    [one, one | libc::IFF_MULTI_QUEUE]
}

/// Opens a queue of the pod's `eth0`, as a process in the pod does.
fn take(flags: i32) -> io::Result<File> {
    let queue = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    sys::tun::set_interface(queue.as_fd(), "eth0", flags)?;
    Ok(queue)
}

/// Opens a queue of a device that may have several.
fn take_one_of_several(kind: Kind) -> io::Result<File> {
    let [_, several] = flags(kind);
    take(several)
}

/// The error numbers of both attempts.
fn attempts(kind: Kind) -> [Option<i32>; 2] {
    flags(kind).map(|flags| take(flags).err().and_then(|error| error.raw_os_error()))
}

/// The error numbers of both attempts without capabilities.
fn attempts_without_capabilities(pod: &Netns, kind: Kind) -> [Option<i32>; 2] {
    pod.run(move || {
        keep_only(CapabilitySet::empty()).unwrap();
        attempts(kind)
    })
}

#[test]
fn a_device_with_one_queue_gives_no_process_a_second_one() {
    inside("takeover::a_device_with_one_queue_gives_no_process_a_second_one", || {
        for kind in KINDS {
            let Some(pod) = a_pod(kind, B4, B6, 1) else { return };
            let refused = [Some(libc::EBUSY), Some(libc::EINVAL)];
            assert_eq!(attempts_without_capabilities(&pod.netns, kind), refused, "{kind}");
            assert_eq!(pod.netns.run(move || attempts(kind)), refused, "{kind}");
        }
    });
}

#[test]
fn a_device_with_several_queues_gives_none_to_a_process_without_the_capability() {
    let test =
        "takeover::a_device_with_several_queues_gives_none_to_a_process_without_the_capability";
    inside_with_users(test, || {
        for kind in KINDS {
            let Some(pod) = a_pod(kind, B4, B6, 2) else { return };
            assert!(owner().unwrap().is_some(), "there is a user id that no process has");
            let refused = [Some(libc::EINVAL), Some(libc::EPERM)];
            assert_eq!(attempts_without_capabilities(&pod.netns, kind), refused, "{kind}");
            pod.netns.run(move || take_one_of_several(kind).unwrap());
        }
    });
}

/// Whether packets pass from the pod's socket to its device, and from the device to the socket.
fn speaks(socket: &UdpSocket, ports: &mut Ports, pool: &mut Pool) -> bool {
    socket.send_to(b"out", (A4, 7001)).unwrap();
    let (mut packets, mut comes_out) = (Vec::new(), false);
    let start = Instant::now();
    while !comes_out && start.elapsed() < PATIENCE {
        for port in ports.iter_mut() {
            let _ = port.receive(pool, &mut packets, 64).unwrap();
        }
        comes_out = packets.drain(..).fold(comes_out, |found, packet| {
            let is_it = packet.bytes().ends_with(b"out");
            pool.put(packet);
            found || is_it
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut packets = datagrams(pool, 9);
    let sent = ports[0].transmit(pool, &mut packets).unwrap().sent;
    let heard = (0..sent).take_while(|_| socket.recv(&mut [0; 64]).is_ok()).count();
    assert_eq!(comes_out, heard == 9, "out: {comes_out}, {heard} in: both ways or none");
    comes_out
}

#[test]
fn a_header_length_that_was_changed_is_set_back_and_packets_pass() {
    inside("takeover::a_header_length_that_was_changed_is_set_back_and_packets_pass", || {
        KINDS.into_iter().for_each(a_changed_header_length_is_set_back);
    });
}

fn a_changed_header_length_is_set_back(kind: Kind) {
    let Some(pod) = a_pod(kind, B4, B6, 2) else { return };
    let settings = pod.queues[0].settings().unwrap();
    let (pod, mut ports) = pod.into_ports();
    let socket = pod.udp(SocketAddr::new(B4.into(), 7002));
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut pool = Pool::new(64);
    assert!(speaks(&socket, &mut ports, &mut pool), "{kind}");
    assert_eq!(settings.restore().unwrap(), None);
    for len in [11, 16, 24, 70, 60_000, 70_000] {
        // A process with the capability can do it. Its queue is closed again, so that flows come to our queue.
        pod.run(move || {
            sys::tun::set_vnet_header_len(take_one_of_several(kind).unwrap().as_fd(), len)
        })
        .unwrap();
        assert!(!speaks(&socket, &mut ports, &mut pool), "{kind}: a header of {len} bytes");
        let found = settings.restore().unwrap().unwrap();
        assert_eq!(found.to_string(), format!("a header of {len} bytes instead of 10"));
        assert!(speaks(&socket, &mut ports, &mut pool), "{kind}: after a header of {len} bytes");
    }
    pod.run(move || sys::tun::set_little_endian(take_one_of_several(kind).unwrap().as_fd(), false))
        .unwrap();
    let found = settings.restore().unwrap().unwrap();
    assert_eq!(found.to_string(), "a header of 10 bytes in another byte order");
    assert_eq!(settings.restore().unwrap(), None);
    assert_eq!(pool.available(), 64);
}

fn datagrams(pool: &mut Pool, count: u8) -> Vec<Packet> {
    let datagram = |tag| {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv4(A4.octets(), B4.octets(), 64).udp(7001, 7002);
        builder.write(&mut bytes, &[tag; 20]).unwrap();
        pool.take_filled(&bytes).unwrap()
    };
    (0..count).map(datagram).collect()
}

/// Makes packets for the pod wait in a separate queue, which holds only a few of them.
fn hold_what_comes(kind: Kind) -> Result<(), String> {
    let queue = take_one_of_several(kind).unwrap();
    let len: libc::c_int = 1;
    #[expect(unsafe_code, reason = "an ioctl that the product has no use for")]
    // SAFETY: TUNSETSNDBUF reads one int, which lives until the call returns.
    let result = unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETSNDBUF, &raw const len) };
    assert_eq!(result, 0);
    ip("link add slow type veth peer name far");
    ip("link set far up");
    ip("link set slow up");
    for line in [
        "qdisc add dev slow root tbf rate 8bit burst 2000 latency 1000s",
        "qdisc add dev eth0 ingress",
        "filter add dev eth0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev slow",
    ] {
        let done = Command::new("tc").args(line.split_whitespace()).output();
        let done = done.map_err(|error| format!("tc does not start: {error}"))?;
        if !done.status.success() {
            return Err(format!("tc {line}: {}", String::from_utf8_lossy(&done.stderr)));
        }
    }
    Ok(())
}

#[test]
fn a_pod_that_keeps_what_it_is_given_stops_no_worker() {
    inside("takeover::a_pod_that_keeps_what_it_is_given_stops_no_worker", || {
        for kind in KINDS {
            let Some(pod) = a_pod(kind, B4, B6, 2) else { return };
            let (pod, mut ports) = pod.into_ports();
            if let Err(reason) = pod.run(move || hold_what_comes(kind)) {
                return lacking(Need::TrafficControl, &reason);
            }
            let worker = std::thread::spawn(move || {
                let mut pool = Pool::new(200);
                let mut packets = datagrams(&mut pool, 100);
                let done = ports[0].transmit(&mut pool, &mut packets).unwrap();
                (done.sent + done.refused, done.refused > 50, pool.available())
            });
            eventually("the worker goes on", || worker.is_finished());
            assert_eq!(worker.join().unwrap(), (100, true, 200), "{kind}");
        }
    });
}
