//! The captures of `manx capture` in a running rig, and the packets between its nodes, as Wireshark reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use manx_fixtures::skip::{Need, skip};

use crate::bench::Bench;
use crate::traffic::{Talker, assert_flows};

/// Bytes of a bulk transfer, each way.
const BULK: usize = 3 << 20;
/// Everything that Wireshark reports as an error: malformed packets, wrong checksums, lengths that do not fit. Packets
/// quoted in ICMP errors are left out, because a kernel quotes a packet as it got it from another local socket, with a
/// partial checksum.
const WRONG: &str = "_ws.malformed || ip.checksum.status == Bad || icmp.checksum.status == Bad || (!icmp && \
                     (tcp.checksum.status == Bad || udp.checksum.status == Bad || _ws.expert.severity == error))";

/// Ports at which tshark does not look for protocols: all except VXLAN's. The probes have random
/// ports, and tshark would treat some of their payloads as malformed packets of the ports'
/// protocols.
const PAYLOADS: [&str; 3] = ["tcp.port==1-65535", "udp.port==1-4788", "udp.port==4790-65535"];

/// Bytes before the payload of a VXLAN datagram: VXLAN's header and the inner Ethernet header.
const VXLAN: usize = 8 + 14;

/// The encapsulation between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overlay {
    Ipip,
    Vxlan,
}

/// Whether a program exists that reads captures.
fn is_there(program: &str) -> bool {
    let there = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !there {
        skip(Need::Tshark, "the reading of captures", &format!("{program} is not there"));
    }
    there
}

/// The fields of each packet of a capture that matches a display filter, separated by tabs. If a
/// field occurs in the outer and in the inner header, the output has both values with a comma
/// between them.
fn packets(file: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-nr").arg(file).args(["-Y", filter, "-T", "fields"]);
    for ports in PAYLOADS {
        tshark.args(["-d", &format!("{ports},data")]);
    }
    for preference in ["ip.check_checksum", "tcp.check_checksum", "udp.check_checksum"] {
        tshark.args(["-o", &format!("{preference}:TRUE")]);
    }
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Both values of a field that occurs twice.
fn outer_and_inner(field: &str) -> (&str, &str) {
    field.split_once(',').unwrap_or((field, ""))
}

#[test]
fn captures_over_tun_and_the_ring_are_what_was_sent() {
    captures_are_what_was_sent("auto", "packet", Overlay::Ipip);
}

#[test]
fn captures_over_veth_and_the_raw_socket_are_what_was_sent() {
    captures_are_what_was_sent("veth", "raw", Overlay::Ipip);
}

#[test]
fn captures_over_vxlan_are_what_was_sent() {
    captures_are_what_was_sent("auto", "packet", Overlay::Vxlan);
}

#[test]
fn captures_over_tap_are_what_was_sent() {
    captures_are_what_was_sent("tap", "packet", Overlay::Vxlan);
}

fn captures_are_what_was_sent(device: &str, uplink: &str, overlay: Overlay) {
    let Some(bench) = Bench::with_device(device) else { return };
    if !is_there("tshark") || !is_there("dumpcap") {
        return;
    }
    let (uplink_port, on_the_wire) = match overlay {
        Overlay::Ipip => (format!("uplink-{uplink}"), "ip proto 4"),
        Overlay::Vxlan => {
            let nodes = bench.rig().join("nodes.yaml");
            let text = fs::read_to_string(&nodes).unwrap();
            fs::write(&nodes, text.replace("ipipMode: Always", "vxlanMode: Always")).unwrap();
            ("uplink-vxlan".to_owned(), "udp port 4789")
        }
    };
    bench.keep_open(&["--pod-device", device, "--uplink-mode", uplink]);
    let captured = ["demo/web", "host", &uplink_port].map(|port| {
        let file = bench.folder.path().join(format!("{}.pcapng", port.replace('/', ".")));
        let capture = bench
            .command(&["capture", port, "--socket", &bench.socket(0), "-w", file.to_str().unwrap()])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        (file, capture)
    });
    let underlay = bench.folder.path().join("underlay.pcapng");
    // It ends when it reads a line from its standard input, because a signal would need its process
    // number.
    let until_told = format!(
        "dumpcap -q -i eth0 -B 64 -s 200 -w - -f \"{on_the_wire}\" & read -r line; kill $!; wait"
    );
    let mut dumpcap = bench
        .command(&["rig", "exec", "--rig", "demo", "node/node-1", "--", "sh", "-c", &until_told])
        .stdin(Stdio::piped())
        .stdout(fs::File::create(&underlay).unwrap())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let files = captured.each_ref().map(|(file, _)| file.clone());
    await_files(&[&files[..], std::slice::from_ref(&underlay)].concat());

    traffic(&bench);

    drop(dumpcap.stdin.take());
    let dumpcap = dumpcap.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&dumpcap.stderr).into_owned();
    assert!(said.contains("/0 (pcap:0/dumpcap:0"), "{said}");
    for (file, mut capture) in captured {
        bench.signal("INT", file.to_str().unwrap());
        assert!(capture.wait().unwrap().success());
    }
    let log = bench.folder.path().join("manx/rigs/demo/nodes/0/agent.log");
    assert!(!fs::read_to_string(log).unwrap().contains("packets are missing"));

    // Pods and node send super-packets; the uplink carries packets of at most its MTU.
    for (file, large) in files.iter().zip([9000, 9000, 1000]) {
        holds_every_kind_of_packet_and_all_are_right(file, large);
    }
    is_encapsulated(&files[2], overlay);
    is_encapsulated(&underlay, overlay);
}

