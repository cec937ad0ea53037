//! The same changes in any order and in any batches lead to the state that one batch of all of them leads to from nothing.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use ipnet::IpNet;
use manx_dataplane::services::{Backend, FrontendKey};
use manx_dataplane::tables::{Link, NextHop, PortId, Role, TrackingSettings, Tunnel};
use manx_dataplane::wire::address::Address;
use manx_policy_compiler::model::ObjectName;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::node::calculated::OwnPorts;
use crate::node::node_services::NodeServices;
use crate::settings::{
    Ipam, ManxTranslationSettings, Network, PortRange, PortRanges, ServiceTranslator,
};
use crate::verify::Verifier;
use manx_calculation::calc::LocalPod;
use manx_calculation::overlay::{Overlay, Underlay};
use manx_calculation::services::announced::{Announced, AnnouncedRoutes};
use manx_calculation::topology::{HostNetwork, HostRoute, ReservedFor};
use manx_datastore::Source;
use manx_observe::latency::Latencies;

mod refuted;
mod services;

/// The Node object, without which the node has no place.
const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}";

/// Objects, each in several versions.
const OBJECTS: &[(&str, &[&str])] = &[
    (
        "pool",
        &[
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: a}, spec: {cidr: 10.0.0.0/14, ipipMode: Always}}",
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: a}, spec: {cidr: 10.0.0.0/14, vxlanMode: Always}}",
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: a}, spec: {cidr: 10.0.0.0/14, natOutgoing: true}}",
        ],
    ),
    (
        "felix",
        &[
            "{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: default}, spec: {natOutgoingAddress: 172.17.0.1, natOutgoingExclusions: IPPoolsAndHostIPs}}",
            "{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: default}, spec: {natOutgoingExclusions: IPPoolsOnly}}",
        ],
    ),
    (
        "pool-2",
        &[
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: b}, spec: {cidr: 10.9.0.0/16, ipipMode: Always}}",
        ],
    ),
    (
        "node-2",
        &[
            "{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.2.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}",
            "{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.3.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}",
        ],
    ),
    (
        "node-3",
        &[
            "{apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {podCIDR: 10.2.0.0/25}, status: {addresses: [{type: InternalIP, address: 172.18.0.4}]}}",
        ],
    ),
    (
        "namespace",
        &[
            "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {team: x}}}",
            "{apiVersion: v1, kind: Namespace, metadata: {name: a}}",
        ],
    ),
    (
        "policy",
        &[
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: a}, spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}}",
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: a}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: x}}}]}], egress: [{to: [{ipBlock: {cidr: 10.9.0.0/16}}]}]}}",
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: a}, spec: {podSelector: {}, ingress: [{ports: [{port: 99999}]}]}}",
        ],
    ),
    (
        "here-0",
        &[
            "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: a, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.1.0.2}}",
            "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: a}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.1.0.2}}",
            "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: a}, spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Pending}}",
        ],
    ),
    (
        "here-1",
        &[
            "{apiVersion: v1, kind: Pod, metadata: {name: p1, namespace: a}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.9.0.1}}",
            "{apiVersion: v1, kind: Pod, metadata: {name: p1, namespace: a, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.1.0.3}}",
        ],
    ),
    (
        "there",
        &[
            "{apiVersion: v1, kind: Pod, metadata: {name: q, namespace: a, labels: {app: web}}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIP: 10.2.0.9}}",
            "{apiVersion: v1, kind: Pod, metadata: {name: q, namespace: a}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIP: 10.9.0.7}}",
            "{apiVersion: v1, kind: Pod, metadata: {name: q, namespace: a, labels: {app: web}}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIP: 172.17.0.1}}",
            "{apiVersion: v1, kind: Pod, metadata: {name: q, namespace: a}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIP: 10.9.9.9}}",
            // These are the node's own addresses: its tunnel address and its masquerade address.
            "{apiVersion: v1, kind: Pod, metadata: {name: q, namespace: a, labels: {app: web}}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.0.1}, {ip: 10.1.0.0}]}}",
        ],
    ),
    (
        "service",
        &[
            "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: a}, spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}}",
            "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: a}, spec: {clusterIP: 10.1.0.9, ports: [{port: 80}]}}",
            "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: a}, spec: {clusterIP: 10.96.0.9, internalTrafficPolicy: Local, ports: [{port: 80}]}}",
            "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: a}, spec: {clusterIP: 10.96.0.9, externalTrafficPolicy: Local, externalIPs: [192.0.2.1], ports: [{port: 80}]}}",
        ],
    ),
    (
        "bgp",
        &[
            "{apiVersion: projectcalico.org/v3, kind: BGPConfiguration, metadata: {name: default}, spec: {serviceClusterIPs: [{cidr: 10.96.0.0/16}], serviceExternalIPs: [{cidr: 192.0.2.0/24}]}}",
            "{apiVersion: projectcalico.org/v3, kind: BGPConfiguration, metadata: {name: default}, spec: {serviceExternalIPs: [{cidr: 192.0.2.1/32}, {cidr: 198.51.100.0/24}], serviceLoadBalancerIPs: [{cidr: 172.18.0.0/28}]}}",
        ],
    ),
    (
        "service-2",
        &[
            "{apiVersion: v1, kind: Service, metadata: {name: t, namespace: a}, spec: {clusterIPs: [10.96.0.9, 10.96.0.8], ports: [{port: 80}, {name: dns, port: 53, protocol: UDP}]}}",
            "{apiVersion: v1, kind: Service, metadata: {name: t, namespace: a}, spec: {clusterIPs: [172.18.0.3, 'fd00:96::1'], ports: [{port: 80}]}}",
        ],
    ),
    (
        "external",
        &[
            "{apiVersion: v1, kind: Service, metadata: {name: e, namespace: b}, spec: {clusterIP: 10.96.0.7, externalIPs: [192.0.2.1], ports: [{port: 80}]}}",
            "{apiVersion: v1, kind: Service, metadata: {name: e, namespace: b}, spec: {clusterIP: 10.96.0.7, externalIPs: [192.0.2.1, 192.0.2.2], ports: [{port: 80}]}}",
            "{apiVersion: v1, kind: Service, metadata: {name: e, namespace: b}, spec: {clusterIPs: [10.96.0.7, 'fd00:96::7'], externalIPs: [192.0.2.2, 'fd00:99::1'], ports: [{port: 80}]}}",
        ],
    ),
    (
        "service-range",
        &[
            "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/24]}}",
            "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/24, 172.18.0.0/16]}}",
        ],
    ),
    (
        "slice",
        &[
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s-1, namespace: a, labels: {kubernetes.io/service-name: s}}, addressType: IPv4, endpoints: [{addresses: [172.18.0.3]}], ports: [{port: 80, protocol: TCP}]}",
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s-1, namespace: a, labels: {kubernetes.io/service-name: s}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.2]}], ports: [{port: 80, protocol: TCP}]}",
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s-1, namespace: a, labels: {kubernetes.io/service-name: s}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.2], nodeName: n1}, {addresses: [10.2.0.9], conditions: {ready: false}}], ports: [{port: 80, protocol: TCP}]}",
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s-1, namespace: a, labels: {kubernetes.io/service-name: t}}, addressType: IPv4, endpoints: [{addresses: [10.2.0.9], nodeName: n2}, {addresses: [198.51.100.1]}], ports: [{port: 80, protocol: TCP}]}",
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s-1, namespace: a, labels: {kubernetes.io/service-name: s}}, addressType: IPv4, endpoints: [{addresses: [nowhere]}]}",
        ],
    ),
    (
        "api-server",
        &[
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}, addressType: IPv4, endpoints: [{addresses: [172.18.0.9]}]}",
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}, addressType: IPv4, endpoints: [{addresses: [10.9.0.7]}]}",
        ],
    ),
];

