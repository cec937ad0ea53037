//! Executes a step of a plan.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Leak, Reason, Step, UserSource};
use crate::assign::Error;
use crate::block::{Attributes, Rest, ToRelease, first_line};
use crate::claim::{BlockRelease, release_block};
use crate::handle::Handle;
use crate::release::{ReleaseError, delete_handle, end_rest, release};
use crate::store::{self, Found, Key, Store, StoreError};
use crate::users::Validity;

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Addresses were released.
    Released(Vec<IpAddr>),
    /// Resting addresses became free.
    Freed,
    ReleasedBlock,
    DeletedHandle,
    /// Nothing was removed, because the record has a user or has changed since the snapshot.
    Kept,
}

/// Executes a step. Addresses are released only if a new lookup of their user confirms that there
/// is none.
pub async fn take<S: Store, U: UserSource>(
    store: &S,
    users: &U,
    step: &Step,
    rest: Rest,
) -> Result<Outcome, Error> {
    match step {
        Step::Release { leaks, reason } => release_all(store, users, leaks, *reason, rest).await,
        Step::EndRest(cidr) => end_rest(store, *cidr, rest).await.map(|()| Outcome::Freed),
        Step::ReleaseIdleBlock { owner, cidr, sequence } => {
            outcome_of(release_block(store, owner, *cidr, true, Some(*sequence), rest).await)
        }
        Step::ReleaseBlockOfGone { owner, cidr } => {
            let node = Attributes::from([("node".to_owned(), owner.name().to_owned())]);
            if !users.named_by(&node).await?.nodes.is_empty() {
                return Ok(Outcome::Kept);
            }
            outcome_of(release_block(store, owner, *cidr, true, None, rest).await)
        }
        Step::DeleteHandle(handle) => delete_unchanged(store, handle, rest).await,
    }
}

fn outcome_of(result: Result<BlockRelease, StoreError>) -> Result<Outcome, Error> {
    match result {
        Ok(BlockRelease::Done) => Ok(Outcome::ReleasedBlock),
        Ok(BlockRelease::NotOwned | BlockRelease::NotEmpty | BlockRelease::Changed)
        | Err(StoreError::Conflict) => Ok(Outcome::Kept),
        Err(error) => Err(error.into()),
    }
}

async fn release_all<S: Store, U: UserSource>(
    store: &S,
    users: &U,
    leaks: &[Leak],
    reason: Reason,
    rest: Rest,
) -> Result<Outcome, Error> {
    let mut fresh = BTreeMap::new();
    for leak in leaks {
        let owner = &leak.allocation.owner;
        if !fresh.contains_key(owner) {
            fresh.insert(owner, users.named_by(owner).await?);
        }
        let found = fresh[owner].validity(leak.address, &leak.allocation);
        // A node that exists again may release its addresses itself, so the grace time applies
        // again.
        let stays = match reason {
            Reason::Unused => found == Validity::Valid,
            Reason::NodeGone => found != Validity::NodeGone,
        };
        if stays {
            return Ok(Outcome::Kept);
        }
    }
    let mut blocks = BTreeMap::<IpNet, Vec<ToRelease>>::new();
    for Leak { address, block, allocation } in leaks {
        let to_release = ToRelease {
            address: *address,
            handle: allocation.handle.as_deref().map(|it| first_line(it).to_owned()),
            sequence: Some(allocation.sequence),
        };
        blocks.entry(*block).or_default().push(to_release);
    }
    let mut released = Vec::new();
    for (cidr, addresses) in blocks {
        match release(store, cidr, &addresses, rest).await {
            Ok(more) => released.extend(more),
            Err(ReleaseError::Outdated(_)) => {}
            Err(ReleaseError::Failed(error)) => return Err(error),
        }
    }
    Ok(if released.is_empty() { Outcome::Kept } else { Outcome::Released(released) })
}

async fn delete_unchanged<S: Store>(
    store: &S,
    handle: &Handle,
    rest: Rest,
) -> Result<Outcome, Error> {
    let key = Key::Handle(handle.id.clone());
    match store::get::<Handle, _>(store, &key).await? {
        Some(Found { value, revision }) if value == *handle => {
            let deleted = delete_handle(store, value, revision, rest).await?;
            Ok(if deleted { Outcome::DeletedHandle } else { Outcome::Kept })
        }
        _ => Ok(Outcome::Kept),
    }
}
