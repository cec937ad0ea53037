//! Borrowed addresses: those of a pod that lie in no block of its own node. Each needs a route of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use manx_policy_compiler::model::{Endpoint, ObjectName};

use super::{Cluster, Node};

/// The pods that have one address, and the node of each. Pods that have it from a block of their own node count, too.
pub type Claimants = BTreeMap<ObjectName, String>;

/// The borrowed addresses and who has them.
pub type Borrowed = BTreeMap<IpAddr, Claimants>;

/// Whether an address that a pod has on `node` is borrowed.
fn is_borrowed(node: &Node, address: IpAddr) -> bool {
    !node.pod_cidrs.iter().any(|block| block.contains(&address))
}

impl Cluster {
    /// The borrowed addresses of all pods. A pod whose node does not exist borrows none.
    pub(super) fn all_borrowed(&self) -> Borrowed {
        let mut borrowed = Borrowed::new();
        for (name, node, endpoint) in self.placed() {
            let Some(of_node) = self.nodes.get(node) else { continue };
            for address in endpoint.addresses.iter().filter(|it| is_borrowed(of_node, **it)) {
                borrowed.entry(*address).or_default().insert(name.clone(), node.to_owned());
            }
        }
        if !borrowed.is_empty() {
            for (name, node, endpoint) in self.placed() {
                for address in &endpoint.addresses {
                    if let Some(claimants) = borrowed.get_mut(address) {
                        claimants.insert(name.clone(), node.to_owned());
                    }
                }
            }
        }
        borrowed
    }

    /// The endpoints whose node exists, each with its node's name.
    fn placed(&self) -> impl Iterator<Item = (&ObjectName, &str, &Endpoint)> {
        self.model.endpoints.iter().filter_map(|(name, endpoint)| {
            let node = &**self.pods_by_node.get(name)?;
            self.nodes.contains_key(node).then_some((name, node, &**endpoint))
        })
    }

    /// Brings the borrowed addresses up to date after a pod has changed from `before`. Returns whether they differ.
    pub(super) fn refresh_borrowed(&mut self, pod: &ObjectName, before: Option<&Endpoint>) -> bool {
        let after = self.model.endpoints.get(pod);
        let touched = before.into_iter().chain(after.map(|it| &**it));
        let touched: BTreeSet<IpAddr> = touched.flat_map(|it| &it.addresses).copied().collect();
        let mut differs = false;
        for address in touched {
            let claimants = self.claimants(pod, address);
            if self.borrowed.get(&address) == claimants.as_ref() {
                continue;
            }
            differs = true;
            match claimants {
                Some(claimants) => self.borrowed.insert(address, claimants),
                None => self.borrowed.remove(&address),
            };
        }
        differs
    }

    /// The pods that have an address now, if one of them borrows it. Only `pod` has changed since they were found last.
    fn claimants(&self, pod: &ObjectName, address: IpAddr) -> Option<Claimants> {
        let node = self.model.endpoints.get(pod).and_then(|endpoint| {
            let node = self.pods_by_node.get(pod).filter(|_| endpoint.addresses.contains(&address));
            node.map(|node| &**node).filter(|node| self.nodes.contains_key(*node))
        });
        let borrows = |node: &str| self.nodes.get(node).is_some_and(|it| is_borrowed(it, address));
        let mut claimants = match self.borrowed.get(&address) {
            Some(known) => known.clone(),
            None if node.is_some_and(borrows) => self.lenders(address),
            None => return None,
        };
        match node {
            Some(node) => claimants.insert(pod.clone(), node.to_owned()),
            None => claimants.remove(pod),
        };
        claimants.values().any(|node| borrows(node)).then_some(claimants)
    }

    /// The pods that have an address from a block of their own node.
    fn lenders(&self, address: IpAddr) -> Claimants {
        if self.nodes.values().all(|node| is_borrowed(node, address)) {
            return Claimants::new();
        }
        let has = |(name, node, endpoint): (&ObjectName, &str, &Endpoint)| {
            let has = endpoint.addresses.contains(&address);
            has.then(|| (name.clone(), node.to_owned()))
        };
        self.placed().filter_map(has).collect()
    }
}
