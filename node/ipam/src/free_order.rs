//! The order in which a block's addresses are given to pods.
//!
//! The addresses are given out in turn, from the block's first to its last and then from the first again. An address that
//! was given back rests. A resting address is given out again only when no other address is free, and the one that has
//! rested longest comes first. So peers that still send to the old pod do not reach a new one. At most [`RESTING`]
//! addresses rest. An address that was given back before these is an ordinary free address.

use std::collections::VecDeque;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::block::Block;

/// The most addresses of a block that rest. Without a bound an IPv6 block would remember every address ever given back.
pub const RESTING: usize = 64;

/// A block, and the state of the order in which its addresses are given out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeOrder {
    block: Block,
    /// The number that was given out last; at the start the one before the first.
    last: u128,
    /// The numbers that rest, in the order in which they were given back. No pod has one of them.
    resting: VecDeque<u128>,
}

impl FreeOrder {
    /// Starts the order at the block's first address. Returns `None` if the block has no room for a pod.
    pub fn new(net: IpNet) -> Option<Self> {
        let block = Block::new(net)?;
        Some(Self { block, last: block.first() - 1, resting: VecDeque::new() })
    }

    pub const fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the next number. The caller knows that at most `most` addresses are used.
    pub fn next(&self, most: usize, is_used: impl Fn(IpAddr) -> bool) -> Option<u128> {
        let is_free = |number: &u128| !is_used(self.block.address(*number));
        let mut number = self.last;
        // The loop tries one number more than there are used and resting numbers. So it finds a free number that does
        // not rest, if the block has one.
        for _ in 0..=most + self.resting.len() {
            number = if number >= self.block.end() { self.block.first() } else { number + 1 };
            if !self.resting.contains(&number) && is_free(&number) {
                return Some(number);
            }
        }
        self.resting.iter().copied().find(is_free)
    }

    /// Gives out the number that is next. Returns its address.
    pub fn take(&mut self, number: u128) -> IpAddr {
        let address = self.block.address(number);
        // A resting number is given out in another order, so the next number does not follow from it.
        if !self.resting.contains(&number) {
            self.last = number;
        }
        self.stop_resting(address);
        address
    }

    /// Ends the rest of an address that a pod gets, whether it is the next one or was named by a caller.
    pub(crate) fn stop_resting(&mut self, address: IpAddr) {
        let number = self.block.number(address);
        self.resting.retain(|it| Some(*it) != number);
    }

    /// Lets an address that was given back rest, if it is the block's.
    pub(crate) fn rest(&mut self, address: IpAddr) {
        if let Some(number) = self.block.number(address) {
            self.resting.push_back(number);
            if self.resting.len() > RESTING {
                self.resting.pop_front();
            }
        }
    }

    /// The address that was given out last in turn; at the start the one before the first that a pod may have.
    pub(crate) fn last(&self) -> IpAddr {
        self.block.address(self.last)
    }

    /// The numbers that rest, in order.
    pub(crate) fn resting(&self) -> impl Iterator<Item = u128> {
        self.resting.iter().copied()
    }

    /// Restores [the last](FreeOrder::last) address from a record. Returns `Err` if the address is not for pods.
    pub(crate) fn set_last(&mut self, last: IpAddr) -> Result<(), NotOfPods> {
        if last != self.block.address(self.block.first() - 1) {
            self.last = self.number(last)?;
        }
        Ok(())
    }

    /// The number of an address. Returns `Err` if the address is not for pods.
    pub(crate) fn number(&self, address: IpAddr) -> Result<u128, NotOfPods> {
        self.block.number(address).ok_or(NotOfPods(address, self.block.net()))
    }
}

/// The error for an address that a block does not give to pods.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not a pod's address of {1}")]
pub(crate) struct NotOfPods(IpAddr, IpNet);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_rest_and_the_turn_goes_past_them() {
        let mut order = FreeOrder::new("fd00::/64".parse().unwrap()).unwrap();
        let given: Vec<IpAddr> =
            (0..100).map(|_| order.take(order.next(0, |_| false).unwrap())).collect();
        for address in &given {
            order.rest(*address);
        }
        let resting = order.resting().map(|number| order.block().address(number));
        assert_eq!(resting.collect::<Vec<_>>(), given[100 - RESTING..]);
        assert_eq!(order.next(0, |_| false), Some(102));
    }

    #[test]
    fn of_those_that_rest_the_first_given_back_comes_first() {
        let mut order = FreeOrder::new("10.0.0.0/29".parse().unwrap()).unwrap();
        let mut used = Vec::new();
        while let Some(number) = order.next(used.len(), |it| used.contains(&it)) {
            used.push(order.take(number));
        }
        assert_eq!(used.len(), 5);
        for at in [3, 1, 4] {
            order.rest(used[at]);
        }
        let free = [used[3], used[1], used[4]];
        for address in free {
            let is_used = |it| order.resting().all(|resting| order.block().address(resting) != it);
            let number = order.next(5, is_used).unwrap();
            assert_eq!(order.take(number), address);
        }
    }
}