const OWN: &[&[&str]] = &[
    &[],
    &["172.18.0.2/32", "10.1.0.1/32"],
    &["172.18.0.2/32", "172.17.0.1/32", "10.96.0.9/32"],
    &["127.0.0.0/8", "10.9.0.1/32"],
];

const RESERVED: &[&[(&str, ReservedFor)]] = &[
    &[],
    &[("10.9.0.7", ReservedFor::Gateway)],
    &[("10.9.0.1", ReservedFor::DnsServer), ("10.2.0.9", ReservedFor::Gateway)],
];

const NEXT_HOPS: &[&[([u8; 4], u8)]] =
    &[&[], &[([172, 18, 0, 3], 1)], &[([172, 18, 0, 3], 2), ([172, 18, 0, 4], 3)]];

/// Addresses to which routes may lead.
const ADDRESSES: &[&str] = &[
    "10.1.0.0",
    "10.1.0.1",
    "10.1.0.2",
    "10.1.0.3",
    "10.1.0.9",
    "10.2.0.1",
    "10.2.0.9",
    "10.2.0.200",
    "10.3.0.9",
    "10.9.0.1",
    "10.9.0.7",
    "10.9.9.9",
    "10.96.0.8",
    "10.96.0.9",
    "10.96.0.200",
    "127.0.0.1",
    "172.17.0.1",
    "172.18.0.2",
    "172.18.0.3",
    "172.18.0.9",
    "192.0.2.1",
    "192.0.2.2",
    "198.51.100.1",
    "fd00::1",
    "fd00:96::1",
    "fd00:99::1",
];

