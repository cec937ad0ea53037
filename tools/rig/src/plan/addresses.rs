//! The addresses of all probers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_api::PodName;

use super::Plan;
use super::prober::Prober;

pub(crate) type Addresses = BTreeMap<Prober, Vec<IpAddr>>;

/// The addresses of all probers: those of the plan, and those that the agents gave the pods.
pub(crate) fn addresses(plan: &Plan, pods: &BTreeMap<PodName, Vec<IpAddr>>) -> Addresses {
    let hosts = plan.nodes.iter().map(|(name, host)| (Prober::Node(name.clone()), host));
    let host_pods = plan
        .host_pods
        .iter()
        .filter_map(|(pod, host)| Some((Prober::Pod(pod.clone()), plan.nodes.get(&host.node)?)));
    hosts
        .chain(host_pods)
        .chain([(Prober::Outside, &plan.outside)])
        .map(|(prober, host)| (prober, host.addresses.iter().map(IpNet::addr).collect()))
        .chain(pods.iter().map(|(pod, ips)| (Prober::Pod(pod.clone()), ips.clone())))
        .collect()
}
