//! `manx ipam check`: finds disagreements between blocks, affinities, handles, and the users of addresses. All
//! functions here are pure.
//!
//! The rules include those of Calico's `ipam check` and some more: Calico finds neither addresses with two users nor
//! missing handles, and does not examine affinities. Two things are not findings, because a crash may leave them behind
//! by design: an affinity that is not confirmed, and a count of a handle that is too high.
//!
//! Law: there is no finding after any completed sequence of this crate's own operations, if the users are those for
//! which the operations were made (`laws.rs`).
//!
//! Callers read records and users one after the other, so a finding may be the effect of an operation in progress. A
//! finding is real if a second check finds it again.
//!
//! The types of findings are in `finding`.
//!
//! Source: Calico's `calicoctl ipam check`.

mod finding;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

pub use self::finding::{Finding, Kind};
use crate::addresses::{address, size};
use crate::affinity::{Affinity, Owner, State};
use crate::block::{Allocation, Block, first_line, is_windows};
use crate::handle::Handle;
use crate::pool::Pool;
use crate::records::Records;
use crate::users::{User, Users, Validity};

impl Records {
    /// Returns the allocations of all blocks with their states, in the order of the addresses.
    pub fn allocated<'a>(&'a self, users: &Users) -> Vec<Allocated<'a>> {
        let used = users.by_address();
        let mut all = Vec::new();
        for block in &self.blocks {
            for (at, allocation) in &block.allocations {
                let address = address(block.cidr, *at);
                let by = used.get(&address).cloned().unwrap_or_default();
                let state = state(users, address, allocation, &by);
                all.push(Allocated { address, block, allocation, state, users: by });
            }
        }
        all.sort_by_key(|it| it.address);
        all
    }
}

/// An allocated address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocated<'a> {
    pub address: IpAddr,
    pub block: &'a Block,
    pub allocation: &'a Allocation,
    pub state: AddressState,
    /// The users whose own objects name the address. Objects that name no addresses are not included.
    pub users: Vec<User>,
}

impl Allocated<'_> {
    /// Returns the node that has borrowed the address from a block of another owner, or from a block without an owner.
    /// Returns `None` if nothing indicates that the address is borrowed.
    pub fn borrower(&self) -> Option<&str> {
        let node = self.allocation.owner.get("node")?;
        let is_owner = |it: &Owner| matches!(it, Owner::Host(name) if name == node);
        (!self.block.owner.as_ref().is_some_and(is_owner)).then_some(node)
    }
}

/// The state of an allocated address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressState {
    /// The address has a user, or it is not certain that it has none.
    InUse,
    /// The address has no user.
    Unused,
    /// The address has no user, and its node does not exist any more.
    NodeGone,
    /// The address was released and is not assigned yet.
    Resting,
    /// A Windows node reserves the address for itself.
    Reserved,
}

impl fmt::Display for AddressState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InUse => "in use",
            Self::Unused => "unused",
            Self::NodeGone => "unused, its node is gone",
            Self::Resting => "rests after its release",
            Self::Reserved => "kept by a Windows node",
        })
    }
}

fn state(
    users: &Users,
    address: IpAddr,
    allocation: &Allocation,
    used_by: &[User],
) -> AddressState {
    if allocation.released_at.is_some() {
        return AddressState::Resting;
    }
    if is_windows(allocation) {
        return AddressState::Reserved;
    }
    match users.validity(address, allocation) {
        Validity::Valid => AddressState::InUse,
        // A release would take the address from its user.
        Validity::Unused | Validity::NodeGone if !used_by.is_empty() => AddressState::InUse,
        Validity::Unused => AddressState::Unused,
        Validity::NodeGone => AddressState::NodeGone,
    }
}

/// The numbers of checked records and of addresses, by type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub pools: usize,
    pub blocks: usize,
    /// The number of blocks without an owner, from which addresses are borrowed.
    pub blocks_of_nobody: usize,
    pub affinities: usize,
    /// The number of affinities that are not confirmed.
    pub unconfirmed: usize,
    pub handles: usize,
    /// The number of addresses in all blocks. Each address is either free or in one of the next four states.
    pub addresses: usize,
    pub in_use: usize,
    pub unused: usize,
    pub resting: usize,
    pub reserved: usize,
    /// The number of addresses in use that nodes have borrowed from blocks that they do not own.
    pub borrowed: usize,
    /// The number of addresses that objects name as addresses of pods or tunnels.
    pub used: usize,
}

