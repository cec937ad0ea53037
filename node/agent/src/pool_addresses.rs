//! Addresses from Calico's IPAM for this node's pods and tunnels, by its objects at the API server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use manx_block_ipam::block::{Rest, Time};
use manx_block_ipam::handle::Tunnel;
use manx_block_ipam::objects::Objects;
use manx_block_ipam::pods::{Place, Pod, PodError, assign_pod};
use manx_block_ipam::pool::Pool;
use manx_block_ipam::release::release_by_handle;
use manx_block_ipam::store::StoreError;
use manx_block_ipam::tunnels::{is_leaving, set_tunnel_address};
use manx_datastore::api_server::{Access, Writer};
use manx_policy_compiler::model::Labels;
use tokio::sync::Mutex;
use tokio::time::timeout;

use manx_api::{ErrorKind, PodName};

/// The time for which an attachment waits for the API server. The plugin waits longer for its answer.
const PATIENCE: Duration = Duration::from_secs(40);

/// The reason why addresses of the cluster's pools are not given out, or not released.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Pods(#[from] PodError),
    #[error(
        "the API server has not answered within {} s: the addresses are as they were, or are given back by the detachment",
        .0.as_secs()
    )]
    Late(Duration),
    #[error(
        "the addresses of this node's other pods have taken {} s at the API server, so this pod had no turn: the addresses are as they were",
        .0.as_secs()
    )]
    Busy(Duration),
}

impl Error {
    /// The error kind that the agent's socket reports.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Late(_) | Self::Busy(_) => ErrorKind::Unavailable,
            Self::Pods(error) if error.is_passing() => ErrorKind::Unavailable,
            Self::Pods(error) if error.is_exhausted() => ErrorKind::Exhausted,
            Self::Pods(_) => ErrorKind::Invalid,
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Pods(error.into())
    }
}

/// The cluster's data at the time when a pod requests addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) node_labels: Labels,
    pub(crate) pools: Vec<Pool>,
    /// Addresses that no pod may have, with their owners.
    pub(crate) taken: BTreeMap<IpAddr, String>,
}

/// See the module. All clones share one connection.
#[derive(Debug, Clone)]
pub(crate) struct PoolAddresses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    node: String,
    access: Access,
    /// The connection. `None`: the next call opens one. After a call without an answer a new connection is opened,
    /// because certificates and tokens change.
    open: Mutex<Option<Arc<Objects<Writer>>>>,
    /// The pod whose addresses change now holds this lock.
    turn: Mutex<()>,
}

impl PoolAddresses {
    pub(crate) fn new(node: &str, access: Access) -> Self {
        let (node, open, turn) = (node.to_owned(), Mutex::default(), Mutex::default());
        Self(Arc::new(Shared { node, access, open, turn }))
    }

    async fn objects(&self) -> Result<Arc<Objects<Writer>>, StoreError> {
        let Shared { access, open, .. } = &*self.0;
        let mut open = open.lock().await;
        if let Some(objects) = &*open {
            return Ok(Arc::clone(objects));
        }
        let writer = Box::pin(Writer::open(access)).await;
        let writer = writer.map_err(|error| StoreError::Unreachable(error.to_string()))?;
        Ok(Arc::clone(open.insert(Arc::new(Objects::new(writer)))))
    }

    /// Calls the API server for a limited time. Calls are boxed: they are large, and each level of `async` would copy them.
    /// After a call without an answer the next one opens another connection.
    async fn call<T, F>(
        &self,
        limit: Duration,
        call: impl FnOnce(Arc<Objects<Writer>>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, PodError>>,
    {
        let objects = self.objects().await?;
        let result = match timeout(limit, Box::pin(call(Arc::clone(&objects)))).await {
            Ok(result) => result.map_err(Error::from),
            Err(_elapsed) => Err(Error::Late(limit)),
        };
        if matches!(&result, Err(error) if error.kind() == ErrorKind::Unavailable) {
            let mut open = self.0.open.lock().await;
            // Another call may have opened a new one already.
            if open.as_ref().is_some_and(|it| Arc::ptr_eq(it, &objects)) {
                *open = None;
            }
        }
        result
    }

    /// Makes a call that changes a pod's addresses. Pods of a node take turns, because they write the same blocks: at the
    /// same time each would make the others' writes fail. Half of [`PATIENCE`] is for the wait, and half for the call.
    async fn call_in_turn<T, F>(
        &self,
        call: impl FnOnce(Arc<Objects<Writer>>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, PodError>>,
    {
        let half = PATIENCE / 2;
        let Ok(_turn) = timeout(half, self.0.turn.lock()).await else {
            return Err(Error::Busy(half));
        };
        self.call(half, call).await
    }

    /// Gives a pod addresses: the named ones, or those that its annotations and the pools determine.
    pub(crate) async fn assign(
        &self,
        pod: &PodName,
        handle: &str,
        named: &[IpAddr],
        known: &Known,
    ) -> Result<Vec<IpAddr>, Error> {
        let Known { node_labels, pools, taken } = known;
        let place = Place { node: &self.0.node, node_labels, pools, taken };
        let PodName { namespace, name } = pod;
        let pod = Pod { namespace, name, handle, addresses: named };
        self.call_in_turn(|objects| async move { assign_pod(&objects, pod, place, now()).await })
            .await
    }

    /// Releases all addresses of a handle.
    pub(crate) async fn release(&self, handle: &str) -> Result<(), Error> {
        self.call_in_turn(|objects| async move {
            let rest = Rest { now: now(), cooldown: objects.config().await?.cooldown };
            release_by_handle(&*objects, handle, rest).await?;
            Ok(())
        })
        .await
    }

    /// Gives a tunnel of this node its address, or takes the address away if no pool uses such a tunnel. Returns the
    /// address.
    pub(crate) async fn set_tunnel_address(
        &self,
        tunnel: Tunnel,
        pools: &[Pool],
        known: &Known,
    ) -> Result<Option<IpAddr>, Error> {
        let reserved: Vec<_> = known.taken.keys().copied().map(Into::into).collect();
        let (node, reserved) = ((self.0.node.as_str(), &known.node_labels), &reserved[..]);
        self.call(PATIENCE, |objects| async move {
            set_tunnel_address(&objects, tunnel, node, pools, reserved, now()).await
        })
        .await
    }

    /// Whether the node is about to lose the address of a tunnel.
    pub(crate) async fn is_leaving(&self, tunnel: Tunnel, pools: &[Pool]) -> Result<bool, Error> {
        self.call(PATIENCE, |objects| async move {
            is_leaving(&objects, tunnel, &self.0.node, pools).await
        })
        .await
    }

    /// Adds labels to this node's block affinities that versions of Calico before 3.31 have written without labels.
    /// Affinities are found by their labels.
    pub(crate) async fn label_affinities(&self) -> Result<(), Error> {
        let owner = manx_block_ipam::affinity::Owner::Host(self.0.node.clone());
        self.call(PATIENCE, |objects| async move { Ok(objects.label_affinities(&owner).await?) })
            .await
    }

    /// Writes annotations of this node; `None` removes one.
    pub(crate) async fn annotate_node(
        &self,
        annotations: &BTreeMap<&'static str, Option<String>>,
    ) -> Result<(), Error> {
        self.call(PATIENCE, |objects| async move {
            let write = objects.writes().annotate_node(&self.0.node, annotations);
            write.await.map_err(|error| StoreError::from(error).into())
        })
        .await
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
