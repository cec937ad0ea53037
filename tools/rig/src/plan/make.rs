//! Makes the plan of a rig from the objects.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::error::{AddressConflict, PlanError};
use super::settings::{Settings, extra_ports};
use super::spec::{self, NodeSpec, PodSpec};
use super::{Host, Plan, Pod, Route, Segment, host_pods};
use manx_api::PodName;
use manx_ipam::block::is_for_pods;
use manx_ipam::free_order::FreeOrder;
use manx_ipam::plan::Plan as Blocks;
use manx_objects::contents::Contents;

impl Plan {
    /// Makes the plan. The same objects always give the same plan.
    pub fn make(contents: &Contents, settings: &Settings) -> Result<Self, PlanError> {
        let mut pods = spec::pods(contents);
        extra_ports::add(&settings.ports, contents, &mut pods)?;
        plan(&spec::nodes(contents), &pods, settings)
    }
}

/// Makes the plan of these nodes and pods.
pub(crate) fn plan(
    nodes: &BTreeMap<String, NodeSpec>,
    pods: &BTreeMap<PodName, PodSpec>,
    settings: &Settings,
) -> Result<Plan, PlanError> {
    check_nodes(nodes)?;
    let (mut segments, places) = segments(nodes)?;
    let (host_pods, pods): (BTreeMap<_, _>, BTreeMap<_, _>) =
        pods.clone().into_iter().partition(|(_, pod)| pod.host_network);
    if pods.is_empty() {
        return Err(PlanError::NoPods);
    }
    let host_pods = host_pods::share_ports(place(nodes, &host_pods)?);
    let mut pods = place(nodes, &pods)?;
    check_addresses(nodes, &pods, settings)?;
    let of_nodes = nodes.values().flat_map(|node| node.addresses.iter().map(IpNet::addr));
    let of_pods = pods.values().flat_map(|pod| &pod.addresses).copied();
    let mut taken: BTreeSet<IpAddr> = of_nodes.chain(of_pods).collect();
    let outside_addresses = outside_addresses(&segments[0], settings, &mut taken)?;
    let routed = segments.len() > 1;
    if routed {
        for segment in &mut segments {
            segment.gateways = free_addresses(&segment.subnets, &mut taken, AddressChoice::First)?;
        }
    }
    give_addresses(nodes, &mut pods, taken)?;
    let outside_routes = nodes
        .iter()
        .filter(|(name, _)| places[*name] == 0)
        .flat_map(|(name, node)| pod_routes(name, node, &pods))
        .chain(default_routes(&segments[0]))
        .collect();
    let (addresses, routes) = (outside_addresses, outside_routes);
    let outside = Host { segment: 0, addresses, tunnels: Vec::new(), routes };
    let hosts = nodes
        .iter()
        .map(|(name, node)| {
            let segment = places[name];
            let routes = default_routes(&segments[segment]).collect();
            let tunnels = Blocks::host_local(&*node.pod_cidrs).tunnel_addresses().to_vec();
            let addresses = node.addresses.clone();
            (name.clone(), Host { segment, addresses, tunnels, routes })
        })
        .collect();
    let routed = nodes.iter().filter(|_| routed);
    let router = routed.flat_map(|(name, node)| pod_routes(name, node, &pods)).collect();
    let (mtu, translates) = (settings.mtu, settings.translates);
    Ok(Plan { mtu, translates, segments, nodes: hosts, outside, pods, host_pods, router })
}

fn check_nodes(nodes: &BTreeMap<String, NodeSpec>) -> Result<(), PlanError> {
    if nodes.is_empty() {
        return Err(PlanError::NoNodes);
    }
    let mut owners = BTreeMap::new();
    let mut blocks: Vec<IpNet> = Vec::new();
    for (name, node) in nodes {
        if node.addresses.is_empty() {
            return Err(PlanError::NoAddress(name.clone()));
        }
        if node.pod_cidrs.is_empty() {
            return Err(PlanError::NoPodCidr(name.clone()));
        }
        let v4 = node.addresses.iter().filter(|net| net.addr().is_ipv4()).count();
        if v4 > 1 || node.addresses.len() - v4 > 1 {
            return Err(PlanError::TooManyAddresses(name.clone()));
        }
        for net in &node.addresses {
            if let Some(first) = owners.insert(net.addr(), name.clone()) {
                let (second, address) = (name.clone(), net.addr());
                return Err(PlanError::AddressTwice { first, second, address });
            }
        }
        for block in &node.pod_cidrs {
            if let Some(first) =
                blocks.iter().find(|other| other.contains(block) || block.contains(*other))
            {
                return Err(PlanError::OverlappingPodCidrs { first: *first, second: *block });
            }
            blocks.push(*block);
        }
    }
    Ok(())
}

