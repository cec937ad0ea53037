//! Connections that are kept if tables are published while packets are on their way, equal packets, and fragments.

use fastrand::Rng;
use manx_dataplane::port::memory::Frame;
use manx_objects::contents::Contents;

use super::super::batch::Counts;
use super::super::coverage::Kind;
use super::super::epoch::Entry;
use super::super::input::Injected;
use super::super::plan::Plan;
use super::super::translations::Pair;
use super::*;
use crate::fabric::NODES;
use crate::packet::{TTL, Tuple, with_ttl};

/// Two pods of the first node; the second one has `app: b`.
const ENDS: [usize; 2] = [0, 2];
const CLOSED: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed, namespace: lab}, spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress, Egress]}}";

/// A plan of these two pods, its publications, and the judge.
struct Bench {
    plan: Plan,
    published: u64,
    judge: Judge,
}

impl Bench {
    fn new() -> Self {
        let mut plan = Plan::new(&mut Rng::with_seed(1));
        for at in ENDS {
            plan.planned_pods[at].name.namespace = "lab".into();
            plan.attach(at);
        }
        let judge = Judge {
            hasher: RandomState::with_seeds(1, 2, 3, 4),
            overlay: Overlay::Ipip,
            tunnel_mtu: 1480,
            terms: Terms { is_strict: false, keeps: true, translates: false, has_ports: false },
            connections: Default::default(),
            translations: Default::default(),
            moves: Default::default(),
            is_single: [true; 2],
        };
        Self { plan, published: 0, judge }
    }

    /// Publishes tables with this policy, which is in force from then on.
    fn publish(&mut self, policy: &str) -> Rc<Epoch> {
        let mut text = "{apiVersion: v1, kind: Namespace, metadata: {name: lab}}\n".to_owned();
        for (at, label) in ENDS.into_iter().zip(["a", "b"]) {
            let planned = &self.plan.planned_pods[at];
            text += &format!(
                "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {}, namespace: lab, labels: {{app: {label}}}}}, spec: {{nodeName: {}}}, status: {{podIPs: [{{ip: \"{}\"}}]}}}}\n",
                planned.name.name, NODES[0], planned.addresses[0]
            );
        }
        text += &format!("---\n{policy}\n");
        self.published += 1;
        let contents = Contents::from_texts([("cluster.yaml", &*text)]);
        Rc::new(Epoch::new(&self.plan, self.published, [self.published; 2], &contents))
    }

    fn port(&self, end: usize) -> PortId {
        self.plan.planned_pods[ENDS[end]].attachment.unwrap().port
    }

    fn tuple(&self) -> Tuple {
        let [from, to] = ENDS.map(|at| self.plan.planned_pods[at].addresses[0].to_string());
        Tuple::new(&from, &to, UDP, 53)
    }

    /// The law for the first node.
    fn law<'a>(&'a self, epochs: &'a [Rc<Epoch>]) -> Law<'a> {
        let Judge { terms, connections, translations, .. } = &self.judge;
        Law {
            node: 0,
            now: 1.0,
            terms: *terms,
            epochs,
            connections: &connections[0],
            translations: &translations[0],
            evictions: 0,
            evicts: false,
            is_single: true,
        }
    }

    /// The first pod opens a connection to the second one, which answers.
    fn conversation(&mut self, epoch: &Rc<Epoch>) {
        let packets =
            [(self.port(0), self.tuple().opening()), (self.port(1), self.tuple().answer())];
        self.batch(&[Rc::clone(epoch)], packets.to_vec(), Vec::new()).unwrap();
    }

    /// The first pod sends another packet, which comes out at a port.
    fn goes_on(&mut self, epochs: &[Rc<Epoch>], port: PortId) -> Result<(), String> {
        let bytes = self.tuple().data(b"more");
        let frame = Frame { bytes: with_ttl(bytes.clone(), TTL - 1), offload: Offload::default() };
        self.batch(epochs, vec![(self.port(0), bytes)], vec![Output { port, frame }])
    }

    fn batch(
        &mut self,
        epochs: &[Rc<Epoch>],
        packets: Vec<(PortId, Vec<u8>)>,
        outputs: Vec<Output>,
    ) -> Result<(), String> {
        // Packets need not arrive, because the batch counts as incomplete.
        let mut node_batch = NodeBatch { is_incomplete: true, ..NodeBatch::default() };
        for (port, bytes) in packets {
            let (kind, offload) = (Kind::Conversation, Offload::default());
            let sent = Injected { node: 0, port, worker: 0, bytes, offload, kind, is_clean: true };
            node_batch.add(&self.judge.hasher, Input::new(sent, Overlay::Ipip, 1480));
        }
        let count = outputs.len() as u64;
        node_batch.after = Counts { received: count, sent: count, ..Counts::default() };
        node_batch.outputs = outputs;
        let judged = self.judge.judge(0, &mut node_batch, 1.0, epochs, &mut Coverage::default());
        judged.map_err(|violation| violation.law)
    }
}

