//! The proof can fail: in a small cluster in which every part affects some decision, it finds every single change to
//! the tables, except for changes without an effect on results.

use std::collections::{BTreeMap, BTreeSet};

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

use super::build::*;
use crate::compile::Compiler;
use crate::image::Leaf;
use crate::image::OTHERS;
use crate::image::{ChainId, Identity, Image, LINEAR, PathId, PeerTables};
use crate::image::{NO_KEY, PacketKey, STEPS, Target};
use crate::model::*;
use crate::peers::{ClassMap, NO_CLASS};
use crate::prefix_map::PrefixMap;
use crate::reference::prove;
use crate::resolve::{RuleEffect, Steps};

fn cluster() -> Cluster {
    Cluster::new()
        .namespace("shop", "team=a")
        .tier("first", 1.0, DefaultAction::Deny)
        .pod_with("shop/web", "app=web", "10.0.0.1 fd00::1", "http=tcp/8080")
        .pod_with("ops/db", "app=db", "10.0.0.2 fd00::2", "sql=tcp/5432")
        .host("eth0", "app=node", "192.0.2.10 2001:db8::10", "open")
        .profile("open", "", [allow().from([not_who("has(zone)")])], [])
        .network_set("far", "zone=far", "198.51.100.0/24 2001:db8:1::/48")
        .service("ops/sql", "10.0.0.2 fd00::2", "tcp/5432")
        .failsafe("tcp/22@198.51.100.0/24", "")
        .unknown("203.0.113.1")
        .policy(staged("draft").selects("app == 'web'").ingress([deny().tcp("8080")]))
        .policy(global("first").tier("first").selects("app == 'web'").ingress([
            log().icmp(ICMP, Some(8), Some(0)),
            pass().from([who("app == 'db'")]),
            allow().tcp("http").from([who("zone == 'far'")]),
            pass().from([nets("10.0.0.0/8 fd00::/64").but("10.9.0.0/16")]),
        ]))
        .policy(kubernetes("shop/web").ingress([allow().tcp("80"), allow().of(50)]))
        .policy(kubernetes("shop/out").egress([
            allow().to([serving("ops/sql")]),
            allow().udp("53").to([nets("192.0.2.0/24 2001:db8::/32")]),
        ]))
        .policy(global("sources").selects("app == 'db'").ingress([
            deny().tcp("80-90").source_ports("1-1023"),
            allow().from([nets("10.0.0.0/8 fd00::/64")]),
        ]))
        .policy(
            global("forward")
                .hook(Hook::Forward)
                .selects("app == 'node'")
                .ingress([allow().tcp("25").from([who("zone == 'far'")])]),
        )
        .policy(
            global("early")
                .hook(Hook::PreDnat)
                .selects("app == 'node'")
                .ingress([deny().not_of(51)]),
        )
}

/// The number of mutations that were found, and the number of those that change no result.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    found: usize,
    same: usize,
}

struct Bench {
    cluster: Cluster,
    image: Image,
    counts: Count,
    wrong: Vec<String>,
}

impl Bench {
    fn new(budget: usize) -> Self {
        let cluster = cluster();
        let image = Compiler::with_budget(budget).compile(&cluster.model, &cluster.all());
        prove(&cluster.model, &cluster.all(), &image).unwrap();
        Self { cluster, image, counts: Count::default(), wrong: Vec::new() }
    }

    fn with_rows() -> Self {
        let bench = Self::new(usize::MAX);
        assert_eq!(bench.image.counts().linear, 0);
        bench
    }

    fn refuted(&self) -> bool {
        prove(&self.cluster.model, &self.cluster.all(), &self.image).is_err()
    }

    fn count(&mut self, refuted: bool, same: bool, what: &str) {
        match (refuted, same) {
            (true, false) => self.counts.found += 1,
            (false, true) => self.counts.same += 1,
            _ => self.wrong.push(format!("found {refuted}, means the same {same}: {what}")),
        }
    }

