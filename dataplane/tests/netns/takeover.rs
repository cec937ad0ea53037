//! Tests what a process in a pod can do to the pod's own TUN device, and what it cannot do.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use etherparse::PacketBuilder;
use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::port::PacketIo;
use manx_dataplane::port::tun::{Tun, owner};
use manx_dataplane::sys;
use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};

use crate::namespaces::{Need, Netns, eventually, inside, inside_with_users, ip, lacking};
use crate::pods::{A4, B4, B6};
use crate::tun::a_tun_pod;

const ONE: i32 = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
const SEVERAL: i32 = ONE | libc::IFF_MULTI_QUEUE;

/// Opens a queue of the pod's `eth0`, as a process in the pod does.
fn take(flags: i32) -> io::Result<File> {
    let queue = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    sys::tun::set_interface(queue.as_fd(), "eth0", flags)?;
    Ok(queue)
}

/// The error numbers of both attempts, without capabilities.
fn attempts(pod: &Netns) -> [Option<i32>; 2] {
    pod.run(|| {
        keep_only(CapabilitySet::empty()).unwrap();
        [ONE, SEVERAL].map(|flags| take(flags).err().and_then(|error| error.raw_os_error()))
    })
}

#[test]
fn a_device_with_one_queue_gives_no_process_a_second_one() {
    inside("takeover::a_device_with_one_queue_gives_no_process_a_second_one", || {
        let Some((pod, _tuns)) = a_tun_pod(B4, B6, 1) else { return };
        assert_eq!(attempts(&pod), [Some(libc::EBUSY), Some(libc::EINVAL)]);
        let capable = pod.run(|| {
            [ONE, SEVERAL].map(|flags| take(flags).err().and_then(|error| error.raw_os_error()))
        });
        assert_eq!(capable, [Some(libc::EBUSY), Some(libc::EINVAL)]);
    });
}

#[test]
fn a_device_with_several_queues_gives_none_to_a_process_without_the_capability() {
    let test =
        "takeover::a_device_with_several_queues_gives_none_to_a_process_without_the_capability";
    inside_with_users(test, || {
        let Some((pod, _tuns)) = a_tun_pod(B4, B6, 2) else { return };
        assert!(owner().unwrap().is_some(), "there is a user id that no process has");
        assert_eq!(attempts(&pod), [Some(libc::EINVAL), Some(libc::EPERM)]);
        pod.run(|| take(SEVERAL).unwrap());
    });
}

/// Whether packets pass from the pod's socket to its device, and from the device to the socket.
fn speaks(socket: &UdpSocket, tuns: &mut [Tun], pool: &mut Pool) -> bool {
    socket.send_to(b"out", (A4, 7001)).unwrap();
    let (mut packets, mut malformed) = (Vec::new(), 0);
    eventually("something comes", || {
        for tun in tuns.iter_mut() {
            malformed += tun.receive(pool, &mut packets, 64).unwrap().malformed;
        }
        packets.iter().any(|packet| packet.bytes().ends_with(b"out")) || malformed > 0
    });
    packets.drain(..).for_each(|packet| pool.put(packet));
    let mut packets = datagrams(pool, 9);
    let into = tuns[0].transmit(pool, &mut packets).unwrap();
    let heard = (0..into.sent).filter(|_| socket.recv(&mut [0; 64]).is_ok()).count();
    assert_eq!(malformed == 0, heard == 9, "{malformed} malformed, {heard} in: both ways or none");
    heard == 9
}

#[test]
fn a_header_length_that_was_changed_is_set_back_and_packets_pass() {
    inside("takeover::a_header_length_that_was_changed_is_set_back_and_packets_pass", || {
        let Some((pod, mut tuns)) = a_tun_pod(B4, B6, 2) else { return };
        let settings = tuns[0].settings().unwrap();
        let socket = pod.udp(SocketAddr::new(B4.into(), 7002));
        let mut pool = Pool::new(64);
        assert!(speaks(&socket, &mut tuns, &mut pool));
        assert_eq!(settings.restore().unwrap(), None);
        for len in [11, 70, 60_000, 70_000] {
            // A process with the capability can do it. Its queue is closed again, so that the flows come to ours.
            pod.run(move || sys::tun::set_vnet_header_len(take(SEVERAL).unwrap().as_fd(), len))
                .unwrap();
            assert!(!speaks(&socket, &mut tuns, &mut pool), "a header of {len} bytes");
            let found = settings.restore().unwrap().unwrap();
            assert_eq!(found.to_string(), format!("a header of {len} bytes instead of 10"));
            assert!(speaks(&socket, &mut tuns, &mut pool), "after a header of {len} bytes");
        }
        pod.run(|| sys::tun::set_little_endian(take(SEVERAL).unwrap().as_fd(), false)).unwrap();
        let found = settings.restore().unwrap().unwrap();
        assert_eq!(found.to_string(), "a header of 10 bytes in another byte order");
        assert_eq!(settings.restore().unwrap(), None);
        assert_eq!(pool.available(), 64);
    });
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

/// Makes packets for the pod wait in a queue of its own, which holds few of them.
fn hold_what_comes() -> Result<(), String> {
    let queue = take(SEVERAL).unwrap();
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
        let Some((pod, mut tuns)) = a_tun_pod(B4, B6, 2) else { return };
        if let Err(reason) = pod.run(hold_what_comes) {
            return lacking(Need::TrafficControl, &reason);
        }
        let worker = std::thread::spawn(move || {
            let mut pool = Pool::new(200);
            let mut packets = datagrams(&mut pool, 100);
            let done = tuns[0].transmit(&mut pool, &mut packets).unwrap();
            (done.sent + done.refused, done.refused > 50, pool.available())
        });
        eventually("the worker goes on", || worker.is_finished());
        assert_eq!(worker.join().unwrap(), (100, true, 200));
    });
}
