//! Laws over generated models.

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, TestRunner};

use super::build::*;
use super::generate::{model, some_local};
use crate::check::{Depth, prove_by};
use crate::compile::Compiler;
use crate::image::{ChainId, Identity, NO_ROW, PathId};
use crate::model::*;
use crate::reference::{Reference, prove};
use crate::rows::Thresholds;

/// Addresses that occur in the generated models, and others.
const KNOWN: [u32; 8] = [
    0x0a00_0001,
    0x0a00_0002,
    0x0a00_0003,
    0x0a00_0008,
    0x0a00_0009,
    0x0a00_0010,
    0x0a00_0101,
    0xc000_0201,
];

fn transport() -> impl Strategy<Value = Transport> {
    let port = || prop_oneof![Just(80u16), 78u16..90, any::<u16>()];
    prop_oneof![
        4 => (select(&Protocol::ALL[..]), port(), port())
            .prop_map(|(protocol, from, to)| Transport::ports(protocol, from, to)),
        1 => (select(&[ICMP, ICMPV6][..]), 0u8..10, 0u8..2)
            .prop_map(|(protocol, kind, code)| Transport::icmp(protocol, kind, code)),
        2 => any::<u8>().prop_map(Transport::bare),
    ]
}

/// The threshold for precomputing a list: every list is precomputed, or none.
fn rules_foreseen() -> impl Strategy<Value = usize> {
    select(&[0, usize::MAX][..])
}

