use super::*;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A net with one of few addresses and any length, so that prefixes nest, touch and repeat.
fn net() -> impl Strategy<Value = IpNet> {
    let v4 = (
        prop_oneof![Just(0x0a00_0000u32), Just(0xffff_ff00), Just(0)],
        0u32..1024,
        prop_oneof![0u8..=32, 20u8..=32, Just(32)],
    )
        .prop_map(|(base, low, len)| {
            IpNet::V4(Ipv4Net::new(Ipv4Addr::from(base | low), len).unwrap().trunc())
        });
    let v6 = (
        prop_oneof![Just(0u128), Just(0xfd00 << 112), Just(u128::MAX - 0x3ff)],
        0u128..1024,
        prop_oneof![0u8..=128, 116u8..=128, Just(128)],
    )
        .prop_map(|(base, low, len)| {
            IpNet::V6(Ipv6Net::new(Ipv6Addr::from(base | low), len).unwrap().trunc())
        });
    prop_oneof![v4, v6]
}

fn naive(default: u32, entries: &[(IpNet, u32)], address: IpAddr) -> u32 {
    let best = entries.iter().filter(|(net, _)| net.contains(&address));
    best.max_by_key(|(net, value)| (net.prefix_len(), *value)).map_or(default, |e| e.1)
}

fn step(address: IpAddr, up: bool) -> Option<IpAddr> {
    match address {
        IpAddr::V4(a) => {
            let bits = a.to_bits();
            let next = if up { bits.checked_add(1) } else { bits.checked_sub(1) };
            next.map(|bits| Ipv4Addr::from(bits).into())
        }
        IpAddr::V6(a) => {
            let bits = a.to_bits();
            let next = if up { bits.checked_add(1) } else { bits.checked_sub(1) };
            next.map(|bits| Ipv6Addr::from(bits).into())
        }
    }
}

/// Both ends of every prefix, and the addresses next to them.
fn witnesses(entries: &[(IpNet, u32)]) -> Vec<IpAddr> {
    let ends = entries.iter().flat_map(|(net, _)| [net.network(), net.broadcast()]);
    ends.flat_map(|end| [Some(end), step(end, true), step(end, false)]).flatten().collect()
}

proptest! {
    #[test]
    fn lookup_is_the_longest_prefix(
        entries in prop::collection::vec((net(), 1u32..50), 0..40),
        default in 0u32..3,
    ) {
        let map = PrefixMap::build(default, entries.iter().copied());
        for address in witnesses(&entries) {
            prop_assert_eq!(map.lookup(address), naive(default, &entries, address), "{}", address);
        }
    }

    #[test]
    fn the_order_of_entries_does_not_matter(
        entries in prop::collection::vec((net(), 1u32..50), 0..20),
    ) {
        let forward = PrefixMap::build(0, entries.iter().copied());
        let backward = PrefixMap::build(0, entries.iter().rev().copied());
        for address in witnesses(&entries) {
            prop_assert_eq!(forward.lookup(address), backward.lookup(address));
        }
    }
}

/// There are blocks with few and with many hosts, with values that are close together and values that are not. A block
/// is alone, among some others, or among very many. Then one more host is set in each block, with a close value or a
/// distant one.
#[test]
fn a_host_has_its_value_however_many_there_are_beside_it() {
    const ONE_MORE: u32 = 201;
    let at_bits = |block: u32, low: u32| 0x0a00_0000 | block << 8 | low;
    let counts = [41, 2_000, 10_000];
    for (step, blocks) in counts.iter().flat_map(|all| [(1, *all), (70_000, *all)]) {
        let at = |block: u32, low: u32| IpAddr::V4(Ipv4Addr::from(at_bits(block, low)));
        let entry = |block, low: u32| (IpNet::from(at(block, low * 5)), 9 + low * step);
        let around = [("10.0.0.0/15".parse().unwrap(), 8)];
        let all =
            (1..blocks).flat_map(|block| (0..block.min(40)).map(move |low| entry(block, low)));
        let map = PrefixMap::build(0, all.chain(around));
        for hosts in 1..=40u32 {
            let host = |low: u32| at(hosts, low);
            for low in 0..=255 {
                let is_host = low % 5 == 0 && low / 5 < hosts;
                let expected = if is_host { 9 + low / 5 * step } else { 8 };
                assert_eq!(map.lookup(host(low)), expected, "{hosts} hosts, {low}");
            }
            let set = if hosts % 2 == 0 { 70 } else { 1 << 20 };
            assert!(map.set_v4(at_bits(hosts, ONE_MORE), set));
            assert_eq!(map.lookup(host(ONE_MORE)), set);
            for low in (0..=255).filter(|low| *low != ONE_MORE) {
                let is_host = low % 5 == 0 && low / 5 < hosts;
                let expected = if is_host { 9 + low / 5 * step } else { 8 };
                assert_eq!(map.lookup(host(low)), expected, "{hosts} hosts, {low}, one set");
            }
        }
    }
}

