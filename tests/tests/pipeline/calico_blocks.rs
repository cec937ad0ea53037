//! Packets between two nodes whose blocks come from Calico's affinities.

use manx_dataplane::drop_reason::DropReason;
use manx_tests::fabric::{Fabric, HOST, RAW, UNDERLAY, pod};
use manx_tests::packet::{Tuple, UDP, tunnelled};

/// A pod of the first node in its first block, and one in its second.
const ONE: &str = "10.65.0.0";
const TWO: &str = "10.65.0.127";
/// Pods of the second node: one in its block, one in a block of the first node, and one in a block
/// that no node has yet.
const FAR: &str = "10.65.1.1";
const BORROWS: &str = "10.65.0.70";
const EARLY: &str = "10.65.2.5";
/// Addresses of these blocks that no pod has.
const FREE: [&str; 2] = ["10.65.0.9", "10.65.1.9"];
/// The second node's tunnel has an address of a block of the first.
const TUNNELS: [&str; 2] = ["10.65.0.2", "10.65.0.71"];

const BLOCKS: [(usize, &str, &str); 4] = [
    (0, "10.65.0.0/26", "confirmed"),
    (0, "10.65.0.64/26", "confirmed"),
    (1, "10.65.1.0/26", "confirmed"),
    (1, "10.65.2.0/26", "pending"),
];

fn nodes() -> String {
    let node = |at: usize| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: node-{}, annotations: {{projectcalico.org/IPv4IPIPTunnelAddr: {}}}}}, \
             status: {{addresses: [{{type: InternalIP, address: {}}}]}}}}\n---\n",
            at + 1,
            TUNNELS[at],
            UNDERLAY[at],
        )
    };
    let pool = "{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.65.0.0/16, ipipMode: Always}}\n---\n";
    node(0) + &node(1) + pool
}

fn affinities(blocks: &[(usize, &str, &str)]) -> String {
    let affinity = |(at, cidr, state): &(usize, &str, &str)| {
        let node = format!("node-{}", at + 1);
        let name = format!("{node}-{}", cidr.replace(['.', '/'], "-"));
        format!(
            "{{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {{name: {name}}}, \
             spec: {{node: {node}, cidr: {cidr}, state: {state}, deleted: 'false'}}}}\n---\n"
        )
    };
    blocks.iter().map(affinity).collect()
}

fn pods() -> String {
    pod("shop/one", 0, "{}", &[ONE])
        + &pod("shop/two", 0, "{}", &[TWO])
        + &pod("shop/far", 1, "{}", &[FAR])
        + &pod("shop/borrows", 1, "{}", &[BORROWS])
        + &pod("shop/early", 1, "{}", &[EARLY])
}

/// Whether a packet from one pod to another comes out there, and its answer at the first.
#[track_caller]
fn meet(fabric: &mut Fabric, [from, to]: [(&str, &str); 2], port: u16) {
    let tuple = Tuple::new(from.1, to.1, UDP, port);
    for (sender, receiver, packet) in [(from, to, tuple.opening()), (to, from, tuple.answer())] {
        let out = fabric.send(sender.0, &packet);
        let drops = fabric.nodes.each_ref().map(|it| it.drops());
        let [out] = &out[..] else { panic!("{sender:?} to {receiver:?}: {drops:?}") };
        assert_eq!((out.node, out.port), fabric.port(receiver.0), "{drops:?}");
    }
}

/// Checks that a packet of the first node's pod to an address does not arrive. Returns its drop
/// reasons.
fn lost(fabric: &mut Fabric, to: &str) -> Vec<&'static str> {
    let before = fabric.nodes.each_ref().map(|it| it.drops());
    let (_, port) = fabric.port("shop/one");
    let out = fabric.send("shop/one", &Tuple::new(ONE, to, UDP, 53).opening());
    // The pod may get an ICMP error.
    assert!(out.iter().all(|it| (it.node, it.port) == (0, port)), "{to}");
    let now = fabric.nodes.each_ref().map(|it| it.drops());
    let new = now.iter().zip(&before).flat_map(|(now, before)| {
        now.iter().filter(|(why, count)| before.get(*why) != Some(*count)).map(|((_, why), _)| *why)
    });
    new.collect()
}

