//! The addresses of a net by their index.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::block::MOST_ADDRESSES;

/// Returns the number of bits after the prefix.
fn host_bits(net: IpNet) -> u32 {
    u32::from(net.max_prefix_len() - net.prefix_len())
}

/// Returns the number of addresses in a block, at most [`MOST_ADDRESSES`].
pub(crate) fn size(block: IpNet) -> u32 {
    1_u32.checked_shl(host_bits(block)).map_or(MOST_ADDRESSES, |it| it.min(MOST_ADDRESSES))
}

/// Returns the address of a net with this index.
pub(crate) fn address(net: IpNet, at: u32) -> IpAddr {
    offset(net, u128::from(at))
}

/// Returns the index of an address in a block, or `None` if the address is outside.
pub(crate) fn ordinal(block: IpNet, address: IpAddr) -> Option<u32> {
    let from = |start: u128, address: u128| u32::try_from(address - start).ok();
    match (block, address) {
        (IpNet::V4(net), IpAddr::V4(v4)) if net.contains(&v4) => {
            from(net.network().to_bits().into(), v4.to_bits().into())
        }
        (IpNet::V6(net), IpAddr::V6(v6)) if net.contains(&v6) => {
            from(net.network().to_bits(), v6.to_bits())
        }
        _ => None,
    }
}

/// Returns the number of blocks of this prefix length in a pool, or the largest number if there are more.
pub(crate) fn blocks(pool: IpNet, length: u8) -> u128 {
    let bits = u32::from(length.saturating_sub(pool.prefix_len()));
    1_u128.checked_shl(bits).unwrap_or(u128::MAX)
}

/// Returns the block of this prefix length in a pool with this index.
pub(crate) fn nth_block(pool: IpNet, length: u8, at: u128) -> Option<IpNet> {
    let width = u32::from(pool.max_prefix_len().checked_sub(length)?);
    IpNet::new(offset(pool, at.checked_shl(width)?), length).ok()
}

/// Returns the index of the block in which a net ends. If the net ends after the pool, returns the index of the pool's
/// last block.
pub(crate) fn place_of_end(pool: IpNet, length: u8, net: IpNet) -> u128 {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let end = bits(net.broadcast()).min(bits(pool.broadcast()));
    let width = u32::from(pool.max_prefix_len().saturating_sub(length));
    end.saturating_sub(bits(pool.network())).checked_shr(width).unwrap_or(0)
}

/// Returns the block of this prefix length that contains an address.
pub(crate) fn block_around(address: IpAddr, length: u8) -> Option<IpNet> {
    Some(IpNet::new(address, length).ok()?.trunc())
}

fn offset(net: IpNet, by: u128) -> IpAddr {
    match net {
        IpNet::V4(net) => {
            Ipv4Addr::from_bits(net.network().to_bits().wrapping_add(by as u32)).into()
        }
        IpNet::V6(net) => Ipv6Addr::from_bits(net.network().to_bits().wrapping_add(by)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_and_its_address_lead_to_each_other() {
        for (block, at, expected) in [
            ("10.65.0.0/26", 63, "10.65.0.63"),
            ("10.65.0.64/32", 0, "10.65.0.64"),
            ("fd00:1::40/122", 63, "fd00:1::7f"),
        ] {
            let block: IpNet = block.parse().unwrap();
            let expected: IpAddr = expected.parse().unwrap();
            assert_eq!(address(block, at), expected);
            assert_eq!(ordinal(block, expected), Some(at));
        }
        let block: IpNet = "10.65.0.0/26".parse().unwrap();
        assert_eq!(ordinal(block, "10.65.0.64".parse().unwrap()), None);
        assert_eq!(ordinal(block, "fd00::".parse().unwrap()), None);
        assert_eq!(size(block), 64);
        assert_eq!(size("10.0.0.0/8".parse().unwrap()), MOST_ADDRESSES);
    }

    #[test]
    fn the_blocks_of_a_pool_are_counted_and_named() {
        let pool: IpNet = "10.65.0.0/24".parse().unwrap();
        assert_eq!(blocks(pool, 26), 4);
        assert_eq!(nth_block(pool, 26, 3), Some("10.65.0.192/26".parse().unwrap()));
        let pool: IpNet = "fd00::/48".parse().unwrap();
        assert_eq!(blocks(pool, 122), 1 << 74);
        assert_eq!(nth_block(pool, 122, 1 << 10), Some("fd00::1:0/122".parse().unwrap()));
        let around = block_around("10.65.0.77".parse().unwrap(), 26);
        assert_eq!(around, Some("10.65.0.64/26".parse().unwrap()));
    }
}
