//! The next hops of the paths that are as good as the best one.

use std::cell::Cell;

use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::decision::LOCAL_PREFERENCE;
use crate::table::learned::MOST_NEXT_HOPS;

/// The table's next hops, from the peers that are meant.
fn next_hops(table: &Table, is_meant: impl Fn(&Peer) -> bool) -> BTreeMap<IpNet, Vec<IpAddr>> {
    let mut rows = Vec::new();
    assert_eq!(table.next_hops(&is_meant, PART, &mut rows), None);
    table.next_hops(is_meant, 0, &mut rows);
    let groups = rows.chunk_by(|(one, _), (other, _)| one == other);
    let all = groups.map(|it| (it[0].0, it.iter().map(|(_, next_hop)| *next_hop).collect()));
    let (count, all): (usize, BTreeMap<_, _>) = (rows.len(), all.collect());
    assert_eq!(all.values().map(Vec::len).sum::<usize>(), count, "a prefix comes once");
    all
}

/// The paths that are left after the steps a to d of RFC 4271, 9.1.2.2, one step after the other. Interior costs (step e)
/// are unknown, so all next hops count as equally far away.
fn left_by_the_steps(paths: &[Path]) -> Vec<&Path> {
    fn keep_least<K: Ord>(left: &mut Vec<&Path>, key: impl Fn(&Path) -> K) {
        let least = left.iter().map(|it| key(it)).min();
        left.retain(|it| Some(key(it)) == least);
    }
    let mut left: Vec<&Path> = paths.iter().collect();
    // 9.1.1: the degree of preference is LOCAL_PREF.
    keep_least(&mut left, |it| u32::MAX - it.attributes.local_pref.unwrap_or(LOCAL_PREFERENCE));
    keep_least(&mut left, |it| it.attributes.path_length());
    keep_least(&mut left, |it| it.attributes.origin);
    let med = |it: &Path| it.attributes.med.unwrap_or(0);
    let neighbour = |it: &Path| it.attributes.neighbour_system();
    let before = left.clone();
    left.retain(|path| {
        let rivals = before.iter().filter(|it| neighbour(it) == neighbour(path));
        rivals.map(|it| med(it)).min() == Some(med(path))
    });
    keep_least(&mut left, |it| it.is_internal);
    left
}

/// Whether BIRD's `merge paths` would merge a path with the best one: no step before the identifiers distinguishes the two
/// (BIRD User's Guide, protocol Kernel; <https://bird.network.cz/?get_doc&v=20&f=bird-6.html>).
fn is_told_apart_by_ties_alone(best: &Path, other: &Path) -> bool {
    let steps = |it: &Path| {
        let Attributes { local_pref, origin, .. } = &*it.attributes;
        let preference = local_pref.unwrap_or(LOCAL_PREFERENCE);
        (preference, it.attributes.path_length(), *origin, it.is_internal)
    };
    let med = |it: &Path| it.attributes.med.unwrap_or(0);
    let is_one_neighbour =
        best.attributes.neighbour_system() == other.attributes.neighbour_system();
    steps(best) == steps(other) && (!is_one_neighbour || med(best) == med(other))
}

/// The next hops of the model: those of the remaining paths, in the order of the tie breakers.
fn expected(paths: &[Path]) -> Vec<IpAddr> {
    let mut left = left_by_the_steps(paths);
    left.sort_by_key(|it| {
        let Attributes { originator, clusters, .. } = &*it.attributes;
        (originator.unwrap_or(it.identifier), clusters.len(), it.peer)
    });
    if let Some(best) = left.first() {
        assert_eq!(decision::used(paths).first(), Some(best), "the best one is the first");
        assert!(left.iter().all(|it| is_told_apart_by_ties_alone(best, it)));
    }
    let mut next_hops = Vec::new();
    for next_hop in left.iter().map(|it| it.attributes.next_hop) {
        if !next_hops.contains(&next_hop) {
            next_hops.push(next_hop);
        }
    }
    next_hops
}

/// Events with many paths of one length that have no `LOCAL_PREF`.
fn events_of_paths_alike() -> impl Strategy<Value = Event> {
    let alike = (attributes(), select(vec![65003, 65004])).prop_map(|(attributes, system)| {
        let as_path = vec![Segment::Sequence(vec![system])];
        let Attributes { next_hop, med, .. } = attributes;
        Attributes { as_path, med, ..Attributes::of_own(next_hop) }
    });
    let update = (peers(), prefixes(), alike).prop_map(|(peer, announced, attributes)| {
        let attributes = (!announced.is_empty()).then(|| Arc::new(attributes));
        Event::Update(peer, Update { announced, attributes, ..Update::default() })
    });
    prop_oneof![2 => update, 1 => events()]
}

/// Whichever peers are meant, the next hops are those of their paths alone. So without any one peer, the next hops of the
/// others remain.
#[test]
fn the_next_hops_are_those_of_the_paths_that_ties_alone_tell_apart() {
    let several = Cell::new(0);
    let config = Config { failure_persistence: None, ..Config::with_cases(1024) };
    let law = |events: Vec<Event>| {
        let (mut table, mut model) = established();
        for it in events {
            step(&mut table, &mut model, it);
        }
        let own = &model.configuration.as_ref().unwrap().exports.own;
        // All peers, all except one, and all that are no nodes.
        for left_out in 0..=7 {
            let is_meant = |it: &Peer| match left_out {
                7 => !it.is_node,
                last => it.address != address(last),
            };
            let mut all = BTreeMap::new();
            for prefix in PREFIXES.iter().map(|it| net(it)).filter(|it| !own.contains_key(it)) {
                let mut paths = model.paths_of(prefix);
                paths.retain(|it| is_meant(&model.configuration.as_ref().unwrap().peers[&it.peer]));
                let expected = expected(&paths);
                several.set(several.get() + usize::from(expected.len() > 1));
                if !expected.is_empty() {
                    all.insert(prefix, expected);
                }
            }
            prop_assert_eq!(next_hops(&table, is_meant), all, "{}", left_out);
        }
        Ok(())
    };
    let events = prop::collection::vec(events_of_paths_alike(), 0..40);
    TestRunner::new(config).run(&events, law).unwrap();
    assert!(several.get() > 1000, "{several:?} sets of several next hops");
}

