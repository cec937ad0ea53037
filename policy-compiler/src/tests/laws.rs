//! Laws over generated models, and what the generator reaches.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::generate::{model, some_local};
use crate::compile::Compiler;
use crate::model::*;
use crate::prove::{Witnesses, prove, prove_against};
use crate::reference::judge;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn compiled_equals_reference_in_every_cell(model in model()) {
        let local = some_local(&model);
        let image = Compiler::new().compile(&model, &local);
        if let Err(counterexample) = prove(&model, &local, &image) {
            prop_assert!(false, "{counterexample}\n{model:#?}\n{image}");
        }
    }

    #[test]
    fn an_image_made_after_others_equals_the_reference(before in model(), model in model()) {
        let local = some_local(&model);
        let mut compiler = Compiler::new();
        compiler.compile(&before, &some_local(&before));
        let image = compiler.compile(&model, &local);
        if let Err(counterexample) = prove(&model, &local, &image) {
            prop_assert!(false, "{counterexample}\n{before:#?}\n{model:#?}\n{image}");
        }
    }

    #[test]
    fn history_leaves_no_trace_in_hash_and_revisions(before in model(), model in model()) {
        let local = some_local(&model);
        let mut compiler = Compiler::new();
        compiler.compile(&before, &some_local(&before));
        let (late, fresh) = (compiler.compile(&model, &local), Compiler::new().compile(&model, &local));
        prop_assert_eq!(late.canonical_hash(), fresh.canonical_hash());
        for name in &local {
            prop_assert_eq!(late.revision(name), fresh.revision(name));
        }
    }

    #[test]
    fn the_same_objects_in_any_order_give_one_image(model in model(), seed in any::<u64>()) {
        let local = some_local(&model);
        let mut shuffled = Model::default();
        let turn = |len: usize| (seed % len.max(1) as u64) as usize;
        let mut policies: Vec<_> = model.policies.clone().into_iter().rev().collect();
        let by = turn(policies.len());
        policies.rotate_left(by);
        shuffled.policies.extend(policies);
        let mut endpoints: Vec<_> = model.endpoints.clone().into_iter().rev().collect();
        let by = turn(endpoints.len());
        endpoints.rotate_left(by);
        shuffled.endpoints.extend(endpoints);
        shuffled.namespaces.extend(model.namespaces.clone().into_iter().rev());
        let (a, b) =
            (Compiler::new().compile(&model, &local), Compiler::new().compile(&shuffled, &local));
        prop_assert_eq!(a.canonical_hash(), b.canonical_hash());
        prop_assert_eq!(a.to_string(), b.to_string());
    }

    #[test]
    fn numbers_that_nobody_gave_out_are_denied(
        model in model(),
        chain in prop_oneof![0u32..40, any::<u32>()],
        peer in prop_oneof![0u32..40, any::<u32>()],
        path in prop_oneof![0u32..40, any::<u32>()],
    ) {
        let image = Compiler::new().compile(&model, &some_local(&model));
        let (chain, peer) = (crate::image::ChainId(chain), crate::image::Identity(peer));
        let transport = Transport { protocol: 6, port: Some(80) };
        let identities = 1..=image.counts().identities as u32;
        let known = image.describe(chain).is_some() && identities.contains(&peer.0);
        let judged = image.path(image.classify(chain, peer, transport));
        if !known {
            prop_assert_eq!(judged.verdict, Verdict::Deny);
        }
        if path as usize >= image.counts().paths {
            prop_assert_eq!(image.path(crate::image::PathId(path)).verdict, Verdict::Deny);
        }
    }
}