    /// Asserts that exactly the changes that change a result were found, and their numbers.
    #[track_caller]
    fn finish(&self, found: usize, same: usize) {
        assert!(
            self.wrong.is_empty(),
            "{} of {:?}:\n{:#?}",
            self.wrong.len(),
            self.counts,
            &self.wrong[..self.wrong.len().min(12)]
        );
        assert_eq!(self.counts, Count { found, same });
    }

    /// Changes a value, runs the proof, and restores the value. `same` says whether the change leaves every result the
    /// same.
    #[track_caller]
    fn change<T: Clone + PartialEq + std::fmt::Debug>(
        &mut self,
        place: impl Fn(&mut Image) -> &mut T,
        value: T,
        same: impl Fn(&Image, &T, &T) -> bool,
    ) {
        let old = std::mem::replace(place(&mut self.image), value);
        let refuted = self.refuted();
        let value = std::mem::replace(place(&mut self.image), old.clone());
        assert_ne!(old, value, "no mutation");
        let same = same(&self.image, &old, &value);
        self.count(refuted, same, &format!("{old:?} to {value:?}"));
    }
}

/// Another one of `len` numbers, and a number that is out of range.
fn others(at: u32, len: u32) -> impl Iterator<Item = u32> {
    BTreeSet::from([at.wrapping_add(1) % len, len]).into_iter().filter(move |other| *other != at)
}

/// The address tables, which no other image shares.
fn peers(image: &mut Image) -> &mut PeerTables {
    Arc::get_mut(&mut image.peers).unwrap()
}

fn never<T>(_: &Image, _: &T, _: &T) -> bool {
    false
}

#[test]
fn a_changed_verdict_reason_or_note_is_found() {
    let mut bench = Bench::with_rows();
    for at in 0..bench.image.paths.len() {
        let path = bench.image.paths[at].clone();
        let flipped = match path.verdict {
            Verdict::Allow => Verdict::Deny,
            Verdict::Deny => Verdict::Allow,
        };
        bench.change(|image| &mut Arc::make_mut(&mut image.paths)[at].verdict, flipped, never);
        let other =
            Reason::Broken(Direction::Ingress, PolicyName::new(PolicyKind::Global, "", "x"));
        bench.change(
            |image| &mut Arc::make_mut(&mut Arc::make_mut(&mut image.paths)[at].decision).reason,
            other,
            never,
        );
        let rule = RuleName {
            policy: PolicyName::new(PolicyKind::Global, "", "x").into(),
            direction: Direction::Ingress,
            index: 0,
        };
        let noted = [path.decision.noted.clone(), vec![Noted::Rule(rule, Action::Log)]].concat();
        bench.change(
            |image| &mut Arc::make_mut(&mut Arc::make_mut(&mut image.paths)[at].decision).noted,
            noted,
            never,
        );
    }
    bench.finish(87, 0);
}

/// The number of intervals in a line.
fn intervals(image: &Image, line: usize) -> usize {
    1 + image.lines.all[line].starts().filter(|start| *start <= NO_KEY).count()
}

/// The path to which a target leads packets from a source port.
fn leads(image: &Image, mut place: Target, source: u32) -> Option<PathId> {
    let packet = PacketKey::new(0, 0, source);
    for _ in 0..STEPS {
        if place.is_line() {
            place = image.lines.next(place, packet)?;
        }
    }
    place.as_path()
}

/// Which tables of rows lead to a line: those keyed by port, and the others.
fn led_to_by(image: &Image, line: usize) -> [bool; 2] {
    let here = [Target::by_key(line as u32), Target::by_source(line as u32)];
    let mut all: Vec<Target> = here.to_vec();
    for _ in 0..3 {
        let lines = image.lines.all.iter().enumerate();
        let above = lines.filter(|(_, line)| line.to.iter().any(|to| all.contains(to)));
        let above: Vec<u32> = above.map(|(at, _)| at as u32).collect();
        all.extend(above.iter().flat_map(|at| [Target::by_key(*at), Target::by_source(*at)]));
    }
    let leads = |tables: std::ops::Range<usize>| {
        image.lines.rows[tables].iter().flatten().any(|to| all.contains(to))
    };
    [leads(0..3), leads(3..6)]
}

