//! Generated clusters that change while flows live: a flow's next packet is judged as the oracle over the new objects
//! judges the flow's first packet.

use std::cell::Cell;

use manx_dataplane::tables::PortId;
use manx_fixtures::cluster::Cluster;
use manx_fixtures::{generate, probe};
use manx_oracle::{Oracle, Packet};
use manx_tests::fabric::{Fabric, NODES};
use manx_tests::packet::Tuple;
use proptest::test_runner::{Config, TestRng, TestRunner};

use crate::oracle::{Choice, End, choices, ends};

const CASES: u32 = 48;

/// A connection that was allowed, and the places of its ends.
struct Flow<'a> {
    from: &'a End,
    to: &'a End,
    tuple: Tuple,
    source: (usize, PortId),
    destination: (usize, PortId),
}

impl Flow<'_> {
    fn allowed(&self, oracle: &Oracle) -> bool {
        let has_port = matches!(self.tuple.protocol, 6 | 17 | 132);
        let port = has_port.then_some(self.tuple.destination_port);
        oracle
            .judge(&self.from.party, &self.to.party, Packet::to_port(self.tuple.protocol, port))
            .allowed()
    }

    /// Sends the flow's next packet, or its next reply. Returns whether it came out.
    fn goes_on(&self, fabric: &mut Fabric, reply: bool) -> bool {
        let ((node, port), end) =
            if reply { (self.destination, self.source) } else { (self.source, self.destination) };
        let bytes = if reply { self.tuple.answer() } else { self.tuple.data(b"more") };
        let delivered = fabric.send_at(node, port, &bytes);
        for delivery in &delivered {
            assert_eq!((delivery.node, delivery.port), end, "{:?}", self.tuple);
        }
        delivered.len() == 1
    }
}

#[test]
fn a_live_flow_follows_the_oracle_through_a_change_and_back() {
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        // A failure prints its flow, so it need not be shrunk.
        max_shrink_iters: 0,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let (stayed, ended) = (Cell::new(0), Cell::new(0));
    let strategy = (generate::cluster(), generate::cluster(), choices());
    let result =
        TestRunner::new_with_rng(config, rng).run(&strategy, |(mut before, other, choices)| {
            for (index, pod) in before.pods.iter_mut().enumerate() {
                pod.node.get_or_insert_with(|| NODES[index % 2].to_owned());
            }
            // The pods stay in the same places, with other labels and other policies.
            let mut after = Cluster { policies: other.policies, ..before.clone() };
            for (pod, other) in after.pods.iter_mut().zip(other.pods) {
                pod.labels = other.labels;
            }
            let (on, off) = one_change(&before, &after, &choices);
            stayed.set(stayed.get() + on);
            ended.set(ended.get() + off);
            Ok(())
        });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (stayed, ended) = (stayed.get(), ended.get());
    assert!(stayed > 300 && ended > 300, "{stayed} flows stayed allowed, {ended} did not");
}

/// The numbers of flows that stayed allowed, and that did not.
fn one_change(before: &Cluster, after: &Cluster, choices: &[Choice]) -> (u32, u32) {
    let mut fabric = Fabric::new(&before.to_yaml());
    let oracle = Oracle::new(&fabric.contents.objects);
    let (pods, others) = ends(&fabric, before);
    let strangers: Vec<End> = others.into_iter().filter(|end| !end.is_node()).collect();
    if pods.is_empty() {
        return (0, 0);
    }
    let ports = probe::ports(before);
    let mut flows = Vec::new();
    for (serial, (from, to, kind, protocol, port)) in choices.iter().enumerate() {
        let one = from.get(&pods);
        let (from, to) = match kind {
            0..5 => (one, to.get(&pods)),
            5 => (one, to.get(&strangers)),
            _ => (to.get(&strangers), one),
        };
        let protocol = *protocol.get(&[6, 17, 132, if from.address().is_ipv4() { 1 } else { 58 }]);
        if from.address().is_ipv4() != to.address().is_ipv4() {
            continue;
        }
        let node = from.node.or(to.node).unwrap();
        let flow = Flow {
            from,
            to,
            tuple: Tuple {
                source: from.address(),
                destination: to.address(),
                protocol,
                source_port: 20_000 + serial as u16,
                destination_port: *port.get(&ports),
            },
            source: (node, from.port),
            destination: (to.node.unwrap_or(node), to.port),
        };
        if flow.allowed(&oracle) {
            let (node, port) = flow.source;
            assert_eq!(fabric.send_at(node, port, &flow.tuple.opening()).len(), 1);
            assert!(flow.goes_on(&mut fabric, true));
            flows.push(flow);
        }
    }
    fabric.apply(&after.to_yaml());
    let oracle = Oracle::new(&fabric.contents.objects);
    let (mut stayed, mut ended) = (0, 0);
    for (index, flow) in flows.iter().enumerate() {
        let allowed = flow.allowed(&oracle);
        let reply_first = index % 2 == 0;
        for reply in [reply_first, !reply_first, reply_first] {
            let text = || format!("{:?}, reply: {reply}\n{}", flow.tuple, after.to_yaml());
            assert_eq!(flow.goes_on(&mut fabric, reply), allowed, "{}", text());
        }
        *(if allowed { &mut stayed } else { &mut ended }) += 1;
    }
    fabric.apply(&before.to_yaml());
    for (index, flow) in flows.iter().enumerate() {
        assert!(flow.goes_on(&mut fabric, index % 3 == 0), "resumed: {:?}", flow.tuple);
    }
    (stayed, ended)
}
