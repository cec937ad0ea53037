//! Splits a pool into smaller pools. All functions here are pure.
//!
//! Blocks do not change: each block is within one of the parts, because no part is smaller than a
//! block.
//!
//! Source: Calico's `calicoctl ipam split`.

use ipnet::IpNet;

/// The maximum number of parts of a pool. There is a limit because each part is an object that
/// every agent reads.
pub const MOST_PARTS: u32 = 1 << 10;

/// The reason why a pool cannot be split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoParts {
    #[error("found {0} parts, expected a power of two from 2 to {MOST_PARTS}")]
    Number(u32),
    #[error(
        "{parts} parts of {pool} are smaller than its blocks (/{block_size}), which would lie in several pools; expected {most} parts or fewer"
    )]
    TooSmall {
        parts: u32,
        pool: IpNet,
        block_size: u8,
        /// The maximum number of parts.
        most: u128,
    },
}

/// Returns the parts of a pool, in order.
pub fn parts(pool: IpNet, block_size: u8, number: u32) -> Result<Vec<IpNet>, NoParts> {
    if !number.is_power_of_two() || !(2..=MOST_PARTS).contains(&number) {
        return Err(NoParts::Number(number));
    }
    let most = crate::addresses::blocks(pool, block_size);
    let too_small = NoParts::TooSmall { parts: number, pool, block_size, most };
    if u128::from(number) > most {
        return Err(too_small);
    }
    let length = u32::from(pool.prefix_len()) + number.trailing_zeros();
    let subnets = u8::try_from(length).ok().and_then(|length| pool.subnets(length).ok());
    subnets.map(Iterator::collect).ok_or(too_small)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pool: &str, block_size: u8, number: u32) -> Result<Vec<String>, NoParts> {
        let parts = parts(pool.parse().unwrap(), block_size, number)?;
        Ok(parts.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_parts_are_the_whole_pool_and_no_smaller_than_a_block() {
        let four = ["10.65.0.0/18", "10.65.64.0/18", "10.65.128.0/18", "10.65.192.0/18"];
        assert_eq!(split("10.65.0.0/16", 26, 4).unwrap(), four);
        assert_eq!(split("fd00::/48", 122, 2).unwrap(), ["fd00::/49", "fd00:0:0:8000::/49"]);
        assert_eq!(split("10.65.0.0/25", 26, 2).unwrap(), ["10.65.0.0/26", "10.65.0.64/26"]);
        let error = split("10.65.0.0/25", 26, 4).unwrap_err().to_string();
        assert_eq!(
            error,
            "4 parts of 10.65.0.0/25 are smaller than its blocks (/26), which would lie in several pools; expected 2 parts or fewer"
        );
        for number in [0, 1, 3, 2048, u32::MAX] {
            assert_eq!(split("10.0.0.0/8", 26, number), Err(NoParts::Number(number)));
        }
    }
}