#[test]
fn a_moved_bound_is_found() {
    let mut bench = Bench::with_rows();
    for line in 0..bench.image.lines.all.len() {
        for at in 0..intervals(&bench.image, line) - 1 {
            let old = bench.image.lines.all[line];
            let start = old.starts().nth(at).unwrap();
            for moved in [start - 1, start + 1] {
                let mut new = old;
                new.set_start(at, moved);
                bench.change(|image| &mut image.lines.all[line], new, never);
            }
        }
    }
    for number in 0..bench.image.lines.leaves.len() {
        let intervals = bench.image.lines.leaves[number].intervals();
        for at in 1..intervals.len() - 1 {
            let start = intervals[at].start;
            for moved in [start - 1, start + 1] {
                let mut new = intervals.clone();
                new[at].start = moved;
                // There is no key before the first key.
                if moved == 0 {
                    new.remove(0);
                }
                let new = Leaf::from_intervals(&new).unwrap();
                bench.change(|image| &mut image.lines.leaves[number], new, never);
            }
        }
    }
    bench.finish(88, 0);
}

#[test]
fn a_changed_path_of_an_interval_is_found() {
    let mut bench = Bench::with_rows();
    let (paths, lines) = (bench.image.paths.len() as u32, bench.image.lines.all.len() as u32);
    let leaves = bench.image.lines.leaves.len() as u32;
    let by_source = |image: &Image| -> Vec<Target> {
        let leaves = (0..leaves).map(|leaf| Target::by_source(leaf).leaf());
        let all = (0..lines).map(Target::by_source).chain(leaves);
        all.filter(|to| {
            let led = image.lines.all.iter().flat_map(|line| line.to);
            led.chain(image.lines.rows.iter().flatten().copied()).any(|other| other == *to)
        })
        .collect()
    };
    let runs = by_source(&bench.image);
    assert!(!runs.is_empty());
    let other_places = |was: Target| -> Vec<Target> {
        let of_path = others(was.as_path().map_or(0, |path| path.0), paths);
        let of_path = of_path.map(|path| Target::path(PathId(path)));
        of_path.chain(runs.iter().copied()).filter(|to| *to != was).collect()
    };
    for line in 0..lines as usize {
        // A packet without ports is looked up with source port 0.
        let shows_no_ports = !led_to_by(&bench.image, line)[0];
        let asks_source = runs.contains(&Target::by_source(line as u32));
        let old = bench.image.lines.all[line];
        let starts: Vec<u32> = std::iter::once(0).chain(old.starts()).collect();
        for at in 0..intervals(&bench.image, line) {
            let sources = match starts[at..] {
                [NO_KEY, ..] => 0..1,
                [start, next, ..] if asks_source => start..next.min(NO_KEY),
                [start] if asks_source => start..NO_KEY,
                _ if shows_no_ports => 0..1,
                _ => 0..NO_KEY,
            };
            for place in other_places(old.to[at]) {
                let mut new = old;
                new.to[at] = place;
                bench.change(
                    |image| &mut image.lines.all[line],
                    new,
                    |image, old, new| {
                        // A line that leads to itself leads nowhere.
                        new.to[at] != Target::by_source(line as u32)
                            && sources.clone().all(|source| {
                                leads(image, old.to[at], source) == leads(image, new.to[at], source)
                            })
                    },
                );
            }
        }
    }
    for number in 0..leaves as usize {
        let intervals = bench.image.lines.leaves[number].intervals();
        // A packet without a key gets the path of the first interval.
        for at in 0..intervals.len() - 1 {
            let was = intervals[at].to.as_path().map_or(0, |path| path.0);
            for path in others(was, paths).map(PathId) {
                let mut new = intervals.clone();
                new[at].to = Target::path(path);
                let new = Leaf::from_intervals(&new).unwrap();
                bench.change(|image| &mut image.lines.leaves[number], new, never);
            }
        }
    }
    for row in 0..bench.image.lines.len() {
        for table in 0..=OTHERS {
            for place in other_places(bench.image.lines.rows[table][row]) {
                bench.change(
                    |image| &mut image.lines.rows[table][row],
                    place,
                    |image, old, new| table >= 3 && leads(image, *old, 0) == leads(image, *new, 0),
                );
            }
        }
    }
    bench.finish(658, 6);
}

