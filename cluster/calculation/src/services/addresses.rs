//! The addresses at which clients of a node reach a Service by translation, and why others are none.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::object::{Service, ServicePort, ServiceType};

use super::backends::TrafficPolicy;
use super::bounds::MOST_EXTERNAL_IPS;
use super::omission::Omission;

/// The label that leaves a Service to another proxy.
pub(super) const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
/// The label of headless Services. As kube-proxy, Manx leaves every Service alone that has it.
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// Why nothing of a Service is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftAlone {
    /// `clusterIP: None`.
    Headless,
    /// `type: ExternalName`.
    ExternalName,
    /// A label leaves it to another proxy.
    OtherProxy,
    /// A label says that it is headless.
    HeadlessLabel,
    /// Older Services of its namespace are as many as nodes translate.
    Namespace,
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Headless => f.write_str("headless (clusterIP: None)"),
            Self::ExternalName => f.write_str("of type ExternalName"),
            Self::OtherProxy => write!(f, "its label {OTHER_PROXY} leaves it to another proxy"),
            Self::Namespace => Omission::Namespace.fmt(f),
            Self::HeadlessLabel => write!(f, "its label {HEADLESS} says that nobody translates it"),
        }
    }
}

/// Why an address of a Service has no frontend on any node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Untranslated {
    /// The address is one of `externalIPs`, and the settings do not allow it.
    External,
    /// The same, and the Service has more that are allowed.
    TooManyExternal,
    /// The address is `loadBalancerIP`, for which the author of the Service asks the load balancer.
    AskedFor,
    /// The `ipMode` of the load balancer's address is `Proxy`.
    Proxied,
    /// The address is a load balancer's, and the Service is not of type `LoadBalancer`.
    NoLoadBalancer,
    /// The Service has no cluster IP of the family.
    Family,
}

impl fmt::Display for Untranslated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::External => {
                "it is one of externalIPs, and lies in no net of --external-ips (MANX_EXTERNAL_IPS)"
            }
            Self::TooManyExternal => {
                return write!(
                    f,
                    "it is one of externalIPs, of which the first {MOST_EXTERNAL_IPS} count"
                );
            }
            Self::AskedFor => "it is loadBalancerIP, which only asks the load balancer for it",
            Self::Proxied => "its ipMode is Proxy: the load balancer translates it",
            Self::NoLoadBalancer => {
                "it is a load balancer's, and the Service is not of type LoadBalancer"
            }
            Self::Family => "the Service has no cluster IP of this family",
        })
    }
}

/// An address and port at which clients of a node reach a port of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) kind: AddressKind,
    pub(super) policy: TrafficPolicy,
}

/// What the address of a frontend is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// One of `spec.clusterIPs`.
    ClusterIp,
    /// One of `status.loadBalancer.ingress`.
    LoadBalancer,
    /// The same for clients from outside of the cluster, where they get other endpoints.
    LoadBalancerOutside,
    /// One of `spec.externalIPs`.
    ExternalIp,
    /// The same for clients from outside of the cluster, where they get other endpoints.
    ExternalIpOutside,
    /// An address of the node, with the port's `nodePort`.
    NodePort,
}

impl AddressKind {
    /// What the address is for clients from outside of the cluster, if `externalTrafficPolicy` is about it and clients
    /// in the cluster get any endpoint. kube-proxy (`pkg/proxy/iptables`) leads both kinds by the same chain.
    fn for_outside(self) -> Option<Self> {
        match self {
            Self::LoadBalancer => Some(Self::LoadBalancerOutside),
            Self::ExternalIp => Some(Self::ExternalIpOutside),
            Self::ClusterIp
            | Self::LoadBalancerOutside
            | Self::ExternalIpOutside
            | Self::NodePort => None,
        }
    }

    /// Whether it leads to any node, as routers choose.
    pub(super) fn is_of_any_node(self) -> bool {
        matches!(self, Self::LoadBalancer | Self::ExternalIp)
    }

    /// Whether `loadBalancerSourceRanges` say which clients are served there.
    pub(super) fn heeds_source_ranges(self) -> bool {
        matches!(self, Self::LoadBalancer | Self::LoadBalancerOutside)
    }

    /// Whether it is about clients from outside alone.
    pub fn is_outside_alone(self) -> bool {
        matches!(self, Self::LoadBalancerOutside | Self::ExternalIpOutside)
    }

    /// Whether the author of the Service alone has chosen the address.
    pub(super) fn is_external_ip(self) -> bool {
        matches!(self, Self::ExternalIp | Self::ExternalIpOutside)
    }
}

/// Why nothing of a Service is translated. `None`: clients reach it by translation, and nobody else translates it.
pub(super) fn left_alone(service: &Service) -> Option<LeftAlone> {
    if service.headless {
        Some(LeftAlone::Headless)
    } else if service.service_type == Some(ServiceType::ExternalName) {
        Some(LeftAlone::ExternalName)
    } else if service.labels.contains_key(OTHER_PROXY) {
        Some(LeftAlone::OtherProxy)
    } else {
        service.labels.contains_key(HEADLESS).then_some(LeftAlone::HeadlessLabel)
    }
}

