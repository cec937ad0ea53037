//! The addresses of a node's tunnels. They are the sources of packets that the node itself sends to pods of other
//! nodes.
//!
//! A node has an address for a type of tunnel as long as a pool uses this encapsulation. The node keeps the address
//! while it is in such a pool. Otherwise the address is released, and the node gets another one.
//!
//! Source: Calico's design note "IPAM: other callers", section "Node tunnel-address allocator".

use std::net::IpAddr;

use manx_datastore::Writes;
use manx_objects::object::PoolUse;
use manx_policy_compiler::selector::Labels;

use crate::affinity::Owner;
use crate::assign::{Request, assign};
use crate::block::{Attributes, Block, Rest, Time};
use crate::handle::{Handle, Tunnel};
use crate::objects::Objects;
use crate::pods::PodError;
use crate::pool::{Asker, Family, Pool, choose};
use crate::release::release_by_handle;
use crate::store::{self, Key};

/// Assigns or releases the address of a node's tunnel as needed. Returns the address that the node then has.
///
/// `pools` are the pools that use this tunnel. `reserved` are addresses that the tunnel must not get.
pub async fn set_tunnel_address<W: Writes + Sync>(
    objects: &Objects<W>,
    tunnel: Tunnel,
    (node, labels): (&str, &Labels),
    pools: &[Pool],
    reserved: &[ipnet::IpNet],
    now: Time,
) -> Result<Option<IpAddr>, PodError> {
    let id = Handle::of_tunnel(tunnel, node);
    let family = if tunnel == Tunnel::VxlanV6 { Family::V6 } else { Family::V4 };
    let config = objects.config().await?;
    let rest = Rest { now, cooldown: config.cooldown };
    let asker = Asker { node: labels, namespace: None, purpose: PoolUse::Tunnel };
    if let Some(address) = held(objects, &id).await? {
        if stays(address, pools) {
            return Ok(Some(address));
        }
        release_by_handle(objects, &id, rest).await?;
    }
    let Ok(serving) = choose(pools, family, &[], asker) else { return Ok(None) };
    let owner = Owner::Host(node.to_owned());
    let attributes = Attributes::from([
        ("node".to_owned(), node.to_owned()),
        ("type".to_owned(), tunnel.kind().to_owned()),
    ]);
    let mut all = objects.reserved().await?;
    all.extend(reserved);
    let request = Request {
        owner: &owner,
        handle: &id,
        attributes: &attributes,
        reserved: &all,
        config: &config,
        now,
    };
    Ok(Some(assign(objects, &serving, request).await?))
}

/// Returns whether a node may keep its address. A disabled pool assigns no new addresses but takes none away.
fn stays(address: IpAddr, pools: &[Pool]) -> bool {
    pools.iter().any(|pool| pool.cidr.contains(&address))
}

/// Returns whether a node is about to lose the address of a tunnel. Other nodes must then stop sending to the address.
pub async fn is_leaving<W: Writes + Sync>(
    objects: &Objects<W>,
    tunnel: Tunnel,
    node: &str,
    pools: &[Pool],
) -> Result<bool, PodError> {
    let held = held(objects, &Handle::of_tunnel(tunnel, node)).await?;
    Ok(held.is_some_and(|address| !stays(address, pools)))
}

/// Returns the address that a handle has.
async fn held<W: Writes + Sync>(
    objects: &Objects<W>,
    id: &str,
) -> Result<Option<IpAddr>, PodError> {
    let key = Key::Handle(id.to_owned());
    let Some(handle) = store::get::<Handle, _>(objects, &key).await? else { return Ok(None) };
    for cidr in handle.value.blocks.into_keys() {
        let block = store::get::<Block, _>(objects, &Key::Block(cidr)).await?;
        if let Some(address) = block.and_then(|it| it.value.addresses_of(id).next()) {
            return Ok(Some(address));
        }
    }
    Ok(None)
}
