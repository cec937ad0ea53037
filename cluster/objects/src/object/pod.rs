//! Pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::created::Created;
use super::pairs::Pairs;
use super::port::Protocol;

/// The part of a pod that networking needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub labels: Pairs,
    /// `metadata.creationTimestamp`.
    pub created: Option<Created>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The object that controls it: the reference in `metadata.ownerReferences` whose `controller` is true.
    pub owner: Option<Owner>,
    /// `spec.serviceAccountName`; `default` if absent.
    pub service_account: Option<String>,
    /// `spec.nodeName`.
    pub node_name: Option<String>,
    /// `spec.nodeSelector`: the labels of the nodes on which the pod may run.
    pub node_selector: Pairs,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// The ports of each container in `spec.containers`.
    pub containers: Vec<Vec<ContainerPort>>,
    /// The ports of each container in `spec.initContainers`.
    pub init_containers: Vec<Vec<ContainerPort>>,
    /// `status.phase`.
    pub phase: Option<Phase>,
    /// `status.hostIP`: the address of the pod's node.
    pub host_ip: Option<IpAddr>,
    /// `status.podIP`.
    pub pod_ip: Option<IpAddr>,
    /// `status.podIPs`.
    pub pod_ips: Vec<IpAddr>,
    /// The addresses in the pod's annotations.
    pub annotated_ips: AnnotatedIps,
    /// The annotations that request something that Manx does not implement: for each, the name of its row in the table
    /// of settings, and the missing part.
    pub not_done: Vec<(&'static str, &'static str)>,
}

/// The annotations in which CNI plugins store the addresses of a pod. A field is `None` if the annotation is absent, or
/// if no address in it can be read. A field is empty if the annotation is present and empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnnotatedIps {
    /// `cni.projectcalico.org/podIPs`.
    pub pod_ips: Option<Vec<IpAddr>>,
    /// `cni.projectcalico.org/podIP`: one address. Calico empties it when it has released the addresses.
    pub pod_ip: Option<Vec<IpAddr>>,
    /// `vpc.amazonaws.com/pod-ips`. Amazon's plugin empties it when it has released the addresses.
    pub aws_pod_ips: Option<Vec<IpAddr>>,
}

impl AnnotatedIps {
    /// Returns the addresses of all these annotations.
    pub fn every(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let lists = [&self.pod_ips, &self.pod_ip, &self.aws_pod_ips];
        lists.into_iter().flatten().flatten().copied()
    }
}

impl Pod {
    /// Returns whether all containers of the pod have ended, so that its addresses may now belong to another pod.
    pub const fn is_finished(&self) -> bool {
        matches!(self.phase, Some(Phase::Succeeded | Phase::Failed))
    }

    /// Returns the addresses in the pod's status, which only kubelet writes.
    pub fn reported_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let has_any = !self.host_network;
        self.pod_ips.iter().chain(&self.pod_ip).copied().filter(move |_| has_any)
    }

    /// Returns every address that the manifest gives the pod, in any field. A pod on the host's network has no address
    /// of its own.
    pub fn every_address(&self) -> BTreeSet<IpAddr> {
        if self.host_network {
            return BTreeSet::new();
        }
        self.reported_addresses().chain(self.annotated_ips.every()).collect()
    }
}

/// The object that controls another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub kind: String,
    /// `name`, in the namespace of the object that is controlled.
    pub name: String,
}

/// One port of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    pub name: Option<String>,
    /// The number, 1-65535.
    pub port: u16,
    /// The protocol; TCP if absent.
    pub protocol: Option<Protocol>,
    /// The port of the pod's node that leads to this port.
    pub host: Option<HostPort>,
}

/// `hostPort` and `hostIP` of a container's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPort {
    /// The number, 1-65535.
    pub port: u16,
    /// The node's address on which the port is open. `None` means all addresses; `0.0.0.0` and `::` mean the same.
    pub address: Option<IpAddr>,
}

/// `status.phase` of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Accepted, not running yet.
    Pending,
    /// At least one container runs.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, one of them badly.
    Failed,
    /// The pod's node does not answer.
    Unknown,
}