/// The threshold for walking over the rows of a chain: every chain is walked over, or none.
fn looks() -> impl Strategy<Value = usize> {
    select(&[0, usize::MAX][..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn compiled_equals_reference_in_every_cell(
        model in model(),
        rules in rules_foreseen(),
        looks in looks(),
    ) {
        let local = some_local(&model);
        let mut compiler = Compiler::new();
        compiler.tables.scale = Thresholds { rules, looks, ..Thresholds::default() };
        let image = compiler.compile(&model, &local);
        let reference = Reference::new(&model);
        let every = prove_by(&reference, &local, &image, Depth::Every, |_, _| {});
        if let Err(counterexample) = every {
            prop_assert!(false, "{counterexample}\n{model:#?}");
        }
        prop_assert!(prove(&model, &local, &image).is_ok());
    }

    #[test]
    fn whether_two_threads_made_it_cannot_be_told_from_an_image(
        model in model(),
        budget in prop_oneof![1 => Just(usize::MAX), 3 => 0usize..20_000],
        rules in rules_foreseen(),
        looks in looks(),
    ) {
        let local = some_local(&model);
        let [one, two] = [usize::MAX, 0].map(|rows| {
            let mut compiler = Compiler::with_budget(budget);
            compiler.tables.scale = Thresholds { rows, rules, looks, ..Thresholds::default() };
            compiler.compile(&model, &local)
        });
        prop_assert_eq!(&one.cells, &two.cells);
        prop_assert_eq!(one.bytes(), two.bytes());
        prop_assert_eq!(one.counts(), two.counts());
        prop_assert_eq!(one.paths(), two.paths());
        prop_assert_eq!(one.canonical_hash(), two.canonical_hash());
    }

    #[test]
    fn a_row_read_whole_says_what_each_packet_is_told(
        model in model(),
        budget in prop_oneof![1 => Just(usize::MAX), 1 => Just(0)],
        source in prop_oneof![Just(49_152), Just(80u16), 0u16..100],
        asked in vec((any::<prop::sample::Index>(), select(&KNOWN[..]), select(&KNOWN[..]), transport()), 1..200),
    ) {
        let image = Compiler::with_budget(budget).compile(&model, &some_local(&model));
        let chains = image.chains.len();
        prop_assume!(chains > 0);
        for (chain, local, peer, transport) in asked {
            let chain = ChainId(chain.index(chains) as u32);
            let (local, peer) = (image.identity_v4(local), image.identity_v4(peer));
            let decisions = image.decisions(chain, local, peer, Family::V4, source);
            let (runs, key) = match (Protocol::from_number(transport.protocol), transport.l4) {
                (Some(of), L4Header::Ports { destination, .. }) => {
                    (&decisions.ports[of as usize], destination)
                }
                (None, L4Header::Icmp { kind, code }) if transport.protocol == ICMP => {
                    (&decisions.icmp, u16::from_be_bytes([kind, code]))
                }
                (None, _) if ![ICMP, ICMPV6].contains(&transport.protocol) => {
                    (&decisions.others, transport.protocol.into())
                }
                _ => continue,
            };
            let l4 = match transport.l4 {
                L4Header::Ports { destination, .. } => L4Header::Ports { source, destination },
                other => other,
            };
            let told = image.classify(chain, local, peer, Transport { l4, ..transport });
            let run = runs.iter().find(|run| (run.first..=run.last).contains(&key)).unwrap();
            prop_assert_eq!(run.path, told, "{:?} {}", decisions, transport);
            let whole = runs.windows(2).all(|two| two[0].last + 1 == two[1].first && two[0].path != two[1].path);
            prop_assert!(whole && runs[0].first == 0 && runs[runs.len() - 1].last == u16::MAX);
            if !decisions.by_source {
                let other = match transport.l4 {
                    L4Header::Ports { destination, .. } => L4Header::Ports { source: source ^ 0x55, destination },
                    other => other,
                };
                let other = image.classify(chain, local, peer, Transport { l4: other, ..transport });
                prop_assert_eq!(other, told, "by another source port");
            }
        }
    }

    #[test]
    fn a_question_is_answered_as_it_is_asked_one_by_one(
        model in model(),
        budget in prop_oneof![3 => Just(usize::MAX), 1 => Just(0)],
        ends in vec((select(&KNOWN[..]), select(&KNOWN[..])), 1..20),
        unknown in any::<u32>(),
        transport in transport(),
    ) {
        let image = Compiler::with_budget(budget).compile(&model, &some_local(&model));
        let known = ends.iter().map(|(local, peer)| [*local, *peer].map(|it| image.identity_v4(it)));
        let strange = [[Identity(unknown), Identity(1)], [Identity(1), Identity(unknown)]];
        for [local, peer] in known.chain(strange) {
            let question = image.query(local, peer, transport);
            for chain in (0..=image.counts().chains as u32).map(ChainId) {
                let answer = image.path_of(chain, question);
                let asked = image.path(image.classify(chain, local, peer, transport));
                prop_assert_eq!(answer.is_some(), image.row(chain, local, peer) < NO_ROW);
                prop_assert!(answer.is_none_or(|answer| std::ptr::eq(answer, asked)));
            }
        }
    }

    #[test]
    fn a_chain_judged_rule_by_rule_equals_the_reference(model in model()) {
        let local = some_local(&model);
        let image = Compiler::with_budget(0).compile(&model, &local);
        prop_assert_eq!(image.counts().linear, image.counts().chains);
        if let Err(counterexample) = prove(&model, &local, &image) {
            prop_assert!(false, "{counterexample}\n{model:#?}");
        }
    }

    #[test]
    fn an_image_made_after_others_equals_the_reference(before in model(), model in model()) {
        let local = some_local(&model);
        let mut compiler = Compiler::new();
        compiler.compile(&before, &some_local(&before));
        let image = compiler.compile(&model, &local);
        if let Err(counterexample) = prove(&model, &local, &image) {
            prop_assert!(false, "{counterexample}\n{before:#?}\n{model:#?}");
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
    fn numbers_that_nobody_gave_out_are_denied(
        model in model(),
        chain in prop_oneof![0u32..40, any::<u32>()],
        local in prop_oneof![0u32..40, any::<u32>()],
        peer in prop_oneof![0u32..40, any::<u32>()],
        path in prop_oneof![0u32..40, any::<u32>()],
    ) {
        let image = Compiler::new().compile(&model, &some_local(&model));
        let (chain, local, peer) = (ChainId(chain), Identity(local), Identity(peer));
        let transport = Transport::ports(Protocol::Tcp, 49_152, 80);
        let identities = 1..=image.counts().identities as u32;
        let known = image.describe(chain).is_some() && identities.contains(&peer.0);
        let judged = image.path(image.classify(chain, local, peer, transport));
        if !known {
            prop_assert_eq!(judged.verdict, Verdict::Deny);
        }
        if path as usize >= image.counts().paths {
            prop_assert_eq!(image.path(PathId(path)).verdict, Verdict::Deny);
        }
    }
}

/// Six sets, whose members have the set's bit in `members`, and rules in two tiers, each for one set and one range of
/// ports.
fn of_overlapping_sets(members: &[u8], rules: &[(usize, u8, Action, u16, u16)]) -> Cluster {
    let mut cluster = Cluster::new()
        .namespace("shop", "")
        .pod("shop/db", "app=db", "10.0.0.1")
        .tier("first", 1.0, DefaultAction::Deny);
    for set in 0..6 {
        let of_set = (0..).zip(members).filter(|(_, sets)| *sets >> set & 1 != 0);
        let nets: Vec<String> = of_set.map(|(at, _)| format!("10.1.0.{at}/32")).collect();
        cluster = cluster.network_set(&format!("/s{set}"), &format!("n=v{set}"), &nets.join(" "));
    }
    for (number, (name, tier)) in (0..).zip([("first.p", "first"), ("q", "default")]) {
        let of_tier = (0..).zip(rules.iter().filter(|rule| usize::from(rule.1) == number));
        let rules = of_tier.map(|(index, (set, _, action, port, more))| Rule {
            action: *action,
            index,
            ..allow().tcp(&format!("{port}-{}", port + more)).from([who(&format!("n == 'v{set}'"))])
        });
        let Draft(name, mut policy) = global(name).tier(tier).selects("app == 'db'").ingress([]);
        policy.ingress = Some(rules.collect());
        cluster = cluster.policy(Draft(name, policy));
    }
    cluster
}

#[test]
fn of_those_who_are_in_several_sets_the_first_rule_of_all_decides() {
    let met = [const { Cell::new(0) }; 7];
    let action =
        select(&[Action::Allow, Action::Allow, Action::Deny, Action::Deny, Action::Pass][..]);
    let rule = (0usize..6, 0u8..2, action, 80u16..100, 0u16..12);
    // The number of sets is drawn first, with equal chances. With random bits, few addresses would be in none or in all
    // sets.
    let sets =
        subsequence(&[1u8, 2, 4, 8, 16, 32][..], 0..=6).prop_map(|bits| bits.iter().sum::<u8>());
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(vec(sets, 1..16), vec(rule, 1..40)), |(members, rules)| {
            for sets in &members {
                let met = &met[sets.count_ones() as usize];
                met.set(met.get() + 1);
            }
            let cluster = of_overlapping_sets(&members, &rules);
            let (model, local) = (&cluster.model, cluster.all());
            let images = [usize::MAX, 0].map(|rows| {
                let mut compiler = Compiler::new();
                compiler.tables.scale = Thresholds { rows, rules: 0, ..Thresholds::default() };
                compiler.compile(model, &local)
            });
            prop_assert_eq!(&images[0].cells, &images[1].cells);
            let reference = Reference::new(model);
            let every = prove_by(&reference, &local, &images[1], Depth::Every, |_, _| {});
            if let Err(counterexample) = every {
                prop_assert!(false, "{counterexample}\n{model:#?}");
            }
            Ok(())
        })
        .unwrap();
    assert!(met.iter().all(|met| met.get() > 3), "{met:?}: in so many sets few are");
}

#[test]
fn equal_rows_are_one_row_however_many_threads_made_them() {
    let mut cluster = Cluster::new()
        .namespace("shop", "")
        .pod("shop/db", "app=db", "10.0.0.1")
        .tier("first", 1.0, DefaultAction::Deny)
        .policy(global("first.p").tier("first").selects("app == 'db'").ingress([allow().tcp("1")]));
    let rules = (0..1200).map(|index| Rule {
        index,
        ..allow().tcp(&format!("{}", 1000 + index)).from([who(&format!("n == 'v{index}'"))])
    });
    let Draft(name, mut policy) = global("q").selects("app == 'db'").ingress([]);
    policy.ingress = Some(rules.collect());
    cluster = cluster.policy(Draft(name, policy));
    for set in 0..1200 {
        let net = format!("10.{}.{}.1/32", 1 + set / 250, set % 250);
        cluster = cluster.network_set(&format!("/s{set}"), &format!("n=v{set}"), &net);
    }
    let local = cluster.all();
    let [one, two] = [usize::MAX, 0].map(|rows| {
        let mut compiler = Compiler::new();
        compiler.tables.scale.rows = rows;
        compiler.compile(&cluster.model, &local)
    });
    assert_eq!(one.counts(), two.counts());
    assert_eq!(one.cells, two.cells);
    assert_eq!(one.bytes(), two.bytes());
}