/// The segments, and the segment of each node.
fn segments(
    nodes: &BTreeMap<String, NodeSpec>,
) -> Result<(Vec<Segment>, BTreeMap<String, usize>), PlanError> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut places = BTreeMap::new();
    for (name, node) in nodes {
        let subnets: Vec<IpNet> = node.addresses.iter().map(IpNet::trunc).collect();
        let shares = |segment: &Segment| subnets.iter().any(|net| segment.subnets.contains(net));
        let place = segments.iter().position(shares).unwrap_or(segments.len());
        if place == segments.len() {
            segments.push(Segment { subnets: Vec::new(), gateways: Vec::new() });
        }
        for subnet in subnets {
            let v4 = subnet.addr().is_ipv4();
            let elsewhere = segments.iter().enumerate().any(|(index, segment)| {
                index != place && segment.subnets.iter().any(|other| overlaps(*other, subnet))
            });
            let here = &mut segments[place].subnets;
            match here.iter().find(|other| other.addr().is_ipv4() == v4) {
                _ if elsewhere => {
                    return Err(PlanError::SplitSubnet { node: name.clone(), subnet });
                }
                Some(other) if *other != subnet => {
                    return Err(PlanError::SplitSubnet { node: name.clone(), subnet });
                }
                Some(_) => {}
                None => here.push(subnet),
            }
        }
        places.insert(name.clone(), place);
    }
    Ok((segments, places))
}

fn overlaps(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// Which free address of a subnet is taken: the first one for the router, as is usual, and the last one for the outside
/// host.
#[derive(Clone, Copy)]
enum AddressChoice {
    First,
    Last,
}

fn free_addresses(
    subnets: &[IpNet],
    taken: &mut BTreeSet<IpAddr>,
    end: AddressChoice,
) -> Result<Vec<IpNet>, PlanError> {
    subnets
        .iter()
        .map(|subnet| {
            let free = match end {
                AddressChoice::First => {
                    from_the_start(*subnet).find(|address| !taken.contains(address))
                }
                AddressChoice::Last => {
                    from_the_end(*subnet).find(|address| !taken.contains(address))
                }
            };
            let address = free.ok_or(PlanError::SubnetFull(*subnet))?;
            taken.insert(address);
            Ok(with_prefix_of(address, *subnet))
        })
        .collect()
}

/// The usable addresses of a subnet, ascending; for IPv6 without the subnet routers' anycast address (RFC 4291 section
/// 2.6.1).
fn from_the_start(subnet: IpNet) -> impl Iterator<Item = IpAddr> {
    let anycast = matches!(subnet, IpNet::V6(net) if net.prefix_len() < 127);
    subnet.hosts().skip(usize::from(anycast))
}

/// The last usable addresses of a subnet, descending: at most 65,536, which is more than can be in use.
fn from_the_end(subnet: IpNet) -> impl Iterator<Item = IpAddr> {
    let (first, last) = match subnet {
        IpNet::V4(net) => (
            u128::from(net.network().to_bits()) + 1,
            u128::from(net.broadcast().to_bits()).saturating_sub(1),
        ),
        IpNet::V6(net) => {
            (net.network().to_bits() + 1, net.broadcast().to_bits().saturating_sub(1))
        }
    };
    (first..=last).rev().take(1 << 16).map(move |bits| match subnet {
        IpNet::V4(_) => IpAddr::V4((bits as u32).into()),
        IpNet::V6(_) => IpAddr::V6(bits.into()),
    })
}

fn with_prefix_of(address: IpAddr, subnet: IpNet) -> IpNet {
    IpNet::new(address, subnet.prefix_len()).unwrap_or_else(|_| IpNet::from(address))
}

fn outside_addresses(
    segment: &Segment,
    settings: &Settings,
    taken: &mut BTreeSet<IpAddr>,
) -> Result<Vec<IpNet>, PlanError> {
    if settings.outside.is_empty() {
        return free_addresses(&segment.subnets, taken, AddressChoice::Last);
    }
    settings
        .outside
        .iter()
        .map(|address| {
            let Some(subnet) = segment.subnets.iter().find(|subnet| subnet.contains(address))
            else {
                return Err(PlanError::OutsideAddress(
                    *address,
                    "is not in the first node's subnet",
                ));
            };
            if !taken.insert(*address) {
                return Err(PlanError::OutsideAddress(*address, "is taken already"));
            }
            Ok(with_prefix_of(*address, *subnet))
        })
        .collect()
}

/// The routes to a node's pod ranges through that node, and to its pods' addresses outside of these. A range gets no
/// route if the node has no address of its family.
fn pod_routes<'a>(
    name: &'a str,
    node: &'a NodeSpec,
    pods: &'a BTreeMap<PodName, Pod>,
) -> impl Iterator<Item = Route> + 'a {
    let of_pods = pods.values().filter(move |pod| pod.node == name).flat_map(|pod| &pod.addresses);
    let outside = of_pods.map(|address| IpNet::from(*address));
    let outside = outside.filter(|it| !node.pod_cidrs.iter().any(|block| block.contains(it)));
    node.pod_cidrs.iter().copied().chain(outside).filter_map(|prefix| {
        let v4 = prefix.addr().is_ipv4();
        let via = node.addresses.iter().map(IpNet::addr).find(|ip| ip.is_ipv4() == v4)?;
        Some(Route { prefix, via })
    })
}

