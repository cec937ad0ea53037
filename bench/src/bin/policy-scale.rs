//! What policy costs at scale: compiling a node, and one lookup, each beside the linear reference, which walks the policies
//! as they were written.
//!
//! Usage: `policy-scale [SHAPE...] [--prove]`, with the shapes `cluster`, `site`, `sets`, `explosion`; all without any.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use manx_policy_compiler::batch::Asked;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::{Identity, Image, PathId};
use manx_policy_compiler::model::{
    Action, Direction, Endpoint, Entity, Hook, KUBERNETES, Model, NAMESPACE, NamedPort, NetworkSet,
    ORCHESTRATOR, ObjectName, Order, Policy, PolicyKind, PolicyName, PortMatch, Protocol, Rule,
    Transport,
};
use manx_policy_compiler::prove::prove;
use manx_policy_compiler::reference::{Packet, Reference};
use manx_policy_compiler::resolve::Stage;
use manx_policy_compiler::selector::Selector;
use manx_policy_compiler::update::PodChange;

const COMPILES: usize = 5;
const LOOKUPS: u32 = 2_000_000;
const LOOKUPS_OF_A_RUN: u32 = 10_000;
/// Packets judged side by side.
const BATCH: usize = 64;
const REFERENCES: usize = 50;
const CHURN: usize = 1_000;

/// A cluster's policies and the endpoints of one node.
struct Shape {
    name: &'static str,
    what: &'static str,
    model: Model,
    local: BTreeSet<ObjectName>,
    /// Addresses to look up.
    peers: Vec<u32>,
}

/// Makes a shape.
type Make = fn() -> Shape;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let proves = arguments.iter().any(|argument| argument == "--prove");
    let wanted: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|name| !name.starts_with("--")).collect();
    let shapes: [(&str, Make); 4] =
        [("cluster", cluster), ("site", site), ("sets", sets), ("explosion", explosion)];
    if let Some(unknown) = wanted.iter().find(|name| shapes.iter().all(|(known, _)| known != *name))
    {
        eprintln!("found the shape {unknown:?}, expected cluster, site, sets or explosion");
        std::process::exit(2);
    }
    for (name, make) in shapes {
        if wanted.is_empty() || wanted.contains(&name) {
            measure(&make(), proves);
        }
    }
}

fn measure(shape: &Shape, proves: bool) {
    let Shape { name, what, model, local, peers } = shape;
    let mut compiles: Vec<Duration> = Vec::new();
    let mut image = Image::default();
    for _ in 0..COMPILES {
        let mut compiler = Compiler::new();
        let start = Instant::now();
        image = compiler.compile(model, local);
        compiles.push(start.elapsed());
    }
    compiles.sort_unstable();
    let counts = image.counts();
    println!("{name}: {what}");
    println!(
        "  compiled from nothing in {:.1} ms ({:.1}-{:.1}); {} classes, {} chains ({} rule by rule), {} rows, {:.1} MB",
        milliseconds(compiles[COMPILES / 2]),
        milliseconds(compiles[0]),
        milliseconds(compiles[COMPILES - 1]),
        counts.classes,
        counts.chains,
        counts.linear,
        counts.rows,
        image.bytes() as f64 / 1e6,
    );
    let reference = by_reference(model, local, peers);
    for (which, count) in [("random", peers.len()), ("of 64 hot ones", 64)] {
        let [lookup, beside] = by_image(&image, local, &peers[..count.min(peers.len())]);
        println!(
            "  a lookup, {which}: {lookup:.1} ns, side by side {beside:.1}; the reference {reference:.0} ns, {:.0} times as much",
            reference / lookup
        );
    }
    churn(shape);
    policy_changes(shape);
    if proves {
        let start = Instant::now();
        match prove(model, local, &image) {
            Ok(proof) => println!(
                "  proved in {:.2} s: {} cells, {} peers stand for all",
                start.elapsed().as_secs_f64(),
                proof.cells,
                proof.peers
            ),
            Err(counterexample) => {
                println!("  WRONG: {counterexample}");
                std::process::exit(1);
            }
        }
    }
}

