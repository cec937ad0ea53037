//! The ranges of services' addresses that nodes announce to their BGP peers.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::contents::Contents;
use manx_objects::object::bgp::{BgpConfiguration, Remote};
use manx_objects::object::{Kind, Object, ObjectKey};

use crate::import::Cluster;
use crate::services::addresses::AddressKind;
use crate::services::ranges::overlapping;
use crate::topology::Reserved;

/// The ranges in `BGPConfiguration/default`. A range is left out if it contains addresses of nodes, blocks or pools of
/// pods, BGP peers, or addresses that the node needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnnouncedNets {
    /// `serviceClusterIPs`.
    cluster_ips: Vec<IpNet>,
    /// `serviceExternalIPs`.
    external_ips: Vec<IpNet>,
    /// `serviceLoadBalancerIPs`.
    load_balancer_ips: Vec<IpNet>,
    /// `serviceLoadBalancerAggregation: Disabled`: load balancers' addresses are announced one by one.
    are_balancers_single: bool,
    /// The ranges that are left out, because they contain addresses of another type.
    pub problems: Vec<NetProblem>,
}

/// The reason why a range is not announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetProblem {
    range: IpNet,
    field: &'static str,
    /// The address or net that overlaps the range.
    other: String,
}

impl fmt::Display for NetProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, field, other } = self;
        write!(
            f,
            "BGPConfiguration default, {field}: found {range}, which overlaps {other}, expected a range for services alone, so \
             nobody is told of it: give services a range of their own"
        )
    }
}

/// The condition under which an address is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Never,
    /// Every node announces it.
    Always,
    /// Every node announces it while the Service has a ready endpoint on any node.
    Anywhere,
    /// A node announces it while the Service has a ready endpoint on this node.
    Here,
}

impl AnnouncedNets {
    /// Returns the ranges from the objects. Invalid settings have no ranges. `reserved` contains the addresses that the
    /// node needs, some of which may be cluster IPs.
    pub fn new(contents: &Contents, cluster: &Cluster, reserved: &Reserved) -> Self {
        let key = ObjectKey::new(Kind::BgpConfiguration, "", "default");
        let Some(Object::BgpConfiguration(settings)) = contents.valid(&key) else {
            return Self::default();
        };
        let BgpConfiguration { cluster_ips, external_ips, load_balancer_ips, .. } = &**settings;
        let mut nets =
            Self { are_balancers_single: settings.single_load_balancer_ips, ..Self::default() };
        let fields = [
            (cluster_ips, &mut nets.cluster_ips, "serviceClusterIPs"),
            (external_ips, &mut nets.external_ips, "serviceExternalIPs"),
            (load_balancer_ips, &mut nets.load_balancer_ips, "serviceLoadBalancerIPs"),
        ];
        for (written, kept, field) in fields {
            for range in written.iter().copied() {
                let other = overlapping(range, cluster)
                    .or_else(|| needed(range, contents, reserved))
                    .or_else(|| peer(range, contents));
                match other {
                    Some(other) => nets.problems.push(NetProblem { range, field, other }),
                    None => kept.push(range),
                }
            }
        }
        nets
    }

    /// Returns whether there are no ranges.
    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Returns all ranges.
    pub fn all(&self) -> impl Iterator<Item = IpNet> {
        self.cluster_ips.iter().copied().chain(self.reflected())
    }

    /// Returns the ranges of `serviceClusterIPs`.
    pub fn cluster_ips(&self) -> &[IpNet] {
        &self.cluster_ips
    }

    /// Returns the ranges of `serviceExternalIPs` that overlap none of the nets `external`.
    pub fn unserved(&self, external: &[IpNet]) -> impl Iterator<Item = &IpNet> {
        self.external_ips.iter().filter(|net| !overlap_any(net, external))
    }

    /// Returns the ranges whose routes a route reflector passes on (Calico's export rules).
    pub fn reflected(&self) -> impl Iterator<Item = IpNet> {
        self.external_ips.iter().chain(&self.load_balancer_ips).copied()
    }

    /// Returns the ranges that every node announces as a whole. `external` are the nets in which `externalIPs` take
    /// effect. A range of a single address is left out, because it is announced as the address of a Service.
    pub(super) fn announced_whole(&self, external: &[IpNet]) -> impl Iterator<Item = IpNet> {
        let of_balancers = self.load_balancer_ips.iter().filter(|_| !self.are_balancers_single);
        let of_authors = self.external_ips.iter().filter(|net| overlap_any(net, external));
        let others = of_authors.chain(of_balancers).filter(|it| !is_single(it));
        self.cluster_ips.iter().chain(others).copied()
    }

    /// Returns the condition for an address. `is_local` says whether the Service has `externalTrafficPolicy: Local`.
    pub(super) fn condition(
        &self,
        address: IpAddr,
        kind: AddressKind,
        is_local: bool,
    ) -> Condition {
        let (nets, are_single) = match kind {
            AddressKind::ClusterIp => (&self.cluster_ips, false),
            AddressKind::LoadBalancer | AddressKind::LoadBalancerOutside => {
                (&self.load_balancer_ips, self.are_balancers_single)
            }
            AddressKind::ExternalIp | AddressKind::ExternalIpOutside => (&self.external_ips, false),
            AddressKind::NodePort => return Condition::Never,
        };
        if !nets.iter().any(|net| net.contains(&address)) {
            Condition::Never
        } else if is_local {
            Condition::Here
        } else if are_single {
            Condition::Anywhere
        } else if nets.contains(&IpNet::from(address)) && kind != AddressKind::ClusterIp {
            Condition::Always
        } else {
            Condition::Never
        }
    }
}

fn overlap_any(net: &IpNet, others: &[IpNet]) -> bool {
    others.iter().any(|other| net.contains(other) || other.contains(net))
}

/// Returns an address in a range that the node needs for itself. Cluster IPs and their ranges are ignored. (The agent
/// may know the cluster's DNS server even before its Service exists.)
fn needed(range: IpNet, contents: &Contents, reserved: &Reserved) -> Option<String> {
    let is_services = |address: &IpAddr| {
        let services = contents.of_kind(Kind::Service).chain(contents.of_kind(Kind::ServiceCidr));
        services.filter_map(|(_, stored)| stored.state.valid()).any(|object| match object {
            Object::Service(service) => service.cluster_ips.contains(address),
            Object::ServiceCidr(ranges) => ranges.cidrs.iter().any(|it| it.contains(address)),
            _ => false,
        })
    };
    let inside = reserved.range(range.network()..=range.broadcast());
    let mut needed = inside.filter(|(address, _)| !is_services(address));
    needed.next().map(|(address, what)| format!("{address}, {what}"))
}

/// Returns a BGP peer whose address is in a range.
fn peer(range: IpNet, contents: &Contents) -> Option<String> {
    contents.of_kind(Kind::BgpPeer).find_map(|(key, stored)| match stored.state.valid()? {
        Object::BgpPeer(peer) => match peer.remote {
            Remote::Address { address, .. } if range.contains(&address) => {
                Some(format!("{address} of BGPPeer {}", key.name))
            }
            _ => None,
        },
        _ => None,
    })
}

fn is_single(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}
