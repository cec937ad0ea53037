//! The services of the cluster in the form in which this node translates them, by kube-proxy or by Manx.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use manx_objects::contents::{Changes, Contents};

use crate::host_device::ChangedRoutes;
use crate::settings::{self, Network};
use manx_calculation::import::Cluster;
use manx_calculation::services::announced::nets::AnnouncedNets;
use manx_calculation::services::{
    Frontends, GrantedPorts, KubeProxyServices, NodePorts, ServiceRanges, admits,
};
use manx_calculation::topology::{HostRoute, Topology};

/// See the module.
pub(super) enum NodeServices {
    /// No program translates them.
    Nobody,
    KubeProxy(KubeProxyServices),
    Manx(Box<ManxServices>),
}

/// The services that Manx translates.
pub(super) struct ManxServices {
    pub(super) frontends: Frontends,
    pub(super) ranges: ServiceRanges,
    /// The ranges of cluster IPs in the settings.
    configured: Vec<IpNet>,
    /// The nets that the settings allow for `externalIPs`.
    pub(super) external: Vec<IpNet>,
    /// The nets of cluster IPs that are announced to routers, for clients outside of the cluster.
    announced_cluster_ips: Vec<IpNet>,
    /// The nets of the node's addresses that have node ports. If empty, its first addresses have them.
    pub(super) node_port_nets: Vec<IpNet>,
    /// The first and the last source port for translated connections that leave the cluster (`--egress-ports`).
    pub(super) egress: (u16, u16),
    /// Whether the set of translated addresses has changed since the last update.
    pub(super) translates_others: bool,
    /// The addresses of all nodes. No service can have one of them.
    of_nodes: HashSet<IpAddr>,
    /// The addresses of services outside of the ranges that have their own route: those of load balancers, and external
    /// IPs.
    with_routes: BTreeSet<IpAddr>,
    /// The number of services' addresses outside of the ranges that have no own route, because there are too many.
    without_routes: usize,
}

/// The most routes of a node to single addresses of services.
const MOST_ROUTES: usize = 4096;

/// The effect of a change of services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServiceChange {
    /// Nothing has changed, or only backends and addresses in the ranges.
    None,
    /// Translated addresses outside of the ranges have changed.
    Addresses(ChangedAddresses),
    /// Endpoints of services have changed. Policy uses them for packets to service addresses, before kube-proxy
    /// translates these packets.
    Tables,
}

/// The changed addresses of services outside of the ranges. An author of Services in an allowed net can change them at any
/// rate, so the update neither touches nor reads the routes to other addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ChangedAddresses {
    /// The addresses that are newly translated, or no longer translated.
    pub(super) translated: BTreeSet<IpAddr>,
    /// The addresses to which the node itself has a new route.
    with_route: Vec<IpAddr>,
    /// The addresses to which the node no longer has a route.
    without_route: Vec<IpAddr>,
}

impl NodeServices {
    pub(super) fn new(
        node: &str,
        network: Network,
        settings: &settings::ServiceTranslator,
    ) -> Self {
        match settings {
            settings::ServiceTranslator::None => Self::Nobody,
            settings::ServiceTranslator::KubeProxy => Self::KubeProxy(KubeProxyServices::default()),
            settings::ServiceTranslator::Manx(settings) => Self::Manx(Box::new(ManxServices {
                frontends: Frontends::new(
                    node,
                    NodePorts {
                        range: (
                            settings.ports.node_ports.first(),
                            settings.ports.node_ports.last(),
                        ),
                        addresses: BTreeSet::new(),
                        of_pods: network == Network::Manx,
                    },
                )
                .with_external_ips(&settings.external_ips),
                ranges: ServiceRanges::default(),
                configured: settings.ranges.clone(),
                external: settings.external_ips.clone(),
                announced_cluster_ips: Vec::new(),
                node_port_nets: settings.node_port_nets.clone(),
                egress: (settings.ports.egress.first(), settings.ports.egress.last()),
                translates_others: false,
                of_nodes: HashSet::new(),
                with_routes: BTreeSet::new(),
                without_routes: 0,
            })),
        }
    }

