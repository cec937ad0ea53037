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
        PATIENCE.as_secs()
    )]
    Late,
}

impl Error {
    /// The error kind that the agent's socket reports.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Late => ErrorKind::Unavailable,
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
    /// The connection. `None`: the next call opens it. It is opened again when the server does not answer, because
    /// certificates and tokens change.
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

    /// Awaits a call for a limited time. Calls are boxed: they are large, and each level of `async` would copy them. After
    /// a timeout the next call opens another connection.
    async fn call<T>(&self, call: impl Future<Output = Result<T, PodError>>) -> Result<T, Error> {
        let result = match timeout(PATIENCE, call).await {
            Ok(result) => result.map_err(Error::from),
            Err(_elapsed) => Err(Error::Late),
        };
        if matches!(&result, Err(error) if error.kind() == ErrorKind::Unavailable) {
            *self.0.open.lock().await = None;
        }
        result
    }

    /// Awaits a call that changes a pod's addresses. Pods of a node take turns, because they write the same blocks: at the
    /// same time each would make the others' writes fail. The time of the call includes the wait for the turn.
    async fn call_in_turn<T>(
        &self,
        call: impl Future<Output = Result<T, PodError>>,
    ) -> Result<T, Error> {
        self.call(Box::pin(async {
            let _turn = self.0.turn.lock().await;
            call.await
        }))
        .await
    }

    /// Gives a pod addresses: the named ones, or those that its annotations and the pools determine.
    pub(crate) async fn assign(
        &self,
        pod: &PodName,
        handle: &str,
        named: &[IpAddr],
        known: &Known,
    ) -> Result<Vec<IpAddr>, Error> {
        let objects = self.objects().await?;
        let Known { node_labels, pools, taken } = known;
        let node = &self.0.node;
        let place = Place { node, node_labels, pools, taken };
        let PodName { namespace, name } = pod;
        let pod = Pod { namespace, name, handle, addresses: named };
        self.call_in_turn(async { assign_pod(&objects, pod, place, now()).await }).await
    }

    /// Releases all addresses of a handle.
    pub(crate) async fn release(&self, handle: &str) -> Result<(), Error> {
        let objects = self.objects().await?;
        let release = async {
            let rest = Rest { now: now(), cooldown: objects.config().await?.cooldown };
            release_by_handle(&*objects, handle, rest).await?;
            Ok(())
        };
        self.call_in_turn(release).await
    }

    /// Gives a tunnel of this node its address, or takes the address away if no pool uses such a tunnel. Returns the
    /// address.
    pub(crate) async fn set_tunnel_address(
        &self,
        tunnel: Tunnel,
        pools: &[Pool],
        known: &Known,
    ) -> Result<Option<IpAddr>, Error> {
        let objects = self.objects().await?;
        let reserved: Vec<_> = known.taken.keys().copied().map(Into::into).collect();
        let node = (self.0.node.as_str(), &known.node_labels);
        let set = set_tunnel_address(&objects, tunnel, node, pools, &reserved, now());
        self.call(Box::pin(set)).await
    }

    /// Whether the node is about to lose the address of a tunnel.
    pub(crate) async fn is_leaving(&self, tunnel: Tunnel, pools: &[Pool]) -> Result<bool, Error> {
        let objects = self.objects().await?;
        self.call(Box::pin(is_leaving(&objects, tunnel, &self.0.node, pools))).await
    }

    /// Adds labels to this node's affinities from old versions of Calico, so that they can be found.
    pub(crate) async fn label_affinities(&self) -> Result<(), Error> {
        let objects = self.objects().await?;
        let owner = manx_block_ipam::affinity::Owner::Host(self.0.node.clone());
        self.call(Box::pin(async { Ok(objects.label_affinities(&owner).await?) })).await
    }

    /// Writes annotations of this node; `None` removes one.
    pub(crate) async fn annotate_node(
        &self,
        annotations: &BTreeMap<&'static str, Option<String>>,
    ) -> Result<(), Error> {
        let objects = self.objects().await?;
        let write = objects.writes().annotate_node(&self.0.node, annotations);
        self.call(Box::pin(async { write.await.map_err(|error| StoreError::from(error).into()) }))
            .await
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
