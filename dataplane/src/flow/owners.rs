//! The number of flows of each owner in a table, and which owner loses one when the table is full.
//!
//! A flow counts for the endpoint of this node that opened it, or else for the endpoint of this node that it was opened
//! to. If there is neither, it counts for the namespace of the Service that leads its client from outside to another
//! node. Otherwise it counts for the node. The *share* of an owner is the capacity of the table divided by the number
//! of owners that have flows. An owner may have more while there is room. In a full table, an owner that has its share
//! loses a flow of its own when it opens one. For an owner that has less, an owner with more than its share loses a
//! flow. So no owner loses a flow to another owner while it has no more than its share.

/// The owner that a flow counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Owner(pub(super) u16);

impl Owner {
    /// The node, which owns the flows that no endpoint of this node opens or accepts.
    pub const NODE: Self = Self(0);

    /// The number of owners for namespaces. Namespaces beyond this number share these owners. Each takes a share like
    /// that of an endpoint, so the number is small.
    const NAMESPACES: u16 = 16;

    /// The owner for a namespace with Services, from the namespace's number.
    pub const fn namespace(number: u64) -> Self {
        Self(1 + (number % Self::NAMESPACES as u64) as u16)
    }

    /// An endpoint of this node, by its index in the tables. All endpoints from index 65,518 on count as one owner.
    #[inline]
    pub const fn endpoint(index: u32) -> Self {
        let number = index.saturating_add(1 + Self::NAMESPACES as u32);
        Self(if number < u16::MAX as u32 { number as u16 } else { u16::MAX })
    }

    /// The index of its endpoint. `None` for other owners, and for the owner that stands for several endpoints.
    pub const fn endpoint_index(self) -> Option<u32> {
        match self.0.checked_sub(1 + Self::NAMESPACES) {
            Some(index) if self.0 < u16::MAX => Some(index as u32),
            _ => None,
        }
    }

    /// Whether the owner is a namespace.
    pub const fn is_namespace(self) -> bool {
        0 < self.0 && self.0 <= Self::NAMESPACES
    }

    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The oldest and the newest slot of a list. Each is stored plus one; 0 means none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct List {
    pub(super) oldest: u32,
    pub(super) newest: u32,
}

/// The flows of an owner.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OwnerFlows {
    flows: u32,
    /// The number of the owner's flows that are not established.
    pub(super) unestablished: u32,
    /// The list of slots with flows that are not established, and the list of slots with established flows.
    pub(super) lists: [List; 2],
}

/// The flows of all owners.
#[derive(Debug)]
pub(super) struct Owners {
    holdings: Vec<OwnerFlows>,
    /// The number of flows that fit in the table.
    capacity: u32,
    /// The number of owners that have flows.
    active: u32,
    /// The capacity divided by the number of active owners, at least 1. The capacity itself if there are none.
    share: u32,
    /// The owner that lost the last flow.
    last: Owner,
}