    /// The nets whose addresses are translated for Services that name them in `externalIPs`.
    pub(super) fn external_nets(&self) -> Vec<IpNet> {
        match self {
            Self::Nobody => Vec::new(),
            // kube-proxy translates all of them.
            Self::KubeProxy(_) => vec![IpNet::from(Ipv4Net::default()), Ipv6Net::default().into()],
            Self::Manx(services) => services.external.clone(),
        }
    }

    /// The services that Manx translates, if it does.
    pub(super) fn manx(&self) -> Option<&ManxServices> {
        match self {
            Self::Manx(services) => Some(services),
            Self::Nobody | Self::KubeProxy(_) => None,
        }
    }
}

impl ManxServices {
    /// Updates the services after a change of the nodes, the pools or the ranges. `announced` contains the ranges that
    /// nodes announce to their BGP peers, and whether this node announces them.
    pub(super) fn place(
        &mut self,
        contents: &Contents,
        (announced, is_speaker): (&AnnouncedNets, bool),
        cluster: &Cluster,
    ) {
        self.of_nodes = cluster.node_addresses().into_keys().collect();
        let told = announced.all().filter(|_| is_speaker);
        self.ranges = ServiceRanges::new(contents, &self.configured, told, cluster);
        self.announced_cluster_ips = announced.cluster_ips().to_vec();
    }

    /// Updates the services after changes of objects. `placed` contains the addresses with node ports, if the node's place
    /// may have changed.
    pub(super) fn update(
        &mut self,
        contents: &Contents,
        changes: Option<&Changes>,
        placed: Option<BTreeSet<IpAddr>>,
        topology: &Topology,
        is_own: impl Fn(&IpAddr) -> bool,
    ) -> ServiceChange {
        let Self { frontends, of_nodes, announced_cluster_ips, .. } = self;
        let admits = admission(topology, of_nodes, is_own);
        if placed.is_some() {
            frontends.announce(contents, announced_cluster_ips, &admits);
        }
        let changed = changes.map(|it| frontends.follow(contents, it, &admits)).unwrap_or_default();
        self.translates_others = !changed.is_empty();
        let is_placed = placed.is_some();
        if let Some(addresses) = placed {
            frontends.readmit(contents, &admits);
            frontends.move_node_ports(contents, addresses, admits);
        }
        let routed = self.ranges.routed(topology);
        let translated: BTreeSet<IpAddr> =
            changed.into_iter().filter(|address| !routed.contain(address)).collect();
        if !is_placed && translated.is_empty() {
            return ServiceChange::None;
        }
        let is_in_range = |address: &IpAddr| self.ranges.nets.iter().any(|it| it.contains(address));
        let others = self.frontends.addresses().iter().filter(|it| !is_in_range(it));
        let sort = |all: &mut [IpAddr]| self.frontends.sort_by_claim(all);
        let (with_routes, without) = with_routes(others.copied(), sort);
        self.without_routes = without;
        let before = std::mem::replace(&mut self.with_routes, with_routes);
        ServiceChange::Addresses(ChangedAddresses {
            translated,
            with_route: self.with_routes.difference(&before).copied().collect(),
            without_route: before.difference(&self.with_routes).copied().collect(),
        })
    }

    /// The problems of the services as a whole.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let too_many = (self.without_routes > 0).then(|| {
            format!(
                "more than {MOST_ROUTES} addresses of services lie outside of the ranges of services, so that the node has \
                 no routes to {} of them, external IPs first: nobody from outside and no process of the node reaches them \
                 here",
                self.without_routes
            )
        });
        let overlaps = self.external.iter().filter_map(|net| {
            let overlaps = |range: &&IpNet| range.contains(net) || net.contains(*range);
            self.ranges.cluster_ips.iter().find(overlaps).map(|range| {
                format!(
                    "{net} of --external-ips (MANX_EXTERNAL_IPS) overlaps the range {range} of cluster IPs, so that whoever \
                     can write a Service can take ports of cluster IPs that no Service has: expected nets outside of it"
                )
            })
        });
        self.ranges.problems.iter().map(ToString::to_string).chain(too_many).chain(overlaps)
    }

    /// Like [`View::grant_ports`](super::view::View::grant_ports).
    pub(super) fn grant(
        &mut self,
        contents: &Contents,
        granted: &GrantedPorts,
        topology: &Topology,
        is_own: impl Fn(&IpAddr) -> bool,
    ) -> bool {
        let Self { frontends, of_nodes, .. } = self;
        let admits = admission(topology, of_nodes, is_own);
        frontends.grant(contents, granted, admits)
    }

    /// The node's own routes to the ranges, and to addresses of services outside of them. The node's processes send from an
    /// address that the node has (`own`), so that other hosts can answer.
    pub(super) fn host_routes<'a>(
        &'a self,
        topology: &'a Topology,
        is_own: impl Fn(&IpAddr) -> bool + 'a,
    ) -> impl Iterator<Item = (IpNet, HostRoute)> + 'a {
        let others = self.with_routes.iter().map(|it| IpNet::from(*it));
        self.ranges
            .nets
            .iter()
            .copied()
            .chain(others)
            .map(move |net| (net, HostRoute::Manx { source: source(net, topology, &is_own) }))
    }
}

