//! Which rules of services affect an answer: the test removes the field that a rule reads, and
//! checks whether any answer changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use manx_objects::State;
use manx_objects::contents::Stored;
use manx_objects::object::{
    ClientAffinity, Hints, Kind, Object, ObjectKey, Pairs, Protocol, Service, ServiceType,
    SliceEndpoint,
};

use super::clusters::SPECIAL_IPV4;

/// The field that a rule reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    LabelOfAnotherProxy,
    LabelHeadless,
    NoClusterIp,
    ExternalName,
    TypeLoadBalancer,
    OtherType,
    ModeProxy,
    ExternalIps,
    Maglev,
    SecondFamily,
    InternalPolicy,
    ExternalPolicy,
    Affinity,
    AffinityTimeout,
    Age,
    PortName,
    Udp,
    Sctp,
    Ready,
    LastResort,
    NodeName,
    NodeHints,
    ZoneHints,
    /// An endpoint without a hint. Because of it, the hints of the others do not count.
    MissingNodeHint,
    MissingZoneHint,
    SpecialAddress,
    InvalidSlice,
    Zone,
    Block,
    NodeAddress,
    Pool,
}

impl Feature {
    pub const ALL: [Self; 31] = [
        Self::LabelOfAnotherProxy,
        Self::LabelHeadless,
        Self::NoClusterIp,
        Self::ExternalName,
        Self::TypeLoadBalancer,
        Self::OtherType,
        Self::ModeProxy,
        Self::ExternalIps,
        Self::Maglev,
        Self::SecondFamily,
        Self::InternalPolicy,
        Self::ExternalPolicy,
        Self::Affinity,
        Self::AffinityTimeout,
        Self::Age,
        Self::PortName,
        Self::Udp,
        Self::Sctp,
        Self::Ready,
        Self::LastResort,
        Self::NodeName,
        Self::NodeHints,
        Self::ZoneHints,
        Self::MissingNodeHint,
        Self::MissingZoneHint,
        Self::SpecialAddress,
        Self::InvalidSlice,
        Self::Zone,
        Self::Block,
        Self::NodeAddress,
        Self::Pool,
    ];

    /// The objects without the field.
    pub fn removed_from(
        self,
        objects: &BTreeMap<ObjectKey, Stored>,
    ) -> BTreeMap<ObjectKey, Stored> {
        let kept = objects.iter().filter(|(key, stored)| match self {
            Self::InvalidSlice => stored.state.valid().is_some(),
            Self::Pool => key.kind != Kind::IpPool,
            _ => true,
        });
        let mut kept: BTreeMap<_, _> =
            kept.map(|(key, stored)| (key.clone(), stored.clone())).collect();
        for stored in kept.values_mut() {
            if let State::Valid(object) = &mut stored.state {
                self.remove_from_object(Arc::make_mut(object));
            }
        }
        kept
    }

    fn remove_from_object(self, object: &mut Object) {
        match object {
            Object::Service(service) => self.remove_from_service(service),
            Object::EndpointSlice(slice) => {
                slice.endpoints.iter_mut().for_each(|it| self.remove_from_endpoint(it));
            }
            Object::Node(node) => match self {
                Self::Zone => remove_label(&mut node.labels, "topology.kubernetes.io/zone"),
                Self::Block => node.pod_cidrs.clear(),
                Self::NodeAddress => node.internal_ips.clear(),
                _ => {}
            },
            _ => {}
        }
    }

    fn remove_from_service(self, service: &mut Service) {
        match self {
            Self::LabelOfAnotherProxy => {
                remove_label(&mut service.labels, "service.kubernetes.io/service-proxy-name");
            }
            Self::LabelHeadless => {
                remove_label(&mut service.labels, "service.kubernetes.io/headless");
            }
            Self::NoClusterIp if service.headless => {
                service.headless = false;
                service.cluster_ips.insert(IpAddr::from([10, 96, 0, 1]));
            }
            Self::ExternalName if service.service_type == Some(ServiceType::ExternalName) => {
                service.service_type = None;
            }
            Self::TypeLoadBalancer if service.service_type == Some(ServiceType::LoadBalancer) => {
                service.service_type = None;
            }
            Self::OtherType if service.service_type == Some(ServiceType::ClusterIp) => {
                service.service_type = Some(ServiceType::LoadBalancer);
            }
            Self::ModeProxy => service.load_balancer_vips.extend(&service.load_balancer_proxied),
            Self::ExternalIps => service.external_ips.clear(),
            Self::Maglev => service.maglev = false,
            Self::SecondFamily => service.cluster_ips.retain(IpAddr::is_ipv4),
            Self::InternalPolicy => service.internal_local = false,
            Self::ExternalPolicy => service.keeps_clients = false,
            Self::Affinity => service.client_affinity = None,
            Self::AffinityTimeout => {
                if let Some(affinity) = &mut service.client_affinity {
                    *affinity = ClientAffinity { timeout: None };
                }
            }
            Self::Age => service.created = None,
            Self::PortName => service.ports.iter_mut().for_each(|it| it.name = None),
            Self::Udp => service.ports.retain(|it| it.protocol != Some(Protocol::Udp)),
            Self::Sctp => service.ports.retain(|it| it.protocol != Some(Protocol::Sctp)),
            _ => {}
        }
    }

    fn remove_from_endpoint(self, endpoint: &mut SliceEndpoint) {
        match (self, &mut endpoint.hints) {
            (Self::NodeHints, Some(hints)) => Arc::make_mut(hints).nodes = Box::default(),
            (Self::ZoneHints, Some(hints)) => Arc::make_mut(hints).zones = Box::default(),
            (Self::MissingNodeHint, hints) => {
                let hints = Arc::make_mut(hints.get_or_insert_with(no_hints));
                if hints.nodes.is_empty() {
                    hints.nodes = ["n2".into()].into();
                }
            }
            (Self::MissingZoneHint, hints) => {
                let hints = Arc::make_mut(hints.get_or_insert_with(no_hints));
                if hints.zones.is_empty() {
                    hints.zones = ["b".into()].into();
                }
            }
            (Self::Ready, _) => endpoint.ready = true,
            (Self::LastResort, _) => endpoint.terminating = false,
            (Self::NodeName, _) => endpoint.node = None,
            (Self::SpecialAddress, _)
                if SPECIAL_IPV4.iter().any(|it| endpoint.address.to_string() == *it) =>
            {
                endpoint.address = IpAddr::from([10, 0, 1, 77]);
            }
            _ => {}
        }
    }
}

fn no_hints() -> Arc<Hints> {
    Arc::new(Hints { nodes: Box::default(), zones: Box::default() })
}

fn remove_label(labels: &mut Pairs, label: &str) {
    let kept = labels.iter().filter(|(key, _)| *key != label);
    *labels = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
}
