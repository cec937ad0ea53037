//! What must not suffer from what happens beside it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::cores::pin;
use crate::goal::Goal;
use crate::statistics::Pair;
use manx_dataplane::sys::clock::ticks;
use manx_dataplane::tables::Tables;
use manx_dataplane::wire::{protocol, tcp};
use manx_dataplane::worker::Command;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::compile::PodChange;
use manx_policy_compiler::model::{Direction, Endpoint, Model, ObjectName};

use super::node::{CLIENT_PORT, HOST, Node, Rules, Shape};
use super::peers::Peers;
use super::station::Pace;
use super::stream::{Order, Stream, Way};
use super::time::own_ticks;
use super::{Failure, PER_PACKET, shares, workers};

/// Something that happens while packets pass.
pub(crate) struct Beside {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Of the ratio of the figure with it to that without.
    pub(crate) goal: Option<Goal>,
    /// What is compared with what.
    pub(crate) head: &'static str,
    /// What the pairs are counted in.
    pub(crate) unit: &'static str,
    /// Measures it in so many rounds.
    pub(crate) measure: fn(usize) -> Result<Found, Failure>,
}

/// What was found.
pub(crate) struct Found {
    /// Without it and with it; none where what counts is that nothing was lost.
    pub(crate) pairs: Vec<Pair>,
    pub(crate) words: String,
}

/// All.
pub(crate) const ALL: &[Beside] = &[
    Beside {
        name: "swap",
        what: "policy exchanged whole every millisecond, 1,000 flows",
        goal: None,
        head: HEAD,
        unit: PER_PACKET,
        measure: swap,
    },
    Beside {
        name: "syn-flood",
        what: "as many SYNs of new flows as packets of 1,000 established ones",
        goal: None,
        head: HEAD,
        unit: PER_PACKET,
        measure: flood,
    },
    Beside {
        name: "churn",
        what: "1,000 of 100,000 pods come and go a second, 100,000 flows",
        goal: Some(Goal::AtMost(1.1)),
        head: HEAD,
        unit: PER_PACKET,
        measure: churn,
    },
    fair("fair-memory", "64-byte packets beside 64 KB super-packets into a tunnel", shares::whole),
    fair(
        "fair-memory-segments",
        "64-byte packets beside 520-byte ones of 480 segments",
        shares::tiny,
    ),
    workers("workers-near", "two workers, policy of both ends, 100,000 flows", workers::near),
    workers("workers-encap", "two workers, IPIP put on, 100,000 flows", workers::encap),
    workers("workers-decap", "two workers, IPIP taken off, 1,000 flows", workers::decap),
];

const HEAD: &str = "The pipeline while something happens beside it";

/// Two workers of one node.
const fn workers(
    name: &'static str,
    what: &'static str,
    measure: fn(usize) -> Result<Found, Failure>,
) -> Beside {
    let head = "Two workers of one node beside two that share nothing";
    Beside { name, what, goal: Some(Goal::AtLeast(0.98)), head, unit: "Mpps", measure }
}

/// What one port has of a worker's time beside another, beside the half that is its own.
const fn fair(
    name: &'static str,
    what: &'static str,
    measure: fn(usize) -> Result<Found, Failure>,
) -> Beside {
    let head = "A port with cheap packets beside one with dear ones";
    let goal = Some(Goal::AtLeast(0.9));
    Beside { name, what, goal, head, unit: "of the worker's time", measure }
}

/// How long one round of each lasts.
pub(super) const ROUND: Duration = Duration::from_millis(500);
pub(super) const FLOWS: u32 = 1000;
/// Where control's thread runs; the worker is elsewhere unless it was told otherwise.
const CONTROL_CORE: usize = 0;

/// Flows that both sides have spoken in, and the stream of their packets.
fn established(node: &mut Node, flows: u32) -> Stream {
    let peers = Peers::far(1, false);
    let forth = Stream::udp(&peers, Way::Forth, 0, flows);
    let back = Stream::udp(&peers, Way::Back, 0, flows).in_order(Order::InTurn);
    node.station(CLIENT_PORT).load(
        forth.clone().in_order(Order::InTurn),
        flows.into(),
        Pace::DEVICE,
    );
    node.run();
    node.station(HOST).load(back, flows.into(), Pace::DEVICE);
    node.run();
    forth
}

