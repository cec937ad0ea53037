//! Assigns the addresses of a pod, as Calico's CNI plugin for IPAM does.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_datastore::Writes;
use manx_objects::object::{Kind, PoolUse};
use manx_policy_compiler::selector::Labels;
use serde_json::Value;

use crate::affinity::Owner;
use crate::asked::{Asked, AskedError, asked};
use crate::assign::{self, Request, assign_named};
use crate::block::{Attributes, Rest, Time};
use crate::config::Config;
use crate::handle::Handle;
use crate::objects::{Objects, moment};
use crate::pool::{Asker, Family, NoPool, Pool, choose};
use crate::release::release_by_handle;
use crate::store::{self, Key, StoreError};

/// A pod that needs addresses.
#[derive(Debug, Clone, Copy)]
pub struct Pod<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub handle: &'a str,
    /// Addresses that the container runtime requests (CNI's `ips` capability). They take precedence over annotations.
    pub addresses: &'a [IpAddr],
}

/// The node and the cluster as the agent knows them.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub node: &'a str,
    pub node_labels: &'a Labels,
    pub pools: &'a [Pool],
    /// Addresses that no pod may have, with their owners: the addresses of nodes, and addresses that this node needs
    /// for itself.
    pub taken: &'a BTreeMap<IpAddr, String>,
}

/// The reason why a pod gets no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    #[error(transparent)]
    Asked(#[from] AskedError),
    #[error(transparent)]
    Pool(#[from] NoPool),
    #[error(transparent)]
    Assign(#[from] assign::Error),
    #[error("address {address} is that of {owner}: name another")]
    Taken {
        address: IpAddr,
        /// The owner of the address.
        owner: String,
    },
    #[error("the API server has no Pod {0}: it was deleted before it got addresses")]
    Gone(String),
}

impl From<StoreError> for PodError {
    fn from(error: StoreError) -> Self {
        Self::Assign(error.into())
    }
}

impl PodError {
    /// Returns whether the failure is temporary: the store did not answer, or other writers always came first. The same
    /// request may succeed later.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Assign(
                assign::Error::Contended
                    | assign::Error::Store(StoreError::Unreachable(_) | StoreError::Conflict)
            )
        )
    }

    /// Returns whether no free address is left.
    pub fn is_exhausted(&self) -> bool {
        matches!(
            self,
            Self::Assign(assign::Error::Exhausted { .. } | assign::Error::BlockLimit { .. })
        )
    }
}

/// Assigns addresses to a pod, one of each family that it gets. Assigns either all or none. A repeated request with the
/// same handle gets the same addresses.
pub async fn assign_pod<W: Writes + Sync>(
    objects: &Objects<W>,
    pod: Pod<'_>,
    place: Place<'_>,
    now: Time,
) -> Result<Vec<IpAddr>, PodError> {
    let key = Key::Handle(pod.handle.to_owned());
    // If the request is a repetition, a container may already use the addresses that the request finds.
    let is_first = store::get::<Handle, _>(objects, &key).await?.is_none();
    let given = try_assign(objects, pod, place, now).await;
    if given.is_err() && is_first {
        // If this also fails, the addresses stay allocated to the handle. The container runtime will call DEL for the
        // pod that it could not attach.
        if let Ok(Config { cooldown, .. }) = objects.config().await {
            let _ = release_by_handle(objects, pod.handle, Rest { now, cooldown }).await;
        }
    }
    given
}

async fn try_assign<W: Writes + Sync>(
    objects: &Objects<W>,
    pod: Pod<'_>,
    place: Place<'_>,
    now: Time,
) -> Result<Vec<IpAddr>, PodError> {
    let Pod { namespace, name, handle, addresses } = pod;
    let found = objects.object(Kind::Pod, namespace, name).await?;
    let found = found.ok_or_else(|| PodError::Gone(format!("{namespace}/{name}")))?;
    let of_namespace = objects.object(Kind::Namespace, "", namespace).await?;
    let of_namespace = of_namespace.ok_or_else(|| PodError::Gone(format!("{namespace}/{name}")))?;
    let mut asked = asked(&found, &of_namespace)?;
    if !addresses.is_empty() {
        asked.addresses = addresses.to_vec();
    }
    let (config, mut reserved) = (objects.config().await?, objects.reserved().await?);
    reserved.extend(place.taken.keys().copied().map(IpNet::from));
    let owner = Owner::Host(place.node.to_owned());
    let attributes = Attributes::from([
        ("namespace".to_owned(), namespace.to_owned()),
        ("pod".to_owned(), name.to_owned()),
        ("node".to_owned(), place.node.to_owned()),
        ("timestamp".to_owned(), timestamp(now)),
    ]);
    let request = Request {
        owner: &owner,
        handle,
        attributes: &attributes,
        reserved: &reserved,
        config: &config,
        now,
    };
    if !asked.addresses.is_empty() {
        return assign_all_named(objects, &asked, place, request).await;
    }
    let mut given = Vec::new();
    for pools in pools(&asked, place, &labels(&of_namespace))? {
        given.push(assign::assign(objects, &pools, request).await?);
    }
    Ok(given)
}

/// Returns the labels of an object.
pub(crate) fn labels(object: &Value) -> Labels {
    let texts = object["metadata"]["labels"].as_object().into_iter().flatten();
    texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns a time in the form of Calico's attributes of an address.
pub(crate) fn timestamp(now: Time) -> String {
    moment(now).replace('T', " ").replace('Z', " +0000 UTC")
}

/// Returns the pools for each family that the pod gets.
fn pools<'a>(
    asked: &Asked,
    place: Place<'a>,
    namespace: &Labels,
) -> Result<Vec<Vec<&'a Pool>>, NoPool> {
    let asker =
        Asker { node: place.node_labels, namespace: Some(namespace), purpose: PoolUse::Workload };
    let mut found = Vec::new();
    let mut none = None;
    for family in [Family::V4, Family::V6] {
        let named = asked.pools.iter().find(|(of, _)| *of == family);
        let named = named.map(|(_, names)| names.as_slice()).unwrap_or_default();
        let is_asked = asked.families.contains(&family);
        if !asked.families.is_empty() && !is_asked {
            continue;
        }
        match choose(place.pools, family, named, asker) {
            Ok(pools) => found.push(pools),
            Err(error) if is_asked || !named.is_empty() => return Err(error),
            Err(error) => none = none.or(Some(error)),
        }
    }
    match none {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

async fn assign_all_named<W: Writes + Sync>(
    objects: &Objects<W>,
    asked: &Asked,
    place: Place<'_>,
    request: Request<'_>,
) -> Result<Vec<IpAddr>, PodError> {
    let is_for_pods = |pool: &&Pool| pool.uses.contains(&PoolUse::Workload);
    let pools: Vec<Pool> = place.pools.iter().filter(is_for_pods).cloned().collect();
    for address in &asked.addresses {
        if let Some(owner) = place.taken.get(address) {
            return Err(PodError::Taken { address: *address, owner: owner.clone() });
        }
    }
    for address in &asked.addresses {
        assign_named(objects, &pools, *address, request).await?;
    }
    Ok(asked.addresses.clone())
}

#[cfg(test)]
mod tests;
