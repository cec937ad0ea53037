//! Host-local allocation: one node gives out all of its blocks, and keeps its [`Leases`] as one record of a store.
//!
//! A pod's addresses are [reserved](HostLocal::reserve) first. When the pod has its device, the reservation is
//! [committed](Reservation::commit); if it gets none, the reservation is [aborted](HostLocal::abort). A reservation is in
//! the store before its caller gets it, so a commit writes nothing. After a crash, a reservation that was neither committed
//! nor aborted is an ordinary lease until the pod is detached. It is not released at once, because its pod may run; and a
//! runtime detaches every pod whose attachment failed.
//!
//! Changes are done one after the other, in the order of the calls. A change whose future is dropped, or whose write failed,
//! may have been done. Until the next change has read the record again, an address counts as taken if it is taken in
//! either case.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::{Mutex, watch};

use crate::leases::{self, Leases};
use crate::saved;
use crate::store::{self, Key, Record, Revision, Store, Swap};
use manx_api::{AttachmentId, ErrorKind, PodName};

/// The most attempts of one change. Another attempt follows if another process has changed the record meanwhile.
const TRIES: usize = 16;

/// The reason why addresses cannot be given out, released or stored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The leases do not allow the change.
    #[error(transparent)]
    Lease(#[from] leases::Error),
    /// The record cannot be read or written.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The record cannot be parsed.
    #[error(
        "{record} is damaged: {reason}. No address is given out, lest two pods share one: restore the file, or \
         remove it when no pod of this node runs"
    )]
    Damaged {
        /// A description of the record.
        record: String,
        /// The fault of its text.
        reason: String,
    },
    /// Pods have addresses of other blocks than the node's.
    #[error(
        "the node's pod CIDRs are {} but {record} holds pods ({pods}) of {}: detach those pods first, or set \
         Node.spec.podCIDRs back",
        list(wanted),
        list(found)
    )]
    OtherBlocks {
        /// A description of the record.
        record: String,
        /// The node's blocks.
        wanted: Vec<IpNet>,
        /// The record's blocks.
        found: Vec<IpNet>,
        /// The number of pods in the record.
        pods: usize,
    },
    /// Pods have addresses of another allocator than the requested one.
    #[error(
        "{record} holds pods ({pods}) with addresses of {found}, and the agent is to take them from {wanted}: drain this \
         node first (kubectl drain, then end its DaemonSets' pods), or set --ipam (MANX_IPAM) back"
    )]
    OtherAllocator {
        /// A description of the record.
        record: String,
        found: &'static str,
        wanted: &'static str,
        /// The number of pods in the record.
        pods: usize,
    },
    /// Other processes change the record again and again.
    #[error(
        "{0} is changed by others all the time: one agent at a time gives out a node's addresses"
    )]
    Contended(String),
    /// The agent stops.
    #[error("the agent stops: the next one gives addresses")]
    Closed,
}

fn list(blocks: &[IpNet]) -> String {
    blocks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// The error kind that the agent's socket reports.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Lease(error) => error.kind(),
            Self::OtherBlocks { .. } | Self::OtherAllocator { .. } => ErrorKind::Invalid,
            Self::Store(_) | Self::Damaged { .. } | Self::Contended(_) | Self::Closed => {
                ErrorKind::Internal
            }
        }
    }
}

/// A request for a pod's addresses.
#[derive(Debug, Clone)]
pub struct Request {
    pub pod: PodName,
    /// The addresses that the caller names. Empty: the next in turn, one of each block.
    pub addresses: Vec<IpAddr>,
    /// The attachment's id, if a container runtime attaches the pod.
    pub id: Option<AttachmentId>,
    /// Addresses that must not be given out in turn, with their owners.
    pub taken: BTreeMap<IpAddr, String>,
}

/// The addresses of a pod whose attachment may still fail.
#[derive(Debug)]
#[must_use = "it is committed or aborted"]
pub struct Reservation {
    pod: PodName,
    addresses: Vec<IpAddr>,
}

