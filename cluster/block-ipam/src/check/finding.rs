//! The findings of a check: their kinds, and their texts for people.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::affinity::Owner;
use crate::block::{Allocation, describe};
use crate::handle::Handle;
use crate::users::User;

/// The kinds of finding, in the order in which they are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Unused,
    NotAllocated,
    InNoPool,
    UsedTwice,
    OtherUser,
    HandleWithoutAddresses,
    HandleMissing,
    HandleCountsTooFew,
    OwnersDiffer,
    WithoutAffinity,
    Overlap,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Unused,
        Self::NotAllocated,
        Self::InNoPool,
        Self::UsedTwice,
        Self::OtherUser,
        Self::HandleWithoutAddresses,
        Self::HandleMissing,
        Self::HandleCountsTooFew,
        Self::OwnersDiffer,
        Self::WithoutAffinity,
        Self::Overlap,
    ];

    /// Returns a title for the findings of this kind.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Unused => "allocated addresses that nobody uses",
            Self::NotAllocated => "addresses in use that no block allocates",
            Self::InNoPool => "addresses in use that are in no enabled IPPool",
            Self::UsedTwice => "addresses with several users",
            Self::OtherUser => "addresses whose user is not the one that they are allocated to",
            Self::HandleWithoutAddresses => "handles without addresses",
            Self::HandleMissing => "handles of addresses that do not exist",
            Self::HandleCountsTooFew => "handles that count too few addresses",
            Self::OwnersDiffer => "blocks with another owner than their confirmed affinity",
            Self::WithoutAffinity => "blocks whose owner has no affinity to them",
            Self::Overlap => "blocks that overlap",
        }
    }

    /// Returns advice on what to do about findings of this kind.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Unused | Self::HandleWithoutAddresses => {
                "manx ipam check -o FILE, and later manx ipam release --from-report FILE"
            }
            Self::NotAllocated => {
                "delete the pod: another one may get its address. Expected of nodes without --ipam calico"
            }
            Self::InNoPool => "enable or make an IPPool around it, or delete the pod",
            Self::UsedTwice => {
                "delete one of the pods; a pod that is being deleted may still name an address that is another's"
            }
            Self::OtherUser => {
                "delete the pod that uses it: the address is released with the one that it is allocated to"
            }
            Self::HandleMissing | Self::HandleCountsTooFew => {
                "delete the pod: its address may stay behind, and is then found as unused"
            }
            Self::OwnersDiffer => {
                "delete the BlockAffinity of the owner that does not have the block: the block decides"
            }
            Self::WithoutAffinity => {
                "nothing: the owner makes the affinity with its next pod, or another node takes the block"
            }
            Self::Overlap => {
                "delete the pods of the smaller block, release its addresses, and give its IPPool a CIDR of its own"
            }
        }
    }
}

/// A contradiction between records, or between records and users. Its text contains what was found and what was
/// expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    Unused {
        address: IpAddr,
        block: IpNet,
        allocation: Allocation,
        /// Whether the address's node does not exist any more.
        node_gone: bool,
    },
    NotAllocated {
        address: IpAddr,
        users: Vec<User>,
        /// Whether the address rests after its release.
        rests: bool,
    },
    InNoPool {
        address: IpAddr,
        users: Vec<User>,
    },
    UsedTwice {
        address: IpAddr,
        users: Vec<User>,
    },
    OtherUser {
        address: IpAddr,
        allocation: Allocation,
        users: Vec<User>,
    },
    HandleWithoutAddresses {
        handle: Handle,
    },
    HandleMissing {
        handle: String,
        addresses: Vec<IpAddr>,
    },
    HandleCountsTooFew {
        handle: String,
        block: IpNet,
        count: u32,
        addresses: Vec<IpAddr>,
    },
    OwnersDiffer {
        block: IpNet,
        /// The block's owner, if it has one. The outer `None` means that there is no block.
        owner: Option<Option<Owner>>,
        /// The owners of the block's confirmed affinities.
        confirmed: Vec<Owner>,
    },
    WithoutAffinity {
        block: IpNet,
        owner: Owner,
    },
    Overlap {
        block: IpNet,
        around: IpNet,
    },
}