impl Counts {
    /// Returns the number of addresses that blocks can assign now.
    pub const fn free(&self) -> usize {
        self.addresses.saturating_sub(self.in_use + self.unused + self.resting + self.reserved)
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    pub counts: Counts,
    /// The findings, in the order of their kinds.
    pub findings: Vec<Finding>,
}

/// Checks a store's records against each other and against the users of addresses.
pub fn check(records: &Records, pools: &[Pool], users: &Users) -> Checked {
    let allocated = records.allocated(users);
    let mut findings = Vec::new();
    of_allocations(&allocated, &mut findings);
    of_users(&allocated, pools, users, &mut findings);
    of_handles(&records.handles, &allocated, &mut findings);
    of_owners(records, &mut findings);
    findings.sort_by_key(Finding::kind);
    Checked { counts: counts(records, &allocated, pools, users), findings }
}

fn of_allocations(allocated: &[Allocated<'_>], findings: &mut Vec<Finding>) {
    for it in allocated {
        let Allocated { address, block, allocation, state, users } = it;
        let (address, allocation) = (*address, (*allocation).clone());
        match state {
            AddressState::Unused | AddressState::NodeGone => {
                let node_gone = *state == AddressState::NodeGone;
                findings.push(Finding::Unused {
                    address,
                    block: block.cidr,
                    allocation,
                    node_gone,
                });
            }
            AddressState::InUse if is_of_others(&allocation, users) => {
                findings.push(Finding::OtherUser { address, allocation, users: users.clone() });
            }
            AddressState::InUse | AddressState::Resting | AddressState::Reserved => {}
        }
    }
}

/// Returns whether an allocation names a pod and other users have the address.
fn is_of_others(allocation: &Allocation, users: &[User]) -> bool {
    let of = |key: &str| allocation.owner.get(key).cloned();
    let (Some(namespace), Some(name)) = (of("namespace"), of("pod")) else { return false };
    !users.is_empty() && !users.contains(&User::Pod { namespace, name })
}

fn of_users(
    allocated: &[Allocated<'_>],
    pools: &[Pool],
    users: &Users,
    findings: &mut Vec<Finding>,
) {
    let is_in_pool =
        |address: &IpAddr| pools.iter().any(|it| !it.is_disabled && it.cidr.contains(address));
    for (address, users) in users.by_address() {
        if users.len() > 1 {
            findings.push(Finding::UsedTwice { address, users: users.clone() });
        }
        let found = allocated.binary_search_by_key(&address, |it| it.address);
        let state = found.ok().map(|at| allocated[at].state);
        match state {
            None if !is_in_pool(&address) => findings.push(Finding::InNoPool { address, users }),
            None => findings.push(Finding::NotAllocated { address, users, rests: false }),
            Some(AddressState::Resting) => {
                findings.push(Finding::NotAllocated { address, users, rests: true });
            }
            Some(_) => {}
        }
    }
}

fn of_handles(handles: &[Handle], allocated: &[Allocated<'_>], findings: &mut Vec<Finding>) {
    let mut in_blocks = BTreeMap::<&str, BTreeMap<IpNet, Vec<IpAddr>>>::new();
    for Allocated { address, block, allocation, state, .. } in allocated {
        if matches!(state, AddressState::Resting | AddressState::Reserved) {
            continue;
        }
        if let Some(handle) = allocation.handle.as_deref() {
            let blocks = in_blocks.entry(first_line(handle)).or_default();
            blocks.entry(block.cidr).or_default().push(*address);
        }
    }
    let mut known = BTreeSet::new();
    for handle in handles {
        let id = first_line(&handle.id);
        known.insert(id);
        let Some(blocks) = in_blocks.get(id) else {
            findings.push(Finding::HandleWithoutAddresses { handle: handle.clone() });
            continue;
        };
        for (block, addresses) in blocks {
            let count = handle.blocks.get(block).copied().unwrap_or(0);
            if (count as usize) < addresses.len() {
                findings.push(Finding::HandleCountsTooFew {
                    handle: id.to_owned(),
                    block: *block,
                    count,
                    addresses: addresses.clone(),
                });
            }
        }
    }
    for (handle, blocks) in in_blocks.into_iter().filter(|(id, _)| !known.contains(id)) {
        let addresses = blocks.into_values().flatten().collect();
        findings.push(Finding::HandleMissing { handle: handle.to_owned(), addresses });
    }
}

fn of_owners(records: &Records, findings: &mut Vec<Finding>) {
    let Records { blocks, affinities, .. } = records;
    let owners: BTreeMap<IpNet, Option<&Owner>> =
        blocks.iter().map(|block| (block.cidr, block.owner.as_ref())).collect();
    let mut confirmed = BTreeMap::<IpNet, Vec<Owner>>::new();
    for Affinity { owner, cidr, .. } in affinities.iter().filter(|it| it.state == State::Confirmed)
    {
        confirmed.entry(*cidr).or_default().push(owner.clone());
    }
    for (block, confirmed) in confirmed {
        let owner = owners.get(&block).copied();
        if confirmed.iter().any(|it| owner != Some(Some(it))) {
            let owner = owner.map(Option::<&Owner>::cloned);
            findings.push(Finding::OwnersDiffer { block, owner, confirmed });
        }
    }
    let claimed: BTreeSet<(IpNet, &Owner)> =
        affinities.iter().map(|it| (it.cidr, &it.owner)).collect();
    for (block, owner) in &owners {
        if let Some(owner) = owner
            && !claimed.contains(&(*block, *owner))
        {
            let owner = (*owner).clone();
            findings.push(Finding::WithoutAffinity { block: *block, owner });
        }
    }
    // A net sorts before the nets that it contains.
    let mut around: Option<IpNet> = None;
    for block in owners.into_keys() {
        match around.filter(|it| it.contains(&block)) {
            Some(around) => findings.push(Finding::Overlap { block, around }),
            None => around = Some(block),
        }
    }
}

fn counts(records: &Records, allocated: &[Allocated<'_>], pools: &[Pool], users: &Users) -> Counts {
    let Records { blocks, affinities, handles } = records;
    let mut counts = Counts {
        pools: pools.len(),
        blocks: blocks.len(),
        blocks_of_nobody: blocks.iter().filter(|it| it.owner.is_none()).count(),
        affinities: affinities.len(),
        unconfirmed: affinities.iter().filter(|it| it.state != State::Confirmed).count(),
        handles: handles.len(),
        addresses: blocks.iter().map(|it| size(it.cidr) as usize).sum(),
        used: users.by_address().len(),
        ..Counts::default()
    };
    for it in allocated {
        match it.state {
            AddressState::InUse => counts.in_use += 1,
            AddressState::Unused | AddressState::NodeGone => counts.unused += 1,
            AddressState::Resting => counts.resting += 1,
            AddressState::Reserved => counts.reserved += 1,
        }
        if it.state == AddressState::InUse && it.borrower().is_some() {
            counts.borrowed += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests;
