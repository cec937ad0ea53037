//! Claims a block for an owner, and gives it up. Only these operations write affinities. See
//! [`affinity`](crate::affinity).

use ipnet::IpNet;

use crate::affinity::{Affinity, Owner, State};
use crate::block::{Block, Rest};
use crate::store::{self, Found, Key, Store, StoreError, Which};

/// The result of a claim.
pub(crate) enum Claim<R> {
    /// The owner has the block. Addresses whose rest has ended are free in the returned block.
    Ours(Found<Block, R>),
    /// Another owner has the block, or the block has no owner while some of its addresses are in use.
    Taken,
}

/// The result of a block's release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockRelease {
    /// The owner does not have the block any more.
    Done,
    /// The owner did not have the block.
    NotOwned,
    /// Addresses of the block are in use, and the caller required an empty block.
    NotEmpty,
    /// The block has changed since the caller read it.
    Changed,
}

/// Claims a block, or finds that the owner already has it. Returns [`StoreError::Conflict`] if others wrote at the same
/// time; the caller should then try again.
pub(crate) async fn claim<S: Store>(
    store: &S,
    owner: &Owner,
    cidr: IpNet,
    rest: Rest,
) -> Result<Claim<S::Revision>, StoreError> {
    let key = Key::Affinity(owner.clone(), cidr);
    let found = store::get::<Affinity, _>(store, &key).await?;
    let affinity = if let Some(found) = found {
        found
    } else {
        let pending = Affinity { owner: owner.clone(), cidr, state: State::Pending };
        store::create(store, pending).await?
    };
    match store::get::<Block, _>(store, &Key::Block(cidr)).await? {
        Some(block) if block.value.owner.as_ref() != Some(owner) => {
            // The affinity is out of date.
            store::delete(store, affinity).await?;
            Ok(Claim::Taken)
        }
        Some(block) if affinity.value.state == State::Confirmed => Ok(ours(block, rest)),
        Some(block) => {
            let affinity = set_state(store, affinity, State::Pending).await?;
            // Another node may be about to take the block. That node read the block before this write, so its own write
            // will fail.
            let Found { revision, value } = block;
            let block = store::swap(store, &revision, written(value)).await?;
            set_state(store, affinity, State::Confirmed).await?;
            Ok(ours(block, rest))
        }
        None => {
            let affinity = set_state(store, affinity, State::Pending).await?;
            let block = Block::new(cidr, owner.clone(), rest.now);
            let block = store::create(store, block).await?;
            set_state(store, affinity, State::Confirmed).await?;
            Ok(ours(block, rest))
        }
    }
}

fn ours<R>(mut block: Found<Block, R>, rest: Rest) -> Claim<R> {
    block.value.end_rest(rest);
    Claim::Ours(block)
}

async fn set_state<S: Store>(
    store: &S,
    Found { value, revision }: Found<Affinity, S::Revision>,
    state: State,
) -> Result<Found<Affinity, S::Revision>, StoreError> {
    if value.state == state {
        return Ok(Found { value, revision });
    }
    store::swap(store, &revision, Affinity { state, ..value }).await
}

/// Returns the block in the form in which it is written next: with the next sequence number.
pub(crate) fn written(block: Block) -> Block {
    Block { sequence: block.sequence + 1, ..block }
}

/// Gives up an owner's block. An empty block is deleted. A block with addresses in use stays, without an owner. Returns
/// [`StoreError::Conflict`] if others wrote at the same time; the caller should then try again.
///
/// If `only_empty` is set, a block with addresses in use is not given up. If `sequence` is given, a block with another
/// sequence number is not given up, because it was written since the caller read it.
pub async fn release_block<S: Store>(
    store: &S,
    owner: &Owner,
    cidr: IpNet,
    only_empty: bool,
    sequence: Option<u64>,
    rest: Rest,
) -> Result<BlockRelease, StoreError> {
    // The block is read first. An owner that claims it writes the block between two states of the affinity, so the
    // following writes notice such a claim.
    let block = owned_block(store, owner, cidr).await?;
    let key = Key::Affinity(owner.clone(), cidr);
    let affinity = store::get::<Affinity, _>(store, &key).await?;
    let Some(mut block) = block else {
        let Some(affinity) = affinity else { return Ok(BlockRelease::NotOwned) };
        if owned_block(store, owner, cidr).await?.is_some() {
            return Err(StoreError::Conflict);
        }
        // The affinity is out of date, or its owner crashed before it made the block.
        store::delete(store, affinity).await?;
        return Ok(BlockRelease::Done);
    };
    if sequence.is_some_and(|it| it != block.value.sequence) {
        return Ok(BlockRelease::Changed);
    }
    block.value.end_rest(rest);
    let is_empty = block.value.is_empty();
    if only_empty && !is_empty {
        return Ok(BlockRelease::NotEmpty);
    }
    // If there is no affinity, the owner has not begun to claim the block, and the block is left from a crash.
    let affinity = match affinity {
        Some(Found { value, revision }) => {
            // The affinity is written even if its state does not change. The owner then cannot confirm it with the
            // revision that it has read before.
            let released = Affinity { state: State::PendingDeletion, ..value };
            Some(store::swap(store, &revision, released).await?)
        }
        None => None,
    };
    if is_empty {
        store::delete(store, block).await?;
    } else {
        let Found { value, revision } = block;
        let nobodys = Block { owner: None, claimed_at: None, ..value };
        store::swap(store, &revision, written(nobodys)).await?;
    }
    if let Some(affinity) = affinity {
        store::delete(store, affinity).await?;
    }
    Ok(BlockRelease::Done)
}

async fn owned_block<S: Store>(
    store: &S,
    owner: &Owner,
    cidr: IpNet,
) -> Result<Option<Found<Block, S::Revision>>, StoreError> {
    let block = store::get::<Block, _>(store, &Key::Block(cidr)).await?;
    Ok(block.filter(|block| block.value.owner.as_ref() == Some(owner)))
}

/// Returns the blocks to which an owner has an affinity in any state, in order.
pub(crate) async fn affine<S: Store>(store: &S, owner: &Owner) -> Result<Vec<IpNet>, StoreError> {
    let which = Which::AffinitiesOf(owner.clone());
    let found = store::list::<Affinity, _>(store, &which).await?;
    let mut blocks: Vec<IpNet> = found.into_iter().map(|it| it.value.cidr).collect();
    blocks.sort_unstable();
    Ok(blocks)
}