/// Packets as fast as they go for a while: how many, what each cost, and ticks of each batch.
fn load(node: &mut Node, stream: &Stream, batches: &mut Vec<f64>) -> Result<(u64, f64), Failure> {
    node.station(CLIENT_PORT).load(stream.clone(), u64::MAX, Pace::DEVICE);
    let (spent, packets) = own_ticks(|| {
        let (began, mut last) = (Instant::now(), ticks());
        let mut packets = 0;
        while began.elapsed() < ROUND {
            packets += node.turn() as u64;
            let now = ticks();
            batches.push(now.wrapping_sub(last) as f64);
            last = now;
        }
        Ok(packets)
    })?;
    node.station(CLIENT_PORT).unload();
    Ok((packets, spent / packets as f64))
}

/// The value below which all but one in a thousand lie.
pub(super) fn p999(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() * 999 / 1000).copied().unwrap_or_default()
}

/// Policy exchanged every millisecond, whole, under full load: each flow is judged again by each.
fn swap(rounds: usize) -> Result<Found, Failure> {
    let mut node = Node::new(Shape { rules: Rules::Pods(1000), ..Shape::default() })?;
    let mut other = Node::new(Shape { rules: Rules::Pods(1001), ..Shape::default() })?;
    let stream = established(&mut node, FLOWS);
    let worlds = [node.tables.clone(), other.calculate()?];
    let (mut quiet, mut swapping, mut published) = (Vec::new(), Vec::new(), 0);
    let before = node.left().0;
    let mut packets = 0;
    let mut pairs = Vec::new();
    for _ in 0..rounds {
        let (count, beside) = load(&mut node, &stream, &mut quiet)?;
        packets += count;
        let stop = AtomicBool::new(false);
        let (commands, stopped) = (node.commands.clone(), &stop);
        let (made, passed) = std::thread::scope(|scope| {
            let publisher = scope.spawn(|| publish(&worlds, &commands, published, stopped));
            let passed = load(&mut node, &stream, &mut swapping);
            stop.store(true, Ordering::Relaxed);
            (publisher.join().unwrap_or_default(), passed)
        });
        published += made;
        let (count, manx) = passed?;
        pairs.push(Pair { beside, manx });
        packets += count;
        // What was retired is freed outside of the rounds.
        node.reports.try_iter().for_each(drop);
    }
    let lost = packets - (node.left().0 - before);
    nothing_lost(&node, lost)?;
    let words = format!(
        "{published} policies published while {packets} packets of {FLOWS} flows passed: {lost} lost; \
         p99.9 of a batch {:.0} ticks quiet, {:.0} swapping (goal: at most twice)",
        p999(&mut quiet),
        p999(&mut swapping),
    );
    Ok(Found { pairs, words })
}

/// Packets that did not come out are no figure.
fn nothing_lost(node: &Node, lost: u64) -> Result<(), Failure> {
    if lost == 0 {
        return Ok(());
    }
    Err(format!("{lost} packets did not come out; dropped: {:?}", node.drops()).into())
}

/// Publishes one world and the other in turn; how often.
fn publish(
    worlds: &[Tables; 2],
    commands: &crossbeam::channel::Sender<Command>,
    published: u64,
    stop: &AtomicBool,
) -> u64 {
    pin(CONTROL_CORE);
    let mut made = 0;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
        made += 1;
        let mut tables = worlds[made as usize % 2].clone();
        // No two that a worker is given have one version, and the rules of each mean something else.
        let number = 2 + published + made;
        tables.version += number;
        for endpoint in tables.endpoints.iter_mut().flatten() {
            endpoint.revision += number as u32 * 16;
        }
        if commands.send(Command::Publish(Arc::new(tables))).is_err() {
            break;
        }
    }
    made
}

/// SYNs of flows that were never seen, one for each packet of an established flow, into a table that they fill many times.
fn flood(_: usize) -> Result<Found, Failure> {
    const TABLE: usize = 1 << 16;
    const SYNS: u64 = 4 << 20;
    let mut node = Node::new(Shape { flows: TABLE, ..Shape::default() })?;
    let peers = Peers::far(1, false);
    let stream = established(&mut node, FLOWS);
    let flood =
        Stream::tcp(&peers, Way::Knock, 0, u32::MAX, tcp::flag::SYN).in_order(Order::InTurn);
    // Once round, so that all memory that a full table takes is taken.
    node.station(HOST).load(flood, 2 * TABLE as u64, Pace::DEVICE);
    node.run();
    let (before_flood, before) = (resident()?, node.left().0);
    let Some(flood) = node.station(HOST).unload() else { return Err("no flood".into()) };
    node.station(HOST).load(flood, SYNS, Pace::DEVICE);
    node.station(CLIENT_PORT).load(stream, SYNS, Pace::DEVICE);
    let (spent, packets) = own_ticks(|| Ok(node.run()))?;
    let more = resident()?.saturating_sub(before_flood);
    let lost = packets - (node.left().0 - before);
    nothing_lost(&node, lost)?;
    let flows = node.flows()?;
    let kept = flows.iter().filter(|flow| flow.key().protocol() == protocol::UDP).count();
    if kept < FLOWS as usize {
        return Err(format!("{kept} of {FLOWS} established flows were kept").into());
    }
    let words = format!(
        "{SYNS} SYNs of new flows beside as many packets of {FLOWS} established ones, a table of {TABLE}: {lost} of \
         all packets lost, {kept} of the established flows kept; {:.0} ticks per packet; {} KiB more resident than before",
        spent / packets as f64,
        more,
    );
    Ok(Found { pairs: Vec::new(), words })
}

