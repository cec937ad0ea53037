//! Assigns addresses.
//!
//! An address comes from one of the owner's own blocks. If these are full, it comes from a block that the owner claims
//! now. If there is no block to claim, the owner borrows an address from any other block of the pools, unless strict
//! affinity is set. If a request is repeated with the same handle, it gets the address that the handle already has.
//!
//! The handle is written before the block. A crash in between leaves a count that is too high, but never an address
//! without a handle.
//!
//! Callers must not make two requests with one handle at the same time.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::addresses::block_around;
use crate::affinity::Owner;
use crate::block::{Attributes, Block, Refused, Rest, Time};
use crate::candidates::Candidates;
use crate::claim::{BlockRelease, Claim, affine, claim, release_block, written};
use crate::config::Config;
use crate::count;
use crate::handle::Handle;
use crate::pool::{Pool, around};
use crate::release::end_rest;
use crate::store::{self, Found, Key, Store, StoreError, Which};

/// The maximum number of attempts while other writers change the same records.
pub(crate) const TRIES: usize = 100;

/// The time for which an empty block stays with the node that claimed it. It prevents two nodes from taking a block
/// from each other before either has used it.
const CLAIM_HOLDS: Duration = Duration::from_mins(1);

/// A request for an address.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The owner whose blocks are used first.
    pub owner: &'a Owner,
    /// The handle by which the address is released.
    pub handle: &'a str,
    /// The attributes of the user of the address.
    pub attributes: &'a Attributes,
    /// Addresses that are assigned only if the request names them (`IPReservation`).
    pub reserved: &'a [IpNet],
    pub config: &'a Config,
    pub now: Time,
}

/// The reason why no address is assigned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(
        "no free address in {}{}: add an IPPool, or release addresses (`manx ipam check` finds those that nobody uses)",
        list(.pools),
        if *.strict { ", of blocks of this node or free ones (strictAffinity)" } else { "" }
    )]
    Exhausted {
        /// The CIDRs of the pools.
        pools: Vec<IpNet>,
        strict: bool,
    },
    #[error(
        "this node has {limit} blocks, as many as it may, and they are full: use larger blocks (blockSize), or set strictAffinity and a larger maxBlocksPerHost in IPAMConfig"
    )]
    BlockLimit {
        /// The maximum number of blocks of a node.
        limit: u32,
    },
    #[error(
        "the block of address {0} would overlap {1}, of another blockSize that its pool had before: name an address of {1}, or free that block"
    )]
    Overlaps(IpAddr, IpNet),
    #[error("address {0} lies in no IPPool that is enabled: name an address of a pool")]
    NoPoolAround(IpAddr),
    #[error("address {address} lies in block {block} of {owner}, and strictAffinity is set")]
    OtherOwner {
        address: IpAddr,
        block: IpNet,
        /// The block's owner.
        owner: String,
    },
    #[error("others change the same blocks all the time ({TRIES} attempts): try again")]
    Contended,
}

fn list(pools: &[IpNet]) -> String {
    pools.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Request<'_> {
    fn rest(&self) -> Rest {
        Rest { now: self.now, cooldown: self.config.cooldown }
    }
}

/// Assigns the next address from the pools. All pools must be of one family.
pub async fn assign<S: Store>(
    store: &S,
    pools: &[&Pool],
    request: Request<'_>,
) -> Result<IpAddr, Error> {
    let in_pools = |block: &IpNet| pools.iter().any(|pool| pool.cidr.contains(block));
    if let Some(address) = held(store, request.handle, in_pools).await? {
        return Ok(address);
    }
    let mut own = affine(store, request.owner).await?;
    own.retain(in_pools);
    for cidr in &own {
        if let Some(address) = assign_of_own(store, *cidr, request).await? {
            return Ok(address);
        }
    }
    let limit = request.config.limit();
    if own.len() >= limit as usize {
        return Err(Error::BlockLimit { limit });
    }
    if request.config.claims_blocks
        && let Some(address) = assign_of_new(store, pools, request).await?
    {
        return Ok(address);
    }
    let strict = request.config.strict_affinity;
    if !strict && let Some(address) = borrow(store, pools, request).await? {
        return Ok(address);
    }
    Err(Error::Exhausted { pools: pools.iter().map(|pool| pool.cidr).collect(), strict })
}