/// The addresses that the agent has given each pod of this node.
const HERE: &[(&str, &[&str])] = &[("p0", &["10.1.0.2"]), ("p1", &["10.1.0.3", "10.9.0.1"])];

/// A change by a source.
#[derive(Debug, Clone)]
enum Event {
    /// An object now has this version, or is deleted.
    Object(&'static str, Option<&'static str>),
    Own(&'static [&'static str]),
    Reserved(&'static [(&'static str, ReservedFor)]),
    NextHops(&'static [([u8; 4], u8)]),
    /// A pod of this node is attached, or not.
    Pod(usize, bool),
    /// VXLAN's socket can be opened, or cannot.
    Socket(bool),
}

/// The versions of an object.
fn texts(name: &str) -> &'static [&'static str] {
    OBJECTS.iter().find(|(known, _)| *known == name).unwrap().1
}

/// A version of an object.
fn text(name: &str, at: usize) -> &'static str {
    texts(name)[at]
}

fn event() -> impl Strategy<Value = Event> {
    let object = prop::sample::select(OBJECTS).prop_flat_map(|(name, texts)| {
        let text = prop::option::weighted(0.8, prop::sample::select(texts));
        text.prop_map(move |text| Event::Object(name, text))
    });
    let pod = (0..HERE.len(), prop::bool::weighted(0.7));
    let slices = texts("slice");
    let slice = prop::option::weighted(0.9, prop::sample::select(slices));
    let external = prop::option::weighted(0.8, prop::sample::select(texts("external")));
    // The pod borrows another address, and no policy refers to it. Mostly only some routes change.
    let moves = prop::sample::select(vec![1, 3]);
    prop_oneof![
        3 => slice.prop_map(|it| Event::Object("slice", it)),
        2 => external.prop_map(|it| Event::Object("external", it)),
        6 => object,
        8 => moves.prop_map(|at| Event::Object("there", Some(text("there", at)))),
        1 => prop::sample::select(OWN).prop_map(Event::Own),
        1 => prop::sample::select(RESERVED).prop_map(Event::Reserved),
        1 => prop::sample::select(NEXT_HOPS).prop_map(Event::NextHops),
        2 => pod.prop_map(|(pod, there)| Event::Pod(pod, there)),
        1 => any::<bool>().prop_map(Event::Socket),
    ]
}