fn default_routes(segment: &Segment) -> impl Iterator<Item = Route> + '_ {
    segment.gateways.iter().map(|gateway| Route {
        prefix: manx_linux::netlink::Route::default_of(gateway.addr()),
        via: gateway.addr(),
    })
}

fn place(
    nodes: &BTreeMap<String, NodeSpec>,
    pods: &BTreeMap<PodName, PodSpec>,
) -> Result<BTreeMap<PodName, Pod>, PlanError> {
    let mut turn = nodes.keys().cycle();
    pods.iter()
        .map(|(name, pod)| {
            let node = match &pod.node {
                Some(node) if nodes.contains_key(node) => node,
                Some(node) => {
                    let (pod, node) = (name.clone(), node.clone());
                    return Err(PlanError::UnknownNode { pod, node });
                }
                None => turn.next().ok_or(PlanError::NoNodes)?,
            };
            let (node, ports, addresses) = (node.clone(), pod.ports.clone(), pod.addresses.clone());
            Ok((name.clone(), Pod { node, ports, addresses }))
        })
        .collect()
}

/// Checks that each pod can keep the addresses that its object gives it.
fn check_addresses(
    nodes: &BTreeMap<String, NodeSpec>,
    pods: &BTreeMap<PodName, Pod>,
    settings: &Settings,
) -> Result<(), PlanError> {
    let of_nodes = nodes.iter().flat_map(|(name, node)| {
        let tunnel = Blocks::host_local(&*node.pod_cidrs).tunnel_addresses().to_vec();
        node.addresses.iter().map(IpNet::addr).chain(tunnel).map(move |address| (address, name))
    });
    let of_nodes: BTreeMap<IpAddr, &String> = of_nodes.collect();
    let mut of_pods = BTreeMap::new();
    for (name, pod) in pods {
        for (at, address) in pod.addresses.iter().enumerate() {
            let alike = |other: &IpAddr| other.is_ipv4() == address.is_ipv4();
            let underlay = nodes.get(&pod.node).map_or(&[][..], |node| &node.addresses);
            let why = if !is_for_pods(*address) {
                AddressConflict::NotForPods
            } else if let Some(other) = pod.addresses[..at].iter().find(|other| alike(other)) {
                AddressConflict::SecondOfFamily(*other)
            } else if !underlay.iter().any(|net| alike(&net.addr())) {
                AddressConflict::NoUnderlay(pod.node.clone())
            } else if let Some(node) = of_nodes.get(address) {
                AddressConflict::OfNode((*node).clone())
            } else if settings.outside.contains(address) {
                AddressConflict::OfOutside
            } else if let Some(other) = of_pods.insert(*address, name) {
                AddressConflict::OfPod(other.clone())
            } else {
                continue;
            };
            return Err(PlanError::PodAddress { pod: name.clone(), address: *address, why });
        }
    }
    Ok(())
}