/// Assigns the address that the request names.
pub async fn assign_named<S: Store>(
    store: &S,
    pools: &[Pool],
    address: IpAddr,
    request: Request<'_>,
) -> Result<(), Error> {
    let pool = around(pools, address).filter(|pool| !pool.is_disabled);
    let cidr = pool.and_then(|pool| block_around(address, pool.block_size));
    let mut cidr = cidr.ok_or(Error::NoPoolAround(address))?;
    for _ in 0..TRIES {
        let found = store::get::<Block, _>(store, &Key::Block(cidr)).await?;
        let block = if let Some(mut block) = found {
            block.value.end_rest(request.rest());
            block
        } else {
            let existing = all_blocks(store, request.rest()).await?;
            // The pool may have had blocks of another size earlier.
            match overlapping(&existing, cidr) {
                Some(other) if other.cidr.contains(&address) => {
                    cidr = other.cidr;
                    continue;
                }
                Some(other) => return Err(Error::Overlaps(address, other.cidr)),
                None => {}
            }
            let limit = request.config.limit();
            if affine(store, request.owner).await?.len() >= limit as usize {
                return Err(Error::BlockLimit { limit });
            }
            match claim(store, request.owner, cidr, request.rest()).await {
                Ok(Claim::Ours(block)) => block,
                Ok(Claim::Taken) | Err(StoreError::Conflict) => continue,
                Err(error) => return Err(error.into()),
            }
        };
        let is_own = block.value.owner.as_ref() == Some(request.owner);
        if request.config.strict_affinity && !is_own {
            let owner = block.value.owner.as_ref();
            let owner = owner.map_or_else(|| "nobody".to_owned(), Owner::to_string);
            return Err(Error::OtherOwner { address, block: cidr, owner });
        }
        if block.value.allocation(address).is_some_and(|it| it.has_handle(request.handle)) {
            return Ok(());
        }
        let allocate = |block: &mut Block| {
            block.allocate(address, request.handle, request.attributes).map(|()| Some(address))
        };
        if write(store, block, request, allocate).await?.is_some() {
            return Ok(());
        }
    }
    Err(Error::Contended)
}

/// Returns the address that a handle has in these blocks.
async fn held<S: Store>(
    store: &S,
    handle: &str,
    within: impl Fn(&IpNet) -> bool,
) -> Result<Option<IpAddr>, StoreError> {
    let key = Key::Handle(handle.to_owned());
    let Some(found) = store::get::<Handle, _>(store, &key).await? else { return Ok(None) };
    for cidr in found.value.blocks.into_keys().filter(within) {
        let block = store::get::<Block, _>(store, &Key::Block(cidr)).await?;
        let held = block.and_then(|block| block.value.addresses_of(handle).next());
        if held.is_some() {
            return Ok(held);
        }
    }
    Ok(None)
}

/// Assigns an address of a block to which the owner has an affinity. Returns `None` if the block is full or belongs to
/// another owner.
async fn assign_of_own<S: Store>(
    store: &S,
    cidr: IpNet,
    request: Request<'_>,
) -> Result<Option<IpAddr>, Error> {
    for _ in 0..TRIES {
        let block = match claim(store, request.owner, cidr, request.rest()).await {
            Ok(Claim::Ours(block)) => block,
            Ok(Claim::Taken) => return Ok(None),
            Err(StoreError::Conflict) => continue,
            Err(error) => return Err(error.into()),
        };
        if let Some(address) = block.value.addresses_of(request.handle).next() {
            // An earlier request with the same handle has assigned this address, although its caller no longer waited
            // for the result.
            return Ok(Some(address));
        }
        if !block.value.has_free(request.reserved) {
            return Ok(None);
        }
        if let Some(address) = write_next(store, block, request).await? {
            return Ok(Some(address));
        }
    }
    Err(Error::Contended)
}

/// Assigns an address of a block that the owner claims now. Returns `None` if the pools have no block left.
async fn assign_of_new<S: Store>(
    store: &S,
    pools: &[&Pool],
    request: Request<'_>,
) -> Result<Option<IpAddr>, Error> {
    for _ in 0..TRIES {
        let Some(cidr) = unclaimed(store, pools, request).await? else { return Ok(None) };
        if let Some(address) = assign_of_own(store, cidr, request).await? {
            return Ok(Some(address));
        }
    }
    Err(Error::Contended)
}

