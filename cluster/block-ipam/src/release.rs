//! Releases addresses.
//!
//! The block is written before the handle. A crash in between leaves a count that is too high, and the next release by
//! the handle removes it. A block that has no owner and becomes empty is deleted.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::assign::{Error, TRIES};
use crate::block::{Block, Outdated, Rest, ToRelease, first_line};
use crate::claim::written;
use crate::count;
use crate::handle::Handle;
use crate::store::{self, Found, Key, Store, StoreError};

/// The reason why addresses were not released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    #[error(transparent)]
    Failed(#[from] Error),
    #[error(transparent)]
    Outdated(#[from] Outdated),
}

impl From<StoreError> for ReleaseError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

/// Releases all addresses of a handle and returns them. Returns none if there is no such handle.
pub async fn release_by_handle<S: Store>(
    store: &S,
    handle: &str,
    rest: Rest,
) -> Result<Vec<IpAddr>, Error> {
    let key = Key::Handle(handle.to_owned());
    let Some(found) = store::get::<Handle, _>(store, &key).await? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for cidr in found.value.blocks.into_keys() {
        all.extend(release_of_block(store, handle, cidr, rest).await?);
        count::remove(store, handle, cidr, u32::MAX).await?;
    }
    Ok(all)
}

/// Releases the addresses that a handle has in one block. After this, no write of an earlier request with this handle
/// can succeed on this block. So the handle's count for the block can be removed.
async fn release_of_block<S: Store>(
    store: &S,
    handle: &str,
    cidr: IpNet,
    rest: Rest,
) -> Result<Vec<IpAddr>, Error> {
    let released = change(store, cidr, |block| {
        block.end_rest(rest);
        // If the handle has no address here, a write that assigns one may still be in progress: its process has counted
        // the address and then crashed. So the block is written in any case, which changes its revision and makes that
        // write fail.
        Ok::<_, Error>(Some(block.release_handle(handle, rest)))
    });
    Ok(released.await?.unwrap_or_default())
}

/// Releases either all of these addresses of one block or none. Returns those that were allocated.
///
/// # Errors
/// Returns an error if one of them has another handle or sequence number than the caller expects.
pub async fn release<S: Store>(
    store: &S,
    cidr: IpNet,
    addresses: &[ToRelease],
    rest: Rest,
) -> Result<Vec<IpAddr>, ReleaseError> {
    let released = change(store, cidr, |block| {
        block.end_rest(rest);
        let released = block.release(addresses, rest)?;
        Ok::<_, ReleaseError>((!released.is_empty()).then_some(released))
    });
    let released = released.await?.unwrap_or_default();
    let mut counts = BTreeMap::<&str, u32>::new();
    for handle in released.iter().filter_map(|(_, handle)| handle.as_deref()) {
        *counts.entry(handle).or_default() += 1;
    }
    for (handle, number) in counts {
        count::remove(store, handle, cidr, number).await?;
    }
    Ok(released.into_iter().map(|(address, _)| address).collect())
}

/// Deletes a handle without addresses, if it has not changed since the caller read it. Returns whether it is deleted.
///
/// A request with this handle may be in progress: it has counted its address and will write the block next. So each
/// block that the handle counts is written first, which makes that write fail. If the request then counts again, the
/// handle has changed and is not deleted.
pub async fn delete_handle<S: Store>(
    store: &S,
    handle: Handle,
    revision: S::Revision,
    rest: Rest,
) -> Result<bool, Error> {
    for cidr in handle.blocks.keys() {
        if !rewrite_without(store, first_line(&handle.id), *cidr, rest).await? {
            return Ok(false);
        }
    }
    match store::delete(store, Found { value: handle, revision }).await {
        Ok(()) => Ok(true),
        Err(StoreError::Conflict) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Writes a block again, unless a handle has an address in it. Returns whether the handle has no address in it.
async fn rewrite_without<S: Store>(
    store: &S,
    handle: &str,
    cidr: IpNet,
    rest: Rest,
) -> Result<bool, Error> {
    let mut has_address = false;
    let rewritten = change(store, cidr, |block| {
        has_address = block.addresses_of(handle).next().is_some();
        block.end_rest(rest);
        Ok::<_, Error>((!has_address).then_some(()))
    });
    rewritten.await?;
    Ok(!has_address)
}

/// Gives a new sequence number to an address of a handle, so that a release that is in progress fails. Returns whether
/// the handle has the address.
pub(crate) async fn adopt<S: Store>(
    store: &S,
    cidr: IpNet,
    address: IpAddr,
    handle: &str,
) -> Result<bool, Error> {
    let adopt = |block: &mut Block| Ok::<_, Error>(block.adopt(address, handle).then_some(()));
    Ok(change(store, cidr, adopt).await?.is_some())
}

/// Frees a block's addresses that have rested long enough, if there are any. This is needed because the rest otherwise
/// ends only when the block is written.
pub async fn end_rest<S: Store>(store: &S, cidr: IpNet, rest: Rest) -> Result<(), Error> {
    change(store, cidr, |block| Ok::<_, Error>(block.end_rest(rest).then_some(()))).await.map(drop)
}

/// Applies `change` to a block and writes the result. Tries again if another writer has changed the block in between.
/// Returns `None` if there is no such block, or if `change` returns `None`; the block then stays as it is.
async fn change<S: Store, T, E: From<StoreError> + From<Error>>(
    store: &S,
    cidr: IpNet,
    mut change: impl FnMut(&mut Block) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    for _ in 0..TRIES {
        let found = store::get::<Block, _>(store, &Key::Block(cidr)).await?;
        let Some(Found { value: before, revision }) = found else { return Ok(None) };
        let mut after = before.clone();
        let Some(result) = change(&mut after)? else { return Ok(None) };
        match put(store, before, revision, after).await {
            Ok(()) => return Ok(Some(result)),
            Err(StoreError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Contended.into())
}

async fn put<S: Store>(
    store: &S,
    before: Block,
    revision: S::Revision,
    after: Block,
) -> Result<(), StoreError> {
    if after.owner.is_none() && after.is_empty() {
        return store::delete(store, Found { value: before, revision }).await;
    }
    store::swap(store, &revision, written(after)).await.map(drop)
}
