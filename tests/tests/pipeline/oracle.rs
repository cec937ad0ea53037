//! Packets that the oracle allows come out where they should; packets that it denies are dropped and counted for the
//! right reason.
//!
//! Every probe is a packet, which is sent at its source's port of a two-node cluster and followed to the place where it
//! comes out. Its answer must come back by the same path, whatever the policies of the other direction are. Verdicts,
//! hops, drop reasons and the counter of every rule follow from the oracle's reasons.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;
use manx_fixtures::cluster::Cluster;
use manx_fixtures::{generate, probe};
use manx_objects::object::ObjectKey;
use manx_oracle::{Judgement, Oracle, Packet, Party, VerdictReason};
use manx_policy_compiler::model::{
    Direction, ObjectName, PolicyKind, PolicyName, Reason, RuleName, Verdict,
};
use manx_tests::fabric::{Delivery, Fabric, HOST, NODES, RAW, ROUTER, UNDERLAY, underlay_v6};
use manx_tests::packet::{self, TTL, Tuple};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRng, TestRunner};

const CASES: u32 = 128;
const PROBES: usize = 160;

/// One end of a probe and where it is attached.
#[derive(Debug, Clone)]
pub struct End {
    pub party: Party,
    /// The node where the end is attached. `None`: it may be at any node.
    pub node: Option<usize>,
    pub port: PortId,
}

impl End {
    fn pod(&self) -> Option<ObjectName> {
        match &self.party {
            Party::Pod { namespace, name, .. } => Some(ObjectName::new(namespace, name)),
            Party::Node { .. } | Party::Address(_) => None,
        }
    }

    pub fn is_node(&self) -> bool {
        matches!(self.party, Party::Node { .. })
    }

    pub fn address(&self) -> IpAddr {
        self.party.address()
    }
}

/// Every pod's address, several times; the nodes' addresses; and addresses outside the cluster.
pub fn ends(fabric: &Fabric, cluster: &Cluster) -> (Vec<End>, Vec<End>) {
    let mut pods = Vec::new();
    for (node, at) in fabric.nodes.iter().enumerate() {
        for (name, local) in &at.locals {
            pods.extend(local.addresses.iter().map(|address| End {
                party: Party::Pod {
                    namespace: name.namespace.clone(),
                    name: name.name.clone(),
                    address: *address,
                },
                node: Some(node),
                port: local.port,
            }));
        }
    }
    let mut others = Vec::new();
    for node in 0..2 {
        let own = [UNDERLAY[node].into(), ROUTER[node].into(), underlay_v6(node)];
        others.extend(own.map(|address| End {
            party: Party::Node { name: NODES[node].to_owned(), address },
            node: Some(node),
            port: HOST,
        }));
    }
    let taken: BTreeSet<IpAddr> = pods.iter().map(End::address).collect();
    let strangers: BTreeSet<IpAddr> = probe::addresses(cluster).into_iter().collect();
    others.extend(
        strangers
            .into_iter()
            .filter(|ip| !taken.contains(ip) && goes_anywhere(*ip))
            .map(|address| End { party: Party::Address(address), node: None, port: HOST }),
    );
    (pods, others)
}

/// Whether an address belongs to a single host: it is not unspecified, multicast or broadcast.
fn goes_anywhere(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[0] != 0 && !v4.is_multicast() && !v4.is_broadcast(),
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast(),
    }
}