/// Returns a block that does not exist yet, or that another process of this owner has just claimed. If the pools have
/// no such block, takes an empty block from another owner and returns it.
async fn unclaimed<S: Store>(
    store: &S,
    pools: &[&Pool],
    request: Request<'_>,
) -> Result<Option<IpNet>, Error> {
    let Request { owner, reserved, now, .. } = request;
    let existing = all_blocks(store, request.rest()).await?;
    let find = |cidr: &IpNet| {
        let found = existing.binary_search_by_key(cidr, |block| block.cidr);
        found.ok().map(|at| &existing[at])
    };
    let mut empty = Vec::new();
    for pool in pools {
        for cidr in Candidates::new(pool, reserved, &seed(pool, request)) {
            match find(&cidr) {
                None if overlapping(&existing, cidr).is_some() => {}
                None => return Ok(Some(cidr)),
                Some(block) if !block.has_free(reserved) => {}
                Some(block) if block.owner.as_ref() == Some(owner) => return Ok(Some(cidr)),
                Some(block) if block.is_empty() => empty.push(block),
                Some(_) => {}
            }
        }
    }
    for block in empty {
        let Some(other) = &block.owner else {
            // The cool-down of the block's last addresses is over, and nothing has written the block since. It is
            // deleted now.
            end_rest(store, block.cidr, request.rest()).await?;
            return Ok(Some(block.cidr));
        };
        if block.claimed_at.is_some_and(|then| now.since(then) < CLAIM_HOLDS) {
            continue;
        }
        match release_block(store, other, block.cidr, true, Some(block.sequence), request.rest())
            .await
        {
            Ok(BlockRelease::Done) => return Ok(Some(block.cidr)),
            Ok(_) | Err(StoreError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Returns a block that overlaps `cidr` or is equal to it. `existing` is sorted, and its blocks do not overlap each
/// other.
fn overlapping(existing: &[Block], cidr: IpNet) -> Option<&Block> {
    let after = existing.partition_point(|block| block.cidr.network() <= cidr.network());
    let around = after.checked_sub(1).map(|at| &existing[at]);
    let overlaps = |block: &&Block| block.cidr.contains(&cidr) || cidr.contains(&block.cidr);
    around.filter(overlaps).or_else(|| existing.get(after).filter(overlaps))
}

/// Returns the text that chooses the first block to search. If the blocks of a pool are single addresses, each request
/// starts at a different block; otherwise each request would look at all blocks that its node already has.
fn seed(pool: &Pool, request: Request<'_>) -> String {
    let owner = request.owner.name();
    if pool.block_size == pool.cidr.max_prefix_len() {
        format!("{owner}/{}", request.handle)
    } else {
        owner.to_owned()
    }
}

async fn all_blocks<S: Store>(store: &S, rest: Rest) -> Result<Vec<Block>, StoreError> {
    let found = store::list::<Block, _>(store, &Which::Blocks).await?;
    let mut blocks: Vec<Block> = found.into_iter().map(|it| it.value).collect();
    for block in &mut blocks {
        block.end_rest(rest);
    }
    blocks.sort_unstable_by_key(|block| block.cidr);
    Ok(blocks)
}

/// Assigns an address of any block of the pools.
async fn borrow<S: Store>(
    store: &S,
    pools: &[&Pool],
    request: Request<'_>,
) -> Result<Option<IpAddr>, Error> {
    let existing = all_blocks(store, request.rest()).await?;
    for pool in pools {
        let in_pool = |block: &&Block| pool.cidr.contains(&block.cidr);
        let mut with_room: Vec<IpNet> = existing
            .iter()
            .filter(in_pool)
            .filter(|block| block.has_free(request.reserved))
            .map(|block| block.cidr)
            .collect();
        // The blocks are tried in the order of `Candidates`, which starts at a block that `seed` chooses.
        if let Some(first) = Candidates::new(pool, &[], &seed(pool, request)).next() {
            let before = with_room.partition_point(|cidr| *cidr < first);
            with_room.rotate_left(before);
        }
        for cidr in with_room {
            for _ in 0..TRIES {
                let found = store::get::<Block, _>(store, &Key::Block(cidr)).await?;
                let Some(mut block) = found else { break };
                block.value.end_rest(request.rest());
                if !block.value.has_free(request.reserved) {
                    break;
                }
                if let Some(address) = write_next(store, block, request).await? {
                    return Ok(Some(address));
                }
            }
        }
    }
    Ok(None)
}

async fn write_next<S: Store>(
    store: &S,
    block: Found<Block, S::Revision>,
    request: Request<'_>,
) -> Result<Option<IpAddr>, Error> {
    let Request { handle, attributes, reserved, .. } = request;
    let allocate = |block: &mut Block| Ok(block.allocate_next(handle, attributes, reserved));
    write(store, block, request, allocate).await
}

/// Writes an allocation: the handle first, then the block. Returns `None` if another writer has changed the block.
async fn write<S: Store>(
    store: &S,
    block: Found<Block, S::Revision>,
    request: Request<'_>,
    allocate: impl FnOnce(&mut Block) -> Result<Option<IpAddr>, Refused>,
) -> Result<Option<IpAddr>, Error> {
    let Found { mut value, revision } = block;
    let cidr = value.cidr;
    let Some(address) = allocate(&mut value)? else { return Ok(None) };
    count::add(store, request.handle, cidr).await?;
    match store::swap(store, &revision, written(value)).await {
        Ok(_) => Ok(Some(address)),
        Err(StoreError::Conflict) => {
            count::remove(store, request.handle, cidr, 1).await?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
