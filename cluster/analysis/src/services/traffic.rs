//! The settings of a Service for its clients and their connections.

use ipnet::IpNet;
use manx_calculation::services::AddressKind;
use manx_calculation::services::view::{FrontendView, ServiceView};
use manx_objects::object::Service;

/// The settings that take effect on a node. A policy takes effect if the Service has an address to which the policy
/// applies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Whether `internalTrafficPolicy` is `Local`. `None` if it is `Cluster` and the Service has no cluster IP.
    pub internal_local: Option<bool>,
    /// Whether `externalTrafficPolicy` is `Local`. `None` if it is `Cluster` and all of the Service's addresses are
    /// cluster IPs.
    pub external_local: Option<bool>,
    /// The number of seconds for which a client keeps its backend, if the Service has client affinity.
    pub affinity: Option<u32>,
    /// `loadBalancerSourceRanges`, if they limit the clients of at least one address. Otherwise empty.
    pub source_ranges: Vec<IpNet>,
}

impl Traffic {
    pub(super) fn new(service: &Service, view: &ServiceView) -> Self {
        let choices = || view.ports.iter().flat_map(|port| &port.choices);
        let has = |is_asked: &dyn Fn(&FrontendView) -> bool| {
            choices().flat_map(|choice| &choice.frontends).any(is_asked)
        };
        let counting = |is_local: bool, has_some: bool| (is_local || has_some).then_some(is_local);
        let is_internal = |it: &FrontendView| it.kind == AddressKind::ClusterIp;
        let has_ranges = has(&|it| it.has_source_ranges);
        Self {
            internal_local: counting(service.internal_local, has(&is_internal)),
            external_local: counting(service.keeps_clients, has(&|it| !is_internal(it))),
            affinity: view.affinity,
            source_ranges: if has_ranges { service.source_ranges.clone() } else { Vec::new() },
        }
    }
}