impl Finding {
    /// Returns the finding's kind.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Unused { .. } => Kind::Unused,
            Self::NotAllocated { .. } => Kind::NotAllocated,
            Self::InNoPool { .. } => Kind::InNoPool,
            Self::UsedTwice { .. } => Kind::UsedTwice,
            Self::OtherUser { .. } => Kind::OtherUser,
            Self::HandleWithoutAddresses { .. } => Kind::HandleWithoutAddresses,
            Self::HandleMissing { .. } => Kind::HandleMissing,
            Self::HandleCountsTooFew { .. } => Kind::HandleCountsTooFew,
            Self::OwnersDiffer { .. } => Kind::OwnersDiffer,
            Self::WithoutAffinity { .. } => Kind::WithoutAffinity,
            Self::Overlap { .. } => Kind::Overlap,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unused { address, block, allocation, node_gone } => {
                write_unused(f, *address, *block, allocation, *node_gone)
            }
            Self::NotAllocated { address, users, rests } => {
                write_not_allocated(f, *address, users, *rests)
            }
            Self::InNoPool { address, users } => {
                let users = list(users);
                write!(
                    f,
                    "{address} is used by {users}, and lies in no enabled IPPool; expected: an address of an IPPool"
                )
            }
            Self::UsedTwice { address, users } => {
                write!(f, "{address} is used by {}; expected: one of them", list(users))
            }
            Self::OtherUser { address, allocation, users } => {
                let (owner, users) = (describe(allocation), list(users));
                write!(
                    f,
                    "{address} is allocated to {owner}, and used by {users}; expected: the same"
                )
            }
            Self::HandleWithoutAddresses { handle: Handle { id, blocks } } => {
                let counted: u32 = blocks.values().sum();
                write!(
                    f,
                    "handle {id} counts {counted}, and has no address; expected: no such handle"
                )
            }
            Self::HandleMissing { handle, addresses } => {
                let addresses = list(addresses);
                write!(
                    f,
                    "{addresses}: there is no handle {handle}; expected: one that counts them"
                )
            }
            Self::HandleCountsTooFew { handle, block, count, addresses } => {
                let (number, addresses) = (addresses.len(), list(addresses));
                write!(
                    f,
                    "handle {handle} counts {count} in block {block}; expected: {number} or more ({addresses})"
                )
            }
            Self::OwnersDiffer { block, owner, confirmed } => {
                write_owners_differ(f, *block, owner.as_ref(), confirmed)
            }
            Self::WithoutAffinity { block, owner } => {
                write!(f, "block {block} is {owner}'s, which has no affinity to it; expected: one")
            }
            Self::Overlap { block, around } => {
                write!(f, "block {block} lies in block {around}; expected: blocks of their own")
            }
        }
    }
}

/// Writes that nobody uses an allocated address.
fn write_unused(
    f: &mut fmt::Formatter<'_>,
    address: IpAddr,
    block: IpNet,
    allocation: &Allocation,
    node_gone: bool,
) -> fmt::Result {
    let owner = describe(allocation);
    let gone = if node_gone { ", and its node is gone" } else { "" };
    write!(
        f,
        "{address} of block {block} is allocated to {owner}, which does not use it{gone}; expected: free"
    )
}

/// Writes that no block allocates an address in use.
fn write_not_allocated(
    f: &mut fmt::Formatter<'_>,
    address: IpAddr,
    users: &[User],
    rests: bool,
) -> fmt::Result {
    let found = if rests { "it rests after its release" } else { "no block allocates it" };
    let users = list(users);
    write!(f, "{address} is used by {users}, and {found}; expected: allocated to it")
}

/// Writes that a block has another owner than its confirmed affinities. The outer `None` means that there is no block.
fn write_owners_differ(
    f: &mut fmt::Formatter<'_>,
    block: IpNet,
    owner: Option<&Option<Owner>>,
    confirmed: &[Owner],
) -> fmt::Result {
    let confirmed = list(confirmed);
    let of_block = match owner {
        None => "there is no such block".to_owned(),
        Some(None) => "the block is nobody's".to_owned(),
        Some(Some(owner)) => format!("the block is {owner}'s"),
    };
    write!(f, "block {block} is confirmed for {confirmed}, and {of_block}; expected: one owner")
}

fn list<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
