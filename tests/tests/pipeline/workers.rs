//! Several workers: the laws for one worker hold for three, whichever of them reads a packet.

use std::process::Command;
use std::time::Duration;

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::packet::Capabilities;
use manx_dataplane::packet::Offload;
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{Fabric, pod, policy, workers};
use manx_tests::packet::{Tuple, UDP};

/// Runs this whole suite on nodes with three workers, where any worker may read a packet: the two directions of a flow,
/// and its ICMP errors, are mostly read by different workers.
#[test]
fn it_all_holds_with_three_workers() {
    let suite = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "it_all_holds_with_three_workers"])
        .env("MANX_TEST_WORKERS", "3")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&suite.stdout);
    assert!(suite.status.success(), "{printed}\n{}", String::from_utf8_lossy(&suite.stderr));
    let passed = printed.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(passed.is_some_and(|passed| passed.parse::<u32>().unwrap() >= 80), "{printed}");
}

/// If this did not hold, the suite above would show nothing.
#[test]
fn packets_are_handed_off_where_there_are_several_workers_and_only_there() {
    let pods = pod("shop/a", 0, "{}", &["10.1.0.1"]) + &pod("shop/b", 0, "{}", &["10.1.0.2"]);
    let mut fabric = Fabric::new(&pods);
    for port in 0..64 {
        let tuple = Tuple::new("10.1.0.1", "10.1.0.2", UDP, 53).from_port(5000 + port);
        assert_eq!(fabric.send("shop/a", &tuple.opening()).len(), 1);
        assert_eq!(fabric.send("shop/b", &tuple.reversed().data(b"answer")).len(), 1);
    }
    let handed_off =
        |it: &std::sync::Arc<manx_dataplane::counters::WorkerCounters>| it.handoffs.read();
    let handed_off: u64 = fabric.nodes[0].counters.iter().map(handed_off).sum();
    assert_eq!(handed_off > 32, workers() > 1, "{handed_off} of 128");
    assert_eq!(fabric.nodes[0].flows().len(), 64, "each flow is one worker's");
}

/// After a new port appears, packets that were handed off earlier are judged, with the clock of
/// that moment.
#[test]
fn a_port_that_comes_revives_no_flow() {
    let pods = pod("shop/a", 0, "{}", &["10.1.0.1"]) + &pod("shop/b", 0, "{app: b}", &["10.1.0.2"]);
    let deny = policy("shop/b", "{podSelector: {matchLabels: {app: b}}, policyTypes: [Egress]}");
    let mut fabric =
        Fabric::closed_with(2, Sizes { flows: 64, translates: false, buffers: 64, fragments: 4 });
    fabric.apply(&(pods + &deny));
    let [a, b] = ["shop/a", "shop/b"].map(|pod| fabric.port(pod).1);
    let asked = Tuple::new("10.1.0.1", "10.1.0.2", UDP, 53);
    let answer = asked.reversed().data(b"answer");
    let node = &mut fabric.nodes[0];
    let mut answers_after = |seconds| {
        node.wires[&a].inject_at(0, &asked.opening(), Offload::default());
        node.run();
        assert_eq!(node.collect(b).len(), 1);
        node.now += Duration::from_secs(seconds);
        // The other worker hands it off to the one that has the flow.
        node.wires[&b].inject_at(1, &answer, Offload::default());
        assert_eq!(node.turn_one(1), 1);
        node.attach(PortId(77), Capabilities::default());
        node.run();
        node.collect(a).len()
    };
    assert_eq!([answers_after(10), answers_after(100)], [1, 0]);
}

/// If a worker does not empty its mailbox, each endpoint whose packets are handed off to it may hold at most as many
/// buffers as are still free.
#[test]
fn endpoints_leave_one_another_buffers_to_hand_off() {
    let names = ["a", "b", "c", "d"];
    let pods: String = (1..)
        .zip(names)
        .map(|(n, name)| pod(&format!("shop/{name}"), 0, "{}", &[&format!("10.1.0.{n}")]))
        .collect();
    let mut fabric =
        Fabric::closed_with(2, Sizes { flows: 64, translates: false, buffers: 64, fragments: 4 });
    fabric.apply(&(pods + &pod("shop/peer", 0, "{}", &["10.1.0.9"])));
    let senders = (1..).zip(names).map(|(n, name)| {
        let tuple = Tuple::new(&format!("10.1.0.{n}"), "10.1.0.9", UDP, 53);
        (fabric.port(&format!("shop/{name}")).1, tuple.opening())
    });
    let senders: Vec<_> = senders.collect();
    let node = &mut fabric.nodes[0];
    for (port, packet) in &senders {
        node.wires[port].inject_at(0, packet, Offload::default());
    }
    node.run();
    let handed_off = senders.iter().map(|(port, packet)| {
        for _ in 0..60 {
            node.wires[port].inject_at(1, packet, Offload::default());
            assert_eq!(node.turn_one(1), 1);
        }
        60 - node.dropped(*port, DropReason::HandoffFull)
    });
    let handed_off: Vec<u64> = handed_off.collect();
    assert!(handed_off.windows(2).all(|it| it[1] >= it[0] / 3), "{handed_off:?}");
    assert!((1..=40).contains(&handed_off[0]) && handed_off[3] > 0, "{handed_off:?}");
}
