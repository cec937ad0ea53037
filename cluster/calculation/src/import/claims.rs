//! The owner of each pod address. The objects of several pods may name an address; one of them has it.
//!
//! An object names addresses in two places. Its status is kubelet's: no user of the cluster writes it. Its
//! annotations are a CNI plugin's, but everybody who may change the pod may write them. So an annotation is used only
//! until there is a status, only for a pod that has a node, and only for addresses that pods of that node can have:
//! those of the node's blocks, and those of pools that no node has for itself. Of each family the first is used.
//!
//! If several pods name an address, the first in this order has it:
//! 1. one whose status names it, before one that is being deleted, before one that only has it in an annotation;
//! 2. one whose node has the address in its blocks;
//! 3. the one that was made first, and then the one whose name comes first.
//!
//! The others do not get the address. A pod without any address is no endpoint: nothing passes it. Nothing here depends
//! on the way to the objects, so an agent that starts again gives each address to the same pod.

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
    /// The addresses of [`Claim::Open`].
    open: BTreeSet<IpAddr>,
}

/// The pods that name one address.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Claim {
    /// One pod, by its status.
    Plain(Arc<ObjectName>),
    /// Several pods, or one by an annotation: nodes and pools decide, too.
    Open(Box<Open>),
}

/// See [`Claim::Open`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Open {
    all: BTreeSet<Arc<ObjectName>>,
    /// The pod that has the address; `None` if no claim is valid.
    pod: Option<Arc<ObjectName>>,
    /// The pods whose annotation is not used.
    refused: BTreeMap<Arc<ObjectName>, Refused>,
}

/// The reason why an address in an annotation is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// The pod has no node yet.
    Unscheduled,
    /// No pod of its node can have the address.
    OutOfPlace,
}

/// The reason why a pod does not have an address that its object names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unheld {
    /// This pod has it.
    Held(ObjectName),
    /// Only an annotation names it, and it is none that a pod of that node can have.
    OutOfPlace,
}

/// The strength of an object's claim to an address, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Reported,
    /// Reported of a pod that is being deleted.
    Leaving,
    Annotated,
}

/// The place of a pod among those that name an address; the smallest has it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    standing: Standing,
    is_out_of_block: bool,
    is_of_unknown_age: bool,
    created: Option<Created>,
    name: &'a ObjectName,
}

/// The addresses that a pod's object names, and the strength of the claim to all of them.
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

    /// Whether any pod names an address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.claims.contains_key(&address)
    }

    /// The pod that has an address.
    pub(super) fn pod_with(&self, address: IpAddr) -> Option<&Arc<ObjectName>> {
        match self.claims.get(&address)? {
            Claim::Plain(pod) => Some(pod),
            Claim::Open(open) => open.pod.as_ref(),
        }
    }

    /// The pods that name an address and do not have it. A pod that waits for its node is left out.
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
    /// Registers the addresses that the objects of all pods name, and decides their owners. Nodes and pools are known.
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
            self.settle(contents, address);
        }
    }

    /// Notes the node of a pod, and returns the name under which it is noted.
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

    /// Registers the addresses that a pod's object names `now` in place of those of `before`. Returns the pods that may
    /// have gained or lost an address, and whether [`Cluster::unheld`] differs.
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
            self.settle(contents, address);
            touched.extend(self.claims.pod_with(address).cloned());
            is_told |= self.claims.unheld(address) != unheld;
        }
        (touched, is_told)
    }

    /// Decides the owner of an address that is open.
    fn settle(&mut self, contents: &Contents, address: IpAddr) {
        let Some(Claim::Open(open)) = self.claims.claims.get(&address) else { return };
        let claim = self.judge(contents, address, open);
        if matches!(claim, Claim::Plain(_)) {
            self.claims.open.remove(&address);
        }
        self.claims.claims.insert(address, claim);
    }

    /// The pods that name an address, judged by their objects and the present nodes and pools.
    fn judge(&self, contents: &Contents, address: IpAddr, open: &Open) -> Claim {
        let mut judged = Open { all: open.all.clone(), ..Open::default() };
        let mut best: Option<(Rank<'_>, &Arc<ObjectName>)> = None;
        for name in &open.all {
            // An object that is about to be registered anew names the address no longer.
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
    ) -> Rank<'a> {
        let node = pod.node_name.as_deref().and_then(|node| self.nodes.get(node));
        Rank {
            standing,
            is_out_of_block: !node.is_some_and(|node| node.plan.contains(address)),
            is_of_unknown_age: pod.created.is_none(),
            created: pod.created,
            name,
        }
    }

    /// Whether a pod of this one's node can have an address that its annotation names.
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

    /// Whether an address lies in a pool and is one that a pod can have: no node's, and none that a block has for
    /// something else.
    fn is_in_pool(&self, address: IpAddr) -> bool {
        let is_taken =
            |node: &Node| node.addresses.contains(&address) || node.plan.has_for_others(address);
        is_for_pods(address)
            && self.pools.iter().any(|pool| pool.cidr.contains(&address))
            && !self.nodes.values().any(is_taken)
    }

    /// Whether some pod of the cluster can have an address.
    pub(super) fn is_for_some_pod(&self, address: IpAddr) -> bool {
        let mut nodes = self.nodes.values();
        nodes.any(|node| node.plan.has_for_pods(address)) || self.is_in_pool(address)
    }

    /// Whether the present nodes and pools leave every address to its pod.
    pub(super) fn claims_stand(&self, contents: &Contents) -> bool {
        self.claims.all_open().all(|(address, open)| {
            matches!(self.judge(contents, address, open), Claim::Open(now) if *now == *open)
        })
    }

    /// The addresses that kubelet has reported, with the pods; where several pods have one, with one of them.
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

    /// The addresses that a pod has, of those that its object names.
    pub(super) fn held(&self, name: &ObjectName, pod: &Pod) -> AddressSet {
        let has =
            |address: &IpAddr| self.claims.pod_with(*address).is_some_and(|pod| **pod == *name);
        named(pod).0.into_iter().filter(has).collect()
    }

    /// The addresses that pods name and do not have, with the reasons.
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
