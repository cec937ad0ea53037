//! Oracle, reference and compiled rows agree on generated clusters.
//!
//! A cluster is generated as text and takes the same way as in the product: manifests, store, import, compiler. The
//! reference over the model and the rows of the tables must agree with the oracle over the objects, including the
//! reason, for probes at, next to and between all boundaries, in both directions.
//!
//! A comparison of verdicts that never differ proves nothing. So the run also counts, for each feature of policy, in
//! how many clusters it decided something (see [`ablation`]), and fails if there are too few. `PROPTEST_CASES` sets the
//! number of clusters.

mod ablation;
mod addresses;
mod contract;
mod every_api;
mod matrix;
mod services;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use manx_analysis::proof::{self, Depth};
use manx_calculation::import::{Cluster as Imported, import};
use manx_fixtures::cluster::{Cluster, Manifest};
use manx_fixtures::{generate, probe};
use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::ObjectKey;
use manx_oracle::{Oracle, Packet, Party, VerdictReason};
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::{
    Direction, ObjectName, PolicyKind, PolicyName, Protocol, Reason, RuleName, Transport, Verdict,
};
use manx_policy_compiler::reference::{self, Reference};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseError, TestRng, TestRunner};

use ablation::Feature;

/// The number of clusters of a run, unless `PROPTEST_CASES` is set.
const CASES: u32 = 96;
/// The number of packets for each cluster.
const PROBES: usize = 250;

/// The number of clusters that `PROPTEST_CASES` requests.
fn asked_for() -> Option<u32> {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok())
}

fn config(share: u32) -> Config {
    Config {
        cases: (asked_for().unwrap_or(CASES) / share).max(1),
        // A failure prints its cluster, which is the better regression test.
        failure_persistence: None,
        ..Config::default()
    }
}

/// Counts are asserted, so the clusters are always the same, unless `PROPTEST_CASES` is set.
fn counting_runner(config: Config) -> TestRunner {
    if asked_for().is_some() {
        return TestRunner::new(config);
    }
    let algorithm = config.rng_algorithm;
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(algorithm))
}

fn contents(cluster: &Cluster) -> Contents {
    Contents::from_texts([("cluster.yaml", &*cluster.to_yaml())])
}

/// A choice among the things that a cluster has.
type Choice = (Index, bool, Index, Index, Index);

fn choices() -> impl Strategy<Value = Vec<Choice>> {
    prop::collection::vec(any::<Choice>(), PROBES)
}

/// One packet between a pod and a peer.
#[derive(Debug, Clone)]
struct Probe {
    local: ObjectName,
    local_address: IpAddr,
    direction: Direction,
    peer: IpAddr,
    transport: Transport,
}

/// The probes that `choices` select from a cluster; none if it has no endpoint.
fn probes(cluster: &Cluster, imported: &Imported, choices: &[Choice]) -> Vec<Probe> {
    let locals: Vec<(&ObjectName, IpAddr)> = imported
        .model
        .endpoints
        .iter()
        .flat_map(|(name, endpoint)| endpoint.addresses.iter().map(move |ip| (name, *ip)))
        .collect();
    if locals.is_empty() {
        return Vec::new();
    }
    let addresses = probe::addresses(cluster);
    let ports = probe::ports(cluster);
    choices
        .iter()
        .map(|(local, ingress, peer, protocol, port)| {
            let (local, local_address) = *local.get(&locals);
            let family: Vec<IpAddr> = addresses
                .iter()
                .copied()
                .filter(|address| address.is_ipv4() == local_address.is_ipv4())
                .collect();
            let protocol = *protocol.get(&probe::PROTOCOLS);
            // Some of the probes have no port, like a later fragment.
            let shows = matches!(protocol, 6 | 17 | 132) && port.index(ports.len() + 1) > 0;
            Probe {
                local: local.clone(),
                local_address,
                direction: if *ingress { Direction::Ingress } else { Direction::Egress },
                peer: *peer.get(&family),
                transport: transport(protocol, shows.then(|| *port.get(&ports))),
            }
        })
        .collect()
}

/// A packet in the types of the model: protocol, and destination port if there is one.
fn transport(protocol: u8, port: Option<u16>) -> Transport {
    match (Protocol::from_number(protocol), port) {
        (Some(protocol), Some(port)) => Transport::ports(protocol, 49_152, port),
        _ => Transport::bare(protocol),
    }
}

/// The same packet in the types of the oracle.
fn asked(transport: Transport) -> Packet {
    Packet::to_port(transport.protocol, transport.destination_port())
}

/// The oracle's verdict of one side, in the words of the model.
fn by_oracle(oracle: &Oracle, probe: &Probe) -> Option<Reason> {
    let local = Party::Pod {
        namespace: probe.local.namespace.clone(),
        name: probe.local.name.clone(),
        address: probe.local_address,
    };
    let peer = Party::Address(probe.peer);
    let packet = asked(probe.transport);
    let verdict = match probe.direction {
        Direction::Egress => oracle.judge(&local, &peer, packet).egress,
        Direction::Ingress => oracle.judge(&peer, &local, packet).ingress,
    };
    reason(verdict.why, probe.direction)
}

