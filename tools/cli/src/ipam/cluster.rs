//! The data that the commands read from a cluster.

use std::time::SystemTime;

use manx_block_ipam::assign;
use manx_block_ipam::block::{Rest, Time};
use manx_block_ipam::garbage::UserSource as _;
use manx_block_ipam::objects::Objects;
use manx_block_ipam::pool::Pool;
use manx_block_ipam::records::Records;
use manx_block_ipam::store::StoreError;
use manx_block_ipam::users::Users;
use manx_datastore::api_server::read_kinds;
use manx_datastore::{ServedKey, ServedKind, WriteError, Writes};
use manx_objects::State;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_objects::problem::Problem;

use crate::Error;

/// A cluster at its API server.
#[derive(Debug)]
pub struct Cluster<W> {
    pub(crate) store: Objects<W>,
}

/// The records of a cluster, and the users of addresses. They were read one after the other, so
/// they may show different moments.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) records: Records,
    pub(super) pools: Vec<Pool>,
    pub(super) users: Users,
}

/// Calico's `ClusterInformation`.
#[derive(Debug, Default)]
pub(super) struct Information {
    pub(super) guid: String,
    pub(super) kind: String,
    /// The revision of the object.
    pub(super) revision: String,
    /// Whether the datastore is locked, so that Calico's programs change nothing.
    pub(super) is_locked: bool,
}

impl<W: Writes + Sync> Cluster<W> {
    pub(crate) const fn new(writes: W) -> Self {
        Self { store: Objects::new(writes) }
    }

    pub(crate) const fn writes(&self) -> &W {
        self.store.writes()
    }

    /// Reads the cluster. The records are read before the users. A pod exists before its address is
    /// recorded, so the pod of each recorded address is found.
    pub(super) async fn look(&self) -> Result<Seen, Error> {
        let records = Records::read(&self.store).await.map_err(store_error)?;
        let users = self.store.all().await.map_err(store_error)?;
        Ok(Seen { records, pools: self.pools().await?, users })
    }

    /// Reads the pools.
    pub(crate) async fn pools(&self) -> Result<Vec<Pool>, Error> {
        pools(&read_kinds(self.writes(), &[Kind::IpPool]).await.map_err(write_error)?)
    }

    /// Calico's `ClusterInformation`. `None`: the cluster has no such object, so no program of
    /// Calico has ever run in it.
    pub(super) async fn information(&self) -> Result<Option<Information>, Error> {
        let key = ServedKey::new(ServedKind::ClusterInformation, "", "default");
        let found = match self.writes().get(&key).await {
            Ok(found) => found,
            Err(WriteError::NotServed(_)) => None,
            Err(error) => return Err(write_error(error)),
        };
        Ok(found.map(|(object, revision)| {
            let spec = &object["spec"];
            let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
            Information {
                guid: text("clusterGUID"),
                kind: text("clusterType"),
                revision: revision.version().to_owned(),
                is_locked: spec["datastoreReady"] == false,
            }
        }))
    }

    /// The time, and the cooldown of an address that is released now.
    pub(super) async fn rest(&self) -> Result<Rest, Error> {
        let cooldown = self.store.config().await.map_err(store_error)?.cooldown;
        Ok(Rest { now: now(), cooldown })
    }
}

/// The pools that the objects define.
///
/// # Errors
/// A pool is not valid, so it is unknown which addresses it contains.
fn pools(contents: &Contents) -> Result<Vec<Pool>, Error> {
    let pool = |(key, stored): (&ObjectKey, &Stored)| {
        let pool = match &stored.state {
            State::Valid(object) => match &**object {
                Object::IpPool(pool) => Pool::new(&key.name, pool).map_err(|it| it.to_string()),
                _ => Err("found another kind of object".to_owned()),
            },
            State::Invalid(_) => {
                let of_it = contents.problems.iter().find(|it| it.object.as_ref() == Some(key));
                Err(of_it.map_or_else(|| "it is not valid".to_owned(), Problem::finding))
            }
        };
        pool.map_err(|reason| Error::Failed(format!("{key}: {reason}; correct it first")))
    };
    contents.of_kind(Kind::IpPool).map(pool).collect()
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

pub(super) fn store_error(error: StoreError) -> Error {
    match error {
        StoreError::Unreachable(reason) => unreachable_error(&reason),
        StoreError::Conflict => Error::Failed(
            "others change the same objects all the time: run the command again".to_owned(),
        ),
        StoreError::Damaged { .. } => Error::Failed(format!(
            "{error}. Nothing is decided while an object cannot be read: correct it, or restore it from a backup"
        )),
        StoreError::Refused(reason) => Error::Failed(reason),
    }
}

pub(super) fn write_error(error: WriteError) -> Error {
    match error {
        WriteError::Unreachable(reason) => unreachable_error(&reason),
        WriteError::Conflict | WriteError::Gone => store_error(StoreError::Conflict),
        error => Error::Failed(error.to_string()),
    }
}

fn unreachable_error(reason: &str) -> Error {
    Error::Environment(format!("the API server cannot be asked: {reason}"))
}

/// An error of the algorithms.
pub(super) fn assign_error(error: assign::Error) -> Error {
    match error {
        assign::Error::Store(error) => store_error(error),
        error => Error::Failed(error.to_string()),
    }
}