impl Reservation {
    /// The pod's addresses.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Commits the reservation: the pod has its addresses until they are [released](HostLocal::release).
    pub fn commit(self) -> Vec<IpAddr> {
        self.addresses
    }
}

/// See the module. All clones share one state.
#[derive(Debug)]
pub struct HostLocal<S> {
    shared: Arc<Shared<S>>,
}

impl<S> Clone for HostLocal<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<S> {
    store: S,
    key: Key,
    /// Held during a change.
    record: Mutex<RecordState>,
    /// The leases of the record, for readers that must not wait.
    leases: watch::Sender<Arc<Leases>>,
}

/// The state of the record, as far as it is known.
#[derive(Debug)]
struct RecordState {
    /// The revision. `None`: there is no record.
    revision: Option<Revision>,
    /// Whether the record may have been changed since it was last read.
    needs_read: bool,
    /// Whether the record lacks changes that the leases have.
    lacks_changes: bool,
    /// Whether changes are no longer accepted.
    is_closed: bool,
}

/// The name of the one record of a host.
pub fn key(host: &str) -> Key {
    Key { host: host.to_owned(), name: "leases".to_owned() }
}

impl<S: Store> HostLocal<S> {
    /// Reads the host's record, or starts with the `fresh` leases if there is none. Blocks may change only while no pod has
    /// an address. A record without blocks has another plugin's addresses. It is replaced when the node has blocks.
    pub async fn open(store: S, host: &str, fresh: Leases) -> Result<Self, Error> {
        let key = key(host);
        let found = store.list(host).await?.into_iter().find(|record| record.key == key);
        let (revision, leases) = match found {
            None => (None, fresh),
            Some(Record { revision, value, .. }) => {
                let damaged = |reason| Error::Damaged { record: store.describe(&key), reason };
                let saved = saved::read(&value).map_err(damaged)?;
                let (wanted, found) = (fresh.blocks(), saved.blocks());
                let other = saved.is_of_pools != fresh.is_of_pools;
                let leases = if other && !saved.pods.is_empty() && !saved.is_of_other_plugin() {
                    let (record, pods) = (store.describe(&key), saved.pods.len());
                    let (found, wanted) = (saved.allocator(), fresh.allocator());
                    return Err(Error::OtherAllocator { record, found, wanted, pods });
                } else if other {
                    fresh
                } else if found == wanted {
                    saved
                } else if saved.pods.is_empty() || found.is_empty() {
                    fresh
                } else {
                    let (record, pods) = (store.describe(&key), saved.pods.len());
                    return Err(Error::OtherBlocks { record, wanted, found, pods });
                };
                (Some(revision), leases)
            }
        };
        let record = Mutex::new(RecordState {
            revision,
            needs_read: false,
            lacks_changes: false,
            is_closed: false,
        });
        let leases = watch::Sender::new(Arc::new(leases));
        Ok(Self { shared: Arc::new(Shared { store, key, record, leases }) })
    }

    /// The leases after all changes so far.
    pub fn leases(&self) -> Arc<Leases> {
        Arc::clone(&self.shared.leases.borrow())
    }

    /// Reserves the addresses that the request names, otherwise the next in turn, and stores the attachment's id. A pod that
    /// has addresses keeps them.
    pub async fn reserve(&self, request: &Request) -> Result<Reservation, Error> {
        let Request { pod, addresses, id, taken } = request;
        let reserve = |leases: &mut Leases| {
            let addresses = match &addresses[..] {
                [] => leases.assign(pod, taken),
                wanted => leases.pin(pod, wanted),
            }?;
            if let Some(id) = id {
                leases.set_id(pod, id.clone());
            }
            Ok(addresses)
        };
        let addresses = self.change(reserve).await?;
        Ok(Reservation { pod: pod.clone(), addresses })
    }