/// A node without devices.
struct Node {
    inputs: Inputs,
    view: View,
    calculated: Calculated,
    locals: BTreeMap<ObjectName, LocalPod>,
    opens_sockets: bool,
    /// The node's network, as the updates have left it.
    host_network: HostNetwork,
    /// The number of full updates of the node's network, and of changed single routes.
    host_updates: [usize; 2],
    /// The addresses of services that are announced to BGP peers.
    announced: AnnouncedRoutes,
}

impl Node {
    fn new(directory: &Path, verify_tables: bool, services: &ServiceTranslator) -> Self {
        let port = |number| Link::native(PortId(number), 1500);
        let packet_socket = Some((PortId(3), [2; 6]));
        let underlay = Underlay { packet_socket, ..Underlay::new(1500, PortId(2)) };
        let service = Some(port(1));
        let own = OwnPorts { host: port(0), forwarded: None, service, icmp: [None; 2], underlay };
        let mut view = View::new("n1", Network::Manx, Ipam::HostLocal, services);
        view.announced = Some(Announced::new("n1", view.services.external_nets()));
        Self {
            inputs: Inputs::new(Source::open_directory(directory).unwrap()),
            view,
            calculated: Calculated::new(
                own,
                TrackingSettings::default(),
                verify_tables.then(|| Verifier::new(Ipam::HostLocal)),
                Latencies::default(),
            ),
            locals: BTreeMap::new(),
            opens_sockets: false,
            host_network: HostNetwork::default(),
            host_updates: [0; 2],
            announced: AnnouncedRoutes::default(),
        }
    }

    fn happen(&mut self, directory: &Path, event: &Event) {
        match event {
            Event::Object(name, text) => {
                write(directory, name, *text);
                self.inputs.source.refresh().into_iter().for_each(|it| self.inputs.add_changes(it));
            }
            Event::Own(own) => self.inputs.set_own_addresses(nets(own)),
            Event::Reserved(all) => {
                let all = all.iter().map(|(address, what)| (address.parse().unwrap(), *what));
                self.inputs.set_reserved(all.collect());
            }
            Event::NextHops(all) => {
                let all = all.iter().map(|(node, mac)| (Ipv4Addr::from(*node), [*mac; 6]));
                self.inputs.set_next_hops(all.collect());
            }
            Event::Pod(pod, there) => {
                let (name, addresses) = HERE[*pod];
                let (name, number) = (ObjectName::new("a", name), *pod as u16);
                if *there {
                    let addresses: Vec<IpAddr> =
                        addresses.iter().map(|it| it.parse().unwrap()).collect();
                    let local = LocalPod {
                        index: number.into(),
                        attachment: 1 + u32::from(number),
                        port: PortId(10 + number),
                        host: None,
                        addresses,
                        mtu: 1450,
                    };
                    self.locals.insert(name, local);
                } else {
                    self.locals.remove(&name);
                }
                self.inputs.note_pods();
            }
            Event::Socket(opens) => {
                self.opens_sockets = *opens;
                self.inputs.retry_socket();
            }
        }
    }

    fn settle(&mut self) -> Settled {
        let Self { inputs, view, calculated, locals, opens_sockets, host_network, .. } = self;
        let host_updates = &mut self.host_updates;
        let open = |view: &View, open: &Sockets| {
            let needed = view.overlays().contains(&Overlay::Vxlan) && *opens_sockets;
            let missing = needed && open.is_empty();
            missing.then_some((Overlay::Vxlan, PortId(4))).into_iter().collect()
        };
        let update = |view: &View, update: HostUpdate| match update {
            HostUpdate::All => {
                host_updates[0] += 1;
                *host_network = view.host_network();
            }
            HostUpdate::Routes(ChangedRoutes { set, removed }) => {
                host_updates[1] += set.len() + removed.len();
                host_network.blocks.retain(|(net, _)| !removed.contains(net));
                let set = set.into_iter().map(|(net, source)| (net, HostRoute::Manx { source }));
                host_network.blocks.extend(set);
            }
        };
        let settled = settle(inputs, view, calculated, &locals.iter().collect(), update, open);
        if settled.peers {
            self.announced = view.announced_services(inputs);
        }
        settled
    }

