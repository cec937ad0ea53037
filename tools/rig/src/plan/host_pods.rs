//! Pods on the host's network. They have no namespace of their own: they send and listen at their node's addresses, and
//! the node's prober process does that for them. Policy sees the node.
//!
//! If several such pods on a node declare the same port, the first by name listens.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::port::{HOST_PORTS, Port, VXLAN};
use super::prober::Prober;
use super::{HostPod, Plan, Pod};
use manx_api::PodName;

/// Assigns each port of a node to one pod.
pub(super) fn share_ports(pods: BTreeMap<PodName, Pod>) -> BTreeMap<PodName, HostPod> {
    let mut owners: BTreeMap<(String, Port), PodName> = BTreeMap::new();
    let shared = pods.into_iter().map(|(name, Pod { node, ports, .. })| {
        let (mut own, mut lost) = (BTreeSet::new(), BTreeMap::new());
        for port in ports {
            match owners.entry((node.clone(), port)) {
                _ if port == VXLAN => drop(lost.insert(port, None)),
                Entry::Occupied(owner) => drop(lost.insert(port, Some(owner.get().clone()))),
                Entry::Vacant(free) => {
                    free.insert(name.clone());
                    own.insert(port);
                }
            }
        }
        (name, HostPod { node, ports: own, lost })
    });
    shared.collect()
}

impl Plan {
    /// The prober that sends and receives for a prober: itself, or the node of a pod on the host's network.
    pub fn acting(&self, prober: &Prober) -> Prober {
        let host = match prober {
            Prober::Pod(pod) => self.host_pods.get(pod),
            Prober::Node(_) | Prober::Outside => None,
        };
        host.map_or_else(|| prober.clone(), |host| Prober::Node(host.node.clone()))
    }

    /// The node of a pod.
    pub fn node_of(&self, pod: &PodName) -> Option<&String> {
        let own = self.pods.get(pod).map(|pod| &pod.node);
        own.or_else(|| self.host_pods.get(pod).map(|pod| &pod.node))
    }

    /// The ports on which a prober listens. A node does not listen on a port that one of its pods on the host's network
    /// declares.
    pub fn listening(&self, prober: &Prober) -> BTreeSet<Port> {
        match prober {
            Prober::Pod(pod) => {
                let own = self.pods.get(pod).map(|pod| &pod.ports);
                own.or_else(|| self.host_pods.get(pod).map(|pod| &pod.ports))
                    .cloned()
                    .unwrap_or_default()
            }
            Prober::Node(node) => {
                let of_pods = self.ports_of_host_pods(node);
                HOST_PORTS.into_iter().filter(|port| !of_pods.contains(port)).collect()
            }
            Prober::Outside => HOST_PORTS.into(),
        }
    }

    /// The ports on which any prober listens at the addresses of a prober.
    pub fn listening_there(&self, prober: &Prober) -> BTreeSet<Port> {
        match self.acting(prober) {
            Prober::Node(node) => {
                let own = HOST_PORTS.into_iter().chain([VXLAN]);
                own.chain(self.ports_of_host_pods(&node)).collect()
            }
            other => self.listening(&other),
        }
    }

    /// The ports of the pods on a node's network.
    fn ports_of_host_pods(&self, node: &str) -> BTreeSet<Port> {
        let here = self.host_pods.values().filter(|pod| pod.node == node);
        here.flat_map(|pod| pod.ports.iter().copied()).collect()
    }

    /// A note about the ports that several pods declare, and the pod that listens on each.
    pub fn note_of_ports(&self) -> Option<String> {
        let lost = self.host_pods.iter().flat_map(|(pod, host)| {
            host.lost.iter().map(move |(port, owner)| {
                let owner = owner.as_ref().map_or("the agent".to_owned(), ToString::to_string);
                format!("{port} of {pod} on node/{}: {owner} listens", host.node)
            })
        });
        let lost: Vec<String> = lost.collect();
        (!lost.is_empty()).then(|| {
            format!(
                "pods on a node's network share its ports, and one listens: {}",
                lost.join("; ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use manx_policy_compiler::model::Protocol;

    use super::*;
    use crate::plan::make::plan;
    use crate::plan::settings::Settings;
    use crate::plan::spec::{NodeSpec, PodSpec};

    fn name(name: &str) -> PodName {
        PodName { namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn port(number: u16) -> Port {
        Port { protocol: Protocol::Tcp, number }
    }

    fn made() -> Plan {
        let node = |number: u8| NodeSpec {
            addresses: vec![format!("172.18.0.{number}/24").parse().unwrap()],
            pod_cidrs: vec![format!("10.1.{number}.0/24").parse().unwrap()],
        };
        let host = |node: &str, ports: &[Port]| PodSpec {
            node: Some(node.to_owned()),
            ports: ports.iter().copied().collect(),
            host_network: true,
            ..PodSpec::default()
        };
        let pods = [
            (name("a"), host("n1", &[port(80), port(8080)])),
            (name("b"), host("n1", &[port(80), port(81), VXLAN])),
            (name("c"), host("n2", &[port(80)])),
            (name("pod"), PodSpec::default()),
        ];
        let nodes = [("n1".to_owned(), node(2)), ("n2".to_owned(), node(3))];
        plan(&nodes.into(), &pods.into(), &Settings::default()).unwrap()
    }

    #[test]
    fn a_pod_on_the_hosts_network_acts_as_its_node() {
        let plan = made();
        assert_eq!(plan.pods.len(), 1);
        assert_eq!(plan.acting(&Prober::Pod(name("c"))), Prober::Node("n2".to_owned()));
        assert_eq!(plan.acting(&Prober::Pod(name("pod"))), Prober::Pod(name("pod")));
        assert_eq!(plan.node_of(&name("a")).unwrap(), "n1");
    }

    #[test]
    fn of_several_pods_with_one_port_of_a_node_one_listens_and_the_others_are_told_of() {
        let plan = made();
        let listening = |pod: &str| plan.listening(&Prober::Pod(name(pod)));
        assert_eq!(listening("a"), [port(80), port(8080)].into());
        assert_eq!(listening("b"), [port(81)].into());
        assert_eq!(listening("c"), [port(80)].into());
        // The pod declares a port on which the node itself also listens.
        let node = plan.listening(&Prober::Node("n1".to_owned()));
        assert!(!node.contains(&port(8080)) && node.len() == 1);
        assert_eq!(
            plan.note_of_ports().unwrap(),
            "pods on a node's network share its ports, and one listens: TCP 80 of default/b on node/n1: default/a \
             listens; UDP 4789 of default/b on node/n1: the agent listens"
        );
    }
}
