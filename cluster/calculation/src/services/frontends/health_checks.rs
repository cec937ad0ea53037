//! The ports of this node at which load balancers ask whether a Service has endpoints here (`healthCheckNodePort`).
//!
//! Sources: Kubernetes API, `ServiceSpec`; KEP-1669. kube-proxy (`pkg/proxy/healthcheck`) counts alike: an endpoint that
//! terminates may still get connections, and does not count, so that balancers turn to other nodes before it is gone.

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

/// What load balancers are told at a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// The Service.
    pub service: Arc<ObjectKey>,
    /// The ready endpoints on this node, each address once.
    pub endpoints: LocalEndpoints,
}

/// How many endpoints of a Service are ready on this node, of IPv4 and of IPv6. `None`: the Service has no address of the
/// family, and its port is not served there.
pub type LocalEndpoints = [Option<usize>; 2];

/// The ports of this node that are for health checks.
pub type HealthChecks = BTreeMap<u16, HealthCheck>;

impl Frontends {
    /// The ports at which load balancers ask, each with the Service that has it: the oldest one, if no Service has it as a
    /// node port and not too many have such ports.
    pub fn health_checks(&self) -> HealthChecks {
        self.each_health_check(|_, _| {})
    }

    /// As [`Frontends::health_checks`]. Calls `omit` for each Service whose port is not served.
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

    /// The Service to which a port of this node leads.
    pub(super) fn service_at(&self, key: &FrontendKey) -> Option<&Arc<ObjectKey>> {
        let (precedence, _) = self.claims.first(key)?;
        (!precedence.rank.is_pod).then_some(&precedence.rank.object)
    }
}

impl Compiler<'_> {
    /// The port at which load balancers ask for a Service, and what they are told. `None`: none asks, or it is not served.
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