/// The reason in the words of the model. `None` if the model cannot express it.
fn reason(explanation: VerdictReason, direction: Direction) -> Option<Reason> {
    let named =
        |key: &ObjectKey| PolicyName::new(PolicyKind::Kubernetes, &key.namespace, &key.name);
    match explanation {
        VerdictReason::DefaultProfile(_) => Some(Reason::NotIsolated(direction)),
        VerdictReason::InvalidPeer => Some(Reason::Unknown(direction)),
        VerdictReason::Rule { rule, .. } => {
            let index = u32::try_from(rule.index).ok()?;
            let rule = RuleName { policy: named(&rule.policy).into(), direction, index };
            Some(Reason::Rule(rule, Verdict::Allow))
        }
        VerdictReason::TierEnd { policies, .. } => {
            Some(Reason::Isolated(direction, named(policies.first()?)))
        }
        _ => None,
    }
}

fn by_rows(image: &Image, probe: &Probe) -> Option<Reason> {
    let chain = image.chain(&probe.local, probe.direction)?;
    let (local, peer) = (image.identity(probe.local_address), image.identity(probe.peer));
    let path = image.classify(chain, local, peer, probe.transport);
    Some(image.path(path).decision.reason.clone())
}

fn all_local(imported: &Imported) -> BTreeSet<ObjectName> {
    imported.model.endpoints.keys().cloned().collect()
}

#[test]
fn oracle_reference_and_rows_agree_and_every_feature_decides_something() {
    let decided: RefCell<BTreeMap<Feature, u32>> = RefCell::default();
    let reasons: RefCell<BTreeMap<&'static str, u32>> = RefCell::default();
    let config = config(1);
    let cases = config.cases;
    let result =
        counting_runner(config).run(&(generate::cluster(), choices()), |(cluster, choices)| {
            let contents = contents(&cluster);
            let imported = import(&contents);
            let oracle = Oracle::new(&contents.objects);
            let image = Compiler::new().compile(&imported.model, &all_local(&imported));
            let probes = probes(&cluster, &imported, &choices);
            let judge = Reference::new(&imported.model);
            for probe in &probes {
                let oracle = by_oracle(&oracle, probe);
                let packet = reference::Packet {
                    local: probe.local_address,
                    peer: probe.peer,
                    transport: probe.transport,
                };
                let reference = judge.judge(&probe.local, probe.direction, &packet).reason;
                let rows = by_rows(&image, probe);
                let text = || format!("{probe:?}\n{}", cluster.to_yaml());
                prop_assert_eq!(oracle.as_ref(), Some(&reference), "oracle, reference: {}", text());
                prop_assert_eq!(rows.as_ref(), Some(&reference), "rows, reference: {}", text());
                *reasons.borrow_mut().entry(kind(&reference)).or_default() += 1;
            }
            for feature in Feature::ALL {
                let Some(objects) = feature.ablate(&contents.objects) else { continue };
                let without = Oracle::new(&objects);
                let verdict =
                    |oracle, probe| by_oracle(oracle, probe).map(|reason| reason.verdict());
                // If a pod is no endpoint without the feature, the comparison does not show
                // anything about the verdict.
                let differs = |probe| {
                    verdict(&without, probe)
                        .is_some_and(|other| Some(other) != verdict(&oracle, probe))
                };
                if probes.iter().any(differs) {
                    *decided.borrow_mut().entry(feature).or_default() += 1;
                }
            }
            Ok(())
        });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (decided, reasons) = (decided.into_inner(), reasons.into_inner());
    println!("{cases} clusters: {reasons:?}\n{decided:?}");
    for kind in ["not isolated", "rule", "isolated"] {
        let count = reasons.get(kind).copied().unwrap_or(0);
        assert!(count >= cases * 10, "only {count} probes were {kind}: {reasons:?}");
    }
    for feature in Feature::ALL {
        let count = decided.get(&feature).copied().unwrap_or(0);
        assert!(
            count >= feature.at_least(cases),
            "{feature:?} decided something in only {count} of {cases} clusters: {decided:?}"
        );
    }
}

fn kind(reason: &Reason) -> &'static str {
    match reason {
        Reason::NotIsolated(_) => "not isolated",
        Reason::Rule(..) => "rule",
        Reason::Isolated(..) => "isolated",
        _ => "other",
    }
}

