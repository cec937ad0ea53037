//! The allocator of this node's addresses: the node's own blocks, or Calico's IPAM.
//!
//! In both cases the leases, in a file of the node, record the addresses of each pod of this node. With Calico's IPAM the
//! leases have no blocks: an address is taken from the cluster's pools first, and then leased as a named address.

use std::sync::Arc;

use manx_api::{AttachmentId, ErrorKind, PodName};
use manx_block_ipam::handle::Handle;
use manx_ipam::file::FileStore;
use manx_ipam::host_local::{self, HostLocal, Request, Reservation};
use manx_ipam::leases::Leases;

use crate::pool_addresses::{self, Known, PoolAddresses};

/// The network name in the IPAM handles of pods that no container runtime has attached.
const OWN_NETWORK: &str = "manx";

/// The network name in the IPAM handles that Calico's plugin has made. Two containers never have the same id, not even
/// in different networks.
const CALICOS_NETWORK: &str = "k8s-pod-network";

/// The reason why addresses are not given out, or not released.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Leases(#[from] host_local::Error),
    #[error(transparent)]
    Pools(#[from] pool_addresses::Error),
}

impl Error {
    /// The error kind that the agent's socket reports.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Leases(error) => error.kind(),
            Self::Pools(error) => error.kind(),
        }
    }
}

/// A request for a pod's addresses.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) request: Request,
    /// The cluster's data, which only Calico's IPAM uses.
    pub(crate) known: Known,
}

/// See the module. All clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    leases: HostLocal<FileStore>,
    /// Calico's IPAM. `None`: the node gives out addresses of its own blocks.
    pools: Option<PoolAddresses>,
}

impl Addresses {
    pub(crate) const fn new(leases: HostLocal<FileStore>, pools: Option<PoolAddresses>) -> Self {
        Self { leases, pools }
    }

    /// The addresses of each pod.
    pub(crate) fn leases(&self) -> Arc<Leases> {
        self.leases.leases()
    }

    /// Whether Calico's IPAM gives out the addresses.
    pub(crate) const fn pools(&self) -> Option<&PoolAddresses> {
        self.pools.as_ref()
    }

    /// Reserves addresses. A pod that has a lease of the same attachment keeps its addresses.
    pub(crate) async fn reserve(&self, wanted: Wanted) -> Result<Reservation, Error> {
        let Wanted { mut request, known } = wanted;
        let Some(pools) = &self.pools else { return Ok(self.leases.reserve(&request).await?) };
        let leases = self.leases();
        if leases.addresses(&request.pod).is_some() {
            if leases.id(&request.pod) == request.id.as_ref() {
                return Ok(self.leases.reserve(&request).await?);
            }
            self.release(&request.pod).await?;
        }
        let handle = handle(&request.pod, request.id.as_ref());
        request.addresses = pools.assign(&request.pod, &handle, &request.addresses, &known).await?;
        let reserved = self.leases.reserve(&request).await;
        // After some errors the lease may have been written. Then it counts, and keeps its addresses until the pod is
        // detached.
        if reserved.is_err() && self.leases().addresses(&request.pod).is_none() {
            // If this fails, too, the runtime's DEL releases them.
            let _ = pools.release(&handle).await;
        }
        Ok(reserved?)
    }

    /// Takes a pod's addresses back. They stay leased until the pools have them again, so that a failed detachment can be
    /// repeated.
    pub(crate) async fn release(&self, pod: &PodName) -> Result<(), Error> {
        if let Some(pools) = &self.pools
            && self.leases().addresses(pod).is_some()
        {
            let handle = handle(pod, self.leases().id(pod));
            pools.release(&handle).await?;
        }
        self.leases.release(pod).await?;
        Ok(())
    }

    /// Takes back the addresses of an attachment for which this node has no lease: Calico's plugin made it, or its lease
    /// was lost.
    pub(crate) async fn release_unleased(&self, id: &AttachmentId) -> Result<(), Error> {
        let Some(pools) = &self.pools else { return Ok(()) };
        pools.release(&handle_of(id)).await?;
        let container = &id.sandbox.container;
        Ok(pools.release(&Handle::of_pod(CALICOS_NETWORK, container)).await?)
    }

    /// Takes back the addresses of an attachment that has failed.
    pub(crate) async fn abort(&self, pod: &PodName, reservation: Reservation) -> Result<(), Error> {
        drop(reservation.commit());
        self.release(pod).await
    }

    /// Drops the leases of all pods for which `keeps` is false.
    pub(crate) async fn retain(
        &self,
        keeps: impl Fn(&PodName) -> bool,
    ) -> Result<(), host_local::Error> {
        self.leases.retain(keeps).await
    }

    /// Ends all changes of the leases. The current change is finished, and later ones fail.
    pub(crate) async fn close(&self) {
        self.leases.close().await;
    }
}

/// The handle by which a pod's addresses are released.
fn handle(pod: &PodName, id: Option<&AttachmentId>) -> String {
    match id {
        Some(id) => handle_of(id),
        None => format!("{OWN_NETWORK}.{}.{}", pod.namespace, pod.name),
    }
}

fn handle_of(id: &AttachmentId) -> String {
    Handle::of_pod(&id.sandbox.network, &id.sandbox.container)
}