/// KiB of this process in memory.
fn resident() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.ok_or("found no VmRSS in /proc/self/status, expected one")?.parse()?)
}

const PODS: u32 = 100_000;
const CHANGES_PER_SECOND: u32 = 1000;

/// Pods of other nodes that come and go in tables of 100,000, while packets pass.
fn churn(rounds: usize) -> Result<Found, Failure> {
    let mut node = Node::new(Shape::default())?;
    let stream = established(&mut node, 100_000);
    let mut model = node.cluster.model.clone();
    let names: Vec<ObjectName> =
        (0..PODS).map(|at| ObjectName::new("shop", format!("more-{at}"))).collect();
    for (at, name) in (0..).zip(&names) {
        let address = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 140, 0, 0)) + at);
        let role = if at % 2 == 0 { "server" } else { "other" };
        let pod = Endpoint {
            labels: Arc::new([("role".to_owned(), role.to_owned())].into()),
            addresses: BTreeSet::from([IpAddr::V4(address)]),
            ..Endpoint::default()
        };
        model.endpoints.insert(name.clone(), Arc::new(pod));
    }
    let mut compiler = Compiler::new();
    let image = Arc::new(compiler.compile(&model, &node.locals.keys().cloned().collect()));
    for (name, local) in &node.locals {
        if let Some(endpoint) = &mut node.tables.endpoints[local.index as usize] {
            let chain = |direction| image.chain(name, direction).ok_or("a pod without policy");
            endpoint.ingress = chain(Direction::Ingress)?;
            endpoint.egress = chain(Direction::Egress)?;
        }
    }
    node.tables.version += 1;
    node.tables.image = Arc::clone(&image);
    node.publish()?;
    let (changes, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut pairs = Vec::new();
    let mut batches = Vec::new();
    let before = node.left().0;
    let mut packets = 0;
    for _ in 0..rounds {
        batches.clear();
        let (count, beside) = load(&mut node, &stream, &mut batches)?;
        packets += count;
        let stop = AtomicBool::new(false);
        let (count, manx) = std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(CONTROL_CORE);
                let began = Instant::now();
                let mut made = 0;
                while !stop.load(Ordering::Relaxed) {
                    let due =
                        began.elapsed().as_millis() as u64 * u64::from(CHANGES_PER_SECOND) / 1000;
                    for _ in made..due {
                        let at = changes.fetch_add(1, Ordering::Relaxed);
                        if !change(&mut compiler, &image, &mut model, &names, at) {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    made = due;
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            batches.clear();
            let passed = load(&mut node, &stream, &mut batches);
            stop.store(true, Ordering::Relaxed);
            passed
        })?;
        pairs.push(Pair { beside, manx });
        packets += count;
    }
    let lost = packets - (node.left().0 - before);
    nothing_lost(&node, lost)?;
    let words = format!(
        "{} changes in place of {PODS} pods, {CHANGES_PER_SECOND} a second, {} refused; {lost} of {packets} packets lost",
        changes.into_inner(),
        refused.into_inner(),
    );
    Ok(Found { pairs, words })
}

/// A pod goes, or comes back; whether the image could follow in place.
fn change(
    compiler: &mut Compiler,
    image: &manx_policy_compiler::image::Image,
    model: &mut Model,
    names: &[ObjectName],
    at: u64,
) -> bool {
    let name = &names[(at / 2) as usize % names.len()];
    let Some(pod) = model.endpoints.get(name).cloned() else { return false };
    // What the model says of a pod that has gone is what it will be when it is back.
    if at.is_multiple_of(2) {
        model.endpoints.remove(name);
        let done =
            compiler.update(image, model, PodChange { name, before: Some(&pod), after: None });
        model.endpoints.insert(name.clone(), pod);
        done
    } else {
        compiler.update(image, model, PodChange { name, before: None, after: Some(&pod) })
    }
}
