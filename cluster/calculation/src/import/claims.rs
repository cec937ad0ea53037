//! Decides which pod has each address. The objects of several pods may name the same address; one of these pods has it.
//!
//! An object names addresses in two places. Only kubelet writes the status of a pod, and no user of the cluster does. A
//! CNI plugin writes the annotations, but anybody who may change the pod may also write them. So an annotation is used
//! only if the pod has no addresses in its status, if the pod has a node, and if the pods of that node can have the
//! address. The pods of a node can have two types of addresses: addresses in a block of the node, and addresses in a
//! pool that are not used for anything else. The first address of each family is used.
//!
//! If several pods name an address, the pod that comes first in this order has it:
//! 1. first a pod whose status names the address, then such a pod that is being deleted, and last a pod that names the
//!    address only in an annotation;
//! 2. a pod whose node has a block with the address;
//! 3. the pod that was created first, and then the pod whose name comes first.
//!
//! The other pods do not get the address. A pod without any address is not an endpoint: none of its packets pass. The
//! result depends only on the current objects, so a restarted agent gives each address to the same pod.

use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map};
use std::net::IpAddr;
use std::sync::Arc;

use manx_policy_compiler::model::{AddressSet, ObjectName};

use super::{Cluster, Node, member};
use manx_ipam::block::is_for_pods;
use manx_objects::contents::Contents;
use manx_objects::object::{Created, Kind, Object, ObjectKey, Pod};

/// The pods that name each address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    claims: HashMap<IpAddr, Claim>,
    /// The addresses whose claim is [`Claim::Open`].
    open: BTreeSet<IpAddr>,
}

/// The pods that name one address.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Claim {
    /// A single pod names the address, in its status.
    Plain(Arc<ObjectName>),
    /// Several pods name the address, or one pod names it in an annotation. The decision also depends on nodes and
    /// pools.
    Open(Box<Open>),
}

/// See [`Claim::Open`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Open {
    all: BTreeSet<Arc<ObjectName>>,
    /// The pod that has the address; `None` if no claim is valid.
    pod: Option<Arc<ObjectName>>,
    /// The pods whose annotation is not used, with the reasons.
    refused: BTreeMap<Arc<ObjectName>, Refused>,
}

/// The reason why an address in an annotation is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// The pod has no node yet.
    Unscheduled,
    /// No pod of the pod's node can have the address.
    OutOfPlace,
}

/// The reason why a pod does not have an address that its object names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unheld {
    /// The pod with this name has it.
    Held(ObjectName),
    /// Only an annotation names the address, and pods of that node cannot have it.
    OutOfPlace,
}

/// The strength of an object's claim to an address; the strongest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Reported,
    /// The status names the address, but the pod is being deleted.
    Leaving,
    Annotated,
}

/// The rank of a pod among the pods that name an address. The pod with the smallest rank has the address.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct AddressClaimRank<'a> {
    standing: Standing,
    is_out_of_block: bool,
    is_of_unknown_age: bool,
    created: Option<Created>,
    name: &'a ObjectName,
}

/// Returns the addresses that a pod's object names, and the strength of its claim to them.
fn named(pod: &Pod) -> (Vec<IpAddr>, Standing) {
    if !member::takes_part(pod) {
        return (Vec::new(), Standing::Annotated);
    }
    let mut addresses = member::addresses(pod);
    let standing = match (pod.reported_addresses().next().is_some(), pod.deleting) {
        (true, false) => Standing::Reported,
        (true, true) => Standing::Leaving,
        (false, _) => {
            let mut seen = [false; 2];
            addresses.retain(|ip| !std::mem::replace(&mut seen[usize::from(ip.is_ipv4())], true));
            Standing::Annotated
        }
    };
    (addresses, standing)
}

pub(super) fn find<'a>(contents: &'a Contents, name: &ObjectName) -> Option<&'a Pod> {
    match contents.valid(&ObjectKey::new(Kind::Pod, &name.namespace, &name.name))? {
        Object::Pod(pod) => Some(pod),
        _ => None,
    }
}

impl Claims {
    fn add(&mut self, address: IpAddr, pod: &Arc<ObjectName>, standing: Standing) {
        let claim = match (self.claims.remove(&address), standing) {
            (None, Standing::Reported | Standing::Leaving) => Claim::Plain(Arc::clone(pod)),
            (before, _) => {
                let mut open = before.map(Claim::into_open).unwrap_or_default();
                open.all.insert(Arc::clone(pod));
                self.open.insert(address);
                Claim::Open(Box::new(open))
            }
        };
        self.claims.insert(address, claim);
    }

