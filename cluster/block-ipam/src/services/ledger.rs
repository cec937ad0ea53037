//! The Services that have addresses, as recorded in the blocks for load balancers.
//!
//! An allocation counts if it is a Service's ([`Allocation::service`]). All other allocations do not belong to this
//! controller and are not changed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::wish::family;
use crate::addresses::address;
use crate::affinity::Owner;
use crate::assign::Error;
use crate::block::{Allocation, Block, Rest, first_line};
use crate::claim::{affine, release_block};
use crate::handle::Handle;
use crate::pool::Family;
use crate::store::{self, Key, Store, StoreError};

/// A Service that exists or existed, identified by the handle of its addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    pub namespace: String,
    pub name: String,
    pub handle: String,
}

/// An address that a handle has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub address: IpAddr,
    pub block: IpNet,
    /// The sequence number of the allocation.
    pub sequence: u64,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The entries, by namespace and handle.
    entries: BTreeMap<String, BTreeMap<String, Entry>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Entry {
    name: String,
    held: Vec<Held>,
}

impl Ledger {
    /// Reads the blocks for load balancers.
    ///
    /// # Errors
    /// Returns an error if the store does not answer or a block cannot be read.
    pub async fn read<S: Store>(store: &S) -> Result<Self, StoreError> {
        let mut ledger = Self::default();
        for cidr in affine(store, &Owner::load_balancer()).await? {
            if let Some(block) = store::get::<Block, _>(store, &Key::Block(cidr)).await? {
                ledger.add(&block.value);
            }
        }
        Ok(ledger)
    }

    fn add(&mut self, block: &Block) {
        for (at, allocation) in &block.allocations {
            let Some(subject) = subject(allocation) else { continue };
            let Subject { namespace, name, handle } = subject;
            let of_namespace = self.entries.entry(namespace).or_default();
            let entry = of_namespace.entry(handle).or_insert_with(|| Entry { name, held: vec![] });
            let Block { cidr, .. } = *block;
            let held =
                Held { address: address(cidr, *at), block: cidr, sequence: allocation.sequence };
            entry.held.push(held);
        }
    }

    /// Returns all Services that have addresses.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> {
        self.entries.iter().flat_map(|(namespace, entries)| {
            entries.iter().map(|(handle, entry)| Subject {
                namespace: namespace.clone(),
                name: entry.name.clone(),
                handle: handle.clone(),
            })
        })
    }

    fn entry(&self, subject: &Subject) -> Option<&Entry> {
        self.entries.get(&subject.namespace)?.get(&subject.handle)
    }

    /// Returns whether a Service has addresses.
    pub fn knows(&self, subject: &Subject) -> bool {
        self.entry(subject).is_some()
    }

    /// Returns the blocks in which a Service has addresses.
    pub(super) fn blocks_of(&self, subject: &Subject) -> impl Iterator<Item = IpNet> {
        self.entry(subject).into_iter().flat_map(|entry| entry.held.iter().map(|held| held.block))
    }

    /// Returns the number of addresses of a family that the other Services of the same namespace have.
    pub(super) fn number_of_others(&self, subject: &Subject, of: Family) -> usize {
        let others = self.entries.get(&subject.namespace).into_iter().flatten();
        let others = others.filter(|(handle, _)| **handle != subject.handle);
        let held = others.flat_map(|(_, entry)| &entry.held);
        held.filter(|held| family(held.address) == of).count()
    }

    /// Records the addresses that a Service has now.
    pub fn note(&mut self, subject: &Subject, held: Vec<Held>) {
        let Subject { namespace, name, handle } = subject.clone();
        let of_namespace = self.entries.entry(namespace).or_default();
        if held.is_empty() {
            of_namespace.remove(&handle);
        } else {
            of_namespace.insert(handle, Entry { name, held });
        }
        self.entries.retain(|_, entries| !entries.is_empty());
    }
}

/// Returns the Service that an allocation names, or `None` if the allocation does not belong to this controller.
fn subject(allocation: &Allocation) -> Option<Subject> {
    let (namespace, name) = allocation.service()?;
    let handle = first_line(allocation.handle.as_deref()?).to_owned();
    Some(Subject { namespace: namespace.to_owned(), name: name.to_owned(), handle })
}

/// Returns the addresses that a handle has in two sets of blocks: the blocks that the handle's counts name, and the
/// blocks `known`.
pub(super) async fn held<S: Store>(
    store: &S,
    handle: &str,
    known: impl IntoIterator<Item = IpNet>,
) -> Result<Vec<Held>, StoreError> {
    let mut blocks: Vec<IpNet> = known.into_iter().collect();
    let found = store::get::<Handle, _>(store, &Key::Handle(handle.to_owned())).await?;
    blocks.extend(found.into_iter().flat_map(|it| it.value.blocks.into_keys()));
    blocks.sort_unstable();
    blocks.dedup();
    let mut all = Vec::new();
    for cidr in blocks {
        let found = store::get::<Block, _>(store, &Key::Block(cidr)).await?;
        let Some(Block { allocations, .. }) = found.map(|it| it.value) else { continue };
        let of_handle = allocations.into_iter().filter(|(_, it)| it.has_handle(handle));
        all.extend(of_handle.map(|(at, Allocation { sequence, .. })| Held {
            address: address(cidr, at),
            block: cidr,
            sequence,
        }));
    }
    Ok(all)
}

/// Gives up the empty blocks for load balancers that are in no pool for load balancers any more. Returns the blocks
/// that were given up.
///
/// # Errors
/// Returns an error if the store does not answer. A block that another writer changes at the same time is left as it
/// is.
pub async fn release_strays<S: Store>(
    store: &S,
    has_pool: impl Fn(IpNet) -> bool,
    rest: Rest,
) -> Result<Vec<IpNet>, Error> {
    let owner = Owner::load_balancer();
    let mut released = Vec::new();
    for cidr in affine(store, &owner).await?.into_iter().filter(|cidr| !has_pool(*cidr)) {
        match release_block(store, &owner, cidr, true, None, rest).await {
            Ok(crate::claim::BlockRelease::Done) => released.push(cidr),
            Ok(_) | Err(StoreError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(released)
}