/// What a judged cell shows of the generator's reach.
fn features(
    model: &Model,
    reason: &Reason,
    peer: std::net::IpAddr,
    transport: Transport,
) -> Vec<&'static str> {
    let mut features = vec![match reason {
        Reason::NotIsolated(_) => "allowed, not isolated",
        Reason::Rule(_) => "allowed by a rule",
        Reason::Isolated(_, policy) => match &model.policies[policy] {
            PolicyState::Valid(_) => "denied, isolated",
            PolicyState::Invalid(_) => "denied, invalid policy",
        },
        Reason::Unknown(_) => "denied, unknown",
    }];
    let Reason::Rule(name) = reason else { return features };
    let rules = model.policies[&name.policy].rules(name.direction).unwrap();
    let Rule { peers, services } = &rules[name.index as usize];
    features.push(if peer.is_ipv4() { "allowed, IPv4" } else { "allowed, IPv6" });
    let holders = model.endpoints.values().filter(|pod| pod.addresses.contains(&peer)).count();
    features.push(match holders {
        0 => "allowed, no pod",
        1 => "allowed, one pod",
        _ => "allowed, several pods at one address",
    });
    features.push(match peers.as_deref() {
        None => "allowed, all peers",
        Some([Peer::PodsHere(_)]) => "allowed, pods here",
        Some([Peer::PodsIn { .. }]) => "allowed, pods elsewhere",
        Some([Peer::Block(block)]) if block.except().next().is_some() => {
            "allowed, block with except"
        }
        Some([Peer::Block(_)]) => "allowed, block",
        Some(_) => "allowed, several peers",
    });
    features.push(match (services.as_deref(), name.direction) {
        (None, _) => "allowed, all services",
        (Some([Service { port: PortMatch::All, .. }]), _) if transport.port.is_none() => {
            "allowed, protocol without port"
        }
        (Some([Service { port: PortMatch::All, .. }]), _) => "allowed, protocol",
        (Some([Service { port: PortMatch::Range { .. }, .. }]), _) => "allowed, range",
        (Some([Service { port: PortMatch::Named(_), .. }]), Direction::Ingress) => {
            "allowed, named port here"
        }
        (Some([Service { port: PortMatch::Named(_), .. }]), Direction::Egress) => {
            "allowed, named port of the peer"
        }
        (Some(_), _) => "allowed, several services",
    });
    features
}

#[test]
fn the_generator_reaches_every_kind_of_decision() {
    let mut runner = TestRunner::deterministic();
    let mut models_with: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..150 {
        let model = model().new_tree(&mut runner).unwrap().current();
        let local = some_local(&model);
        let image = Compiler::new().compile(&model, &local);
        let mut seen = std::collections::BTreeSet::new();
        let witnesses = Witnesses::of(&model, &local, &image);
        for (at, peer) in witnesses.addresses.iter().enumerate() {
            // Every transport at some peer, every peer with some transports.
            for transport in witnesses.transports.iter().skip(at % 3).step_by(3) {
                for endpoint in &local {
                    for direction in Direction::ALL {
                        let reason = judge(&model, endpoint, direction, *peer, *transport);
                        seen.extend(features(&model, &reason, *peer, *transport));
                    }
                }
            }
        }
        for feature in seen {
            *models_with.entry(feature).or_default() += 1;
        }
    }
    for feature in [
        "allowed, not isolated",
        "allowed by a rule",
        "denied, isolated",
        "denied, invalid policy",
        "denied, unknown",
        "allowed, IPv4",
        "allowed, IPv6",
        "allowed, no pod",
        "allowed, one pod",
        "allowed, several pods at one address",
        "allowed, all peers",
        "allowed, pods here",
        "allowed, pods elsewhere",
        "allowed, block with except",
        "allowed, block",
        "allowed, several peers",
        "allowed, all services",
        "allowed, protocol without port",
        "allowed, protocol",
        "allowed, range",
        "allowed, named port here",
        "allowed, named port of the peer",
        "allowed, several services",
    ] {
        let models = models_with.get(feature).copied().unwrap_or_default();
        assert!(models >= 8, "{feature}: in {models} of 150 models; {models_with:#?}");
    }
}

#[test]
fn a_judge_that_knows_only_verdicts_is_enough_for_a_proof() {
    let mut runner = TestRunner::deterministic();
    let model = model().new_tree(&mut runner).unwrap().current();
    let local = some_local(&model);
    let image = Compiler::new().compile(&model, &local);
    let by_verdict =
        prove_against(&model, &local, &image, |endpoint, direction, peer, transport| {
            judge(&model, endpoint, direction, peer, transport).verdict()
        });
    assert_eq!(by_verdict, prove(&model, &local, &image));
    let contrary = prove_against(&model, &local, &image, |_, _, _, _| Verdict::Allow);
    assert!(contrary.is_err(), "the endpoint that does not exist is denied");
}