#[test]
fn a_kept_connection_passes_by_tables_in_which_its_end_is_where_it_was() {
    let mut bench = Bench::new();
    let open = bench.publish("");
    bench.conversation(&open);
    let closed = bench.publish(CLOSED);
    let port = bench.port(1);
    // The pod gets another attachment with the same port and address. In between it has none, and policy allows packets
    // to the world.
    bench.plan.planned_pods[ENDS[1]].attachment = None;
    let gone = bench.publish(CLOSED);
    bench.plan.attach(ENDS[1]);
    let other = bench.publish(CLOSED);
    assert_eq!(bench.port(1), port);

    // A worker may not have the later tables yet.
    bench.goes_on(&[closed, gone, Rc::clone(&other)], port).unwrap();

    let refused = bench.goes_on(&[other], port).unwrap_err();
    assert!(refused.contains("policy denies it"), "{refused}");
}

#[test]
fn a_connection_may_be_kept_whose_end_was_away_for_a_moment() {
    let mut bench = Bench::new();
    let open = bench.publish("");
    bench.conversation(&open);
    let closed = bench.publish(CLOSED);
    let (port, attachment) = (bench.port(1), bench.plan.planned_pods[ENDS[1]].attachment.take());
    let gone = bench.publish(CLOSED);
    bench.plan.planned_pods[ENDS[1]].attachment = attachment;
    let back = bench.publish(CLOSED);

    bench.goes_on(&[closed, gone, Rc::clone(&back)], port).unwrap();

    // The batch may contain no packet that was judged while the pod was away.
    bench.goes_on(&[back], port).unwrap();
}

/// Two packets have the same bytes. The virtio header of one is false, so that packet may be
/// dropped. The other one must arrive.
#[test]
fn of_equal_packets_the_one_with_nothing_wrong_has_come_out() {
    for order in [[true, false], [false, true]] {
        let mut bench = Bench::new();
        let open = bench.publish("");
        let bytes = bench.tuple().opening();
        let mut node_batch = NodeBatch { is_incomplete: true, ..NodeBatch::default() };
        for is_clean in order {
            let (kind, offload) = (Kind::Conversation, Offload::default());
            let (port, bytes) = (bench.port(0), bytes.clone());
            let sent = Injected { node: 0, port, worker: 0, bytes, offload, kind, is_clean };
            node_batch.add(&bench.judge.hasher, Input::new(sent, Overlay::Ipip, 1480));
        }
        let frame = Frame { bytes: with_ttl(bytes, TTL - 1), offload: Offload::default() };
        node_batch.outputs = vec![Output { port: bench.port(1), frame }];
        node_batch.after = Counts { received: 1, sent: 1, ..Counts::default() };
        let judged = bench.judge.judge(0, &mut node_batch, 1.0, &[open], &mut Coverage::default());
        judged.map_err(|violation| violation.law).unwrap();
        let came_out = node_batch.inputs.iter().map(|it| it.outcome == Outcome::CameOut);
        assert_eq!(came_out.collect::<Vec<_>>(), order);
    }
}

/// A later fragment passes for 30 seconds after its first one. The flow may be over before that.
#[test]
fn a_later_fragment_does_not_prove_that_its_connection_is_there() {
    for part in [Part::Whole, Part::First { id: 7 }, Part::Later { id: 7, offset: 8 }] {
        let mut bench = Bench::new();
        let epoch = bench.publish("");
        let bytes = bench.tuple().opening();
        let (kind, offload) = (Kind::Conversation, Offload::default());
        let port = bench.port(0);
        let sent = Injected { node: 0, port, worker: 0, bytes, offload, kind, is_clean: true };
        let mut input = Input::new(sent, Overlay::Ipip, 1480);
        let mut read = input.read.unwrap();
        read.part = part;
        input.read = Some(read);
        let mut node_batch = NodeBatch::default();
        node_batch.add(&bench.judge.hasher, input);
        let pair = Pair { first: read.tuple, behind: read.tuple };
        let passage = Passage { because: Because::Allowed, from: Place::Node, to: Place::Node };
        let epochs = [epoch];
        let law = bench.law(&epochs);
        let coverage = &mut Coverage::default();
        bench.judge.came_out_translated(&law, &mut node_batch, 0, (passage, pair), coverage);
        let is_known = bench.judge.translations[0].borrow().connection(&pair).is_some();
        assert_eq!(is_known, !read.is_later(), "{part:?}");
    }
}

/// An answer to a masqueraded client may lose a hop. An answer to the node itself does not.
#[test]
fn an_answer_to_a_masqueraded_client_of_a_service_makes_a_hop() {
    for (entry, hops) in [(Entry::Host, 0..=0), (Entry::Forwarded, 0..=1)] {
        let mut bench = Bench::new();
        let epoch = bench.publish("");
        let (kind, offload, bytes) =
            (Kind::Conversation, Offload::default(), bench.tuple().answer());
        let port = bench.port(1);
        let sent = Injected { node: 0, port, worker: 0, bytes, offload, kind, is_clean: true };
        let input = Input::new(sent, Overlay::Ipip, 1480);
        let first = input.read.unwrap().tuple.reversed();
        let asks = (true, false);
        bench.judge.translations[0].get_mut().record_asked(&first, entry, asks, 1.0);
        let (from, to) = (Place::Pod(ENDS[1]), Place::Node);
        let passage = Passage { because: Because::Reply, from, to };
        let pair = Pair { first, behind: first };
        assert_eq!(bench.law(&[epoch]).hops_translated(&input, passage, &pair), hops);
    }
}