/// The addresses of a Service that is not left alone, but for those of nodes. Of `externalIPs` those count that lie in
/// one of the nets `external`.
///
/// An address that is several things is the one that most of the cluster has agreed to: a cluster IP, a load
/// balancer's, and last one of `externalIPs`.
pub(super) fn addresses(
    service: &Service,
    external: &[IpNet],
) -> BTreeMap<IpAddr, Result<(AddressKind, TrafficPolicy), Untranslated>> {
    // Clients in the cluster get any endpoint there, and so do those from outside, unless the policy is Local for them.
    let policy_outside =
        if chooses_alike(service) { TrafficPolicy::Alike } else { TrafficPolicy::Cluster };
    let of_balancer = |address: &IpAddr| {
        if service.service_type != Some(ServiceType::LoadBalancer) {
            Err(Untranslated::NoLoadBalancer)
        } else if has_family(service, address.is_ipv4()) {
            Ok((AddressKind::LoadBalancer, policy_outside))
        } else {
            // A balancer may have an address of a family in which the service itself has none.
            Err(Untranslated::Family)
        }
    };
    let mut left = MOST_EXTERNAL_IPS;
    let of_author = |address: &IpAddr| {
        if !external.iter().any(|net| net.contains(address)) {
            Err(Untranslated::External)
        } else if !has_family(service, address.is_ipv4()) {
            Err(Untranslated::Family)
        } else if left == 0 {
            Err(Untranslated::TooManyExternal)
        } else {
            left -= 1;
            Ok((AddressKind::ExternalIp, policy_outside))
        }
    };
    let mut all: BTreeMap<_, _> =
        service.addresses.iter().map(|it| (*it, Err(Untranslated::AskedFor))).collect();
    all.extend(
        service.external_ips.iter().copied().zip(service.external_ips.iter().map(of_author)),
    );
    let proxied = service.load_balancer_proxied.iter().map(|it| (*it, Err(Untranslated::Proxied)));
    let vips = service.load_balancer_vips.iter().map(|it| (*it, of_balancer(it)));
    for (address, found) in proxied.chain(vips) {
        // What the balancer leaves to nobody here may still be an external IP.
        if found.is_ok() || all.get(&address).is_none_or(Result::is_err) {
            all.insert(address, found);
        }
    }
    let cluster_ip = Ok((AddressKind::ClusterIp, policy(service.internal_local)));
    all.extend(service.cluster_ips.iter().map(|it| (*it, cluster_ip)));
    all
}

/// Where clients of a node reach a port of a Service: at those of its addresses that may be a service's, and at its node
/// port, which is served at these addresses of the node if it is in the range. An address that clients from outside find with
/// other endpoints comes twice, for them later.
pub(super) fn openings<'a>(
    (service, port): (&'a Service, &ServicePort),
    addresses: &'a [(IpAddr, (AddressKind, TrafficPolicy), bool)],
    (range, of_node): ((u16, u16), impl Iterator<Item = IpAddr> + 'a),
) -> impl Iterator<Item = Result<Opening, Omission>> + 'a {
    let number = port.port;
    let own = addresses.iter().map(move |&(address, (kind, policy), is_admitted)| {
        if is_admitted {
            Ok(Opening { address, port: number, kind, policy })
        } else {
            Err(Omission::Address(address))
        }
    });
    let for_outside = addresses.iter().filter_map(move |&(address, (kind, _), is_admitted)| {
        let kind = kind.for_outside().filter(|_| service.keeps_clients && is_admitted)?;
        let policy = TrafficPolicy::Local;
        Some(Ok(Opening { address, port: number, kind, policy }))
    });
    let in_range = |port: &u16| (range.0..=range.1).contains(port);
    let refused = port.node_port.filter(|it| !in_range(it)).map(|it| Err(Omission::NodePort(it)));
    let of_node = port.node_port.filter(in_range).into_iter().zip([of_node]);
    let of_node = of_node.flat_map(move |(port, addresses)| {
        let policy = policy(service.keeps_clients);
        let kind = AddressKind::NodePort;
        let served = addresses.filter(|it| has_family(service, it.is_ipv4()));
        served.map(move |address| Ok(Opening { address, port, kind, policy }))
    });
    own.chain(for_outside).chain(refused).chain(of_node)
}

/// Whether an annotation asks that all nodes choose alike, and no policy has each choose among its own endpoints.
fn chooses_alike(service: &Service) -> bool {
    service.maglev && !service.keeps_clients
}

/// A traffic policy. `is_local`: it is `Local`.
pub(super) fn policy(is_local: bool) -> TrafficPolicy {
    if is_local { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

/// Whether a Service has a cluster IP of a family.
pub(super) fn has_family(service: &Service, is_v4: bool) -> bool {
    service.cluster_ips.iter().any(|it| it.is_ipv4() == is_v4)
}
