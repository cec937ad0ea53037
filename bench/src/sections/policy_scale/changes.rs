//! The time until an image follows changes of policies, network sets and pods.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::compile::PodChange;
use manx_policy_compiler::model::{
    Action, NetworkSet, ObjectName, Order, PolicyKind, PolicyName, PortMatch, Rule,
};
use manx_policy_compiler::selector::Selector;

use super::shapes::{Shape, members, policy, shuffled};

/// Removes and adds pods of other nodes, one by one, in an image in use. Returns the time of each change, and the
/// number of changes that could not be stored in this image.
pub(super) fn pod_changes(shape: &Shape, count: usize) -> (Vec<Duration>, usize) {
    let mut model = shape.model.clone();
    let mut compiler = Compiler::new();
    let image = compiler.compile(&model, &shape.local);
    let elsewhere = model.endpoints.keys().filter(|name| !shape.local.contains(*name));
    let names: Vec<ObjectName> = elsewhere.take(count).cloned().collect();
    let (mut times, mut refused) = (Vec::new(), 0);
    for name in &names {
        let Some(pod) = model.endpoints.remove(name) else { continue };
        let start = Instant::now();
        let change = PodChange { name, before: Some(&pod), after: None };
        let removed = compiler.update(&image, &model, change);
        times.push(start.elapsed());
        model.endpoints.insert(name.clone(), Arc::clone(&pod));
        let start = Instant::now();
        let change = PodChange { name, before: None, after: Some(&pod) };
        let added = compiler.update(&image, &model, change);
        times.push(start.elapsed());
        refused += usize::from(!removed) + usize::from(!added);
    }
    (times, refused)
}

/// Measures the times to compile after changes of a policy that selects every local endpoint. Returns the times after
/// changes of its ports, and the times after changes of its peers, which it selects by a label that no other policy
/// uses.
pub(super) fn policy_changes(shape: &Shape, rounds: usize) -> [Vec<Duration>; 2] {
    let mut model = shape.model.clone();
    let mut compiler = Compiler::new();
    let name = PolicyName::new(PolicyKind::Global, "", "of-everybody");
    let (mut ports, mut peers) = (Vec::new(), Vec::new());
    for index in 0..rounds as u16 {
        for (times, new_label) in [(&mut ports, false), (&mut peers, true)] {
            let mut allow = Rule::every_packet(0, Action::Allow);
            allow.protocol = Some(6);
            allow.destination.ports = vec![PortMatch::Range { first: index, last: index }];
            if new_label {
                let selector = Selector::equals("new", format!("{index}"));
                allow.source.entities = Some(vec![members(selector)]);
            }
            let policy = policy(Order::KUBERNETES, Selector::all(), Some(vec![allow]));
            model.policies.insert(name.clone(), Arc::new(policy));
            // The image after a change of peers shares nothing with the one before. So before a change of ports is
            // measured, an image with these peers is compiled.
            if !new_label {
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
    [ports, peers]
}

/// Measures the times to compile after one more network set is added, changed and removed. It has the labels of the
/// first set, so the same rules select it. The result is empty for a shape without sets.
pub(super) fn set_changes(shape: &Shape, rounds: usize) -> Vec<Duration> {
    let mut model = shape.model.clone();
    let Some(labels) = model.network_sets.values().next().map(|set| set.labels.clone()) else {
        return Vec::new();
    };
    let mut compiler = Compiler::new();
    let mut image = compiler.compile(&model, &shape.local);
    let name = ObjectName::new("", "one-more");
    let set = |index: usize| {
        let address = |at| Ipv4Addr::from_bits(0x0b00_0000 | shuffled(at, 1 << 24) as u32);
        let addresses = (0..5).map(|at| IpAddr::V4(address((index * 5 + at) as u32)));
        let nets = addresses.map(IpNet::from).collect();
        Arc::new(NetworkSet { labels: labels.clone(), nets })
    };
    let mut times = Vec::new();
    for round in 0..rounds {
        for set in [Some(set(round * 2)), Some(set(round * 2 + 1)), None] {
            match set {
                Some(set) => model.network_sets.insert(name.clone(), set),
                None => model.network_sets.remove(&name),
            };
            let start = Instant::now();
            let next = compiler.compile(&model, &shape.local);
            times.push(start.elapsed());
            image = next;
        }
    }
    std::hint::black_box(image);
    times
}
