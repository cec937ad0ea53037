//! Leases: the addresses of each pod of a node, and the container runtime's identification of its attachment.
//!
//! A node that allocates by itself has at most one block of each family (Kubernetes, `Node.spec.podCIDRs`). Its addresses
//! are given out in [turn](crate::free_order). A caller may also name a pod's addresses, inside or outside of a block, and gets
//! exactly these or an error.
//!
//! This is bookkeeping without I/O; [`host_local`](crate::host_local) stores it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::block::is_for_pods;
use crate::free_order::FreeOrder;
use crate::plan::Plan;
use manx_api::{AttachmentId, ErrorKind, PodName};
use manx_objects::few;

/// The reason why a pod gets no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The node has no block.
    #[error("the node has no pod CIDR: set Node.spec.podCIDRs")]
    NoBlock,
    /// The node has two blocks of one family.
    #[error(
        "the node has two pod CIDRs of one family, {0} and {1}: Node.spec.podCIDRs holds at most one of each"
    )]
    TwoBlocks(IpNet, IpNet),
    /// A block has no room for a pod.
    #[error(
        "pod CIDR {0} has no room for a pod: an IPv4 block is /30 or larger, an IPv6 block /126 or larger"
    )]
    TooSmall(IpNet),
    /// All addresses of a block are used.
    #[error(
        "no address is left in pod CIDR {block}: pods of this node have {leased}{}; remove pods, or give the node a \
         larger pod CIDR",
        list_others(.others)
    )]
    Exhausted {
        block: IpNet,
        /// The number of addresses that pods of this node have.
        leased: usize,
        /// Further used addresses, with their owners.
        others: Vec<(IpAddr, String)>,
    },
    /// Another pod has a named address.
    #[error("address {address} is that of pod {holder}: name another, or detach that pod first")]
    Taken {
        address: IpAddr,
        /// The pod that has it.
        holder: PodName,
    },
    /// The node itself has a named address.
    #[error("address {0} is the node's own in pod CIDR {1}: name another")]
    Tunnel(IpAddr, IpNet),
    /// No pod can have a named address.
    #[error(
        "address {0} is not one that a pod can have: expected a unicast address, not link-local or loopback"
    )]
    NotForPods(IpAddr),
    /// Two named addresses are of one family.
    #[error(
        "the addresses {0} and {1} are of one family: name at most one for IPv4 and one for IPv6"
    )]
    TwoOfFamily(IpAddr, IpAddr),
    /// The pod has other addresses than those that are named.
    #[error(
        "pod {pod} has the addresses {}, and not {}: detach it first to give it others",
        list(.has),
        list(.wanted)
    )]
    HasOthers { pod: PodName, has: Vec<IpAddr>, wanted: Vec<IpAddr> },
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Lists the first addresses, and the number of the others.
fn list_others(others: &[(IpAddr, String)]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let each = others.iter().map(|(address, holder)| format!("{address} of {holder}"));
    format!(", and others have {}: {}", others.len(), few(each, 5))
}

impl Error {
    /// The error kind that the agent's socket reports.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Exhausted { .. } => ErrorKind::Exhausted,
            _ => ErrorKind::Invalid,
        }
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    pub(crate) orders: Vec<FreeOrder>,
    pub(crate) pods: BTreeMap<PodName, Vec<IpAddr>>,
    used: BTreeSet<IpAddr>,
    /// Whether the cluster's pools give the addresses out, and leases only remember them.
    pub(crate) is_of_pools: bool,
    /// The attachments of pods that a container runtime has attached.
    pub(crate) ids: BTreeMap<PodName, AttachmentId>,
}