#[test]
fn pods_of_every_block_meet_and_those_that_borrow_do_too() {
    let mut fabric = Fabric::routed_by_objects(&(nodes() + &affinities(&BLOCKS) + &pods()));
    let all = [("shop/one", ONE), ("shop/two", TWO), ("shop/far", FAR), ("shop/borrows", BORROWS)];
    // A pod whose block is only pending is reached by its own address.
    let all = [&all[..], &[("shop/early", EARLY)]].concat();
    for (number, from) in (1..).zip(&all) {
        for to in all.iter().filter(|it| *it != from) {
            meet(&mut fabric, [*from, *to], number);
        }
    }
}

#[test]
fn what_no_pod_has_of_a_block_is_not_reached_and_a_pending_block_is_nobodys() {
    let mut fabric = Fabric::routed_by_objects(&(nodes() + &affinities(&BLOCKS) + &pods()));
    let own = lost(&mut fabric, FREE[0]);
    assert_eq!(own.len(), 1, "{own:?}");
    // The far node drops it.
    let far = lost(&mut fabric, FREE[1]);
    assert_eq!((far.len(), fabric.nodes[1].traffic().0 > 0), (1, true), "{far:?}");
    let received = fabric.nodes[1].traffic().0;
    let pending = lost(&mut fabric, "10.65.2.9");
    assert_eq!(pending.len(), 1, "{pending:?}");
    assert_eq!(fabric.nodes[1].traffic().0, received, "it stays here");
}

/// Processes of a node send from its tunnel's address.
#[test]
fn a_node_is_answered_at_its_tunnel_address_in_its_block_or_borrowed() {
    let mut fabric = Fabric::routed_by_objects(&(nodes() + &affinities(&BLOCKS) + &pods()));
    for (at, pod, address) in [(0, "shop/far", FAR), (1, "shop/one", ONE)] {
        let tuple = Tuple::new(TUNNELS[at], address, UDP, 53);
        let out = fabric.send_at(at, HOST, &tuple.opening());
        let drops = fabric.nodes.each_ref().map(|it| it.drops());
        assert_eq!(out.len(), 1, "{at}: {drops:?}");
        assert_eq!((out[0].node, out[0].port), fabric.port(pod));
        let out = fabric.send(pod, &tuple.answer());
        let drops = fabric.nodes.each_ref().map(|it| it.drops());
        assert_eq!(out.len(), 1, "{at}: {drops:?}");
        assert_eq!((out[0].node, out[0].port), (at, HOST));
    }
    // The address belongs to the second node only.
    let stranger = Tuple::new(TUNNELS[1], FAR, UDP, 53).opening();
    let brought = tunnelled(UNDERLAY[0], UNDERLAY[1], &stranger, 0);
    assert_eq!(fabric.send_at(1, RAW, &brought).len(), 0);
    assert_eq!(fabric.nodes[1].drops().len(), 1);
    let stranger = Tuple::new(TUNNELS[0], TWO, UDP, 53).opening();
    let brought = tunnelled(UNDERLAY[1], UNDERLAY[0], &stranger, 0);
    assert_eq!(fabric.send_at(0, RAW, &brought).len(), 0);
    assert_eq!(fabric.nodes[0].dropped(RAW, DropReason::TunnelSourceMismatch), 1);
}

#[test]
fn a_block_that_moves_leads_to_its_new_node() {
    let mut blocks = BLOCKS;
    let moving = "10.65.0.100";
    let text = |blocks: &[(usize, &str, &str)], at: usize| {
        let name = ["shop/before", "shop/after"][at];
        nodes() + &affinities(blocks) + &pods() + &pod(name, at, "{}", &[moving])
    };
    let mut fabric = Fabric::routed_by_objects(&text(&blocks, 0));
    meet(&mut fabric, [("shop/far", FAR), ("shop/before", moving)], 1);
    // The first node releases the block. No node has it then, and the block's pods keep their own
    // routes.
    blocks[1].2 = "pendingDeletion";
    fabric.apply(&text(&blocks, 0));
    meet(&mut fabric, [("shop/far", FAR), ("shop/before", moving)], 2);
    meet(&mut fabric, [("shop/far", FAR), ("shop/two", TWO)], 2);
    // The pod is deleted, the second node gets the block, and assigns the address to another pod.
    blocks[1] = (1, "10.65.0.64/26", "confirmed");
    fabric.apply(&text(&blocks, 1));
    meet(&mut fabric, [("shop/one", ONE), ("shop/after", moving)], 3);
    // The first node's pod that stays in this block now has a borrowed address.
    meet(&mut fabric, [("shop/far", FAR), ("shop/two", TWO)], 3);
    let received = fabric.nodes[1].traffic().0;
    lost(&mut fabric, "10.65.0.99");
    assert!(fabric.nodes[1].traffic().0 > received, "it leads to the second node");
}