    fn remove(&mut self, address: IpAddr, pod: &ObjectName) {
        let hash_map::Entry::Occupied(mut occupied) = self.claims.entry(address) else { return };
        let is_unclaimed = match occupied.get_mut() {
            Claim::Plain(other) => **other == *pod,
            Claim::Open(open) => open.all.remove(pod) && open.all.is_empty(),
        };
        if is_unclaimed {
            occupied.remove();
            self.open.remove(&address);
        }
    }

    /// Returns whether any pod names an address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.claims.contains_key(&address)
    }

    /// Returns the pod that has an address.
    pub(super) fn pod_with(&self, address: IpAddr) -> Option<&Arc<ObjectName>> {
        match self.claims.get(&address)? {
            Claim::Plain(pod) => Some(pod),
            Claim::Open(open) => open.pod.as_ref(),
        }
    }

    /// Returns the pods that name an address but do not have it. A pod that is not assigned to a node yet is left out.
    fn unheld(&self, address: IpAddr) -> Vec<(ObjectName, Unheld)> {
        let Some(Claim::Open(open)) = self.claims.get(&address) else { return Vec::new() };
        let why = |pod: &Arc<ObjectName>| match (open.refused.get(pod), &open.pod) {
            (Some(Refused::OutOfPlace), _) => Some(Unheld::OutOfPlace),
            (None, Some(other)) if other != pod => Some(Unheld::Held((**other).clone())),
            (Some(Refused::Unscheduled) | None, _) => None,
        };
        open.all.iter().filter_map(|pod| Some(((**pod).clone(), why(pod)?))).collect()
    }

    fn all_open(&self) -> impl Iterator<Item = (IpAddr, &Open)> {
        self.open.iter().filter_map(|address| match self.claims.get(address)? {
            Claim::Plain(_) => None,
            Claim::Open(open) => Some((*address, &**open)),
        })
    }
}

impl Claim {
    fn into_open(self) -> Open {
        match self {
            Self::Plain(pod) => Open { all: [pod].into(), ..Open::default() },
            Self::Open(open) => *open,
        }
    }
}

impl Cluster {
    /// Registers the addresses that the objects of all pods name, and decides which pod has each address. Nodes and
    /// pools must already be imported.
    pub(super) fn claim_all(&mut self, contents: &Contents) {
        for (key, stored) in contents.of_kind(Kind::Pod) {
            let Some(Object::Pod(pod)) = stored.state.valid() else { continue };
            let (addresses, standing) = named(pod);
            let name = self.place_pod(ObjectName::new(&key.namespace, &key.name), Some(pod));
            for address in addresses {
                self.claims.add(address, &name, standing);
            }
        }
        for address in self.claims.open.clone() {
            self.decide(contents, address);
        }
    }

    /// Records the node of a pod, and returns the stored name of the pod.
    fn place_pod(&mut self, name: ObjectName, pod: Option<&Pod>) -> Arc<ObjectName> {
        let known = self.pods_by_node.get_key_value(&name).map(|(known, _)| Arc::clone(known));
        let name = known.unwrap_or_else(|| Arc::new(name));
        let pod = pod.filter(|pod| member::takes_part(pod));
        match pod.and_then(|pod| pod.node_name.as_deref()) {
            Some(node) => {
                let node = self.shared.names.intern(node.into());
                self.pods_by_node.insert(Arc::clone(&name), node);
            }
            None => _ = self.pods_by_node.remove(&name),
        }
        name
    }

    /// Registers the addresses that a pod's object names `now`, instead of those that it named `before`. Returns the
    /// pods that may have gained or lost an address, and whether [`Cluster::unheld`] differs.
    pub(super) fn claim(
        &mut self,
        contents: &Contents,
        name: &ObjectName,
        [before, now]: [Option<&Pod>; 2],
    ) -> (BTreeSet<Arc<ObjectName>>, bool) {
        let name = self.place_pod(name.clone(), now);
        let was = before.map(named).map(|(addresses, _)| addresses).unwrap_or_default();
        let (is, standing) = now.map_or((Vec::new(), Standing::Annotated), named);
        let (mut touched, mut is_told) = (BTreeSet::from([Arc::clone(&name)]), false);
        for address in was.iter().chain(&is).copied().collect::<BTreeSet<_>>() {
            touched.extend(self.claims.pod_with(address).cloned());
            let unheld = self.claims.unheld(address);
            self.claims.remove(address, &name);
            if is.contains(&address) {
                self.claims.add(address, &name, standing);
            }
            self.decide(contents, address);
            touched.extend(self.claims.pod_with(address).cloned());
            is_told |= self.claims.unheld(address) != unheld;
        }
        (touched, is_told)
    }

    /// Decides which pod has an address whose claim is open.
    fn decide(&mut self, contents: &Contents, address: IpAddr) {
        let Some(Claim::Open(open)) = self.claims.claims.get(&address) else { return };
        let claim = self.judge(contents, address, open);
        if matches!(claim, Claim::Plain(_)) {
            self.claims.open.remove(&address);
        }
        self.claims.claims.insert(address, claim);
    }