impl Leases {
    /// Leases of `blocks`, without pods.
    pub fn new(blocks: &[IpNet]) -> Result<Self, Error> {
        let mut orders: Vec<FreeOrder> = Vec::new();
        for net in blocks {
            let order = FreeOrder::new(*net).ok_or(Error::TooSmall(*net))?;
            let nets = || orders.iter().map(|it| it.block().net());
            if let Some(other) = nets().find(|it| it.addr().is_ipv4() == net.addr().is_ipv4()) {
                return Err(Error::TwoBlocks(other, order.block().net()));
            }
            orders.push(order);
        }
        if orders.is_empty() {
            return Err(Error::NoBlock);
        }
        Ok(Self { orders, ..Self::without_blocks() })
    }

    /// Leases without pods and without blocks. Callers will name all addresses, because another CNI plugin gives them
    /// out.
    pub fn without_blocks() -> Self {
        let (orders, pods, used, ids) = Default::default();
        Self { orders, pods, used, is_of_pools: false, ids }
    }

    /// Leases without pods and without blocks. Callers will name all addresses, because the cluster's pools give them
    /// out (Calico's IPAM).
    pub fn of_pools() -> Self {
        Self { is_of_pools: true, ..Self::without_blocks() }
    }

    /// Whether another CNI plugin gives the addresses out.
    pub(crate) fn is_of_other_plugin(&self) -> bool {
        self.orders.is_empty() && !self.is_of_pools
    }

