use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use super::*;
use crate::block::{Attributes, Rest, Time};
use crate::config::Config;
use crate::laws::run_without_crashes;
use crate::memory::pool;
use crate::users::{NodeUser, PodUser};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn host(name: &str) -> Owner {
    Owner::Host(name.to_owned())
}

fn add_pod(users: &mut Users, name: &str, address: IpAddr) {
    let pod = PodUser { node: None, addresses: vec![address], is_finished: false };
    users.pods.insert(("default".to_owned(), name.to_owned()), pod);
}

/// Damages a valid state so that it has a finding of this kind. `at` is the index of the record or user to damage.
/// Returns `None` if the state has nothing to damage.
fn damage(kind: Kind, records: &mut Records, users: &mut Users, at: usize) -> Option<()> {
    let nth = |len: usize| at.checked_rem(len);
    let pods: Vec<_> = users.pods.keys().cloned().collect();
    let pod = nth(pods.len()).map(|at| pods[at].clone());
    match kind {
        Kind::Unused => {
            users.pods.remove(&pod?);
        }
        Kind::NotAllocated => {
            let allocated = records.allocated(users);
            let is_taken = |address: &IpAddr| {
                let mut found = allocated.iter().filter(|it| it.address == *address);
                found.any(|it| it.state != AddressState::Resting)
            };
            let mut all = net("10.65.0.0/28").subnets(32).ok()?.map(|net| net.addr());
            let address = all.find(|it| !is_taken(it))?;
            add_pod(users, "new", address);
        }
        Kind::InNoPool => add_pod(users, "new", ip("192.0.2.1")),
        Kind::UsedTwice => {
            let address = users.pods[&pod?].addresses[0];
            add_pod(users, "second", address);
        }
        Kind::OtherUser => {
            let address = users.pods.remove(&pod?)?.addresses[0];
            add_pod(users, "second", address);
        }
        Kind::HandleWithoutAddresses => {
            records.handles.push(Handle { id: "net.gone".to_owned(), blocks: BTreeMap::new() });
        }
        Kind::HandleMissing => {
            records.handles.remove(nth(records.handles.len())?);
        }
        Kind::HandleCountsTooFew => {
            let at = nth(records.handles.len())?;
            records.handles[at].blocks.clear();
        }
        Kind::OwnersDiffer => {
            let cidr = records.blocks[nth(records.blocks.len())?].cidr;
            let state = State::Confirmed;
            records.affinities.push(Affinity { owner: host("thief"), cidr, state });
        }
        Kind::WithoutAffinity => {
            let owned: Vec<_> = records.blocks.iter().filter(|it| it.owner.is_some()).collect();
            let block = owned[nth(owned.len())?];
            let (cidr, owner) = (block.cidr, block.owner.clone()?);
            records.affinities.retain(|it| it.cidr != cidr || it.owner != owner);
        }
        Kind::Overlap => {
            let inner = records.blocks[nth(records.blocks.len())?].cidr;
            let cidr = IpNet::new(inner.addr(), inner.prefix_len() - 1).ok()?;
            let block = Block::new(cidr, host("a"), Time(1));
            records.blocks.push(Block { owner: None, ..block });
        }
    }
    Some(())
}

fn kinds(findings: &[Finding]) -> BTreeSet<Kind> {
    findings.iter().map(Finding::kind).collect()
}

/// Generates the node that continues at each step. `None`, which is rare, means that time passes.
fn schedule() -> impl Strategy<Value = Vec<Option<usize>>> {
    let step = prop_oneof![30 => (0..4_usize).prop_map(Some), 1 => Just(None)];
    prop::collection::vec(step, 100..900)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn after_any_run_nothing_is_found_and_each_damage_to_it_is(
        strict in any::<bool>(),
        cooldown in prop_oneof![Just(0_u64), Just(60)],
        on in schedule(),
        at in any::<usize>(),
    ) {
        let cooldown = Duration::from_secs(cooldown);
        let config = Config { strict_affinity: strict, cooldown, ..Config::default() };
        let (records, pools, users) = run_without_crashes(config, on);
        let checked = check(&records, &pools, &users);
        prop_assert_eq!(&checked.findings, &[]);
        let counts = checked.counts;
        let free: usize = records.blocks.iter().map(|block| block.free.len()).sum();
        prop_assert_eq!(counts.free(), free);
        prop_assert_eq!((counts.used, counts.unused), (counts.in_use, 0));
        for kind in Kind::ALL {
            let (mut records, mut users) = (records.clone(), users.clone());
            if damage(kind, &mut records, &mut users, at).is_some() {
                let found = kinds(&check(&records, &pools, &users).findings);
                // If two blocks were added, there is a finding for each, both of this kind.
                prop_assert_eq!(found, BTreeSet::from([kind]));
            }
        }
    }
}

#[test]
fn runs_leave_something_to_damage_in_each_way() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut damaged = BTreeMap::<Kind, usize>::new();
    let (mut borrowed, mut resting) = (0, 0);
    for _ in 0..40 {
        let on = schedule().new_tree(&mut runner).unwrap().current();
        let config = Config { cooldown: Duration::from_mins(1), ..Config::default() };
        let (records, pools, users) = run_without_crashes(config, on);
        let counts = check(&records, &pools, &users).counts;
        borrowed += counts.borrowed;
        resting += counts.resting;
        for kind in Kind::ALL {
            let (mut records, mut users) = (records.clone(), users.clone());
            let done = damage(kind, &mut records, &mut users, 7);
            *damaged.entry(kind).or_default() += usize::from(done.is_some());
        }
    }
    assert!(damaged.values().all(|number| *number > 5), "{damaged:?}");
    assert!(borrowed > 20 && resting > 20, "{borrowed} {resting}");
}

