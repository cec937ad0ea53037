//! The pools, settings and addresses that apply to all Services.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_datastore::{ServedKey, ServedKind, WriteError, Writes};
use manx_objects::object::{Kind, PoolUse};
use serde_json::Value;

use super::wish::AssignIps;
use crate::config::Config;
use crate::objects::Objects;
use crate::pool::{Pool, around};
use crate::store::StoreError;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The pools for load balancers, sorted by name. Disabled pools are included.
    pub pools: Vec<Pool>,
    pub assigns: AssignIps,
    pub config: Config,
    /// Addresses that are assigned only to Services that name them (`IPReservation`).
    pub reserved: Vec<IpNet>,
    /// Addresses that no Service gets, with their owners: the addresses of nodes.
    pub taken: BTreeMap<IpAddr, String>,
    /// The maximum number of addresses of a family for the Services of one namespace. `None` means no limit.
    pub most: Option<usize>,
}

impl Terms {
    /// Reads the terms of a cluster with these pools. `assigns` replaces the cluster's setting if it is given.
    ///
    /// # Errors
    /// Returns an error if something cannot be read. No address must be assigned then.
    pub async fn read<W: Writes + Sync>(
        objects: &Objects<W>,
        pools: Vec<Pool>,
        assigns: Option<AssignIps>,
        most: Option<usize>,
    ) -> Result<Self, StoreError> {
        let assigns = match assigns {
            Some(assigns) => assigns,
            None => assign_ips(objects.writes()).await?,
        };
        let taken = node_addresses(objects.writes()).await?;
        let (config, reserved) = (objects.config().await?, objects.reserved().await?);
        // Addresses are never borrowed from blocks of other owners, and only the size of the pools limits the number of
        // blocks.
        let config = Config { strict_affinity: true, max_blocks: u32::MAX, ..config };
        let mut pools = pools;
        pools.retain(|pool| pool.uses.contains(&PoolUse::LoadBalancer));
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { pools, assigns, config, reserved, taken, most })
    }

    /// Returns the smallest pool for load balancers that contains an address.
    pub fn pool_around(&self, address: IpAddr) -> Option<&Pool> {
        around(&self.pools, address)
    }

    /// Returns whether a block is in a pool for load balancers.
    pub fn has_block(&self, block: IpNet) -> bool {
        self.pools.iter().any(|pool| pool.cidr.contains(&block))
    }
}

/// Reads the cluster's setting that says which Services get addresses. The setting does not exist in versions of Calico
/// without support for load balancers.
async fn assign_ips(writes: &impl Writes) -> Result<AssignIps, StoreError> {
    let key = ServedKey::new(ServedKind::KubeControllersConfiguration, "", "default");
    let found = match writes.get(&key).await {
        Ok(found) => found,
        Err(WriteError::NotServed(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let Some((object, _)) = found else { return Ok(AssignIps::default()) };
    let damaged = |found: &Value| StoreError::Damaged {
        record: key.to_string(),
        reason: format!(
            "spec.controllers.loadBalancer.assignIPs: found {found}, expected AllServices or RequestedServicesOnly"
        ),
    };
    match &object["spec"]["controllers"]["loadBalancer"]["assignIPs"] {
        Value::Null => Ok(AssignIps::default()),
        found => found.as_str().and_then(AssignIps::parse).ok_or_else(|| damaged(found)),
    }
}

/// Reads the addresses of nodes. They matter because a pool may be a part of the nodes' own network.
async fn node_addresses<W: Writes + Sync>(
    writes: &W,
) -> Result<BTreeMap<IpAddr, String>, StoreError> {
    let read = |key: &ServedKey, object: Value| {
        let all = object["status"]["addresses"].as_array().into_iter().flatten();
        let texts = all.filter_map(|it| it["address"].as_str());
        let parsed: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
        (key.to_string(), parsed)
    };
    let nodes = writes.read_each(Kind::Node.into(), "", read).await?;
    let of_node = |(node, all): (String, Vec<IpAddr>)| {
        all.into_iter().map(move |address| (address, node.clone()))
    };
    Ok(nodes.into_iter().flat_map(of_node).collect())
}
