//! Borrowed addresses: a pod has such an address, but no block of the pod's own node contains it. Each borrowed address
//! needs a route of its own. With Calico's IPAM, a node's tunnel may also have a borrowed address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use manx_policy_compiler::model::{Endpoint, ObjectName};

use super::Cluster;

/// The borrowed addresses, each with its pod and the pod's node.
pub type Borrowed = BTreeMap<IpAddr, (ObjectName, Arc<str>)>;

impl Cluster {
    /// Returns the borrowed addresses of all pods. A pod whose node does not exist borrows none.
    fn all_borrowed(&self) -> Borrowed {
        let endpoints = self.model.endpoints.iter();
        endpoints.flat_map(|(name, endpoint)| self.borrowed_by(name, endpoint)).collect()
    }

    /// Updates the borrowed addresses of all pods and nodes.
    pub(super) fn refresh_all_borrowed(&mut self) {
        self.borrowed = self.all_borrowed();
        let tunnels = self.nodes.values().flat_map(|node| node.plan.borrowed_tunnel_addresses());
        self.borrowed_tunnels = tunnels.collect();
    }

    /// Returns whether an endpoint has an address that a Node object also names as the address of a tunnel. The route
    /// to this address then depends on the endpoint ([`Cluster::is_of_pod_in_own_block`]).
    pub(super) fn has_address_of_tunnel(&self, endpoint: Option<&Endpoint>) -> bool {
        let mut addresses = endpoint.into_iter().flat_map(|endpoint| &endpoint.addresses);
        !self.borrowed_tunnels.is_empty()
            && addresses.any(|address| self.borrowed_tunnels.contains(address))
    }

    /// Returns whether a pod has this address and a block of the pod's own node contains it.
    pub(crate) fn is_of_pod_in_own_block(&self, address: IpAddr) -> bool {
        let node = self.claims.pod_with(address).and_then(|pod| self.pods_by_node.get(pod));
        let node = node.and_then(|node| self.nodes.get(&**node));
        node.is_some_and(|node| node.plan.contains(address))
    }

    fn borrowed_by<'a>(
        &'a self,
        name: &'a ObjectName,
        endpoint: &'a Endpoint,
    ) -> impl Iterator<Item = (IpAddr, (ObjectName, Arc<str>))> + 'a {
        let placed =
            self.pods_by_node.get(name).and_then(|node| Some((node, self.nodes.get(&**node)?)));
        placed.into_iter().flat_map(move |(node, of)| {
            let borrowed = endpoint.addresses.iter().filter(|address| !of.plan.contains(**address));
            borrowed.map(|address| (*address, (name.clone(), Arc::clone(node))))
        })
    }

    /// Updates the borrowed addresses of these pods, after the pods or their nodes may have changed. Each pod comes
    /// with its earlier endpoint, if it had one. Returns whether any borrowed address has changed.
    pub(super) fn refresh_borrowed<'a>(
        &mut self,
        changed: impl Iterator<Item = (&'a ObjectName, Option<&'a Endpoint>)> + Clone,
    ) -> bool {
        let mut removed = Borrowed::new();
        for (name, before) in changed.clone() {
            for address in before.iter().flat_map(|endpoint| &endpoint.addresses) {
                if self.borrowed.get(address).is_some_and(|(pod, _)| pod == name)
                    && let Some(entry) = self.borrowed.remove_entry(address)
                {
                    removed.extend([entry]);
                }
            }
        }
        let mut added = Borrowed::new();
        for (name, _) in changed {
            if let Some(endpoint) = self.model.endpoints.get(name) {
                added.extend(self.borrowed_by(name, endpoint));
            }
        }
        let differs = removed != added;
        self.borrowed.extend(added);
        differs
    }
}