impl Owners {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity as u32;
        Self {
            holdings: vec![OwnerFlows::default()],
            capacity,
            active: 0,
            share: capacity,
            last: Owner::NODE,
        }
    }

    /// The flows of an owner that has or had some.
    #[inline]
    pub(super) fn owner_flows(&mut self, owner: Owner) -> &mut OwnerFlows {
        &mut self.holdings[owner.index()]
    }

    /// The lists of an owner.
    #[inline]
    pub(super) fn lists(&self, owner: Owner) -> Option<&[List; 2]> {
        Some(&self.holdings.get(owner.index())?.lists)
    }

    /// Counts one more flow.
    #[inline]
    pub(super) fn add(&mut self, owner: Owner) {
        match self.holdings.get_mut(owner.index()) {
            Some(holding) if holding.flows > 0 => holding.flows += 1,
            _ => self.activate(owner),
        }
    }

    #[inline(never)]
    fn activate(&mut self, owner: Owner) {
        if self.holdings.len() <= owner.index() {
            self.holdings.resize(owner.index() + 1, OwnerFlows::default());
        }
        self.holdings[owner.index()].flows = 1;
        self.active += 1;
        self.share = self.share_among(self.active);
    }

    /// Counts one flow less. The owner must have at least one.
    #[inline]
    pub(super) fn remove(&mut self, owner: Owner) {
        let holding = self.owner_flows(owner);
        holding.flows -= 1;
        if holding.flows == 0 {
            self.active -= 1;
            self.share = self.share_among(self.active);
        }
    }

    fn share_among(&self, active: u32) -> u32 {
        (self.capacity / active.max(1)).max(1)
    }

    #[inline]
    fn flows(&self, owner: Owner) -> u32 {
        self.holdings.get(owner.index()).map_or(0, |holding| holding.flows)
    }

    /// Whether an owner has more than its share.
    pub(super) fn is_over_share(&self, owner: Owner) -> bool {
        self.flows(owner) > self.share
    }

    /// The owner that loses a flow for a new flow of `owner` in a full table.
    #[inline]
    pub(super) fn victim_owner(&mut self, owner: Owner) -> Owner {
        let flows = self.flows(owner);
        self.last = if flows >= self.share { owner } else { self.over_share_owner(owner, flows) };
        self.last
    }

    /// An owner that has more than its share: the owner that lost the last flow if it still has more than its share,
    /// else the owner with the most flows. Such an owner exists while the table is full and `owner` has less than its
    /// share.
    #[inline(never)]
    fn over_share_owner(&self, owner: Owner, flows: u32) -> Owner {
        let share = self.share_among(self.active + u32::from(flows == 0));
        if self.flows(self.last) > share {
            return self.last;
        }
        let all = self.holdings.iter().map(|holding| holding.flows).zip(0..);
        all.max().map_or(owner, |(_, number)| Owner(number))
    }

    /// Whether at most a quarter of an owner's flows are not established.
    pub(super) fn has_few_unestablished(&self, owner: Owner) -> bool {
        let holding = self.holdings.get(owner.index());
        holding.is_some_and(|holding| holding.unestablished <= holding.flows / 4)
    }

    /// The owner that lost the last flow.
    #[inline]
    pub(super) fn last(&self) -> Owner {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_owner_within_its_share_gives_up_no_flow_to_another(
            capacity in 12usize..200, opens in prop::collection::vec(0u16..12, 1..1000),
        ) {
            let mut owners = Owners::new(capacity);
            let mut held = 0;
            for owner in opens.into_iter().map(Owner) {
                if held == capacity {
                    let active = owners.holdings.iter().filter(|it| it.flows > 0).count();
                    let joins = usize::from(owners.flows(owner) == 0);
                    let share = (capacity / (active + joins)) as u32;
                    let giver = owners.victim_owner(owner);
                    prop_assert!(owners.flows(giver) > 0, "an owner without flows cannot give one up");
                    prop_assert!(giver == owner || owners.flows(giver) > share);
                    prop_assert!(giver == owner || owners.flows(owner) < share);
                    owners.remove(giver);
                    held -= 1;
                }
                owners.add(owner);
                held += 1;
                let sum: u32 = owners.holdings.iter().map(|it| it.flows).sum();
                prop_assert_eq!(sum as usize, held);
                prop_assert_eq!(owners.active as usize, owners.holdings.iter().filter(|it| it.flows > 0).count());
            }
        }
    }

    #[test]
    fn with_more_owners_than_room_an_owner_with_a_flow_gives_it_up() {
        let mut owners = Owners::new(1);
        owners.add(Owner(7));
        assert_eq!(owners.victim_owner(Owner(3)), Owner(7));
        assert_eq!(owners.victim_owner(Owner(7)), Owner(7));
    }

    #[test]
    fn no_two_kinds_of_owners_are_one_and_endpoints_with_the_highest_indices_share_one() {
        let last = u32::from(u16::MAX - 1 - Owner::NAMESPACES);
        let indices = [0, last - 1, last].map(|index| Owner::endpoint(index).endpoint_index());
        assert_eq!(indices, [Some(0), Some(last - 1), None]);
        assert_eq!(Owner::endpoint(last), Owner::endpoint(u32::MAX));
        for number in [0, 1, 255, 256, u64::MAX] {
            let owner = Owner::namespace(number);
            assert!(
                owner.is_namespace() && owner.endpoint_index().is_none() && owner != Owner::NODE
            );
        }
        assert_ne!(Owner::namespace(1), Owner::namespace(2));
        assert!(!Owner::NODE.is_namespace() && Owner::NODE.endpoint_index().is_none());
        assert!([0, last, u32::MAX].iter().all(|it| !Owner::endpoint(*it).is_namespace()));
    }
}