    /// The allocator of the addresses, as text for people.
    pub(crate) fn allocator(&self) -> &'static str {
        match (self.is_of_pools, self.is_of_other_plugin()) {
            (true, _) => "the cluster's pools",
            (_, true) => "another plugin",
            _ => "the node's pod CIDRs",
        }
    }

    /// The pods, with their addresses and the container runtime's identification.
    pub fn iter(&self) -> impl Iterator<Item = (&PodName, &[IpAddr], Option<&AttachmentId>)> {
        self.pods.iter().map(|(pod, has)| (pod, has.as_slice(), self.ids.get(pod)))
    }

    /// The pod's addresses, if it has any.
    pub fn addresses(&self, pod: &PodName) -> Option<&[IpAddr]> {
        self.pods.get(pod).map(Vec::as_slice)
    }

    /// The container runtime's identification of the pod's attachment.
    pub fn id(&self, pod: &PodName) -> Option<&AttachmentId> {
        self.ids.get(pod)
    }

    /// Sets the container runtime's identification of a pod's attachment. The pod has addresses.
    pub(crate) fn set_id(&mut self, pod: &PodName, id: AttachmentId) {
        self.ids.insert(pod.clone(), id);
    }

    /// Whether every block has an address for one more pod.
    pub fn check_room(&self) -> Result<(), Error> {
        self.orders.iter().try_for_each(|order| self.next(order, &BTreeMap::new()).map(drop))
    }

    /// The blocks, each with the numbers of its used and its free addresses.
    pub fn usage(&self) -> impl Iterator<Item = (IpNet, u64, u128)> {
        self.orders.iter().map(FreeOrder::block).map(|block| {
            let used = self.used.iter().filter(|it| block.number(**it).is_some()).count() as u64;
            (block.net(), used, block.capacity() - u128::from(used))
        })
    }

    pub fn blocks(&self) -> Vec<IpNet> {
        self.orders.iter().map(|order| order.block().net()).collect()
    }

    /// Gives a pod the next address of each block, or none if one block has none left. A pod that has addresses keeps them.
    /// Addresses in `others`, whose values are their owners, are left out.
    pub(crate) fn assign(
        &mut self,
        pod: &PodName,
        others: &BTreeMap<IpAddr, String>,
    ) -> Result<Vec<IpAddr>, Error> {
        if let Some(addresses) = self.pods.get(pod) {
            return Ok(addresses.clone());
        }
        if self.orders.is_empty() {
            return Err(Error::NoBlock);
        }
        let numbers: Vec<u128> =
            self.orders.iter().map(|order| self.next(order, others)).collect::<Result<_, _>>()?;
        let orders = self.orders.iter_mut().zip(numbers);
        let addresses: Vec<IpAddr> = orders.map(|(order, number)| order.take(number)).collect();
        self.used.extend(&addresses);
        self.pods.insert(pod.clone(), addresses.clone());
        Ok(addresses)
    }

    /// Gives a pod exactly the wanted addresses, inside or outside of a block.
    pub(crate) fn pin(&mut self, pod: &PodName, wanted: &[IpAddr]) -> Result<Vec<IpAddr>, Error> {
        if let Some(has) = self.pods.get(pod) {
            let alike = BTreeSet::from_iter(has) == BTreeSet::from_iter(wanted);
            return if alike { Ok(has.clone()) } else { Err(self.has_others(pod, wanted)) };
        }
        self.check_pins(wanted)?;
        for address in wanted {
            self.orders.iter_mut().for_each(|order| order.stop_resting(*address));
            self.used.insert(*address);
        }
        self.pods.insert(pod.clone(), wanted.to_vec());
        Ok(wanted.to_vec())
    }

    fn has_others(&self, pod: &PodName, wanted: &[IpAddr]) -> Error {
        let has = self.pods.get(pod).cloned().unwrap_or_default();
        Error::HasOthers { pod: pod.clone(), has, wanted: wanted.to_vec() }
    }

    /// Checks that a pod without addresses may have the wanted ones.
    fn check_pins(&self, wanted: &[IpAddr]) -> Result<(), Error> {
        for (at, address) in wanted.iter().enumerate() {
            if !is_for_pods(*address) {
                return Err(Error::NotForPods(*address));
            }
            let of_family = |other: &&IpAddr| other.is_ipv4() == address.is_ipv4();
            if let Some(other) = wanted[..at].iter().find(of_family) {
                return Err(Error::TwoOfFamily(*other, *address));
            }
            let of_node = |block: &IpNet| {
                let plan = Plan::host_local([*block]);
                let own = [plan.tunnel_addresses(), plan.masquerade_addresses()].concat();
                own.contains(address)
            };
            if let Some(block) = self.blocks().into_iter().find(of_node) {
                return Err(Error::Tunnel(*address, block));
            }
            if let Some((holder, _)) = self.pods.iter().find(|(_, has)| has.contains(address)) {
                return Err(Error::Taken { address: *address, holder: holder.clone() });
            }
        }
        Ok(())
    }

    /// Whether the addresses are one from each block, like those that [`Leases::assign`] gives.
    pub(crate) fn is_of_blocks(&self, addresses: &[IpAddr]) -> bool {
        let mut pairs = self.orders.iter().zip(addresses);
        addresses.len() == self.orders.len()
            && pairs.all(|(order, it)| order.block().number(*it).is_some())
    }

    /// The number of the next address in turn that no pod of this node has, and that is not in `others`.
    fn next(&self, order: &FreeOrder, others: &BTreeMap<IpAddr, String>) -> Result<u128, Error> {
        let is_used =
            |address: IpAddr| self.used.contains(&address) || others.contains_key(&address);
        order.next(self.used.len() + others.len(), is_used).ok_or_else(|| {
            let block = order.block().net();
            let in_block = |address: &IpAddr| block.contains(address);
            let others = others.iter().filter(|(it, _)| in_block(it) && !self.used.contains(it));
            Error::Exhausted {
                block,
                leased: self.used.iter().filter(|it| in_block(it)).count(),
                others: others.map(|(address, holder)| (*address, holder.clone())).collect(),
            }
        })
    }

    /// Whether a pod has an address.
    pub(crate) fn is_used(&self, address: &IpAddr) -> bool {
        self.used.contains(address)
    }

    /// Takes a pod's addresses back and returns them; empty if it has none.
    pub(crate) fn release(&mut self, pod: &PodName) -> Vec<IpAddr> {
        let addresses = self.pods.remove(pod).unwrap_or_default();
        for address in &addresses {
            self.used.remove(address);
            self.orders.iter_mut().for_each(|order| order.rest(*address));
        }
        self.ids.remove(pod);
        addresses
    }
}

#[cfg(test)]
mod tests;
