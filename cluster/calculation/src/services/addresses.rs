//! The addresses of a Service that a node translates for its clients, and the reasons why it does not translate others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::object::{Service, ServicePort, ServiceType};

use super::backends::TrafficPolicy;
use super::bounds::MOST_EXTERNAL_IPS;
use super::omission::Omission;
use crate::topology::Topology;

/// The label of a Service that another proxy translates.
pub(super) const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
/// The label of headless Services. Like kube-proxy, Manx translates nothing of a Service with this label.
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// Returns whether an address may be a service's address on a node: it is in no pool and in no block, and is not an
/// address of a node.
pub fn admits(topology: &Topology, is_of_node: impl Fn(&IpAddr) -> bool, address: IpAddr) -> bool {
    topology.is_of_world(address) && !is_of_node(&address)
}

/// The reason why nothing of a Service is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftAlone {
    /// `clusterIP: None`.
    Headless,
    /// `type: ExternalName`.
    ExternalName,
    /// A label assigns the Service to another proxy.
    OtherProxy,
    /// A label says that the Service is headless.
    HeadlessLabel,
    /// The Service's namespace already has the maximum number of translated Services, which are older.
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

/// The reason why an address of a Service has no frontend on any node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Untranslated {
    /// The address is one of `externalIPs`, and the settings do not allow it.
    External,
    /// The address is one of `externalIPs`, and the settings allow it. But the Service has more such addresses than
    /// nodes translate.
    TooManyExternal,
    /// The address is `loadBalancerIP`, which the author of the Service only requests from the load balancer.
    AskedFor,
    /// The `ipMode` of the load balancer's address is `Proxy`.
    Proxied,
    /// The address is a load balancer's, but the Service is not of type `LoadBalancer`.
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

/// The source of a frontend's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// One of `spec.clusterIPs`.
    ClusterIp,
    /// One of `status.loadBalancer.ingress`.
    LoadBalancer,
    /// An address of the kind `LoadBalancer`, for clients outside the cluster, if they get other endpoints than clients
    /// in the cluster.
    LoadBalancerOutside,
    /// One of `spec.externalIPs`.
    ExternalIp,
    /// An address of the kind `ExternalIp`, for clients outside the cluster, if they get other endpoints than clients
    /// in the cluster.
    ExternalIpOutside,
    /// An address of the node, in combination with the port's `nodePort`.
    NodePort,
}

impl AddressKind {
    /// Returns the kind for clients outside the cluster, if they may get other endpoints than clients in the cluster.
    /// This is so if `externalTrafficPolicy` applies to the address and clients in the cluster get any endpoint.
    /// kube-proxy (`pkg/proxy/iptables`) uses the same chain for both kinds.
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

    /// Returns whether packets to the address may arrive at any node, depending on routers.
    pub(super) fn is_of_any_node(self) -> bool {
        matches!(self, Self::LoadBalancer | Self::ExternalIp)
    }

    /// Returns whether `loadBalancerSourceRanges` limits the clients of the address.
    pub(super) fn heeds_source_ranges(self) -> bool {
        matches!(self, Self::LoadBalancer | Self::LoadBalancerOutside)
    }

    /// Returns whether the kind applies only to clients outside the cluster.
    pub fn is_outside_alone(self) -> bool {
        matches!(self, Self::LoadBalancerOutside | Self::ExternalIpOutside)
    }

    /// Returns whether only the author of the Service has chosen the address.
    pub(super) fn is_external_ip(self) -> bool {
        matches!(self, Self::ExternalIp | Self::ExternalIpOutside)
    }
}

/// Returns the reason why nothing of a Service is translated. Returns `None` if Manx translates it: clients reach it by
/// translation, and nothing else translates it.
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

/// Returns the addresses of a translated Service, except the addresses of nodes. An address of `externalIPs` counts
/// only if it is in one of the nets `external`.
///
/// An address may come from several sources. It then has the first kind in this order: cluster IP, load balancer,
/// external IP. External IPs come last, because only the author of the Service has chosen them.
pub(super) fn addresses(
    service: &Service,
    external: &[IpNet],
) -> BTreeMap<IpAddr, Result<(AddressKind, TrafficPolicy), Untranslated>> {
    // This is the policy of addresses that clients outside the cluster can reach: every client may get any endpoint. If
    // `externalTrafficPolicy` is `Local`, clients outside the cluster get a second frontend with that policy.
    let policy_outside =
        if chooses_alike(service) { TrafficPolicy::Consistent } else { TrafficPolicy::Cluster };
    let of_balancer = |address: &IpAddr| {
        if service.service_type != Some(ServiceType::LoadBalancer) {
            Err(Untranslated::NoLoadBalancer)
        } else if has_family(service, address.is_ipv4()) {
            Ok((AddressKind::LoadBalancer, policy_outside))
        } else {
            // A load balancer may have an address of a family in which the Service has no cluster IP.
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
        // If the load balancer's address is not translated, it may still be translated as an external IP.
        if found.is_ok() || all.get(&address).is_none_or(Result::is_err) {
            all.insert(address, found);
        }
    }
    let cluster_ip = Ok((AddressKind::ClusterIp, policy(service.internal_local)));
    all.extend(service.cluster_ips.iter().map(|it| (*it, cluster_ip)));
    all
}

/// Returns the addresses and ports at which clients of a node reach a port of a Service. They are the admitted
/// addresses of the Service and, if the node port is in the range, the node port on the addresses of the node. If
/// clients outside the cluster get other endpoints at an address, the address occurs a second time, later, for them.
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

/// Returns whether all nodes choose the same endpoint for a connection. This is so if an annotation requests it, unless
/// each node uses only its own endpoints.
fn chooses_alike(service: &Service) -> bool {
    service.maglev && !service.keeps_clients
}

/// Returns the traffic policy: `Local` if `is_local` is set, and otherwise `Cluster`.
pub(super) fn policy(is_local: bool) -> TrafficPolicy {
    if is_local { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

/// Returns whether a Service has a cluster IP of a family.
pub(super) fn has_family(service: &Service, is_v4: bool) -> bool {
    service.cluster_ips.iter().any(|it| it.is_ipv4() == is_v4)
}