impl ChangedAddresses {
    /// The changed routes of the node itself, in the form of [`ManxServices::host_routes`].
    pub(super) fn routes(
        &self,
        topology: &Topology,
        is_own: impl Fn(&IpAddr) -> bool,
    ) -> ChangedRoutes {
        let set = self.with_route.iter().map(|it| IpNet::from(*it));
        ChangedRoutes {
            set: set.map(|net| (net, source(net, topology, &is_own))).collect(),
            removed: self.without_route.iter().map(|it| IpNet::from(*it)).collect(),
        }
    }
}

/// The source address of the node's processes for services of a prefix's family.
fn source(net: IpNet, topology: &Topology, is_own: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
    let is_v4 = net.addr().is_ipv4();
    let mut own = topology.addresses.iter().filter(|it| it.is_ipv4() == is_v4);
    own.find(|it| is_own(it)).copied()
}

/// Whether an address may be a service's on this node: see [`admits`]. `of_nodes` contains the addresses of all nodes.
pub(super) fn admission(
    topology: &Topology,
    of_nodes: &HashSet<IpAddr>,
    is_own: impl Fn(&IpAddr) -> bool,
) -> impl Fn(IpAddr) -> bool {
    move |address| admits(topology, |it| is_own(it) || of_nodes.contains(it), address)
}

/// The addresses that have their own route, and the number of those without one. Those with the strongest claims come
/// first. So the author of a Service cannot take the route of a load balancer's address, or of an older external IP.
fn with_routes(
    addresses: impl Iterator<Item = IpAddr>,
    sort_by_claim: impl FnOnce(&mut [IpAddr]),
) -> (BTreeSet<IpAddr>, usize) {
    let mut all: Vec<IpAddr> = addresses.collect();
    let without = all.len().saturating_sub(MOST_ROUTES);
    if without > 0 {
        sort_by_claim(&mut all);
        all.truncate(MOST_ROUTES);
    }
    (all.into_iter().collect(), without)
}

#[cfg(test)]
mod tests {
    use manx_dataplane::services::{HAIRPIN_V4, HAIRPIN_V6};

    use super::*;

    #[test]
    fn the_first_addresses_by_their_claims_have_routes() {
        let address =
            |n: usize| IpAddr::from(std::net::Ipv4Addr::from_bits(0xc000_0000 + n as u32));
        // Addresses in the lower half come last, like external IPs.
        let routes = |count: usize| {
            let (with, without) = with_routes((0..count).map(address), |all| {
                all.sort_by_key(|it| *it < address(count / 2));
            });
            let given = with.iter().filter(|it| **it >= address(count / 2)).count();
            (given, with.len() - given, without)
        };
        assert_eq!(routes(100), (50, 50, 0));
        assert_eq!(routes(MOST_ROUTES), (2048, 2048, 0));
        assert_eq!(routes(MOST_ROUTES + 100), (2098, 1998, 100));
        assert_eq!(routes(3 * MOST_ROUTES), (MOST_ROUTES, 0, 2 * MOST_ROUTES));
    }

    /// The pod has a route to its gateway, so its answers come back.
    #[test]
    fn a_pod_that_reaches_itself_sees_its_gateway() {
        for seen in [IpAddr::from(HAIRPIN_V4), IpAddr::from(HAIRPIN_V6)] {
            assert_eq!(manx_api::gateway(seen), seen);
        }
    }
}
