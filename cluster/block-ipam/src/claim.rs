//! Claiming a block for an owner, and giving it up: the only writers of affinities. See [`affinity`](crate::affinity).

use ipnet::IpNet;

use crate::affinity::{Affinity, Owner, State};
use crate::block::{Block, Rest};
use crate::store::{self, Found, Key, Store, StoreError, Which};

/// The result of a claim.
pub(crate) enum Claim<R> {
    /// The owner has the block. Addresses whose rest has ended are free in it.
    Ours(Found<Block, R>),
    /// Another owner has it, or nobody has it while addresses of it are in use.
    Taken,
}

/// The result of giving up a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenUp {
    /// The owner has it no longer.
    Done,
    /// The owner did not have it.
    NotOwned,
    /// Somebody has addresses of it, and it was to be given up only if empty.
    NotEmpty,
    /// It is not as the caller has seen it.
    Changed,
}

/// Claims a block, or finds that the owner has it. [`StoreError::Conflict`]: others wrote at the same time; try again.
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
            // Another node may be about to take the block. It has read it before this write, so its own write fails.
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

/// The block as it is written next: each write has another sequence number.
pub(crate) fn written(block: Block) -> Block {
    Block { sequence: block.sequence + 1, ..block }
}

/// Gives up an owner's block: an empty block is deleted, one with addresses stays and is nobody's.
/// [`StoreError::Conflict`]: others wrote at the same time; try again.
///
/// `only_empty` refuses a block with addresses; `sequence` refuses one that was written since the caller has read it.
pub async fn give_up<S: Store>(
    store: &S,
    owner: &Owner,
    cidr: IpNet,
    only_empty: bool,
    sequence: Option<u64>,
    rest: Rest,
) -> Result<GivenUp, StoreError> {
    // The block first: its owner writes it between two states of the affinity, so that what follows notices a claim.
    let block = owned_block(store, owner, cidr).await?;
    let key = Key::Affinity(owner.clone(), cidr);
    let affinity = store::get::<Affinity, _>(store, &key).await?;
    let Some(mut block) = block else {
        let Some(affinity) = affinity else { return Ok(GivenUp::NotOwned) };
        if owned_block(store, owner, cidr).await?.is_some() {
            return Err(StoreError::Conflict);
        }
        // The affinity is out of date, or its owner crashed before it made the block.
        store::delete(store, affinity).await?;
        return Ok(GivenUp::Done);
    };
    if sequence.is_some_and(|it| it != block.value.sequence) {
        return Ok(GivenUp::Changed);
    }
    block.value.end_rest(rest);
    let is_empty = block.value.is_empty();
    if only_empty && !is_empty {
        return Ok(GivenUp::NotEmpty);
    }
    // Without an affinity its owner has not begun to claim it: a crash has left the block.
    let affinity = match affinity {
        Some(Found { value, revision }) => {
            // It is written in any case: its owner must not confirm it by what it has read before.
            let given_up = Affinity { state: State::PendingDeletion, ..value };
            Some(store::swap(store, &revision, given_up).await?)
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
    Ok(GivenUp::Done)
}

async fn owned_block<S: Store>(
    store: &S,
    owner: &Owner,
    cidr: IpNet,
) -> Result<Option<Found<Block, S::Revision>>, StoreError> {
    let block = store::get::<Block, _>(store, &Key::Block(cidr)).await?;
    Ok(block.filter(|block| block.value.owner.as_ref() == Some(owner)))
}

/// The blocks to which an owner has an affinity of any state, in order.
pub(crate) async fn affine<S: Store>(store: &S, owner: &Owner) -> Result<Vec<IpNet>, StoreError> {
    let which = Which::AffinitiesOf(owner.clone());
    let found = store::list::<Affinity, _>(store, &which).await?;
    let mut blocks: Vec<IpNet> = found.into_iter().map(|it| it.value.cidr).collect();
    blocks.sort_unstable();
    Ok(blocks)
}