/// The reason in the words of the model; `None` if no rule applies.
fn reason(explanation: &VerdictReason, direction: Direction) -> Option<Reason> {
    let named =
        |key: &ObjectKey| PolicyName::new(PolicyKind::Kubernetes, &key.namespace, &key.name);
    match explanation {
        VerdictReason::DefaultProfile(_) => Some(Reason::NotIsolated(direction)),
        VerdictReason::InvalidPeer => Some(Reason::Unknown(direction)),
        VerdictReason::Rule { rule, .. } => {
            let index = rule.index as u32;
            let rule = RuleName { policy: named(&rule.policy).into(), direction, index };
            Some(Reason::Rule(rule, Verdict::Allow))
        }
        VerdictReason::TierEnd { policies, .. } => {
            Some(Reason::Isolated(direction, named(&policies[0])))
        }
        VerdictReason::NoPod
        | VerdictReason::Itself
        | VerdictReason::OwnNode
        | VerdictReason::EndpointToHost { .. } => None,
        other => panic!("nothing of the kind is generated: {other}"),
    }
}

/// The numbers of the probes by kind.
type Seen = BTreeMap<String, u32>;

/// The expected counters of a cluster at the end.
#[derive(Default)]
struct Expected {
    drops: BTreeMap<(PortId, &'static str), u64>,
    decisions: BTreeMap<Reason, u64>,
}

/// A choice of ends, protocol and port.
pub type Choice = (Index, Index, u8, Index, Index);

pub fn choices() -> impl Strategy<Value = Vec<Choice>> {
    let choice = (any::<Index>(), any::<Index>(), 0u8..8, any::<Index>(), any::<Index>());
    prop::collection::vec(choice, PROBES)
}

#[test]
fn a_packet_comes_out_where_the_oracle_allows_it_and_is_counted_where_it_does_not() {
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        // A failure prints its cluster and the probe, so it need not be shrunk.
        max_shrink_iters: 0,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let seen: RefCell<Seen> = RefCell::default();
    let result = TestRunner::new_with_rng(config, rng).run(
        &(generate::cluster(), choices()),
        |(mut cluster, choices)| {
            for (index, pod) in cluster.pods.iter_mut().enumerate() {
                pod.node.get_or_insert_with(|| NODES[index % 2].to_owned());
            }
            one_cluster(&cluster, &choices, &mut seen.borrow_mut());
            Ok(())
        },
    );
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    println!("{seen:#?}");
    let ways = [
        "same node v4",
        "same node v6",
        "cross node v4",
        "cross node v6",
        "external to pod v4",
        "external to pod v6",
        "pod to external v4",
        "pod to external v6",
        "pod to node v4",
        "pod to node v6",
        "node to remote pod v4",
        "itself v4",
        "itself v6",
        "node to own pod v4",
        "node to own pod v6",
    ];
    for way in ways {
        let verdicts: &[&str] = match way {
            _ if way.starts_with("itself") || way.contains("own pod") => &["allowed"],
            _ if way.starts_with("pod to") => &["allowed", "egress"],
            _ if way.starts_with("external") || way.starts_with("node") => &["allowed", "ingress"],
            _ => &["allowed", "egress", "ingress"],
        };
        for verdict in verdicts {
            let count = seen.get(&format!("{way} {verdict}")).copied().unwrap_or(0);
            assert!(count >= 8, "only {count} of {way} {verdict}: {seen:#?}");
        }
    }
    for protocol in [1, 6, 17, 47, 58, 132] {
        for verdict in ["allowed", "egress", "ingress"] {
            let count = seen.get(&format!("protocol {protocol} {verdict}")).copied().unwrap_or(0);
            assert!(count >= 15, "only {count} of protocol {protocol} {verdict}: {seen:#?}");
        }
    }
}

fn one_cluster(cluster: &Cluster, choices: &[Choice], seen: &mut Seen) {
    let mut fabric = Fabric::new(&cluster.to_yaml());
    let oracle = Oracle::new(&fabric.contents.objects);
    let (pods, others) = ends(&fabric, cluster);
    if pods.is_empty() {
        return;
    }
    let ports = probe::ports(cluster);
    let mut expected = [Expected::default(), Expected::default()];
    let mut without_ports = BTreeSet::new();
    for (serial, (from, to, kind, protocol, port)) in choices.iter().enumerate() {
        let one = from.get(&pods);
        let (from, to) = match kind {
            0..4 => (one, to.get(&pods)),
            4 | 5 => (one, to.get(&others)),
            _ => (to.get(&others), one),
        };
        // There is no tunnel for IPv6, so a node sends to remote pods without Manx, and an outside host to any address.
        let kernels = from.is_node() && from.node != to.node && !from.address().is_ipv4();
        let untunnelled = from.is_node()
            && from.node != to.node
            && !ROUTER.map(IpAddr::from).contains(&from.address());
        if from.address().is_ipv4() != to.address().is_ipv4() || kernels || untunnelled {
            continue;
        }
        let protocol = *protocol.get(&probe::PROTOCOLS);
        let tuple = Tuple {
            source: from.address(),
            destination: to.address(),
            protocol,
            source_port: 20_000 + serial as u16,
            destination_port: *port.get(&ports),
        };
        let numbered = matches!(protocol, 6 | 17 | 132)
            || (protocol == if tuple.source.is_ipv4() { 1 } else { 58 });
        let pair = [tuple.source, tuple.destination];
        if !numbered
            && !without_ports.insert((
                pair.iter().min().copied(),
                pair.iter().max().copied(),
                protocol,
            ))
        {
            continue;
        }
        one_probe(&mut fabric, &oracle, (from, to), tuple, &mut expected, seen);
    }
    for (node, expected) in fabric.nodes.iter().zip(expected) {
        let text = || cluster.to_yaml();
        assert_eq!(node.drops(), expected.drops, "{}", text());
        assert_eq!(node.decisions(), expected.decisions, "{}", text());
        let (received, sent) = node.traffic();
        let dropped: u64 = expected.drops.values().sum();
        assert_eq!(received, sent + dropped, "{}", text());
    }
}

/// One packet: its ends, their nodes, and the judgement of the oracle.
struct Probe<'a> {
    from: &'a End,
    to: &'a End,
    tuple: Tuple,
    judgement: Judgement,
    source_node: usize,
    /// The node at which the packet comes out if it is allowed.
    node: usize,
    port: PortId,
    /// Whether the destination is a node that counts as the world.
    to_world: bool,
}

