//! Facts about the probers in a report.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_api::Device;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, ObjectKey};
use serde::{Deserialize, Serialize};

use crate::plan::prober::Prober;
use crate::world::cluster::Cluster;

/// The facts about all probers.
pub(crate) type Probers = BTreeMap<Prober, ProberReport>;

/// A prober in the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProberReport {
    pub addresses: Vec<IpAddr>,
    /// The pod's node.
    pub node: Option<String>,
    /// The workload that controls the pod: `NAMESPACE/KIND NAME`.
    pub workload: Option<String>,
    /// The device by which the pod is attached.
    pub device: Option<Device>,
}

/// Describes all probers of a cluster. The workloads of pods come from `contents`.
pub(crate) fn describe(cluster: &Cluster, contents: &Contents) -> Probers {
    let entries = cluster.addresses.iter().map(|(prober, addresses)| {
        let addresses = addresses.clone();
        let Prober::Pod(pod) = prober else {
            let report = ProberReport { addresses, node: None, workload: None, device: None };
            return (prober.clone(), report);
        };
        let workload = contents.workload(&ObjectKey::new(Kind::Pod, &pod.namespace, &pod.name));
        let report = ProberReport {
            addresses,
            node: cluster.plan.node_of(pod).cloned(),
            workload: workload
                .map(|owner| format!("{}/{} {}", pod.namespace, owner.kind, owner.name)),
            device: cluster.attached.get(pod).map(|attached| attached.device),
        };
        (prober.clone(), report)
    });
    entries.collect()
}
