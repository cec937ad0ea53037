//! The addresses of this node's tunnels, from Calico's IPAM. Each is taken while a pool uses such a tunnel, and written to
//! the Node's annotations, which all nodes read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use manx_block_ipam::handle::Tunnel;
use manx_block_ipam::pool::Pool;
use manx_objects::object::TUNNEL_ADDRESSES;
use tokio::sync::watch;

use crate::pool_addresses::{Error, Known, PoolAddresses};

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(5);

/// The tunnels that a node may have, each with the annotation of its address. Manx has no VXLAN between IPv6 addresses.
pub(crate) const TUNNELS: [(Tunnel, &str); 2] =
    [(Tunnel::Ipip, TUNNEL_ADDRESSES[0].0), (Tunnel::Vxlan, TUNNEL_ADDRESSES[1].0)];

/// The control loop's data about tunnels.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// The pools of each of [`TUNNELS`].
    pub(crate) pools: [Vec<Pool>; 2],
    pub(crate) known: Known,
    /// The IPv4 addresses in the Node's annotations.
    pub(crate) annotated: BTreeSet<IpAddr>,
}

impl Wanted {
    /// Whether the wanted tunnels are the same. If other nodes appear or disappear, only the excluded addresses change,
    /// which is no reason for calls to the server.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let Self { pools, known, annotated } = self;
        (pools, annotated) == (&other.pools, &other.annotated)
            && known.node_labels == other.known.node_labels
    }
}

/// Keeps addresses and annotations in the wanted state, until the sender is dropped.
pub(crate) async fn keep(addresses: PoolAddresses, mut wanted: watch::Receiver<Option<Wanted>>) {
    let mut told = String::new();
    let mut is_labelled = false;
    loop {
        let now = wanted.borrow_and_update().clone();
        if let Some(now) = now {
            let done = async {
                if !is_labelled {
                    addresses.label_affinities().await?;
                    is_labelled = true;
                }
                set(&addresses, &now).await
            };
            if let Err(error) = done.await {
                let error = error.to_string();
                if error != told {
                    tracing::warn!(error, "the addresses of this node's tunnels: tried again");
                    told = error;
                }
                // A change of the wanted state ends the pause.
                let _ = tokio::time::timeout(PAUSE, wanted.changed()).await;
                continue;
            }
            told.clear();
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

async fn set(addresses: &PoolAddresses, wanted: &Wanted) -> Result<(), Error> {
    let Wanted { pools, known, annotated } = wanted;
    let (mut annotations, mut all) = (BTreeMap::new(), BTreeSet::new());
    for ((tunnel, annotation), pools) in TUNNELS.into_iter().zip(pools) {
        if addresses.is_leaving(tunnel, pools).await? {
            // The annotation is removed before the address is released. Otherwise other nodes could treat the address
            // as this node's after a pod has got it.
            addresses.annotate_node(&BTreeMap::from([(annotation, None)])).await?;
        }
        let address = addresses.set_tunnel_address(tunnel, pools, known).await?;
        annotations.insert(annotation, address.map(|it| it.to_string()));
        all.extend(address);
    }
    if all != *annotated {
        addresses.annotate_node(&annotations).await?;
        tracing::info!(addresses = ?all, "the addresses of this node's tunnels");
    }
    Ok(())
}
