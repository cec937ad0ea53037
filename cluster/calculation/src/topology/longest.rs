//! Finds the longest of many prefixes that contains a net. A search takes only a few lookups, however many prefixes
//! there are.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// Returns the longest prefix that contains a net without host bits, with its value. The prefixes must have no host
/// bits.
///
/// If two prefixes both contain the net, the longer one sorts after the shorter one. So take the last prefix that does
/// not sort after the net. Either it contains the net, or it lies within every prefix that does. In the second case,
/// those prefixes are not longer than the common part of the net and this prefix, so the search continues with the
/// common part.
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

/// Returns the longest prefix that contains two others. Returns `None` if they are of different families.
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