    /// Evaluates the claims of the pods that name an address, by their objects and the current nodes and pools.
    fn judge(&self, contents: &Contents, address: IpAddr, open: &Open) -> Claim {
        let mut judged = Open { all: open.all.clone(), ..Open::default() };
        let mut best: Option<(AddressClaimRank<'_>, &Arc<ObjectName>)> = None;
        for name in &open.all {
            // An object whose claim is registered again soon may not name the address any more.
            let Some(pod) = find(contents, name) else { continue };
            let (addresses, standing) = named(pod);
            if !addresses.contains(&address) {
                continue;
            }
            if standing == Standing::Annotated
                && let Err(why) = self.check_annotated(pod, address)
            {
                judged.refused.insert(Arc::clone(name), why);
                continue;
            }
            let rank = self.rank(name, pod, address, standing);
            if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                best = Some((rank, name));
            }
        }
        match best {
            Some((rank, name)) if open.all.len() == 1 && rank.standing != Standing::Annotated => {
                Claim::Plain(Arc::clone(name))
            }
            best => {
                judged.pod = best.map(|(_, name)| Arc::clone(name));
                Claim::Open(Box::new(judged))
            }
        }
    }

    fn rank<'a>(
        &self,
        name: &'a ObjectName,
        pod: &Pod,
        address: IpAddr,
        standing: Standing,
    ) -> AddressClaimRank<'a> {
        let node = pod.node_name.as_deref().and_then(|node| self.nodes.get(node));
        AddressClaimRank {
            standing,
            is_out_of_block: !node.is_some_and(|node| node.plan.contains(address)),
            is_of_unknown_age: pod.created.is_none(),
            created: pod.created,
            name,
        }
    }

    /// Checks whether pods of this pod's node can have an address from the pod's annotation.
    fn check_annotated(&self, pod: &Pod, address: IpAddr) -> Result<(), Refused> {
        let node = pod.node_name.as_deref().and_then(|node| self.nodes.get(node));
        let Some(node) = node else { return Err(Refused::Unscheduled) };
        if node.plan.has_for_pods(address)
            || !node.plan.contains(address) && self.is_in_pool(address)
        {
            Ok(())
        } else {
            Err(Refused::OutOfPlace)
        }
    }

    /// Returns whether an address is in a pool and a pod can have it: it is not an address of a node, and no block uses
    /// it for something else.
    fn is_in_pool(&self, address: IpAddr) -> bool {
        let is_taken =
            |node: &Node| node.addresses.contains(&address) || node.plan.has_for_others(address);
        is_for_pods(address)
            && self.pools.iter().any(|pool| pool.cidr.contains(&address))
            && !self.nodes.values().any(is_taken)
    }

    /// Returns whether any pod of the cluster could have an address.
    pub(super) fn is_for_some_pod(&self, address: IpAddr) -> bool {
        let mut nodes = self.nodes.values();
        nodes.any(|node| node.plan.has_for_pods(address)) || self.is_in_pool(address)
    }

    /// Returns whether the decisions about all addresses are the same with the current nodes and pools.
    pub(super) fn claims_stand(&self, contents: &Contents) -> bool {
        self.claims.all_open().all(|(address, open)| {
            matches!(self.judge(contents, address, open), Claim::Open(now) if *now == *open)
        })
    }

    /// Returns the addresses that kubelet has reported, each with its pod. If several pods name an address, it is
    /// returned with the pod that has it.
    pub fn reported<'a>(
        &'a self,
        contents: &'a Contents,
    ) -> impl Iterator<Item = (IpAddr, &'a ObjectName)> {
        let is_reported = |pod: &&Arc<ObjectName>| {
            find(contents, pod).is_some_and(|pod| pod.reported_addresses().next().is_some())
        };
        self.claims.claims.iter().filter_map(move |(address, claim)| {
            let pod = match claim {
                Claim::Plain(pod) => pod,
                Claim::Open(open) => open.pod.as_ref().filter(is_reported)?,
            };
            Some((*address, &**pod))
        })
    }

    /// Returns those of the addresses named by a pod's object that the pod has.
    pub(super) fn held(&self, name: &ObjectName, pod: &Pod) -> AddressSet {
        let has =
            |address: &IpAddr| self.claims.pod_with(*address).is_some_and(|pod| **pod == *name);
        named(pod).0.into_iter().filter(has).collect()
    }

    /// Returns the addresses that pods name but do not have, with the reasons.
    pub(crate) fn unheld(&self) -> BTreeMap<(IpAddr, ObjectName), Unheld> {
        let of = |address: &IpAddr| {
            let address = *address;
            let unheld = self.claims.unheld(address).into_iter();
            unheld.map(move |(pod, why)| ((address, pod), why))
        };
        self.claims.open.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests;
