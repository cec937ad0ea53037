//! The counts of handles: the number of addresses that a handle has in each block. See [`handle`](crate::handle).

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::assign::{Error, TRIES};
use crate::handle::Handle;
use crate::store::{self, Found, Key, Store, StoreError};

/// Counts one more address.
pub(crate) async fn add<S: Store>(store: &S, id: &str, block: IpNet) -> Result<(), Error> {
    let more = |handle: &mut Handle| *handle.blocks.entry(block).or_default() += 1;
    change(store, id, more).await
}

/// Reduces the count by `number` addresses. A handle without addresses is deleted.
pub(crate) async fn remove<S: Store>(
    store: &S,
    id: &str,
    block: IpNet,
    number: u32,
) -> Result<(), Error> {
    let fewer = |handle: &mut Handle| {
        if let Some(count) = handle.blocks.get_mut(&block) {
            *count = count.saturating_sub(number);
        }
    };
    change(store, id, fewer).await
}

async fn change<S: Store>(store: &S, id: &str, change: impl Fn(&mut Handle)) -> Result<(), Error> {
    let key = Key::Handle(id.to_owned());
    for _ in 0..TRIES {
        let found = store::get::<Handle, _>(store, &key).await?;
        let (before, revision) = match found {
            Some(Found { value, revision }) => (value, Some(revision)),
            None => (Handle { id: id.to_owned(), blocks: BTreeMap::new() }, None),
        };
        let mut after = before.clone();
        change(&mut after);
        after.blocks.retain(|_, count| *count > 0);
        let written = match revision {
            Some(revision) if after.blocks.is_empty() => {
                store::delete(store, Found { value: before, revision }).await
            }
            Some(revision) => store::swap(store, &revision, after).await.map(drop),
            None if after.blocks.is_empty() => Ok(()),
            None => store::create(store, after).await.map(drop),
        };
        match written {
            Ok(()) => return Ok(()),
            Err(StoreError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Contended)
}