/// Takes pods of other nodes out and puts them in again, one by one, in the image that is in use.
fn churn(shape: &Shape) {
    let mut model = shape.model.clone();
    let mut compiler = Compiler::new();
    let image = compiler.compile(&model, &shape.local);
    let elsewhere = model.endpoints.keys().filter(|name| !shape.local.contains(*name));
    let names: Vec<ObjectName> = elsewhere.take(CHURN).cloned().collect();
    if names.is_empty() {
        return;
    }
    let (mut times, mut refused) = (Vec::new(), 0);
    for name in &names {
        let Some(pod) = model.endpoints.remove(name) else { continue };
        let start = Instant::now();
        let goes = PodChange { name, before: Some(&pod), after: None };
        let gone = compiler.update(&image, &model, goes);
        times.push(start.elapsed());
        model.endpoints.insert(name.clone(), Arc::clone(&pod));
        let start = Instant::now();
        let comes = PodChange { name, before: None, after: Some(&pod) };
        let come = compiler.update(&image, &model, comes);
        times.push(start.elapsed());
        refused += usize::from(!gone) + usize::from(!come);
    }
    let first = times[0];
    times.sort_unstable();
    println!(
        "  a pod elsewhere comes or goes in place in {:.1} us ({:.1} at most of 99 in 100, {:.0} the first time); {refused} of {} took more",
        milliseconds(times[times.len() / 2]) * 1e3,
        milliseconds(times[times.len() * 99 / 100]) * 1e3,
        milliseconds(first) * 1e3,
        times.len()
    );
}