#[test]
fn a_changed_row_of_a_cell_is_found() {
    let mut bench = Bench::with_rows();
    let rows = bench.image.lines.len() as u32;
    for at in 0..bench.image.cells.len() {
        for row in others(bench.image.cells[at], rows).chain([LINEAR]) {
            bench.change(|image| &mut image.cells[at], row, never);
        }
    }
    bench.finish(468, 0);
}

/// Whether every chain has one row for both classes. For a chain that is evaluated rule by rule, the predicate sets are
/// compared.
fn rows_of_classes_are_equal(image: &Image, a: u32, b: u32) -> bool {
    let rows = |class: u32| -> Option<Vec<u32>> {
        let chains = (0..image.chains.len() as u32).map(ChainId);
        chains.map(|chain| image.cell(chain, class as usize)).collect()
    };
    a < image.peers.class_predicate_sets.len() as u32
        && b < image.peers.class_predicate_sets.len() as u32
        && rows(a) == rows(b)
}

#[test]
fn a_changed_class_of_an_identity_is_found() {
    let mut bench = Bench::with_rows();
    let classes = bench.image.peers.class_predicate_sets.len() as u32;
    let (first, all) = (bench.image.peers.classes.first(), bench.image.peers.classes.all());
    for at in 0..bench.image.counts().identities {
        for class in (0..=classes).chain([NO_CLASS]).filter(|class| *class != all[at]) {
            let mut changed = all.clone();
            changed[at] = class;
            peers(&mut bench.image).classes = ClassMap::new(first, &changed);
            let refuted = bench.refuted();
            let same = rows_of_classes_are_equal(&bench.image, all[at], class);
            bench.count(refuted, same, &format!("identity {at}: {} to {class}", all[at]));
        }
    }
    bench.finish(178, 4);
}

#[test]
fn a_changed_identity_of_a_prefix_is_found() {
    let mut bench = Bench::with_rows();
    let runs: Vec<_> = bench.image.runs().collect();
    let mut identities: Vec<Identity> = runs.iter().map(|(_, _, identity)| *identity).collect();
    identities.push(Identity::UNKNOWN);
    identities.sort_unstable();
    identities.dedup();
    for at in 0..runs.len() {
        let (first, _, was) = runs[at];
        for identity in identities.iter().filter(|identity| **identity != was) {
            let mut changed = runs.clone();
            changed[at].2 = *identity;
            let nets = changed.iter().flat_map(|(first, last, identity)| {
                let nets: Vec<IpNet> = match (first, last) {
                    (IpAddr::V4(first), IpAddr::V4(last)) => {
                        Ipv4Subnets::new(*first, *last, 0).map(IpNet::V4).collect()
                    }
                    (IpAddr::V6(first), IpAddr::V6(last)) => {
                        Ipv6Subnets::new(*first, *last, 0).map(IpNet::V6).collect()
                    }
                    _ => panic!("a run of two families"),
                };
                nets.into_iter().map(|net| (net, identity.0))
            });
            peers(&mut bench.image).prefixes = PrefixMap::build(0, nets);
            let class = |identity| bench.image.class(identity);
            let same = class(*identity).zip(class(was)).is_some_and(|(new, old)| {
                rows_of_classes_are_equal(&bench.image, new as u32, old as u32)
            });
            let refuted = bench.refuted();
            bench.count(refuted, same, &format!("{first} to {identity:?}"));
        }
    }
    bench.finish(305, 7);
}

