//! The longest of many prefixes that contains a net. It takes a few lookups, however many prefixes there are.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// The longest prefix that contains a net without host bits, with its value. None of the prefixes has host bits.
///
/// Of two prefixes that both contain the net, the longer sorts after the shorter. So the last one up to the net either
/// contains it, or lies in every one that does, and these are no longer than what both have in common.
pub(super) fn longest<V>(prefixes: &BTreeMap<IpNet, V>, net: IpNet) -> Option<(IpNet, &V)> {
    let mut bound = net;
    while let Some((prefix, value)) = prefixes.range(..=bound).next_back() {
        if prefix.contains(&net) {
            return Some((*prefix, value));
        }
        bound = common_prefix(*prefix, bound)?;
    }
    None
}

/// The longest prefix that contains two others. `None`: they are of two families.
fn common_prefix(one: IpNet, other: IpNet) -> Option<IpNet> {
    let most = one.prefix_len().min(other.prefix_len());
    let (alike, address) = match (one.addr(), other.addr()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => ((a.to_bits() ^ b.to_bits()).leading_zeros(), other),
        (IpAddr::V6(a), IpAddr::V6(b)) => ((a.to_bits() ^ b.to_bits()).leading_zeros(), other),
        _ => return None,
    };
    let length = most.min(alike as u8);
    IpNet::new(address.addr(), length).ok().map(|net| net.trunc())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net((last, length): (u8, u8)) -> IpNet {
        IpNet::new([10, 0, 0, last].into(), length).unwrap().trunc()
    }

    proptest! {
        #[test]
        fn it_is_the_longest_of_all_that_contain_the_net(
            prefixes in prop::collection::btree_set((any::<u8>(), 20_u8..=32), 0..30),
            of in (any::<u8>(), 22_u8..=32),
        ) {
            let prefixes: BTreeMap<IpNet, u8> =
                prefixes.into_iter().map(|it| (net(it), net(it).prefix_len())).collect();
            let of = net(of);
            let around = prefixes.keys().filter(|prefix| prefix.contains(&of));
            let expected = around.max_by_key(|prefix| prefix.prefix_len()).copied();
            let found = longest(&prefixes, of).map(|(prefix, length)| (prefix, *length));
            prop_assert_eq!(found, expected.map(|prefix| (prefix, prefix.prefix_len())));
        }
    }
}