    /// Everything in the state that packets and users can see, as text that does not depend on its history: tunnels keep
    /// their first indexes.
    fn state(&self) -> BTreeMap<String, String> {
        let Self { view, calculated, locals, .. } = self;
        let tables = &calculated.tables;
        let via = |next_hop: NextHop| match next_hop {
            NextHop::Tunnel(index) => tables.tunnel(index).map_or_else(
                || "a tunnel without a socket".to_owned(),
                |Tunnel { remote, outer, link: Link { port, mtu, .. } }| {
                    format!("{remote} {outer:?} {port:?} {mtu}")
                },
            ),
            other => format!("{other:?}"),
        };
        let mut host_network = self.host_network.clone();
        host_network.blocks.sort_by_key(|(net, _)| *net);
        let mut state = BTreeMap::new();
        for (net, next_hop) in calculated.routes() {
            state.insert(format!("route {net}"), via(next_hop));
        }
        for address in ADDRESSES.iter().map(|address| address.parse::<IpAddr>().unwrap()) {
            let looked_up = tables.next_hop(Address::from(address));
            state.insert(format!("next hop of {address}"), via(looked_up));
        }
        for (name, local) in locals {
            let endpoint = tables.endpoint(local.index).map(|it| (it.attachment, it.link));
            state.insert(format!("endpoint {name}"), format!("{endpoint:?}"));
        }
        for port in 0..16 {
            let role = tables.role(PortId(port));
            state.insert(format!("port {port}"), format!("{role:?}"));
        }
        let senders = ["172.18.0.3", "172.18.0.4"].map(|node| {
            let node = node.parse().unwrap();
            let kinds = [Overlay::Ipip, Overlay::Vxlan].map(Overlay::encapsulation);
            kinds.map(|kind| tables.peers.tunnel(node, kind).map(NextHop::Tunnel).map(via))
        });
        let services = match &view.services {
            NodeServices::Nobody => String::new(),
            NodeServices::KubeProxy(it) => format!("{:?} {:?}", it.addresses, it.hosts),
            NodeServices::Manx(it) => {
                let omissions: Vec<_> = it.frontends.omissions().collect();
                format!("{:?} {:?} {omissions:?}", it.frontends.addresses(), it.ranges)
            }
        };
        let hosts = tables.kube_proxy_port.as_ref().map(|it| &it.hosts);
        let frontends = tables.services.as_ref().map(|it| {
            let all: BTreeMap<_, _> = it.frontends().collect();
            let exists = |text: &&&str| it.has_address(text.parse::<IpAddr>().unwrap().into());
            let keeps = |key: &FrontendKey, text: &str| {
                it.keeps(key, Backend { address: text.parse::<IpAddr>().unwrap().into(), port: 80 })
            };
            let kept = |key| ADDRESSES.iter().filter(move |text| keeps(key, text));
            let kept: Vec<Vec<_>> = all.keys().map(|key| kept(key).collect()).collect();
            (all, ADDRESSES.iter().filter(exists).collect::<Vec<_>>(), kept)
        });
        let way_out = tables.manx_ports.as_ref().map(|it| {
            let destinations = ADDRESSES.iter().chain(&["172.18.0.3", "172.18.0.4", "192.0.2.1"]);
            let masquerades = |to: &&str| {
                let [from, to] = ["10.1.0.2", to].map(|it| it.parse::<IpAddr>().unwrap().into());
                it.masquerades(from, to)
            };
            let masqueraded: Vec<_> = destinations.filter(|to| masquerades(to)).collect();
            (it.addresses, it.outgoing, masqueraded, view.problems_of_way_out())
        });
        for (name, what) in [
            ("policy", format!("{:016x}", tables.image.canonical_hash())),
            ("way out", format!("{way_out:?}")),
            ("topology", format!("{:?}", view.topology)),
            ("own addresses", format!("{:?}", view.own_addresses)),
            ("services", format!("{services}, in tables {hosts:?} {frontends:?}")),
            ("host network", format!("{host_network:?}")),
            ("senders", format!("{senders:?}")),
            ("announced to peers", format!("{:?}", self.announced)),
        ] {
            state.insert(name.to_owned(), what);
        }
        state
    }
}

