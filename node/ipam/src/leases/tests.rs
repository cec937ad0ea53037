use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

/// No address has an owner outside the leases.
const NONE: BTreeMap<IpAddr, String> = BTreeMap::new();

fn pod(number: u32) -> PodName {
    PodName { namespace: "default".to_owned(), name: format!("pod-{number}") }
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn leases(blocks: &[&str]) -> Leases {
    Leases::new(&nets(blocks)).unwrap()
}

/// The node's own address in each block.
fn tunnel_addresses(leases: &Leases) -> Vec<IpAddr> {
    Plan::host_local(leases.blocks()).tunnel_addresses().to_vec()
}

/// Blocks of one or both families, small enough to run out.
fn blocks() -> impl Strategy<Value = Vec<IpNet>> {
    let v4 = (any::<u32>(), 25_u8..=30).prop_map(|(bits, len)| {
        IpNet::new(IpAddr::from(Ipv4Addr::from_bits(bits)), len).unwrap().trunc()
    });
    let v6 = (any::<u128>(), 121_u8..=126).prop_map(|(bits, len)| {
        IpNet::new(IpAddr::from(Ipv6Addr::from_bits(bits)), len).unwrap().trunc()
    });
    prop_oneof![
        v4.clone().prop_map(|net| vec![net]),
        v6.clone().prop_map(|net| vec![net]),
        (v4, v6).prop_map(|(v4, v6)| vec![v4, v6]),
    ]
}

proptest! {
    #[test]
    fn no_address_is_given_twice_and_none_is_reserved(
        blocks in blocks(),
        steps in prop::collection::vec((any::<bool>(), 0_u32..160), 0..400),
    ) {
        let mut leases = Leases::new(&blocks).unwrap();
        let mut held: BTreeMap<PodName, Vec<IpAddr>> = BTreeMap::new();
        for (attach, number) in steps {
            let pod = pod(number);
            if !attach {
                prop_assert_eq!(leases.release(&pod), held.remove(&pod).unwrap_or_default());
                continue;
            }
            match leases.assign(&pod, &NONE) {
                Ok(addresses) => {
                    for (net, address) in blocks.iter().zip(&addresses) {
                        prop_assert!(net.contains(address));
                        prop_assert_ne!(*address, net.network());
                        prop_assert!(net.addr().is_ipv6() || *address != net.broadcast());
                        prop_assert!(!tunnel_addresses(&leases).contains(address));
                        let holder = held.iter().find(|(_, theirs)| theirs.contains(address));
                        prop_assert!(holder.is_none_or(|(holder, _)| *holder == pod));
                    }
                    if let Some(before) = held.insert(pod, addresses.clone()) {
                        prop_assert_eq!(before, addresses, "the same pod has the same address");
                    }
                }
                Err(Error::Exhausted { block, leased, others }) => {
                    prop_assert!(blocks.contains(&block));
                    prop_assert_eq!(leased, held.len());
                    prop_assert!(others.is_empty());
                    let host_bits = u32::from(block.max_prefix_len() - block.prefix_len());
                    let reserved = if block.addr().is_ipv4() { 3 } else { 2 };
                    prop_assert_eq!(leased, (1 << host_bits) - reserved, "every address is in use");
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        prop_assert_eq!(&leases.pods, &held);
    }

    #[test]
    fn what_was_released_is_the_last_to_come_again(blocks in blocks(), attached in 1_u32..20) {
        let mut leases = Leases::new(&blocks[..1]).unwrap();
        let attached = (0..attached).take_while(|number| leases.assign(&pod(*number), &NONE).is_ok()).count() as u32;
        let released = leases.release(&pod(0));
        let later = (attached..).map_while(|number| leases.assign(&pod(number), &NONE).ok()).collect::<Vec<_>>();
        prop_assert_eq!(later.last(), Some(&released));
        prop_assert_eq!(later.iter().filter(|addresses| **addresses == released).count(), 1);
    }
}

#[test]
fn the_second_address_is_the_nodes_and_the_third_the_first_pods() {
    let mut leases = leases(&["10.244.1.0/24", "fd00:1::/64"]);
    let own: Vec<IpAddr> = vec!["10.244.1.1".parse().unwrap(), "fd00:1::1".parse().unwrap()];
    assert_eq!(tunnel_addresses(&leases), own);
    let first: Vec<IpAddr> = vec!["10.244.1.2".parse().unwrap(), "fd00:1::2".parse().unwrap()];
    assert_eq!(leases.assign(&pod(1), &NONE).unwrap(), first);
}

#[test]
fn the_whole_address_space_is_a_block_too() {
    let mut leases = leases(&["0.0.0.0/0", "::/0"]);
    let first: Vec<IpAddr> = vec!["0.0.0.2".parse().unwrap(), "::2".parse().unwrap()];
    assert_eq!(leases.assign(&pod(1), &NONE).unwrap(), first);
}

#[test]
fn refusals_name_the_block() {
    let refused = |blocks: &[&str]| Leases::new(&nets(blocks)).unwrap_err().to_string();
    let mut full = leases(&["10.0.0.0/30"]);
    full.assign(&pod(1), &NONE).unwrap();
    let texts = [
        refused(&[]),
        refused(&["10.0.0.0/24", "10.0.1.0/24"]),
        refused(&["10.0.0.0/31"]),
        refused(&["fd00::/127"]),
        refused(&["10.0.0.1/32"]),
        full.assign(&pod(2), &NONE).unwrap_err().to_string(),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    the node has no pod CIDR: set Node.spec.podCIDRs
    the node has two pod CIDRs of one family, 10.0.0.0/24 and 10.0.1.0/24: Node.spec.podCIDRs holds at most one of each
    pod CIDR 10.0.0.0/31 has no room for a pod: an IPv4 block is /30 or larger, an IPv6 block /126 or larger
    pod CIDR fd00::/127 has no room for a pod: an IPv4 block is /30 or larger, an IPv6 block /126 or larger
    pod CIDR 10.0.0.1/32 has no room for a pod: an IPv4 block is /30 or larger, an IPv6 block /126 or larger
    no address is left in pod CIDR 10.0.0.0/30: pods of this node have 1; remove pods, or give the node a larger pod CIDR
    ");
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn named_addresses_are_given_exactly_and_to_no_other_pod() {
    let mut leases = leases(&["10.0.0.0/29", "fd00::/64"]);
    let inside = addresses(&["10.0.0.2"]);
    assert_eq!(leases.pin(&pod(1), &inside).unwrap(), inside);
    let outside = addresses(&["192.0.2.9", "fd09::9"]);
    assert_eq!(leases.pin(&pod(2), &outside).unwrap(), outside);
    // The same two addresses again, in another order, and then not named.
    assert_eq!(leases.pin(&pod(2), &addresses(&["fd09::9", "192.0.2.9"])).unwrap(), outside);
    assert_eq!(leases.assign(&pod(2), &NONE).unwrap(), outside);
    // The turn leaves out the pinned address.
    assert_eq!(leases.assign(&pod(3), &NONE).unwrap(), addresses(&["10.0.0.3", "fd00::2"]));
    let refused = |wanted: &[&str]| {
        let mut next = leases.clone();
        let error = next.pin(&pod(4), &addresses(wanted)).unwrap_err();
        assert_eq!(next, leases, "all or nothing");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    };
    let texts = [
        refused(&["10.0.0.4", "fd09::9"]),
        refused(&["10.0.0.3"]),
        refused(&["10.0.0.1"]),
        refused(&["10.0.0.0"]),
        refused(&["10.0.0.4", "10.0.0.5"]),
        refused(&["127.0.0.1"]),
        refused(&["fe80::1"]),
        leases.pin(&pod(2), &inside).unwrap_err().to_string(),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    address fd09::9 is that of pod default/pod-2: name another, or detach that pod first
    address 10.0.0.3 is that of pod default/pod-3: name another, or detach that pod first
    address 10.0.0.1 is the node's own in pod CIDR 10.0.0.0/29: name another
    address 10.0.0.0 is the node's own in pod CIDR 10.0.0.0/29: name another
    the addresses 10.0.0.4 and 10.0.0.5 are of one family: name at most one for IPv4 and one for IPv6
    address 127.0.0.1 is not one that a pod can have: expected a unicast address, not link-local or loopback
    address fe80::1 is not one that a pod can have: expected a unicast address, not link-local or loopback
    pod default/pod-2 has the addresses 192.0.2.9, fd09::9, and not 10.0.0.2: detach it first to give it others
    ");
    assert_eq!(leases.release(&pod(2)), outside);
    assert_eq!(leases.pin(&pod(4), &outside).unwrap(), outside);
}

#[test]
fn an_address_that_an_object_of_another_has_is_not_given_out() {
    let mut leases = leases(&["10.0.0.0/29", "fd00::/125"]);
    let others = addresses(&["10.0.0.2", "10.0.0.4", "fd00::2"]).into_iter();
    let mut others: BTreeMap<IpAddr, String> =
        others.map(|address| (address, "Pod shop/web".to_owned())).collect();
    assert_eq!(leases.assign(&pod(1), &others).unwrap(), addresses(&["10.0.0.3", "fd00::3"]));
    assert_eq!(leases.assign(&pod(2), &others).unwrap(), addresses(&["10.0.0.5", "fd00::4"]));
    others.insert("10.0.0.6".parse().unwrap(), "Node \"b\"".to_owned());
    insta::assert_snapshot!(
        leases.assign(&pod(3), &others).unwrap_err(),
        @r#"no address is left in pod CIDR 10.0.0.0/29: pods of this node have 2, and others have 3: 10.0.0.2 of Pod shop/web, 10.0.0.4 of Pod shop/web, 10.0.0.6 of Node "b"; remove pods, or give the node a larger pod CIDR"#
    );
}