/// Changes a policy that every local endpoint has: the port that it allows, then the peers, by a label that no other asks
/// for.
fn policy_changes(shape: &Shape) {
    let mut model = shape.model.clone();
    let mut compiler = Compiler::new();
    let name = PolicyName::new(PolicyKind::Global, "", "of-everybody");
    let (mut ports, mut peers) = (Vec::new(), Vec::new());
    for index in 0..=COMPILES as u16 {
        for (times, asks_anew) in [(&mut ports, false), (&mut peers, true)] {
            let mut allow = Rule::every_packet(0, Action::Allow);
            allow.protocol = Some(6);
            allow.destination.ports = vec![PortMatch::Range { first: index, last: index }];
            if asks_anew {
                let anew = Selector::equals("new", format!("{index}"));
                allow.source.entities = Some(vec![members(anew)]);
            }
            let policy = policy(Order::KUBERNETES, Selector::all(), Some(vec![allow]));
            model.policies.insert(name.clone(), Arc::new(policy));
            // After another vocabulary the next image rests on nothing.
            if !asks_anew {
                std::hint::black_box(compiler.compile(&model, &shape.local));
                let changed = model.policies.get_mut(&name).map(Arc::make_mut);
                let rules = changed.and_then(|policy| policy.ingress.as_mut());
                rules.into_iter().flatten().for_each(|rule| rule.destination.ports.clear());
            }
            let start = Instant::now();
            std::hint::black_box(compiler.compile(&model, &shape.local));
            times.push(start.elapsed());
        }
    }
    for times in [&mut ports, &mut peers] {
        times.sort_unstable();
    }
    println!(
        "  a policy of every endpoint changes in {:.1} ms, and in {:.1} ms if it asks what nobody had asked",
        milliseconds(ports[ports.len() / 2]),
        milliseconds(peers[peers.len() / 2]),
    );
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The multiplier of a permutation of all 32-bit numbers: a cheap shuffle.
fn shuffled(index: u32, below: usize) -> usize {
    ((u64::from(index.wrapping_mul(2_654_435_761)) * below as u64) >> 32) as usize
}

/// Nanoseconds of address, class, row and path, one by one, where one lookup does not wait for the other, and in batches:
/// medians of short runs, so that few of them are interrupted.
fn by_image(image: &Image, local: &BTreeSet<ObjectName>, peers: &[u32]) -> [f64; 2] {
    let chains: Vec<_> =
        local.iter().filter_map(|name| image.chain(name, Direction::Ingress)).collect();
    let own = image.identity_v4(peers[0]);
    let (mut one_by_one, mut beside) = (Vec::new(), Vec::new());
    for run in 0..LOOKUPS / LOOKUPS_OF_A_RUN {
        let flow = |index| {
            let at = shuffled(index, peers.len());
            let port = 8080 + (at % 1100) as u16;
            (chains[at % chains.len()], peers[at], Transport::ports(Protocol::Tcp, 49_152, port))
        };
        let flows: Vec<_> =
            (run * LOOKUPS_OF_A_RUN..(run + 1) * LOOKUPS_OF_A_RUN).map(flow).collect();
        let start = Instant::now();
        let mut paths = 0u64;
        for (chain, peer, packet) in &flows {
            let path = image.classify(*chain, own, image.identity_v4(*peer), *packet);
            paths += u64::from(path.0);
        }
        one_by_one.push(start.elapsed());
        let addresses: Vec<u32> = flows.iter().map(|(_, peer, _)| *peer).collect();
        let mut asked: Vec<Asked> = flows
            .iter()
            .map(|(chain, _, packet)| Asked {
                chain: *chain,
                local: own,
                peer: Identity::UNKNOWN,
                transport: *packet,
            })
            .collect();
        let mut identities = [Identity::UNKNOWN; BATCH];
        let mut found = [PathId::default(); BATCH];
        let mut together = 0;
        let start = Instant::now();
        for (addresses, asked) in addresses.chunks(BATCH).zip(asked.chunks_mut(BATCH)) {
            image.identities_v4(addresses, &mut identities);
            asked.iter_mut().zip(identities).for_each(|(asked, peer)| asked.peer = peer);
            image.classify_all(asked, &mut found);
            together += found[..asked.len()].iter().map(|path| u64::from(path.0)).sum::<u64>();
        }
        beside.push(start.elapsed());
        assert_eq!(paths, together, "side by side is as one by one");
    }
    [one_by_one, beside].map(|mut runs| {
        runs.sort_unstable();
        runs[runs.len() / 2].as_secs_f64() * 1e9 / f64::from(LOOKUPS_OF_A_RUN)
    })
}

/// Nanoseconds of the same by the reference, with the endpoint's policies already found.
fn by_reference(model: &Model, local: &BTreeSet<ObjectName>, peers: &[u32]) -> f64 {
    let reference = Reference::new(model);
    let Some((name, policies, address)) = local.iter().find_map(|name| {
        let policies = reference.policies(name, Stage::Pod, Direction::Ingress)?;
        Some((name, policies, *model.endpoints.get(name)?.addresses.first()?))
    }) else {
        return f64::NAN;
    };
    let start = Instant::now();
    for index in 0..REFERENCES {
        let peer = IpAddr::V4(Ipv4Addr::from_bits(peers[shuffled(index as u32, peers.len())]));
        let transport = Transport::ports(Protocol::Tcp, 49_152, 8080);
        let packet = Packet { local: address, peer, transport };
        let decision = reference.judge_by(&policies, name, Stage::Pod, Direction::Ingress, &packet);
        std::hint::black_box(decision);
    }
    start.elapsed().as_secs_f64() * 1e9 / REFERENCES as f64
}

fn policy(order: Order, selector: Selector, ingress: Option<Vec<Rule>>) -> Policy {
    Policy {
        tier: "default".to_owned(),
        order,
        selector,
        hook: Hook::Endpoint,
        ingress,
        egress: None,
        broken: false,
    }
}

fn pods(namespace: &str, app: Option<usize>) -> Selector {
    Selector::and([
        Selector::equals(NAMESPACE, namespace),
        Selector::equals(ORCHESTRATOR, KUBERNETES),
        app.map_or_else(Selector::all, |app| Selector::equals("app", format!("app-{app}"))),
    ])
}

fn members(selector: Selector) -> Entity {
    Entity { selector: Some(selector), ..Entity::default() }
}

fn labels(pairs: &[(&str, String)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

/// 100,000 pods in 1,000 namespaces, 14 Kubernetes policies in each, 250 pods local.
fn cluster() -> Shape {
    const NAMESPACES: usize = 1_000;
    const PODS: usize = 100;
    let mut model = Model::default();
    for namespace in 0..NAMESPACES {
        let name = format!("ns-{namespace}");
        model.namespaces.insert(name.clone(), labels(&[("team", format!("{}", namespace % 40))]));
        for pod in 0..PODS {
            let address = 0x0a00_0000 + (namespace * PODS + pod) as u32;
            let http = NamedPort { name: "http".to_owned(), protocol: Protocol::Tcp, port: 8080 };
            let endpoint = Endpoint {
                labels: labels(&[
                    ("app", format!("app-{}", pod % 20)),
                    ("pod-template-hash", format!("h{}", pod % 25)),
                    ("tier", format!("t{}", pod % 3)),
                ]),
                service_account: Some("default".to_owned()),
                addresses: BTreeSet::from([IpAddr::V4(Ipv4Addr::from_bits(address))]),
                named_ports: BTreeSet::from([http]),
            };
            let key = ObjectName::new(name.as_str(), format!("pod-{pod}"));
            model.endpoints.insert(key, Arc::new(endpoint));
        }
        for index in 0..14 {
            let key = PolicyName::new(PolicyKind::Kubernetes, name.as_str(), format!("p-{index}"));
            model.policies.insert(key, Arc::new(of_namespace(&name, namespace, index)));
        }
    }
    let local = (0..250).map(|index| {
        ObjectName::new(format!("ns-{}", index * 4), format!("pod-{}", index * 7 % PODS))
    });
    Shape {
        name: "cluster",
        what: "100,000 pods, 14,000 policies, 250 local endpoints",
        local: local.collect(),
        model,
        peers: (0..(NAMESPACES * PODS) as u32).map(|pod| 0x0a00_0000 + pod).collect(),
    }
}

/// A deny for everybody, DNS for everybody, and twelve applications' own.
fn of_namespace(name: &str, namespace: usize, index: usize) -> Policy {
    if index == 0 {
        let mut policy = policy(Order::KUBERNETES, pods(name, None), Some(Vec::new()));
        policy.egress = Some(Vec::new());
        return policy;
    }
    let mut allow = Rule::every_packet(0, Action::Allow);
    if index == 1 {
        allow.protocol = Some(17);
        allow.destination.ports = vec![PortMatch::Range { first: 53, last: 53 }];
        let policy = policy(Order::KUBERNETES, pods(name, None), None);
        return Policy { egress: Some(vec![allow]), ..policy };
    }
    allow.protocol = Some(6);
    let mut egress = allow.clone();
    let team = Selector::equals("pcns.team", format!("{}", (namespace + index) % 40));
    let everywhere = Selector::equals(ORCHESTRATOR, KUBERNETES);
    allow.source.entities = Some(vec![
        members(pods(name, Some((index + 1) % 20))),
        members(Selector::and([everywhere, team, Selector::equals("tier", "t1")])),
    ]);
    allow.destination.ports = vec![
        PortMatch::Named("http".to_owned()),
        PortMatch::Range { first: 9000 + index as u16, last: 9100 },
    ];
    let mut block = Rule::every_packet(1, Action::Allow);
    let net = Ipv4Net::new(Ipv4Addr::new(192, 168, ((namespace + index) % 64) as u8, 0), 24);
    let nets = net.into_iter().map(IpNet::V4).collect();
    block.source.entities = Some(vec![Entity { nets, ..Entity::default() }]);
    egress.destination.entities = Some(vec![members(pods(name, Some((index + 3) % 20)))]);
    egress.destination.ports = vec![PortMatch::Named("http".to_owned())];
    let policy = policy(Order::KUBERNETES, pods(name, Some(index)), Some(vec![allow, block]));
    Policy { egress: Some(vec![egress]), ..policy }
}

/// Marsaglia's 32-bit xorshift: the same shapes in every run.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }
}

/// One endpoint under global policies whose rules each name a network set.
fn with_sets(policies: usize, rules: usize, sizes: impl Iterator<Item = usize>) -> Shape {
    let mut model = Model::default();
    let name = ObjectName::new("a", "pod");
    let addresses = BTreeSet::from([IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))]);
    model.namespaces.insert("a".to_owned(), BTreeMap::new());
    model.endpoints.insert(name.clone(), Arc::new(Endpoint { addresses, ..Endpoint::default() }));
    let mut random = Random(12_345);
    let mut peers = Vec::new();
    let mut sets = 0;
    for size in sizes {
        let mut nets = BTreeSet::new();
        for _ in 0..size {
            let address = 0x0b00_0000 | random.next() & 0x00ff_ffff;
            let len = if random.next().is_multiple_of(64) { 24 } else { 32 };
            let net = Ipv4Net::new(Ipv4Addr::from_bits(address), len);
            nets.extend(net.map(|net| IpNet::V4(net.trunc())));
            peers.push(address);
        }
        let labels = labels(&[("set", format!("s{sets}"))]);
        let key = ObjectName::new("", format!("set-{sets}"));
        model.network_sets.insert(key, Arc::new(NetworkSet { labels, nets }));
        sets += 1;
    }
    for index in 0..policies {
        let list = (0..rules).map(|at| {
            let action = if at % 5 == 0 { Action::Deny } else { Action::Allow };
            let mut rule = Rule::every_packet(at as u32, action);
            rule.protocol = Some(if at % 3 == 0 { 17 } else { 6 });
            let set = format!("s{}", (index * rules + at) % sets);
            rule.source.entities = Some(vec![members(Selector::equals("set", set))]);
            let first = (8000 + (index * 7 + at * 13) % 1000) as u16;
            rule.destination.ports = vec![PortMatch::Range { first, last: first + 9 }];
            rule
        });
        let order = Order::new(index as f64).unwrap_or(Order::LAST);
        let policy = policy(order, Selector::equals(NAMESPACE, "a"), Some(list.collect()));
        let key = PolicyName::new(PolicyKind::Global, "", format!("p{index}"));
        model.policies.insert(key, Arc::new(policy));
    }
    Shape { name: "", what: "", model, local: BTreeSet::from([name]), peers }
}

