//! Host-local allocation: one node gives out all of its blocks, and keeps its [`Leases`] as one record of a store.
//!
//! A pod's addresses are [reserved](HostLocal::reserve) first. When its device stands the reservation is
//! [committed](Reservation::commit), and when there is none it is [aborted](HostLocal::abort). A reservation is in the
//! store before anybody hears of it, so that committing has nothing to write. After a crash a reservation that was neither
//! committed nor aborted is a lease like any other, and stays one until the pod is detached. It is not taken back at once
//! because it is not known how far its pod has come; and a runtime detaches every pod whose attachment failed.
//!
//! Changes come one after the other, in the order in which they were asked for. One that is given up half-way, or whose
//! writing failed, has been done or not. Until the next change has read the record again, what either leaves taken is
//! taken.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::{Mutex, watch};

use crate::leases::{self, Leases};
use crate::saved;
use crate::store::{self, Key, Record, Revision, Store, Swap};
use manx_api::{AttachmentId, ErrorKind, PodName};

/// How often a change is tried where others change the record at the same time.
const TRIES: usize = 16;

/// Why addresses cannot be given, taken back or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No address.
    #[error(transparent)]
    Lease(#[from] leases::Error),
    /// The record cannot be read or written.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The record is not a state.
    #[error(
        "{record} is damaged: {reason}. No address is given out, lest two pods share one: restore the file, or \
         remove it when no pod of this node runs"
    )]
    Damaged {
        /// What people call it.
        record: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Pods live in other blocks than the node has.
    #[error(
        "the node's pod CIDRs are {} but {record} holds pods ({pods}) of {}: detach those pods first, or set \
         Node.spec.podCIDRs back",
        list(wanted),
        list(found)
    )]
    OtherBlocks {
        /// What people call the record.
        record: String,
        /// What the node has.
        wanted: Vec<IpNet>,
        /// What the record has.
        found: Vec<IpNet>,
        /// How many pods.
        pods: usize,
    },
    /// Others change the record all the time.
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
    /// The kind that the agent's socket reports.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Lease(error) => error.kind(),
            Self::OtherBlocks { .. } => ErrorKind::Invalid,
            Self::Store(_) | Self::Damaged { .. } | Self::Contended(_) | Self::Closed => {
                ErrorKind::Internal
            }
        }
    }
}

/// What a pod is to have.
#[derive(Debug, Clone)]
pub struct Request {
    /// The pod.
    pub pod: PodName,
    /// The addresses that the caller names. Empty: the next in turn, one of each block.
    pub addresses: Vec<IpAddr>,
    /// What a container runtime calls the attachment.
    pub id: Option<AttachmentId>,
    /// Addresses that no pod may be given in turn, and who has each.
    pub others: BTreeMap<IpAddr, String>,
}

/// Addresses that are a pod's, and that its attachment may still fail to use.
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

    /// The pod is attached: it has its addresses until they are [released](HostLocal::release).
    pub fn commit(self) -> Vec<IpAddr> {
        self.addresses
    }
}

/// See the module. Clones are one.
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
    known: Mutex<Known>,
    /// Those that are in the store, for readers that do not wait.
    leases: watch::Sender<Arc<Leases>>,
}

/// What is known of the record.
#[derive(Debug)]
struct Known {
    /// `None`: there is none.
    revision: Option<Revision>,
    /// Whether the record may have been changed since it was last read.
    is_doubtful: bool,
    /// Whether the record lacks something of the leases.
    is_behind: bool,
    /// Whether changes have ended.
    is_closed: bool,
}

/// The name of the one record of a host.
pub fn key(host: &str) -> Key {
    Key { host: host.to_owned(), name: "leases".to_owned() }
}

