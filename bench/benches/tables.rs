//! The cost of one lookup: of an address and a service in the classifier, and of a connection in the flow table.
//!
//! Addresses and flows are looked up in a shuffled order, so that large tables do not profit from one hot cache line.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use manx_dataplane::flow::{FlowEntry, FlowKey, FlowTable, HashSeed, Owner, TcpFlags};
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::model::{
    Action, AddressSet, Direction, Endpoint, Entity, Hook, Interner, KUBERNETES, Model, NAMESPACE,
    ORCHESTRATOR, ObjectName, Order, Policy, PolicyKind, PolicyName, PortMatch, Protocol, Rule,
    Transport,
};
use manx_policy_compiler::selector::Selector;

const TCP: u8 = 6;
/// The number of pods of this node; the other pods are on other nodes.
const LOCAL: usize = 100;
const NAMESPACES: usize = 50;
const APPS: usize = 20;

/// Shuffles cheaply: the multiplier permutes all 32-bit numbers.
fn shuffled(index: u32, below: u32) -> u32 {
    index.wrapping_mul(2_654_435_761) % below
}

fn pod_address(index: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + index as u32)
}

fn name(index: usize) -> ObjectName {
    ObjectName::new(format!("ns-{}", index % NAMESPACES), format!("pod-{index}"))
}

fn app(namespace: usize, index: usize) -> Selector {
    Selector::and([
        Selector::equals(NAMESPACE, format!("ns-{namespace}")),
        Selector::equals(ORCHESTRATOR, KUBERNETES),
        Selector::equals("app", format!("app-{index}")),
    ])
}

/// A model with `pods` pods of [`APPS`] apps in [`NAMESPACES`] namespaces. For each app of each namespace, a policy
/// admits the next app and a block, on a port and on a range of ports.
fn model(pods: usize) -> Model {
    let mut model = Model::default();
    for namespace in 0..NAMESPACES {
        model.namespaces.insert(format!("ns-{namespace}"), BTreeMap::new());
        for index in 0..APPS {
            let block = ipnet::Ipv4Net::new_assert(
                Ipv4Addr::new(192, 168, (namespace * APPS + index) as u8, 0),
                24,
            );
            let pods = Some(app(namespace, (index + 1) % APPS));
            let nets = BTreeSet::from([block.into()]);
            let mut rule = Rule::every_packet(0, Action::Allow);
            rule.protocol = Some(TCP);
            rule.source.entities = Some(vec![
                Entity { selector: pods, ..Entity::default() },
                Entity { nets, ..Entity::default() },
            ]);
            rule.destination.ports = vec![
                PortMatch::Range { first: 8080, last: 8080 },
                PortMatch::Range { first: 9000 + index as u16, last: 9100 },
            ];
            let policy = Policy {
                tier: "default".to_owned(),
                order: Order::KUBERNETES,
                selector: app(namespace, index),
                hook: Hook::Endpoint,
                ingress: Some(vec![rule]),
                egress: None,
                broken: false,
            };
            let (namespace, name) = (format!("ns-{namespace}"), format!("policy-{index}"));
            let name = PolicyName::new(PolicyKind::Kubernetes, namespace, name);
            model.policies.insert(name, Arc::new(policy));
        }
    }
    let mut label_sets = Interner::default();
    for index in 0..pods {
        let endpoint = Endpoint {
            labels: label_sets.intern(Cow::Owned(BTreeMap::from([(
                "app".to_owned(),
                format!("app-{}", index / NAMESPACES % APPS),
            )]))),
            addresses: AddressSet::from([IpAddr::V4(pod_address(index))]),
            ..Endpoint::default()
        };
        model.endpoints.insert(name(index), Arc::new(endpoint));
    }
    model
}

fn classifier(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("classifier");
    for pods in [1_000, 10_000, 100_000] {
        let model = model(pods);
        let local: BTreeSet<ObjectName> = (0..LOCAL).map(name).collect();
        let image = Compiler::new().compile(&model, &local);
        let chains: Vec<_> =
            local.iter().filter_map(|pod| image.chain(pod, Direction::Ingress)).collect();
        let own = image.identity_v4(pod_address(0).to_bits());
        let mut index = 0u32;
        group.bench_function(BenchmarkId::new("lookup", pods), |bencher| {
            bencher.iter(|| {
                index = index.wrapping_add(1);
                let address = 0x0a00_0000 + shuffled(index, pods as u32);
                let chain = chains[index as usize % chains.len()];
                let port = 8080 + (index % 1100) as u16;
                let peer = image.identity_v4(black_box(address));
                let packet = Transport::ports(Protocol::Tcp, 49_152, port);
                black_box(image.classify(chain, own, peer, packet))
            });
        });
        group.sample_size(10);
        group.bench_function(BenchmarkId::new("compile", pods), |bencher| {
            bencher.iter_batched(
                Compiler::new,
                |mut compiler| black_box(compiler.compile(&model, &local)),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn key(index: u32) -> (FlowKey, manx_dataplane::flow::Orientation) {
    let source = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + (index >> 8)));
    let destination = IpAddr::V4(Ipv4Addr::new(10, 200, 0, 1));
    FlowKey::new(source.into(), destination.into(), 1024 + (index & 0xff) as u16, 80, TCP)
}

fn flows(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("flows");
    for count in [1_000u32, 100_000, 1_000_000] {
        let Ok(mut table) = FlowTable::new(count as usize, HashSeed::random()) else { continue };
        for index in 0..count {
            let (key, orientation) = key(index);
            let entry = FlowEntry::open(key, orientation, TcpFlags::SYN, 0);
            let hash = table.hash(&key);
            table
                .insert(hash, table.find(hash, &key), Owner::NODE, 0, |place| place.replace(entry));
        }
        let mut index = 0u32;
        group.bench_function(BenchmarkId::new("hit", count), |bencher| {
            bencher.iter(|| {
                index = index.wrapping_add(1);
                let (key, _) = key(shuffled(index, count));
                let hash = table.hash(&key);
                let guess = table.guess(hash);
                black_box(table.lookup_guessed(&key, guess, 0).is_some())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, classifier, flows);
criterion_main!(benches);