#[test]
fn a_changed_chain_of_an_endpoint_is_found() {
    let mut bench = Bench::with_rows();
    let endpoints: Vec<_> = bench.image.endpoints.keys().cloned().collect();
    let chains = bench.image.chains.len() as u32;
    for endpoint in endpoints {
        let local: BTreeMap<_, _> = bench.image.endpoints[&endpoint].chains.clone();
        for (at, was) in &local {
            for chain in (0..=chains).map(ChainId).filter(|chain| chain != was) {
                // If no policy applies, two stages may have the same result.
                let same = |image: &Image, a: &ChainId, b: &ChainId| {
                    let classes = 0..image.peers.class_predicate_sets.len();
                    (b.0 as usize) < image.chains.len()
                        && classes
                            .into_iter()
                            .all(|class| image.cell(*a, class) == image.cell(*b, class))
                };
                bench.change(
                    |image| image.endpoints.get_mut(&endpoint).unwrap().chains.get_mut(at).unwrap(),
                    chain,
                    same,
                );
            }
            bench.image.endpoints.get_mut(&endpoint).unwrap().chains.remove(at);
            let refuted = bench.refuted();
            bench.count(refuted, false, &format!("{endpoint} without {at:?}"));
            bench.image.endpoints.get_mut(&endpoint).unwrap().chains.insert(*at, *was);
        }
    }
    bench.finish(150, 6);
}

/// The path of a rule or, after all rules, of a tier's end.
fn slot(image: &mut Image, chain: ChainId, at: usize) -> &mut Option<PathId> {
    let linear = image.linear.get_mut(&chain).unwrap();
    linear.step_paths.iter_mut().chain(linear.end_paths.iter_mut()).nth(at).unwrap()
}

/// Whether a rule or, after all rules, a tier's end comes after a tier that always decides, so that no packet reaches
/// it.
fn behind_the_last_word(steps: &Steps, at: usize) -> bool {
    let passes = |tier: usize| {
        let mut of_tier = steps.steps.iter().filter(|step| step.tier as usize == tier);
        of_tier.any(|step| matches!(step.outcome, RuleEffect::Pass(_)))
    };
    let tier = match steps.steps.get(at) {
        Some(step) => step.tier as usize,
        None => at - steps.steps.len(),
    };
    (0..tier).any(|tier| steps.ends[tier].is_some() && !passes(tier))
}

#[test]
fn a_changed_path_of_a_rule_judged_by_itself_is_found() {
    let mut bench = Bench::new(0);
    let paths = bench.image.paths.len() as u32;
    assert_eq!(bench.image.counts().linear, bench.image.counts().chains);
    for chain in bench.image.linear.keys().copied().collect::<Vec<_>>() {
        let steps = bench.image.linear[&chain].step_paths.len();
        let ends = bench.image.linear[&chain].end_paths.len();
        for at in 0..steps + ends {
            let old = *slot(&mut bench.image, chain, at);
            // A rule that does not decide, and a tier's end that continues, have no path that could be changed.
            if old.is_none() {
                continue;
            }
            let was = old.unwrap().0;
            let unreachable = behind_the_last_word(&bench.image.linear[&chain].steps, at);
            for path in others(was, paths).map(|path| Some(PathId(path))).chain([None]) {
                bench.change(|image| slot(image, chain, at), path, |_, _, _| unreachable);
            }
        }
    }
    bench.finish(78, 18);
}

#[test]
fn a_counterexample_names_the_packet_and_both_answers() {
    let mut bench = Bench::with_rows();
    for path in Arc::make_mut(&mut bench.image.paths) {
        path.verdict = Verdict::Allow;
    }
    let found = prove(&bench.cluster.model, &bench.cluster.all(), &bench.image).unwrap_err();
    insta::assert_snapshot!(found.to_string(), @"eth0 ingress, peer 203.0.113.1, TCP without ports: expected Deny (unknown peer, ingress), found Allow (unknown peer, ingress)");
}