impl<S: Store> HostLocal<S> {
    /// Reads the host's record, or starts anew where there is none. Blocks may change only while no pod has an address of
    /// them. Without blocks all addresses are another plugin's, and are forgotten when there are some.
    pub async fn open(store: S, host: &str, fresh: Leases) -> Result<Self, Error> {
        let key = key(host);
        let found = store.list(host).await?.into_iter().find(|record| record.key == key);
        let (revision, leases) = match found {
            None => (None, fresh),
            Some(Record { revision, value, .. }) => {
                let damaged = |reason| Error::Damaged { record: store.describe(&key), reason };
                let saved = saved::read(&value).map_err(damaged)?;
                let (wanted, found) = (fresh.blocks(), saved.blocks());
                let leases = if found == wanted {
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
        let known =
            Mutex::new(Known { revision, is_doubtful: false, is_behind: false, is_closed: false });
        let leases = watch::Sender::new(Arc::new(leases));
        Ok(Self { shared: Arc::new(Shared { store, key, known, leases }) })
    }

    /// Who has what, of all changes that have been done.
    pub fn leases(&self) -> Arc<Leases> {
        Arc::clone(&self.shared.leases.borrow())
    }

    /// Gives the pod the addresses that are wanted, or else the next in turn, and keeps what a container runtime calls
    /// its attachment. A pod that has addresses keeps them.
    pub async fn reserve(&self, request: &Request) -> Result<Reservation, Error> {
        let Request { pod, addresses, id, others } = request;
        let reserve = |leases: &mut Leases| {
            let addresses = match &addresses[..] {
                [] => leases.assign(pod, others),
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

    /// The attachment has failed: the pod has nothing any more.
    pub async fn abort(&self, reservation: Reservation) -> Result<(), Error> {
        self.release(&reservation.pod).await.map(drop)
    }

    /// Takes the pod's addresses back and says which; empty if it has none.
    pub async fn release(&self, pod: &PodName) -> Result<Vec<IpAddr>, Error> {
        self.change(|leases| Ok(leases.release(pod))).await
    }

    /// Takes back the addresses of all pods but these.
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

    /// Ends all changes. That which is under way is done when this returns, and later ones are refused.
    pub async fn close(&self) {
        self.shared.known.lock().await.is_closed = true;
    }

    async fn change<T>(
        &self,
        change: impl Fn(&mut Leases) -> Result<T, leases::Error>,
    ) -> Result<T, Error> {
        let Shared { store, key, leases, .. } = &*self.shared;
        let mut known = self.shared.known.lock().await;
        if known.is_closed {
            return Err(Error::Closed);
        }
        for _ in 0..TRIES {
            if known.is_doubtful {
                self.read_again(&mut known).await?;
            }
            let before = self.leases();
            let mut next = Leases::clone(&before);
            let result = change(&mut next)?;
            if next == *before && !known.is_behind {
                return Ok(result);
            }
            let value = saved::write(&next).map_err(|error| store::Error {
                record: store.describe(key),
                verb: "written",
                source: error.into(),
                is_undone: true,
            })?;
            known.is_doubtful = true;
            let swapped = store.compare_and_swap(key, known.revision.as_ref(), value).await;
            let swap = match swapped {
                Ok(swap) => swap,
                Err(error) => {
                    // An address that may be taken is taken: its pod's detachment finds it.
                    let adds = before.pods.keys().all(|pod| next.pods.contains_key(pod));
                    if adds && !error.is_undone {
                        leases.send_replace(Arc::new(next));
                    }
                    return Err(error.into());
                }
            };
            if let Swap::Done(revision) = swap {
                known.revision = Some(revision);
                (known.is_doubtful, known.is_behind) = (false, false);
                leases.send_replace(Arc::new(next));
                return Ok(result);
            }
        }
        Err(Error::Contended(store.describe(key)))
    }

    /// Reads the record's revision, and the leases in it that are not known: they are taken. What is known stays, whatever
    /// the record says: pods may run with these addresses. Where there is no record, nothing was ever written.
    async fn read_again(&self, known: &mut Known) -> Result<(), Error> {
        let Shared { store, key, leases, .. } = &*self.shared;
        let found = store.get(key).await?;
        known.is_behind = true;
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
                known.is_behind = all != saved;
                leases.send_replace(Arc::new(all));
            }
        }
        (known.revision, known.is_doubtful) = (found.map(|it| it.revision), false);
        Ok(())
    }
}

#[cfg(test)]
mod law;
#[cfg(test)]
mod tests;