impl<'a> Probe<'a> {
    fn new(oracle: &Oracle, (from, to): (&'a End, &'a End), tuple: Tuple) -> Self {
        let has_ports = matches!(tuple.protocol, 6 | 17 | 132);
        let port = has_ports.then_some(tuple.destination_port);
        let packet = Packet::to_port(tuple.protocol, port);
        let mut judgement = oracle.judge(&from.party, &to.party, packet);
        // A pod that is not valid is attached to no port here, so its address is in the world.
        for side in [&mut judgement.egress, &mut judgement.ingress] {
            if side.why == VerdictReason::NoEndpoint {
                *side = VerdictReason::NoPod.into();
            }
        }
        let source_node = from.node.or(to.node).unwrap();
        let (mut node, mut port) = (to.node.unwrap_or(source_node), to.port);
        // Any node but the pod's own is in the world, unless its address is behind the tunnel.
        let is_router = ROUTER.map(IpAddr::from).contains(&to.address());
        let to_world = to.is_node() && node != source_node && !is_router;
        if to_world {
            (node, port) = (source_node, HOST);
        }
        Self { from, to, tuple, judgement, source_node, node, port, to_world }
    }

    fn crosses_nodes(&self) -> bool {
        self.node != self.source_node
    }

    fn text(&self) -> String {
        let Self { from, to, tuple, judgement, .. } = self;
        format!("{tuple:?} from {} to {}: {judgement}", from.party, to.party)
    }

    /// Adds this number to the expected counters of the rules that decide the packet.
    fn expect_decisions(&self, expected: &mut [Expected; 2], times: u64) {
        if let Some(rule) = reason(&self.judgement.egress.why, Direction::Egress) {
            *expected[self.source_node].decisions.entry(rule).or_default() += times;
        }
        if !self.judgement.egress.allows() {
            return;
        }
        if let Some(rule) = reason(&self.judgement.ingress.why, Direction::Ingress) {
            *expected[self.node].decisions.entry(rule).or_default() += times;
        }
    }