/// A table with sessions with this many routers, each in its own autonomous system.
fn with_routers(count: u8) -> Table {
    let mut configuration = configuration(&[], true);
    let router = |last: u8| {
        let system = 65000 + u32::from(last);
        (address(last), Peer { address: address(last), system, ..peer(3) })
    };
    configuration.peers = (1..=count).map(router).collect();
    configuration.addresses.clear();
    let mut table = Table::new();
    table.configure(&configuration);
    for last in 1..=count {
        let opened = Opened {
            identifier: Ipv4Addr::new(10, 0, 0, last),
            here: address(200),
            keeps_routes: false,
            now: Duration::ZERO,
        };
        table.opened(address(last), opened);
    }
    table
}

/// A router announces a default route.
fn lead(table: &mut Table, router: u8, next_hop: IpAddr) {
    let as_path = vec![Segment::Sequence(vec![65000 + u32::from(router), 7])];
    let attributes = Some(Arc::new(Attributes { as_path, ..Attributes::of_own(next_hop) }));
    let update = Update { announced: vec![net("0.0.0.0/0")], attributes, ..Update::default() };
    table.updated(address(router), update).unwrap();
}

#[test]
fn so_many_next_hops_are_named_and_the_order_of_their_coming_does_not_count() {
    let all = |table: &Table| next_hops(table, |_| true)[&net("0.0.0.0/0")].clone();
    let first: Vec<IpAddr> = (1..=16).map(address).collect();
    for order in [(1..=20).collect::<Vec<_>>(), (1..=20).rev().collect()] {
        let mut table = with_routers(20);
        for it in order {
            lead(&mut table, it, address(it));
        }
        assert_eq!(all(&table).len(), MOST_NEXT_HOPS);
        assert_eq!(all(&table), first);
        table.closed(address(3), None, Duration::ZERO);
        let next: Vec<IpAddr> = (1..=17).filter(|it| *it != 3).map(address).collect();
        assert_eq!(all(&table), next, "the next one takes the place");
    }
}

#[test]
fn a_next_hop_that_two_routers_name_counts_once() {
    let mut table = with_routers(3);
    lead(&mut table, 1, address(100));
    lead(&mut table, 2, address(101));
    lead(&mut table, 3, address(100));
    let all = next_hops(&table, |_| true);
    assert_eq!(all[&net("0.0.0.0/0")], [address(100), address(101)]);
    table.closed(address(1), None, Duration::ZERO);
    let all = next_hops(&table, |_| true);
    assert_eq!(
        all[&net("0.0.0.0/0")],
        [address(101), address(100)],
        "the other one names it still"
    );
}

/// Announces paths of the peers 3, 4 and 6. The path of peer 6 excludes that of peer 3 by `MULTI_EXIT_DISC`, and the path
/// of peer 4 is the best.
fn announce_three(table: &mut Table, model: &mut Model, last: &[u32]) {
    for (peer, systems, med) in [(3, &[65004, 7][..], 1), (4, &[65003, 7], 0), (6, last, 0)] {
        let path = vec![Segment::Sequence(systems.to_vec())];
        let of_own = Attributes::of_own(address(peer));
        let attributes = Attributes { as_path: path, med: Some(med), ..of_own };
        let attributes = Some(Arc::new(attributes));
        let announced = vec![net("10.65.1.0/26")];
        let update = Update { announced, attributes, ..Update::default() };
        step(table, model, Event::Update(address(peer), update));
    }
}

fn of_the_three(table: &Table, is_meant: impl Fn(&Peer) -> bool) -> Vec<IpAddr> {
    next_hops(table, is_meant)[&net("10.65.1.0/26")].clone()
}

#[test]
fn a_path_that_becomes_worse_may_make_a_third_one_the_best() {
    let (mut table, mut model) = established();
    announce_three(&mut table, &mut model, &[65004, 7]);
    assert_eq!(of_the_three(&table, |_| true), [address(4), address(6)]);
    announce_three(&mut table, &mut model, &[65004, 7, 8]);
    assert_eq!(of_the_three(&table, |_| true), [address(3), address(4)]);
    drain(&mut table, &mut model);
    assert_eq!(&model.announced[&address(1)], &model.should_hold(address(1)));
}

#[test]
fn a_path_of_a_peer_that_is_not_meant_beats_none() {
    let (mut table, mut model) = established();
    announce_three(&mut table, &mut model, &[65004, 7]);
    let others = of_the_three(&table, |it| it.address != address(6));
    assert_eq!(others, [address(3), address(4)]);
}

#[test]
fn a_path_of_a_peer_that_is_not_meant_hides_none() {
    let (mut table, mut model) = established();
    announce(&mut table, &mut model, address(1), "0.0.0.0/0", &[]);
    announce(&mut table, &mut model, address(3), "0.0.0.0/0", &[65003, 65009]);
    let hops = |is_meant: fn(&Peer) -> bool| next_hops(&table, is_meant)[&net("0.0.0.0/0")].clone();
    assert_eq!(hops(|_| true), [address(1)]);
    assert_eq!(hops(|it| !it.is_node), [address(3)]);
}