/// Runs `law` on generated clusters.
fn check(share: u32, law: impl Fn(&Cluster) -> Result<(), TestCaseError>) {
    let result = TestRunner::new(config(share)).run(&generate::cluster(), |cluster| law(&cluster));
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn the_oracle_agrees_with_every_cell_of_the_compiled_tables() {
    check(4, |cluster| {
        let contents = contents(cluster);
        let imported = import(&contents);
        let oracle = Oracle::new(&contents.objects);
        let local = all_local(&imported);
        let image = Compiler::new().compile(&imported.model, &local);
        let proof = proof::prove(&oracle, &local, &image, Depth::Every, |_, _| {});
        if let Err(counterexample) = proof {
            return Err(TestCaseError::fail(format!("{counterexample}\n{}", cluster.to_yaml())));
        }
        Ok(())
    });
}

#[test]
fn a_connection_passes_where_both_sides_of_the_reference_allow_it() {
    let strategy = (generate::cluster(), choices());
    let result = TestRunner::new(config(2)).run(&strategy, |(cluster, choices)| {
        let contents = contents(&cluster);
        let imported = import(&contents);
        let oracle = Oracle::new(&contents.objects);
        let pods: Vec<Party> = oracle.pods().collect();
        if pods.is_empty() {
            return Ok(());
        }
        let ports = probe::ports(&cluster);
        let judge = Reference::new(&imported.model);
        for (from, _, to, protocol, port) in choices {
            let (from, to) = (from.get(&pods), to.get(&pods));
            if from.address().is_ipv4() != to.address().is_ipv4() {
                continue;
            }
            let protocol = *protocol.get(&probe::PROTOCOLS);
            let port = matches!(protocol, 6 | 17 | 132).then(|| *port.get(&ports));
            let side = |local: &Party, direction, peer: &Party| {
                let transport = transport(protocol, port);
                let packet =
                    reference::Packet { local: local.address(), peer: peer.address(), transport };
                judge.judge(&name(local), direction, &packet).reason.verdict()
            };
            let both = side(from, Direction::Egress, to) == Verdict::Allow
                && side(to, Direction::Ingress, from) == Verdict::Allow;
            let expected = both || name(from) == name(to);
            let judgement = oracle.judge(from, to, Packet::to_port(protocol, port));
            prop_assert_eq!(judgement.allowed(), expected, "{} to {}: {}", from, to, judgement);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn name(party: &Party) -> ObjectName {
    match party {
        Party::Pod { namespace, name, .. } => ObjectName::new(namespace, name),
        Party::Node { .. } | Party::Address(_) => panic!("{party} is no pod"),
    }
}

#[test]
fn the_same_objects_in_yaml_and_json_and_in_any_order_give_the_same_tables() {
    check(2, |cluster| {
        let hash = |imported: &Imported| {
            Compiler::new().compile(&imported.model, &all_local(imported)).canonical_hash()
        };
        let yaml = import(&contents(cluster));
        let json = import(&Contents::from_texts([("cluster.json", &*cluster.to_json())]));
        let mut documents: Vec<String> =
            cluster.objects().iter().map(manx_fixtures::yaml::Yaml::to_yaml).collect();
        documents.reverse();
        let backward = documents.join("---\n");
        let backward = import(&Contents::from_texts([("cluster.yaml", &*backward)]));
        prop_assert_eq!(&yaml.model, &json.model);
        prop_assert_eq!(&yaml.model, &backward.model);
        prop_assert_eq!(hash(&yaml), hash(&backward));
        Ok(())
    });
}

#[test]
fn exactly_the_objects_that_were_broken_are_invalid() {
    check(1, |cluster| {
        let mut broken: BTreeSet<String> = BTreeSet::new();
        let namespaces = cluster.namespaces.iter();
        broken.extend(
            namespaces
                .filter(|namespace| namespace.manifest == Manifest::Invalid)
                .map(|namespace| format!("Namespace {}", namespace.name)),
        );
        let pods = cluster.pods.iter().filter(|pod| !pod.valid);
        broken.extend(pods.map(|pod| format!("Pod {}/{}", pod.namespace, pod.name)));
        let policies = cluster.policies.iter().filter(|policy| policy.broken.is_some());
        broken.extend(policies.map(|p| format!("NetworkPolicy {}/{}", p.namespace, p.name)));
        let contents = contents(cluster);
        let invalid: BTreeSet<String> = contents
            .objects
            .iter()
            .filter(|(_, stored)| matches!(stored.state, State::Invalid(_)))
            .map(|(key, _)| key.to_string())
            .collect();
        prop_assert_eq!(invalid, broken, "{:?}\n{}", contents.problems, cluster.to_yaml());
        Ok(())
    });
}

#[test]
fn a_compiler_that_has_seen_other_clusters_compiles_as_a_new_one() {
    let strategy = prop::collection::vec(generate::cluster(), 3);
    let result = TestRunner::new(config(4)).run(&strategy, |clusters| {
        let mut old = Compiler::new();
        for cluster in clusters {
            let imported = import(&contents(&cluster));
            let local = all_local(&imported);
            let image = old.compile(&imported.model, &local);
            let new = Compiler::new().compile(&imported.model, &local);
            prop_assert_eq!(image.canonical_hash(), new.canonical_hash());
            if let Err(counterexample) = reference::prove(&imported.model, &local, &image) {
                return Err(TestCaseError::fail(counterexample.to_string()));
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