/// Manx translates services, which have a range.
fn manx() -> ServiceTranslator {
    let port = |first, last| PortRange::new(first, last).unwrap();
    let ports = PortRanges { egress: port(61_000, 65_534), node_ports: port(30_000, 32_767) };
    let ranges = vec!["10.96.0.0/16".parse().unwrap()];
    let external_ips = ["192.0.2.0/24", "fd00:99::/64"].map(|net| net.parse().unwrap()).to_vec();
    ServiceTranslator::Manx(ManxTranslationSettings {
        ranges,
        external_ips,
        node_port_nets: Vec::new(),
        ports,
    })
}

fn nets(all: &[&str]) -> BTreeSet<IpNet> {
    all.iter().map(|net| net.parse().unwrap()).collect()
}

fn write(directory: &Path, name: &str, text: Option<&str>) {
    let path = directory.join(format!("{name}.yaml"));
    let Some(text) = text else {
        // A missing file cannot be removed.
        let _ = fs::remove_file(path);
        return;
    };
    let temporary = directory.join(".temporary");
    // All texts have the same length, because the store treats a shorter text as an unfinished write.
    fs::write(&temporary, format!("{text:400}")).unwrap();
    fs::rename(temporary, path).unwrap();
}

/// The initial versions of objects, batches of changes, whether tables are proved, and the program that translates
/// services.
type Run = (Vec<Option<usize>>, Vec<Vec<Event>>, bool, ServiceTranslator);