#[test]
fn a_value_that_does_not_fit_is_stored_as_the_default() {
    let map = PrefixMap::build(3, [("10.0.0.0/8".parse().unwrap(), MAX_VALUE + 1)]);
    assert_eq!(map.lookup("10.1.2.3".parse().unwrap()), 3);
}

#[test]
fn memory_is_the_root_and_half_a_page_for_each_block_or_less_where_they_are_many() {
    let empty = PrefixMap::new(0).bytes();
    let hosts = |blocks: u32, hosts: u32| {
        let all =
            (0..blocks).flat_map(move |block| (0..hosts).map(move |low| (block << 8) | (low * 3)));
        let all = all.map(|low| {
            (IpNet::from(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | low))), low % 1000 + 1)
        });
        PrefixMap::build(0, all).bytes() - empty
    };
    assert!((256 * 1024..340 * 1024).contains(&empty), "{empty}");
    // There is one page for each /16.
    for few in [hosts(1024, 1), hosts(1024, 12), hosts(1024, 60)] {
        assert!((512 * 1024..584 * 1024).contains(&few), "{few}");
    }
    let lines = hosts(8 * 256, 12);
    assert!((128 * 1024..160 * 1024).contains(&lines), "{lines}");
    // There are 40 such pages.
    let many = hosts(40 * 256, 8);
    assert!((360 * 1024..480 * 1024).contains(&many), "{many}");
    let few = hosts(40 * 256, 4);
    assert!((190 * 1024..220 * 1024).contains(&few), "{few}");
    let halves = hosts(8 * 256, 60);
    assert!((1024 * 1024..1200 * 1024).contains(&halves), "{halves}");
}

