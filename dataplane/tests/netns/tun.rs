//! Pods with TUN devices.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use etherparse::PacketBuilder;
use manx_dataplane::packet::{Checksum, Packet, Pool};
use manx_dataplane::port::PacketIo;
use manx_dataplane::port::tun::Tun;

use crate::namespaces::{Need, Netns, Pump, inside, lacking, output};
use crate::pods::{A4, A6, B4, B6, exchange_all, takes_datagrams_that_were_put_together};

/// A pod and the queues of its device.
pub(crate) type TunPod = (Netns, Vec<Tun>);

fn tun_pod(address4: Ipv4Addr, address6: Ipv6Addr, queues: usize) -> std::io::Result<TunPod> {
    let pod = Netns::new();
    let tuns = pod.run(move || Tun::open("eth0", queues))?;
    pod.ip("link set eth0 mtu 1500 up");
    pod.ip(&format!("addr add {address4}/32 dev eth0"));
    pod.ip(&format!("addr add {address6}/128 dev eth0 nodad"));
    pod.ip("route add default dev eth0");
    pod.ip("-6 route add default dev eth0");
    Ok((pod, tuns))
}

fn two_tun_pods(queues: usize) -> Option<(TunPod, TunPod)> {
    Some((a_tun_pod(A4, A6, queues)?, a_tun_pod(B4, B6, queues)?))
}

/// A pod with a TUN device. `None` without TUN, which is printed.
pub(crate) fn a_tun_pod(address4: Ipv4Addr, address6: Ipv6Addr, queues: usize) -> Option<TunPod> {
    match tun_pod(address4, address6, queues) {
        Ok(pod) => Some(pod),
        Err(e) => {
            assert!(
                matches!(
                    e.kind(),
                    std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::NotFound
                ),
                "TUN fails for another reason than the environment: {e}"
            );
            lacking(Need::Tun, &format!("/dev/net/tun: {e}"));
            None
        }
    }
}

#[test]
fn tun_carries_super_packets_both_ways() {
    inside("tun::tun_carries_super_packets_both_ways", || {
        let Some(((a, a_tun), (b, b_tun))) = two_tun_pods(1) else { return };
        let udp = a_tun[0].capabilities().udp_segmentation;
        let pump = Pump::start(a_tun, b_tun);
        exchange_all(&a, &b);
        for crossed in pump.stop() {
            assert!(
                crossed.tcp4 > 50 && crossed.tcp6 > 50 && crossed.longest > 20_000,
                "{crossed:?}"
            );
            assert_eq!((crossed.malformed, crossed.refused), (0, 0), "{crossed:?}");
        }
        assert!(udp || output("uname", "-r").starts_with("5."), "USO is there since 6.2");
    });
}

#[test]
fn datagrams_that_leave_by_tun_as_one_arrive_as_they_were() {
    inside("tun::datagrams_that_leave_by_tun_as_one_arrive_as_they_were", || {
        let Some((_a, (b, mut tuns))) = two_tun_pods(1) else { return };
        takes_datagrams_that_were_put_together(&b, &mut tuns[0]);
    });
}

#[test]
fn tun_queues_share_the_flows_and_survive_being_passed_on() {
    inside("tun::tun_queues_share_the_flows_and_survive_being_passed_on", || {
        let Some(((a, a_tun), (b, b_tun))) = two_tun_pods(2) else { return };
        assert_eq!((a_tun[0].name(), a_tun.len()), ("eth0", 2));
        let passed: Vec<Tun> =
            a_tun.into_iter().map(|tun| Tun::from_fd(OwnedFd::from(tun)).unwrap()).collect();
        assert_eq!(passed[1].name(), "eth0");
        let pump = Pump::start(passed, b_tun);
        exchange_all(&a, &b);
        let crossed = pump.stop();
        assert_eq!(crossed[0].malformed + crossed[1].malformed, 0);
    });
}

#[test]
fn many_packets_arrive_at_once_and_in_order() {
    inside("tun::many_packets_arrive_at_once_and_in_order", || {
        let Some((_a, (b, mut tuns))) = two_tun_pods(1) else { return };
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
        let done = tuns[0].transmit(&mut pool, &mut packets).unwrap();
        assert_eq!((done.sent, done.refused), (149, 1), "one contradicts itself");
        let mut buffer = [0; 100];
        for tag in (0..150).filter(|tag| *tag != 77) {
            assert_eq!(socket.recv(&mut buffer).unwrap(), 20);
            assert_eq!(buffer[0], tag);
        }
        assert_eq!(pool.available(), 200);
    });
}

#[test]
fn a_tun_that_is_down_refuses_and_a_deleted_one_fails() {
    inside("tun::a_tun_that_is_down_refuses_and_a_deleted_one_fails", || {
        for many in [1, 100] {
            let Some(((pod, mut tuns), _other)) = two_tun_pods(1) else { return };
            let mut pool = Pool::new(many);
            let fill = |pool: &mut Pool| -> Vec<Packet> {
                (0..many).map(|_| pool.take_filled(&[0x45; 40]).unwrap()).collect()
            };
            let mut packets = fill(&mut pool);
            pod.ip("link set eth0 down");
            let down = tuns[0].transmit(&mut pool, &mut packets).unwrap();
            assert_eq!((down.sent, down.refused), (0, many));
            pod.ip("link del eth0");
            let mut packets = fill(&mut pool);
            assert!(tuns[0].transmit(&mut pool, &mut packets).is_err());
            assert!(tuns[0].receive(&mut pool, &mut packets, 1).is_err());
            assert_eq!(pool.available(), many);
        }
    });
}