#[test]
fn any_order_and_any_batches_of_changes_lead_to_the_same_state() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let [published, shared, in_place, nothing, tunnels] = [const { Cell::new(0) }; 5];
    let begin = OBJECTS.iter().map(|(_, texts)| prop::option::weighted(0.7, 0..texts.len()));
    let begin = begin.collect::<Vec<_>>();
    let batches = vec(prop_oneof![1 => vec(event(), 1), 1 => vec(event(), 2..6)], 1..16);
    let config = Config { cases: 96, failure_persistence: None, ..Config::default() };
    let verify = prop::bool::weighted(0.25);
    let services = prop::sample::select(vec![ServiceTranslator::KubeProxy, manx()]);
    let run = |(begin, batches, verify, services): Run| {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "node-1", Some(NODE));
        for ((name, texts), at) in OBJECTS.iter().zip(begin) {
            write(directory.path(), name, at.map(|at| texts[at]));
        }
        let mut node = Node::new(directory.path(), verify, &services);
        node.settle();
        // Only the last event of each kind counts.
        let mut last = BTreeMap::new();
        for batch in &batches {
            let routes = node.calculated.routes_changed_in_place;
            for event in batch {
                node.happen(directory.path(), event);
                let of = match event {
                    // Files and sockets keep their state.
                    Event::Object(..) | Event::Socket(_) => continue,
                    Event::Own(_) => "own".to_owned(),
                    Event::Reserved(_) => "reserved".to_owned(),
                    Event::NextHops(_) => "next hops".to_owned(),
                    Event::Pod(pod, _) => format!("pod {pod}"),
                };
                last.insert(of, event.clone());
            }
            let before = Arc::clone(&node.calculated.tables);
            let settled = node.settle();
            let what = match settled.tables {
                Some(now) if now.version == before.version => {
                    prop_assert!(Arc::ptr_eq(&now.image, &before.image));
                    prop_assert!(Arc::ptr_eq(&now.routes, &before.routes));
                    &shared
                }
                Some(_) => &published,
                None if node.calculated.routes_changed_in_place > routes => &in_place,
                None => &nothing,
            };
            what.set(what.get() + 1);
            let mut fresh = Node::new(directory.path(), verify, &services);
            // An open socket stays open, also in the fresh node.
            fresh.calculated.own.underlay.sockets = node.calculated.own.underlay.sockets.clone();
            for event in last.values() {
                fresh.happen(directory.path(), event);
            }
            fresh.settle();
            prop_assert_eq!(node.state(), fresh.state());
            let is_open = !node.calculated.own.underlay.sockets.is_empty();
            let is_needed = node.view.overlays().contains(&Overlay::Vxlan);
            prop_assert!(is_open || !is_needed || !node.opens_sockets);
            let Calculated { changed_in_place, routes_changed_in_place, .. } = node.calculated;
            prop_assert!(!verify || changed_in_place + routes_changed_in_place == 0);
            let is_tunnel = |(_, via): (_, NextHop)| matches!(via, NextHop::Tunnel(_));
            tunnels.set(
                tunnels.get() + u32::from(node.calculated.routes().into_iter().any(is_tunnel)),
            );
        }
        // Another call of settle finds nothing to do.
        let settled = node.settle();
        prop_assert!(!settled.placed && settled.tables.is_none());
        Ok(())
    };
    TestRunner::new(config).run(&(begin, batches, verify, services), run).unwrap();
    let counts = [&published, &shared, &in_place, &nothing, &tunnels].map(Cell::get);
    let least = counts[..4].iter().sum::<u32>() / 100;
    assert!(counts.iter().all(|count| *count > least), "not every way is taken: {counts:?}");
}

#[test]
fn objects_that_are_not_read_whole_lead_to_no_tables() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "node-1", Some(NODE));
    write(directory.path(), "broken", Some("{"));
    let mut node = Node::new(directory.path(), false, &ServiceTranslator::KubeProxy);
    assert!(node.settle().tables.is_none());
    assert_eq!(node.calculated.tables.role(PortId(0)), Role::Closed);
    node.happen(directory.path(), &Event::Object("broken", None));
    assert!(node.settle().tables.is_some());
    assert_eq!(node.calculated.tables.role(PortId(0)), Role::Host);
}

/// A node with pod `q`, which has the address. Returns how this event changes the reasons why addresses have no route to a
/// pod.
fn unrouted(version_of_q: usize, event: (&'static str, usize)) -> [Vec<String>; 2] {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "node-1", Some(NODE));
    let q = ("there", version_of_q);
    let all = ["pool", "pool-2", "node-2", "namespace", "api-server"].map(|name| (name, 0));
    for (name, at) in all.into_iter().chain([q]) {
        write(directory.path(), name, Some(text(name, at)));
    }
    let mut node = Node::new(directory.path(), false, &ServiceTranslator::KubeProxy);
    node.settle();
    let reasons =
        |node: &Node| node.view.topology.unrouted.values().map(|it| format!("{it:?}")).collect();
    let before = reasons(&node);
    let (name, at) = event;
    node.happen(directory.path(), &Event::Object(name, Some(text(name, at))));
    node.settle();
    [before, reasons(&node)]
}

#[test]
fn an_api_server_takes_its_address_from_a_pod() {
    let [before, after] = unrouted(1, ("api-server", 1));
    assert_eq!(before, [""; 0]);
    assert_eq!(after, ["Reserved(ApiServer)"]);
}

#[test]
fn the_nodes_own_addresses_are_no_pods_before_its_kernel_has_them() {
    let own = ["Reserved(Interface)", "IsOfNode(\"n1\")"];
    assert_eq!(unrouted(4, ("service", 0)), [own, own]);
}
