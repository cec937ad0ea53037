//! Assumed addresses for pods without any: manifests that have never been in a cluster have no `status`.
//!
//! A pod gets the next free address of each of its node's podCIDRs, or of the first node's if it has no node. Only
//! policies that name addresses depend on them; the output says which were assumed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::{Object, ObjectKey, Phase, Pod};

/// Gives addresses to the pods that can have some, and returns these addresses.
pub(super) fn addresses(contents: &mut Contents) -> BTreeMap<ObjectKey, Vec<IpAddr>> {
    let (mut blocks, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for (key, stored) in &contents.objects {
        match &stored.state {
            State::Valid(object) => match &**object {
                Object::Node(node) => {
                    blocks.insert(key.name.clone(), node.pod_cidrs.clone());
                }
                Object::Pod(pod) => taken.extend(own(pod)),
                _ => {}
            },
            State::Invalid(invalid) => taken.extend(&invalid.addresses),
        }
    }
    let mut assumed = BTreeMap::new();
    for (key, stored) in &mut contents.objects {
        let State::Valid(object) = &mut stored.state else { continue };
        let Object::Pod(pod) = &**object else { continue };
        let finished = matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed));
        if pod.host_network || finished || pod.deleting || !own(pod).is_empty() {
            continue;
        }
        let of_node = match &pod.node_name {
            Some(node) => blocks.get(node),
            None => blocks.values().next(),
        };
        let given: Vec<IpAddr> =
            of_node.into_iter().flatten().filter_map(|block| next(*block, &mut taken)).collect();
        if !given.is_empty()
            && let Object::Pod(pod) = Arc::make_mut(object)
        {
            pod.pod_ips.clone_from(&given);
            assumed.insert(key.clone(), given);
        }
    }
    assumed
}

fn own(pod: &Pod) -> Vec<IpAddr> {
    let of_status = pod.pod_ips.iter().chain(&pod.pod_ip).copied();
    of_status.chain(pod.annotated_ips.every()).collect()
}

/// The block's first address after the network address belongs to the router.
fn next(block: IpNet, taken: &mut BTreeSet<IpAddr>) -> Option<IpAddr> {
    let hosts = block.hosts().filter(|address| *address != block.network());
    let address = hosts.skip(1).find(|address| !taken.contains(address))?;
    taken.insert(address);
    Some(address)
}