/// Gives each pod without addresses a free address of each block of its node.
fn give_addresses(
    nodes: &BTreeMap<String, NodeSpec>,
    pods: &mut BTreeMap<PodName, Pod>,
    mut taken: BTreeSet<IpAddr>,
) -> Result<(), PlanError> {
    let mut blocks: BTreeMap<IpNet, FreeOrder> = BTreeMap::new();
    for (name, pod) in pods.iter_mut().filter(|(_, pod)| pod.addresses.is_empty()) {
        for net in nodes.get(&pod.node).iter().flat_map(|node| &node.pod_cidrs) {
            let full =
                || PlanError::BlockFull { pod: name.clone(), node: pod.node.clone(), block: *net };
            let order = match blocks.entry(*net) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(FreeOrder::new(*net).ok_or_else(full)?),
            };
            let is_taken = |address| taken.contains(&address);
            let number = order.next(taken.len(), is_taken).ok_or_else(full)?;
            let address = order.take(number);
            taken.insert(address);
            pod.addresses.push(address);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn node(addresses: &[&str], pods: &[&str]) -> NodeSpec {
        NodeSpec { addresses: nets(addresses), pod_cidrs: nets(pods) }
    }

    fn name(name: &str) -> PodName {
        PodName { namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn make(nodes: &[NodeSpec], pods: &[(&str, Option<&str>)]) -> Result<Plan, PlanError> {
        let nodes = nodes
            .iter()
            .enumerate()
            .map(|(i, node)| (format!("n{}", i + 1), node.clone()))
            .collect();
        let pods = pods
            .iter()
            .map(|(pod, on)| {
                (name(pod), PodSpec { node: on.map(str::to_owned), ..PodSpec::default() })
            })
            .collect();
        plan(&nodes, &pods, &Settings::default())
    }

    #[test]
    fn nodes_of_one_subnet_share_a_segment_and_need_no_router() {
        let plan = make(
            &[
                node(&["172.18.0.2/24"], &["10.1.1.0/24"]),
                node(&["172.18.0.3/24"], &["10.1.2.0/24"]),
            ],
            &[("a", None)],
        )
        .unwrap();
        assert_eq!(plan.segments.len(), 1);
        assert!(plan.segments[0].gateways.is_empty());
        assert!(plan.router.is_empty());
        assert!(plan.nodes["n1"].routes.is_empty());
        assert_eq!(plan.outside.addresses, nets(&["172.18.0.254/24"]));
        assert_eq!(
            plan.outside.routes[1],
            Route { prefix: "10.1.2.0/24".parse().unwrap(), via: "172.18.0.3".parse().unwrap() }
        );
    }

    #[test]
    fn between_subnets_stands_a_router_with_an_address_that_nobody_has() {
        let plan = make(
            &[
                node(&["172.18.0.1/24"], &["10.1.1.0/24"]),
                node(&["172.19.0.2/24"], &["10.1.2.0/24"]),
            ],
            &[("a", None)],
        )
        .unwrap();
        assert_eq!(plan.segments[0].gateways, nets(&["172.18.0.2/24"]));
        assert_eq!(plan.segments[1].gateways, nets(&["172.19.0.1/24"]));
        assert_eq!(plan.nodes["n2"].segment, 1);
        assert_eq!(
            plan.nodes["n2"].routes,
            [Route { prefix: "0.0.0.0/0".parse().unwrap(), via: "172.19.0.1".parse().unwrap() }]
        );
        assert_eq!(plan.router.len(), 2);
        // The pods of the far node are reached through the router, those of the near node directly.
        assert_eq!(plan.outside.routes.len(), 2);
    }

    #[test]
    fn both_families_of_a_node_hang_on_its_one_interface() {
        let plan = make(
            &[
                node(&["172.18.0.2/24", "fd00::2/64"], &["10.1.1.0/24", "fd00:1::/64"]),
                node(&["172.18.0.3/24", "fd00::3/64"], &["10.1.2.0/24", "fd00:2::/64"]),
            ],
            &[("a", None)],
        )
        .unwrap();
        assert_eq!(plan.segments.len(), 1);
        assert_eq!(plan.segments[0].subnets, nets(&["172.18.0.0/24", "fd00::/64"]));
        assert_eq!(
            plan.outside.addresses,
            nets(&["172.18.0.254/24", "fd00::ffff:ffff:ffff:fffe/64"])
        );
        assert_eq!(plan.outside.routes.len(), 4);
    }

    #[test]
    fn pods_without_a_node_are_placed_in_turn_and_the_others_where_they_say() {
        let plan = make(
            &[
                node(&["172.18.0.2/24"], &["10.1.1.0/24"]),
                node(&["172.18.0.3/24"], &["10.1.2.0/24"]),
            ],
            &[("a", None), ("b", Some("n1")), ("c", None), ("d", None)],
        )
        .unwrap();
        let on: Vec<&str> = plan.pods.values().map(|pod| pod.node.as_str()).collect();
        assert_eq!(on, ["n1", "n1", "n2", "n1"]);
    }

    fn make_with(
        nodes: &[(&str, NodeSpec)],
        pods: &[(&str, &str, &[&str])],
        settings: &Settings,
    ) -> Result<Plan, PlanError> {
        let nodes = nodes.iter().map(|(name, node)| ((*name).to_owned(), node.clone())).collect();
        let pods = pods.iter().map(|(pod, node, addresses)| {
            let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let node = Some((*node).to_owned());
            (name(pod), PodSpec { node, addresses, ..PodSpec::default() })
        });
        plan(&nodes, &pods.collect(), settings)
    }

    fn two_segments() -> [(&'static str, NodeSpec); 2] {
        [
            ("n1", node(&["172.18.0.2/24", "fd00::2/64"], &["10.1.1.0/24", "fd00:1::/64"])),
            ("n2", node(&["172.19.0.2/24"], &["10.1.2.0/24"])),
        ]
    }

    #[test]
    fn pods_keep_their_addresses_and_the_others_get_some_that_nobody_has() {
        let plan = make_with(
            &two_segments(),
            &[
                ("a", "n1", &[]),
                // Addresses in the block of a's node, outside of all blocks, in its own node's block, and on the
                // underlay.
                ("b", "n2", &["10.1.1.2"]),
                ("c", "n1", &["192.168.7.9", "fd09::9"]),
                ("d", "n2", &["10.1.2.200"]),
                ("e", "n1", &["172.18.0.254"]),
            ],
            &Settings::default(),
        )
        .unwrap();
        let has = |pod: &str| -> Vec<String> {
            plan.pods[&name(pod)].addresses.iter().map(ToString::to_string).collect()
        };
        assert_eq!(has("a"), ["10.1.1.3", "fd00:1::2"]);
        assert_eq!(has("b"), ["10.1.1.2"]);
        assert_eq!(has("c"), ["192.168.7.9", "fd09::9"]);
        assert_eq!(plan.outside.addresses[0], "172.18.0.253/24".parse().unwrap());
        let routes = |routes: &[Route]| -> Vec<String> {
            routes.iter().map(|it| format!("{} via {}", it.prefix, it.via)).collect()
        };
        let near = [
            "10.1.1.0/24 via 172.18.0.2",
            "fd00:1::/64 via fd00::2",
            "192.168.7.9/32 via 172.18.0.2",
            "fd09::9/128 via fd00::2",
            "172.18.0.254/32 via 172.18.0.2",
        ];
        let far = ["10.1.2.0/24 via 172.19.0.2", "10.1.1.2/32 via 172.19.0.2"];
        assert_eq!(routes(&plan.router), [&near[..], &far].concat());
        assert_eq!(routes(&plan.outside.routes)[..5], near);
    }

    #[test]
    fn an_address_that_cannot_be_kept_is_refused_with_the_reason() {
        let refused = |pods: &[(&str, &str, &[&str])]| {
            let settings =
                Settings { outside: vec!["172.18.0.9".parse().unwrap()], ..Settings::default() };
            make_with(&two_segments(), pods, &settings).unwrap_err().to_string()
        };
        insta::assert_snapshot!(
            [
                refused(&[("a", "n2", &["fd09::9"])]),
                refused(&[("a", "n1", &["172.19.0.2"])]),
                refused(&[("a", "n1", &["10.1.2.1"])]),
                refused(&[("a", "n1", &["172.18.0.9"])]),
                refused(&[("a", "n1", &["10.9.0.1"]), ("b", "n2", &["10.9.0.1"])]),
                refused(&[("a", "n1", &["127.0.0.1"])]),
                refused(&[("a", "n1", &["10.9.0.1", "10.9.0.2"])]),
            ]
            .join("\n"),
            @r"
            Pod default/a cannot keep its address fd09::9: Node n2, on which it runs, has no InternalIP of that family, by which others reach it (give it one). Change it in the pod's status.podIPs; without any address there (or in its annotations) the rig chooses one
            Pod default/a cannot keep its address 172.19.0.2: it is Node n2's own, in its status.addresses or as the second of its podCIDR. Change it in the pod's status.podIPs; without any address there (or in its annotations) the rig chooses one
            Pod default/a cannot keep its address 10.1.2.1: it is Node n2's own, in its status.addresses or as the second of its podCIDR. Change it in the pod's status.podIPs; without any address there (or in its annotations) the rig chooses one
            Pod default/a cannot keep its address 172.18.0.9: rig.yaml gives it to the outside host. Change it in the pod's status.podIPs; without any address there (or in its annotations) the rig chooses one
            Pod default/b cannot keep its address 10.9.0.1: Pod default/a has it, too. Change it in the pod's status.podIPs; without any address there (or in its annotations) the rig chooses one
            Pod default/a cannot keep its address 127.0.0.1: expected a unicast address, not link-local or loopback. Change it in the pod's status.podIPs; without any address there (or in its annotations) the rig chooses one
            Pod default/a cannot keep its address 10.9.0.2: the pod has 10.9.0.1, too, and expected is one of a family. Change it in the pod's status.podIPs; without any address there (or in its annotations) the rig chooses one
            "
        );
    }

    #[test]
    fn what_cannot_be_built_is_refused_by_name() {
        let good = node(&["172.18.0.2/24"], &["10.1.1.0/24"]);
        let pods: &[(&str, Option<&str>)] = &[("a", None)];
        let refused = |nodes: &[NodeSpec], pods| make(nodes, pods).unwrap_err();
        insta::assert_snapshot!(
            [
                refused(&[], pods),
                refused(std::slice::from_ref(&good), &[]),
                refused(&[node(&[], &["10.1.1.0/24"])], pods),
                refused(&[node(&["172.18.0.2/24"], &[])], pods),
                refused(&[node(&["172.18.0.2/24", "172.18.0.3/24"], &["10.1.1.0/24"])], pods),
                refused(&[good.clone(), node(&["172.18.0.2/24"], &["10.1.2.0/24"])], pods),
                refused(&[good.clone(), node(&["172.18.0.3/24"], &["10.1.0.0/16"])], pods),
                refused(
                    &[
                        node(&["172.18.0.2/24", "fd00::2/64"], &["10.1.1.0/24"]),
                        node(&["172.19.0.2/24", "fd00::3/64"], &["10.1.2.0/24"])
                    ],
                    pods
                ),
                refused(&[node(&["172.18.0.0/32"], &["10.1.1.0/24"])], pods),
                refused(std::slice::from_ref(&good), &[("a", Some("nowhere"))]),
            ]
            .map(|error| error.to_string())
            .join("\n")
        );
    }
}