proptest! {
    #[test]
    fn a_host_that_is_set_has_its_value_and_nobody_else_another(
        entries in prop::collection::vec((net(), 1u32..50), 0..40),
        stores in prop::collection::vec((0u32..1024, prop_oneof![1u32..50, Just(70_000)]), 0..60),
    ) {
        let map = PrefixMap::build(0, entries.iter().copied());
        let mut after = entries.clone();
        for (low, value) in stores {
            let host = Ipv4Addr::from(0x0a00_0000 | low);
            prop_assert!(map.set_v4(host.to_bits(), value));
            let host = IpNet::from(IpAddr::V4(host));
            after.retain(|(net, _)| *net != host);
            after.push((host, value));
        }
        for address in witnesses(&after) {
            prop_assert_eq!(map.lookup(address), naive(0, &after, address), "{}", address);
        }
    }

    #[test]
    fn hosts_of_a_24_that_are_set_at_once_have_their_values_and_nobody_else_another(
        entries in prop::collection::vec((net(), 1u32..50), 0..40),
        stores in prop::collection::vec(
            (0u32..4, prop::collection::vec((any::<u8>(), 1u32..50), 0..9), prop_oneof![1u32..50, Just(70_000)]),
            0..20,
        ),
    ) {
        let map = PrefixMap::build(0, entries.iter().copied());
        let mut after = entries.clone();
        for (third, starts, last) in stores {
            let network = 0x0a00_0000 | third << 8;
            let mut values = [last; 256];
            for (start, value) in starts {
                values[usize::from(start)..].fill(value);
            }
            prop_assert!(map.set_24_v4(network, &values));
            let block = Ipv4Net::new_assert(Ipv4Addr::from(network), 24);
            after.retain(|(net, _)| !IpNet::V4(block).contains(net));
            let host = |low| IpNet::from(IpAddr::V4(Ipv4Addr::from(network | low)));
            after.extend((0..).zip(values).map(|(low, value)| (host(low), value)));
        }
        for address in witnesses(&after) {
            prop_assert_eq!(map.lookup(address), naive(0, &after, address), "{}", address);
        }
    }

    #[test]
    fn what_replaces_all_in_some_networks_is_all_that_is_there(
        entries in prop::collection::vec((net(), 1u32..50), 0..40),
        stores in prop::collection::vec(
            (prop::collection::btree_set(net(), 0..4), prop::collection::btree_map(net(), 1u32..50, 0..12)),
            0..6,
        ),
    ) {
        let mut map = PrefixMap::build(0, entries.iter().copied());
        let mut after = entries.clone();
        for (mut nets, mut with) in stores {
            let all = nets.clone();
            nets.retain(|net| !all.iter().any(|other| other != net && other.contains(net)));
            let lies_in = |other: &IpNet| nets.iter().any(|net| net.contains(other));
            with.retain(|net, _| lies_in(net) || net.prefix_len() == net.max_prefix_len());
            with.extend(nets.iter().map(|net| (*net, 77)));
            let (nets, with) = (Vec::from_iter(nets.clone()), Vec::from_iter(with));
            prop_assert!(map.replace(&nets, &with));
            let is_replaced = |other: &IpNet| {
                nets.iter().any(|net| net.contains(other)) || with.iter().any(|(net, _)| net == other)
            };
            after.retain(|(other, _)| !is_replaced(other));
            after.extend(with);
        }
        for address in witnesses(&after).into_iter().chain(witnesses(&entries)) {
            prop_assert_eq!(map.lookup(address), naive(0, &after, address), "{}", address);
        }
    }

    #[test]
    fn runs_are_all_addresses_with_their_values(
        entries in prop::collection::vec((net(), 1u32..4), 0..30),
    ) {
        let map = PrefixMap::build(0, entries.iter().copied());
        let runs = map.runs();
        for family in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let mut next = Some(family);
            for (first, last, value) in runs.iter().filter(|run| run.0.is_ipv4() == family.is_ipv4()) {
                prop_assert_eq!(next, Some(*first));
                prop_assert_eq!(map.lookup(*first), *value);
                prop_assert_eq!(map.lookup(*last), *value);
                next = step(*last, true);
            }
            prop_assert_eq!(next, None);
        }
        for address in witnesses(&entries) {
            let run = runs.iter().find(|(first, last, _)| (*first..=*last).contains(&address));
            prop_assert_eq!(run.unwrap().2, map.lookup(address));
        }
    }
}

#[test]
fn hosts_are_replaced_as_often_as_one_likes() {
    let mut map = PrefixMap::new(0);
    for turn in 1..3_000 {
        let host = |low| (IpNet::from(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | low))), turn);
        assert!(map.replace(&[], &[host(turn % 50), host(100), host(0x0100 + turn % 7)]));
        assert_eq!(map.lookup_v4(0x0a00_0064), turn);
    }
}

#[test]
fn a_map_without_room_says_so_and_stays_as_it_is() {
    let map = PrefixMap::new(0);
    let blocks = 0x0a00_0000u32..;
    let full = blocks.step_by(1 << 16).find(|address| !map.set_v4(*address, 7)).unwrap();
    assert_eq!(map.lookup_v4(full), 0);
    assert_eq!(map.lookup_v4(0x0a00_0000), 7);
    assert!(!map.set_v4(0x0a00_0000, MAX_VALUE + 1), "no value");
    let mut values = [7; 256];
    values[9] = 8;
    assert!(!map.set_24_v4(full, &values), "no room");
    assert_eq!(map.lookup_v4(full + 9), 0);
    values[9] = MAX_VALUE + 1;
    assert!(!map.set_24_v4(0x0a00_0000, &values), "no value");
}