    /// Checks that the packet comes out once, with a lower hop limit, and so does its answer.
    fn check_delivery(&self, fabric: &mut Fabric, opening: Vec<u8>, delivered: &[Delivery]) {
        let Self { from, to, node, port, .. } = *self;
        assert_eq!(delivered.len(), 1, "{}: {delivered:?}", self.text());
        assert_eq!((delivered[0].node, delivered[0].port), (node, port), "{}", self.text());
        let is_own = |end: &End| end.is_node() && !self.to_world;
        // Each node that is not an end itself is a hop.
        let first = !is_own(from) && (self.crosses_nodes() || !is_own(to));
        let second = self.crosses_nodes() && !is_own(to);
        let hops = u8::from(first) + u8::from(second);
        let arrived = packet::with_ttl(opening, TTL - hops);
        assert_eq!(delivered[0].frame.bytes, arrived, "{}", self.text());
        let back = fabric.send_at(node, port, &self.tuple.answer());
        assert_eq!(back.len(), 1, "no answer: {}: {:?}", self.text(), fabric.nodes[node].drops());
        let expected = (self.source_node, from.port);
        assert_eq!((back[0].node, back[0].port), expected, "{}", self.text());
    }

    /// Expects one drop; returns the direction whose policy denies the packet.
    fn expect_drop(&self, expected: &mut [Expected; 2]) -> &'static str {
        let (node, port, reason, direction) = if self.judgement.egress.allows() {
            let port = match (self.crosses_nodes(), self.tuple.source.is_ipv4()) {
                (false, _) => self.from.port,
                (true, true) => RAW,
                (true, false) => HOST,
            };
            (self.node, port, DropReason::PolicyIngress, "ingress")
        } else {
            (self.source_node, self.from.port, DropReason::PolicyEgress, "egress")
        };
        *expected[node].drops.entry((port, reason.name())).or_default() += 1;
        direction
    }

    /// The kind of the two ends, as text.
    fn kind(&self) -> &'static str {
        let (from, to, cross) = (self.from, self.to, self.crosses_nodes());
        let (source, destination) = (from.pod(), to.pod());
        match (&source, &destination) {
            (Some(_), Some(_)) if source == destination => "itself",
            (Some(_), Some(_)) if cross => "cross node",
            (Some(_), Some(_)) => "same node",
            (Some(_), None) if to.is_node() => "pod to node",
            (Some(_), None) => "pod to external",
            (None, _) if from.is_node() && cross => "node to remote pod",
            (None, _) if from.is_node() => "node to own pod",
            (None, _) => "external to pod",
        }
    }
}

fn one_probe(
    fabric: &mut Fabric,
    oracle: &Oracle,
    ends: (&End, &End),
    tuple: Tuple,
    expected: &mut [Expected; 2],
    seen: &mut Seen,
) {
    let probe = Probe::new(oracle, ends, tuple);
    let opening = tuple.opening();
    let delivered = fabric.send_at(probe.source_node, probe.from.port, &opening);
    let verdict = if probe.judgement.allowed() {
        probe.expect_decisions(expected, 2);
        probe.check_delivery(fabric, opening, &delivered);
        "allowed"
    } else {
        probe.expect_decisions(expected, 1);
        assert_eq!(delivered, [], "{}", probe.text());
        probe.expect_drop(expected)
    };
    let family = if tuple.source.is_ipv4() { "v4" } else { "v6" };
    *seen.entry(format!("{} {family} {verdict}", probe.kind())).or_default() += 1;
    *seen.entry(format!("protocol {} {verdict}", tuple.protocol)).or_default() += 1;
}
