//! The ports of this node on which load balancers ask whether a Service has endpoints here (`healthCheckNodePort`).
//!
//! Sources: Kubernetes API, `ServiceSpec`; KEP-1669. kube-proxy (`pkg/proxy/healthcheck`) counts in the same way: a
//! terminating endpoint may still get connections but does not count, so that load balancers use other nodes before the
//! endpoint is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use manx_dataplane::services::FrontendKey;
use manx_dataplane::wire::protocol;
use manx_objects::object::{ObjectKey, Service, ServiceType, SliceEndpoint};
use manx_policy_compiler::model::ObjectName;

use super::Frontends;
use super::compile::Compiler;
use crate::services::addresses::has_family;
use crate::services::bounds::MOST_HEALTH_CHECKS;
use crate::services::omission::Omission;

/// The answer to load balancers on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// The Service.
    pub service: Arc<ObjectKey>,
    /// The number of ready endpoints on this node. Each address counts once.
    pub endpoints: LocalEndpoints,
}

/// The number of a Service's ready endpoints on this node, for IPv4 and for IPv6. `None` if the Service has no address
/// of the family; its port is not served in this family.
pub type LocalEndpoints = [Option<usize>; 2];

/// The ports of this node that answer health checks.
pub type HealthChecks = BTreeMap<u16, HealthCheck>;

impl Frontends {
    /// Returns the ports on which load balancers ask about Services, each with its Service. A port belongs to the
    /// oldest Service that requests it. It is left out if a Service has it as a node port, or if the limit is reached.
    pub fn health_checks(&self) -> HealthChecks {
        self.each_health_check(|_, _| {})
    }

    /// Like [`Frontends::health_checks`]. Calls `omit` for each Service whose port is not served.
    pub(super) fn each_health_check<'a>(
        &'a self,
        mut omit: impl FnMut(&'a ObjectKey, Omission),
    ) -> HealthChecks {
        let mut checks = HealthChecks::new();
        for (rank, &(port, endpoints)) in &self.health_checks {
            let service = &rank.object;
            let mut addresses = self.node_ports.addresses.iter();
            let of_node_port = addresses.find_map(|address| {
                let (address, protocol) = ((*address).into(), protocol::TCP);
                self.service_at(&FrontendKey { address, protocol, port })
            });
            let by = of_node_port.or_else(|| checks.get(&port).map(|it| &it.service));
            if let Some(by) = by {
                let by = ObjectKey::clone(by);
                omit(service, Omission::HealthCheckTaken { port, by });
            } else if checks.len() >= MOST_HEALTH_CHECKS {
                omit(service, Omission::TooManyHealthChecks);
            } else {
                checks.insert(port, HealthCheck { service: Arc::clone(service), endpoints });
            }
        }
        checks
    }

    /// Returns the Service to which a port of this node leads.
    pub(super) fn service_at(&self, key: &FrontendKey) -> Option<&Arc<ObjectKey>> {
        let (precedence, _) = self.claims.first(key)?;
        (!precedence.rank.is_pod).then_some(&precedence.rank.object)
    }
}

impl Compiler<'_> {
    /// Returns the port on which load balancers ask about a Service, and the answer. Returns `None` if the Service has
    /// no such port, or if the port is not served.
    pub(super) fn compile_health_check(
        &self,
        (name, service): (&ObjectName, &Service),
        omissions: &mut BTreeSet<Omission>,
    ) -> Option<(u16, LocalEndpoints)> {
        let is_asked =
            service.service_type == Some(ServiceType::LoadBalancer) && service.keeps_clients;
        let port = service.health_check_port.filter(|_| is_asked)?;
        let (first, last) = self.node_ports.range;
        if !(first..=last).contains(&port) {
            omissions.insert(Omission::HealthCheckPort(port));
            return None;
        }
        let here = |it: &&SliceEndpoint| it.node.as_deref() == Some(&*self.here.node);
        let ready = self.slices.ready((name, service)).filter(here);
        let ready: BTreeSet<IpAddr> = ready.map(|it| it.address).collect();
        let of_family = |is_v4: bool| {
            let count = || ready.iter().filter(|it| it.is_ipv4() == is_v4).count();
            has_family(service, is_v4).then(count)
        };
        Some((port, [of_family(true), of_family(false)]))
    }
}