/// Waits until all captures have begun.
fn await_files(files: &[PathBuf]) {
    let start = Instant::now();
    while !files.iter().all(|file| fs::metadata(file).is_ok_and(|file| file.len() > 0)) {
        assert!(start.elapsed() < Duration::from_secs(10), "{files:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Traffic of TCP in bulk and in small pieces, UDP and ICMP: to a pod from another node and from its own node, and from
/// the pod to a node.
fn traffic(bench: &Bench) {
    let (web, client) = (bench.address(0, "demo/web"), bench.address(1, "demo/client"));
    let at_web = Talker::start(bench, "demo/web", &[client]);
    let at_client = Talker::start(bench, "demo/client", &[web]);
    let at_node = Talker::start(bench, "node/node-1", &[web]);
    let both =
        |talker, peer| ["tcp", "udp"].map(|transport| (talker, format!("back {transport} {peer}")));
    assert_flows(&[both(&at_web, client), both(&at_client, web), both(&at_node, web)].concat());
    drop((at_client, at_node));
    for party in ["demo/client", "node/node-1"] {
        let bulk = Talker::bulk(bench, party, web, BULK);
        bulk.await_heard("bulk", 1);
    }
    // The rig's own probes add echoes and the answers of closed ports.
    let again = bench.rig().join("pods.yaml");
    assert_eq!(
        bench.manx(&["rig", "apply", "--rig", "demo", again.to_str().unwrap()]).status.code(),
        Some(0)
    );
}

fn holds_every_kind_of_packet_and_all_are_right(file: &Path, large: usize) {
    let wrong = packets(file, WRONG, &["frame.number", "ip.src", "ip.dst", "_ws.expert.message"]);
    assert_eq!(wrong, Vec::<String>::new(), "{}", file.display());
    // By default Wireshark does not verify checksums, so none would count as correct.
    let fields = [
        "frame.len",
        "ip.len",
        "icmp.type",
        "icmp.checksum.status",
        "tcp.checksum.status",
        "tcp.len",
        "udp.checksum.status",
    ];
    let mut segments = 0;
    let mut seen = BTreeSet::new();
    for line in packets(file, "ip", &fields) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [frame, ip, icmp, icmp_sum, tcp_sum, tcp_len, udp_sum] = fields[..] else {
            unreachable!("{line}")
        };
        assert_eq!(frame, ip.split(',').next().unwrap(), "{line} in {}", file.display());
        match (icmp, tcp_len.parse::<usize>()) {
            ("", Ok(len)) => {
                segments += usize::from(len > 0);
                if tcp_sum == "1" && len > large {
                    seen.insert("TCP in bulk".to_owned());
                } else if tcp_sum == "1" && len == 8 {
                    seen.insert("TCP in small pieces".to_owned());
                }
            }
            // The datagrams of VXLAN itself have no checksum.
            ("", Err(_)) if udp_sum.ends_with('1') => _ = seen.insert("UDP".to_owned()),
            (icmp, _) if icmp_sum == "1" => _ = seen.insert(format!("ICMP {icmp}")),
            _ => {}
        }
    }
    for kind in ["TCP in bulk", "TCP in small pieces", "UDP", "ICMP 0", "ICMP 3", "ICMP 8"] {
        assert!(seen.contains(kind), "{kind} in {}: {seen:?}", file.display());
    }
    // Every packet is sent once, and in order.
    let disorder =
        "tcp.analysis.out_of_order || tcp.analysis.retransmission || tcp.analysis.lost_segment";
    let disorder = packets(file, disorder, &["frame.number", "ip.src", "tcp.seq", "tcp.len"]);
    // Except for packets that a kernel reorders when their sender moves to another core.
    assert!(disorder.len() <= 4 + segments / 50, "{} of {segments}: {disorder:#?}", disorder.len());
}

/// Checks that every packet has a correct outer header from node to node, as long as its content.
fn is_encapsulated(file: &Path, overlay: Overlay) {
    let fields = [
        "ip.len",
        "ip.src",
        "ip.dst",
        "ip.proto",
        "ip.checksum.status",
        "ip.ttl",
        "udp.dstport",
        "vxlan.flags",
        "vxlan.vni",
        "eth.type",
    ];
    let mut ways = BTreeMap::<String, usize>::new();
    for line in packets(file, "ip", &fields) {
        let fields: Vec<(&str, &str)> = line.split('\t').map(outer_and_inner).collect();
        let [len, source, destination, protocol, checksum, ttl, port, flags, network, _] =
            fields[..]
        else {
            unreachable!("{line}")
        };
        let len: (usize, usize) =
            (len.0.parse().unwrap(), len.1.split(',').next().unwrap().parse().unwrap());
        match overlay {
            Overlay::Ipip => {
                assert_eq!(len.0, len.1 + 20, "{line}");
                assert_eq!(protocol.0, "4", "{line}");
            }
            Overlay::Vxlan => {
                assert_eq!((protocol.0, port.0), ("17", "4789"), "{line}");
                assert_eq!((flags.0, network.0), ("0x0800", "4096"), "{line}");
                // On a veth, a super-packet of datagrams is not cut: all datagrams have the length
                // of the first one, but the last may be shorter.
                let last = (len.0 - 28) % (len.1 + VXLAN);
                assert!(last == 0 || last >= VXLAN + 20, "{line}");
            }
        }
        assert_eq!(checksum.0, "1", "{line}");
        assert!(ttl.0.parse::<u8>().unwrap() > 1, "{line}");
        for inner in [source.1, destination.1] {
            assert!(inner.starts_with("10.244."), "{line}");
        }
        *ways.entry(format!("{} {}", source.0, destination.0)).or_default() += 1;
    }
    let seen: Vec<&str> = ways.keys().map(String::as_str).collect();
    assert_eq!(seen, ["172.18.0.2 172.18.0.3", "172.18.0.3 172.18.0.2"], "{ways:?}");
}
