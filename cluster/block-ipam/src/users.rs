//! The users of addresses, by the cluster's objects, and the check whether an allocation has a user.
//!
//! An allocation counts as used unless the opposite is certain. An allocation with too little information about its
//! user stays. `manx ipam check` and the controllers use this check.
//!
//! Source: Calico's design note "IPAM garbage collection", section "Leak detection".

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::block::{Allocation, is_windows};

/// The objects that have addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Users {
    /// The pods that are not on their node's own network, by namespace and name.
    pub pods: BTreeMap<(String, String), PodUser>,
    /// The nodes, by name.
    pub nodes: BTreeMap<String, NodeUser>,
    /// The handles of the Services, by namespace and name. Services of any type are included. If the type is not
    /// `LoadBalancer`, the Service's controller releases its addresses, and the type may change back.
    pub services: BTreeMap<(String, String), String>,
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodUser {
    /// The pod's node, if it is assigned to one.
    pub node: Option<String>,
    /// The addresses that the pod's object names. There are none while the pod starts.
    pub addresses: Vec<IpAddr>,
    /// Whether all containers of the pod have ended permanently.
    pub is_finished: bool,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeUser {
    /// The addresses of the node's tunnels, from the node's annotations.
    pub tunnel_addresses: Vec<IpAddr>,
}

/// A user of an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    Pod {
        namespace: String,
        name: String,
    },
    /// The tunnel of the node with this name.
    Tunnel(String),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { namespace, name } => write!(f, "pod {namespace}/{name}"),
            Self::Tunnel(node) => write!(f, "the tunnel of node {node}"),
        }
    }
}

/// The result of the check whether an allocation has a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// It has a user, or it is not certain that it has none.
    Valid,
    /// It has no user: the pod does not exist, has finished, is on another node, or has other addresses; or the Service
    /// does not exist.
    Unused,
    /// Its node does not exist any more, so nothing will request its release.
    NodeGone,
}

impl Users {
    /// Returns the users of each address that objects name.
    pub fn by_address(&self) -> BTreeMap<IpAddr, Vec<User>> {
        let mut used = BTreeMap::<IpAddr, Vec<User>>::new();
        let mut add = |address: &IpAddr, user: User| {
            let users = used.entry(*address).or_default();
            if !users.contains(&user) {
                users.push(user);
            }
        };
        for ((namespace, name), pod) in self.pods.iter().filter(|(_, pod)| !pod.is_finished) {
            for address in &pod.addresses {
                add(address, User::Pod { namespace: namespace.clone(), name: name.clone() });
            }
        }
        for (name, node) in &self.nodes {
            for address in &node.tunnel_addresses {
                add(address, User::Tunnel(name.clone()));
            }
        }
        used
    }

    /// Checks whether the allocation of an address has a user.
    pub fn validity(&self, address: IpAddr, allocation: &Allocation) -> Validity {
        let of = |key: &str| allocation.owner.get(key).map(String::as_str);
        let node_is_gone = of("node").is_some_and(|node| !self.nodes.contains_key(node));
        let without_user = if node_is_gone { Validity::NodeGone } else { Validity::Unused };
        if is_windows(allocation)
            || allocation.released_at.is_some()
            || is_of_virtual_machine(allocation)
        {
            return Validity::Valid;
        }
        if let Some((namespace, name)) = allocation.service() {
            // A Service that was deleted and created again has another handle.
            let handle = self.services.get(&(namespace.to_owned(), name.to_owned()));
            let is_there = handle.is_some_and(|handle| allocation.has_handle(handle));
            return if is_there { Validity::Valid } else { Validity::Unused };
        }
        if of("type").is_some() {
            return if node_is_gone { Validity::NodeGone } else { Validity::Valid };
        }
        let (Some(namespace), Some(pod)) = (of("namespace"), of("pod")) else {
            return Validity::Valid;
        };
        let Some(pod) = self.pods.get(&(namespace.to_owned(), pod.to_owned())) else {
            return without_user;
        };
        let is_elsewhere = match (&pod.node, of("node")) {
            (Some(is), Some(was)) => is != was,
            _ => false,
        };
        let has_others = !pod.addresses.is_empty() && !pod.addresses.contains(&address);
        if pod.is_finished || is_elsewhere || has_others { without_user } else { Validity::Valid }
    }
}

/// Returns whether a virtual machine of `KubeVirt` has the address. The machine keeps its address while no pod runs it,
/// and no object that is read here names the machine.
fn is_of_virtual_machine(Allocation { owner, alternate, .. }: &Allocation) -> bool {
    let names_machine =
        |key: &String| key.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("vm"));
    !alternate.is_empty() || owner.keys().any(names_machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_used_until_the_opposite_is_sure() {
        let address: IpAddr = "10.65.0.1".parse().unwrap();
        let pod = |node: Option<&str>, addresses: &[&str], is_finished| PodUser {
            node: node.map(ToOwned::to_owned),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            is_finished,
        };
        let pods = [
            ("runs", pod(Some("a"), &["10.65.0.1", "fd00::1"], false)),
            ("starts", pod(Some("a"), &[], false)),
            ("waits", pod(None, &[], false)),
            ("other", pod(Some("a"), &["10.65.0.2"], false)),
            ("moved", pod(Some("b"), &[], false)),
            ("done", pod(Some("a"), &["10.65.0.1"], true)),
        ];
        let pods = pods.map(|(name, pod)| (("web".to_owned(), name.to_owned()), pod));
        let nodes = ["a", "b"].map(|name| (name.to_owned(), NodeUser::default()));
        let services = [(("web".to_owned(), "front".to_owned()), "lb-1".to_owned())];
        let users = Users { pods: pods.into(), nodes: nodes.into(), services: services.into() };
        let judge = |owner: &[(&str, &str)]| {
            let owner = owner.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let allocation = Allocation { owner: owner.collect(), ..Allocation::default() };
            users.validity(address, &allocation)
        };
        let of_pod = |pod, node| judge(&[("namespace", "web"), ("pod", pod), ("node", node)]);
        for pod in ["runs", "starts", "waits"] {
            assert_eq!(of_pod(pod, "a"), Validity::Valid, "{pod}");
        }
        for pod in ["other", "moved", "done", "gone"] {
            assert_eq!(of_pod(pod, "a"), Validity::Unused, "{pod}");
        }
        assert_eq!(of_pod("gone", "z"), Validity::NodeGone);
        assert_eq!(judge(&[("type", "ipipTunnelAddress"), ("node", "a")]), Validity::Valid);
        assert_eq!(judge(&[("type", "ipipTunnelAddress"), ("node", "z")]), Validity::NodeGone);
        assert_eq!(judge(&[("pod", "gone")]), Validity::Valid, "no namespace: not sure");
        assert_eq!(judge(&[]), Validity::Valid);
        let of_service = |service: &str, handle: &str| {
            let owner = [("namespace", "web"), ("service", service), ("type", "LoadBalancer")];
            let owner = owner.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let handle = Some(handle.to_owned());
            let allocation = Allocation { handle, owner: owner.into(), ..Allocation::default() };
            users.validity(address, &allocation)
        };
        assert_eq!(of_service("front", "lb-1"), Validity::Valid);
        assert_eq!(of_service("front", "lb-2"), Validity::Unused, "it was made anew");
        assert_eq!(of_service("gone", "lb-1"), Validity::Unused);
        assert_eq!(of_service("gone", "x-1"), Validity::Valid, "no handle of a Service: not sure");
        let machine = [("namespace", "web"), ("pod", "gone"), ("node", "z"), ("vmi", "m")];
        assert_eq!(judge(&machine), Validity::Valid);
    }
}