/// Returns a state with one finding of each kind, and with all states of an address.
fn damaged() -> (Records, Users) {
    let pod = |name: &str, node: &str| {
        let all = [("namespace", "web"), ("pod", name), ("node", node)];
        Attributes::from(all.map(|(key, value)| (key.to_owned(), value.to_owned())))
    };
    let mut block = Block::new(net("10.65.0.0/28"), host("node-a"), Time(100));
    for (at, name) in ["runs", "gone", "waits", "rests", "moved", "lost"].into_iter().enumerate() {
        let node = if name == "waits" { "node-b" } else { "node-a" };
        block.allocate_next(&format!("net.{at}"), &pod(name, node), &[]);
    }
    block.allocate_next("Windows-Reserved-IPAM-Handle", &Attributes::new(), &[]);
    block.allocate_next("net.8", &pod("gone", "node-z"), &[]);
    block.release_handle("net.3", Rest { now: Time(200), cooldown: Duration::from_secs(30) });
    let nobodys = Block { owner: None, ..Block::new(net("10.65.0.0/29"), host("x"), Time(1)) };
    let unclaimed = Block::new(net("10.65.0.32/28"), host("node-b"), Time(1));
    let handle = |at: usize, count: u32| Handle {
        id: format!("net.{at}"),
        blocks: BTreeMap::from([(net("10.65.0.0/28"), count)]),
    };
    let affinity = |owner, cidr, state| Affinity { owner: host(owner), cidr: net(cidr), state };
    let records = Records {
        blocks: vec![block, nobodys, unclaimed],
        affinities: vec![
            affinity("node-a", "10.65.0.0/28", State::Confirmed),
            affinity("node-b", "10.65.0.0/28", State::Confirmed),
            affinity("node-b", "10.65.0.48/28", State::Confirmed),
            affinity("node-c", "10.65.0.0/28", State::Pending),
        ],
        handles: vec![
            handle(0, 1),
            handle(1, 1),
            handle(2, 0),
            handle(4, 1),
            handle(8, 2),
            handle(9, 3),
        ],
    };
    let mut users = Users::default();
    for (name, addresses) in [
        ("runs", &["10.65.0.0"][..]),
        ("waits", &[]),
        ("other", &["10.65.0.4"]),
        ("second", &["10.65.0.0", "10.65.0.3"]),
        ("lost", &["10.65.0.5", "10.65.0.60", "192.0.2.7"]),
    ] {
        let addresses = addresses.iter().map(|it| ip(it)).collect();
        let pod = PodUser { node: None, addresses, is_finished: false };
        users.pods.insert(("web".to_owned(), name.to_owned()), pod);
    }
    let tunnel = NodeUser { tunnel_addresses: vec![ip("10.65.0.61"), ip("10.65.0.61")] };
    users.nodes.insert("node-a".to_owned(), tunnel);
    users.nodes.insert("node-b".to_owned(), NodeUser::default());
    (records, users)
}

#[test]
fn a_finding_says_what_was_found_and_expected_and_its_kind_what_to_do() {
    let (records, users) = damaged();
    let pools = [pool("10.65.0.0/24", 28)];
    let checked = check(&records, &pools, &users);
    assert_eq!(kinds(&checked.findings), BTreeSet::from(Kind::ALL));
    let told: Vec<String> = checked.findings.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!("findings", told.join("\n"));
    let told = Kind::ALL.map(|it| format!("{}: {}", it.title(), it.remedy()));
    insta::assert_snapshot!("kinds", told.join("\n"));
    let states = records.allocated(&users);
    let states = states.iter().map(|it| {
        let borrowed = it.borrower().map_or(String::new(), |it| format!(", borrowed by {it}"));
        format!("{}: {}{borrowed}", it.address, it.state)
    });
    insta::assert_snapshot!("states", states.collect::<Vec<_>>().join("\n"));
    insta::assert_debug_snapshot!("counts", checked.counts);
}

#[test]
fn a_disabled_pool_counts_as_none_for_addresses_that_are_not_allocated() {
    let (mut records, mut users) = (Records::default(), Users::default());
    let mut disabled = pool("10.65.0.0/24", 26);
    disabled.is_disabled = true;
    let mut block = Block::new(net("10.65.0.0/26"), host("a"), Time(1));
    block.allocate_next("", &Attributes::new(), &[]);
    block.allocations.get_mut(&0).unwrap().handle = None;
    let cidr = block.cidr;
    records.blocks.push(block);
    records.affinities.push(Affinity { owner: host("a"), cidr, state: State::Pending });
    add_pod(&mut users, "allocated", ip("10.65.0.0"));
    assert_eq!(check(&records, &[disabled.clone()], &users).findings, []);
    add_pod(&mut users, "other", ip("10.65.0.1"));
    assert_eq!(kinds(&check(&records, &[disabled], &users).findings), [Kind::InNoPool].into());
}