    /// Releases the addresses of an attachment that has failed.
    pub async fn abort(&self, reservation: Reservation) -> Result<(), Error> {
        self.release(&reservation.pod).await.map(drop)
    }

    /// Takes the pod's addresses back and returns them; empty if it has none.
    pub async fn release(&self, pod: &PodName) -> Result<Vec<IpAddr>, Error> {
        self.change(|leases| Ok(leases.release(pod))).await
    }

    /// Takes back the addresses of all pods for which `keeps` is false.
    pub async fn retain(&self, keeps: impl Fn(&PodName) -> bool) -> Result<(), Error> {
        let retain = |leases: &mut Leases| {
            let gone: Vec<PodName> =
                leases.pods.keys().filter(|pod| !keeps(pod)).cloned().collect();
            for pod in &gone {
                leases.release(pod);
            }
            Ok(())
        };
        self.change(retain).await
    }

    /// Ends all changes. The current one is done when this returns, and later ones fail.
    pub async fn close(&self) {
        self.shared.record.lock().await.is_closed = true;
    }

    async fn change<T>(
        &self,
        change: impl Fn(&mut Leases) -> Result<T, leases::Error>,
    ) -> Result<T, Error> {
        let Shared { store, key, leases, .. } = &*self.shared;
        let mut record = self.shared.record.lock().await;
        if record.is_closed {
            return Err(Error::Closed);
        }
        for _ in 0..TRIES {
            if record.needs_read {
                self.refresh(&mut record).await?;
            }
            let before = self.leases();
            let mut next = Leases::clone(&before);
            let result = change(&mut next)?;
            if next == *before && !record.lacks_changes {
                return Ok(result);
            }
            let value = saved::write(&next).map_err(|error| store::Error {
                record: store.describe(key),
                verb: "written",
                source: error.into(),
                is_undone: true,
            })?;
            record.needs_read = true;
            let swapped = store.compare_and_swap(key, record.revision.as_ref(), value).await;
            let swap = match swapped {
                Ok(swap) => swap,
                Err(error) => {
                    // The write may have been done, so its addresses count as taken. The detachment of the pod releases them.
                    let adds = before.pods.keys().all(|pod| next.pods.contains_key(pod));
                    if adds && !error.is_undone {
                        leases.send_replace(Arc::new(next));
                    }
                    return Err(error.into());
                }
            };
            if let Swap::Done(revision) = swap {
                record.revision = Some(revision);
                (record.needs_read, record.lacks_changes) = (false, false);
                leases.send_replace(Arc::new(next));
                return Ok(result);
            }
        }
        Err(Error::Contended(store.describe(key)))
    }

    /// Reads the record again, and adds the leases that are not known. Known leases stay even if the record lacks them,
    /// because pods may run with these addresses. If there is no record, no record was ever written.
    async fn refresh(&self, record: &mut RecordState) -> Result<(), Error> {
        let Shared { store, key, leases, .. } = &*self.shared;
        let found = store.get(key).await?;
        record.lacks_changes = true;
        if let Some(Record { value, .. }) = &found {
            let damaged = |reason| Error::Damaged { record: store.describe(key), reason };
            let saved = saved::read(value).map_err(damaged)?;
            // The record may still have the blocks that this host had before.
            if saved.blocks() == self.leases().blocks() {
                let mut all = Leases::clone(&self.leases());
                for (pod, addresses, id) in saved.iter() {
                    let is_new = all.addresses(pod).is_none() && all.pin(pod, addresses).is_ok();
                    if let Some(id) = id.filter(|_| is_new) {
                        all.set_id(pod, id.clone());
                    }
                }
                record.lacks_changes = all != saved;
                leases.send_replace(Arc::new(all));
            }
        }
        (record.revision, record.needs_read) = (found.map(|it| it.revision), false);
        Ok(())
    }
}

#[cfg(test)]
mod law;
#[cfg(test)]
mod tests;