/// The shape of a large Calico site.
fn site() -> Shape {
    const SETS: usize = 3_708;
    let rest = (256_000 - 54_566) / (SETS - 1);
    let sizes = std::iter::once(54_566).chain(std::iter::repeat_n(rest, SETS - 1));
    Shape {
        name: "site",
        what: "294 policies of 68 rules, 3,708 sets with 256,000 members, on one endpoint",
        ..with_sets(294, 68, sizes)
    }
}

fn sets() -> Shape {
    Shape {
        name: "sets",
        what: "250 policies of 50 rules, each with its own set, on one endpoint",
        ..with_sets(250, 50, std::iter::repeat_n(5, 12_500))
    }
}

/// Selectors that overlap in every way: nearly each address is a class of its own.
fn explosion() -> Shape {
    let mut shape = with_sets(0, 0, std::iter::empty());
    let mut random = Random(777);
    for index in 0..8_000 {
        let mut labels = BTreeMap::new();
        for key in 0..16 {
            if random.next().is_multiple_of(2) {
                labels.insert(format!("l{key}"), format!("v{}", random.next() % 4));
            }
        }
        let address = 0x0a10_0000 + index;
        shape.peers.push(address);
        let addresses = BTreeSet::from([IpAddr::V4(Ipv4Addr::from_bits(address))]);
        let endpoint = Endpoint { labels, addresses, ..Endpoint::default() };
        shape.model.endpoints.insert(ObjectName::new("a", format!("p{index}")), Arc::new(endpoint));
    }
    let rules = (0..2_000u32).map(|index| {
        let mut rule = Rule::every_packet(index, Action::Allow);
        rule.protocol = Some(6);
        let pinned =
            Selector::equals(format!("l{}", random.next() % 16), format!("v{}", random.next() % 4));
        let present = Selector::has(format!("l{}", random.next() % 16));
        rule.source.entities = Some(vec![members(Selector::and([pinned, present]))]);
        let first = 8000 + index as u16;
        rule.destination.ports = vec![PortMatch::Range { first, last: first + 20 }];
        rule
    });
    let policy = policy(Order::LAST, Selector::equals(NAMESPACE, "a"), Some(rules.collect()));
    shape.model.policies.insert(PolicyName::new(PolicyKind::Global, "", "p"), Arc::new(policy));
    let what = "2,000 overlapping selectors on one endpoint, 8,000 identities";
    Shape { name: "explosion", what, ..shape }
}
