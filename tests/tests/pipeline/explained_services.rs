//! `explain` and real packets agree about services that Manx translates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use manx_analysis::explain::Explainer;
use manx_analysis::services::{AgentSettings, Translates};
use manx_api::explain::{ExplainRequest, PacketSpec};
use manx_calculation::services::{Frontends, NodePorts};
use manx_dataplane::tables::PortId;
use manx_objects::contents::{Changes, Contents};
use manx_tests::fabric::{
    FORWARDED, Fabric, HOST, MANX, NODES, ROUTER, UNDERLAY, pod, policy, underlay_v6,
};
use manx_tests::packet::{TCP, Tuple};

use crate::egress::{PORTS, ends};

const CLUSTER: &str = "
{apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDRs: [10.244.1.0/24, 'fd44:1::/64']}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: 'fd18::2'}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-2}, spec: {podCIDRs: [10.244.2.0/24, 'fd44:2::/64']}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}, {type: InternalIP, address: 'fd18::3'}]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: four}, spec: {cidr: 10.244.0.0/16, ipipMode: Always, natOutgoing: true}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: six}, spec: {cidr: 'fd44::/16', ipipMode: Never, natOutgoing: true}}
---
";
/// The network in which external IPs count.
const EXTERNAL: &str = "203.0.113.0/24";
const POOLS: [&str; 2] = ["10.244.0.0/16", "fd44::/16"];
/// For each family, one outside host inside the source ranges, and one outside them.
const WORLD: [[&str; 2]; 2] = [["192.0.2.1", "2001:db8:7::1"], ["198.18.0.1", "2001:db8:8::1"]];
const SERVICES: [(&str, Backend, &str); 7] = [
    ("near", Backend::Near, "Cluster"),
    ("far", Backend::Far, "Cluster"),
    ("near-local", Backend::Near, "Local"),
    ("far-local", Backend::Far, "Local"),
    ("host", Backend::Host, "Cluster"),
    ("ranged", Backend::Far, "Cluster"),
    ("nobody", Backend::Nobody, "Cluster"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    Near,
    Far,
    /// A process of the second node.
    Host,
    Nobody,
}

impl Backend {
    fn addresses(self) -> Option<[&'static str; 2]> {
        match self {
            Self::Near => Some(["10.244.1.8", "fd44:1::8"]),
            Self::Far => Some(["10.244.2.7", "fd44:2::7"]),
            Self::Host => Some(["172.18.0.3", "fd18::3"]),
            Self::Nobody => None,
        }
    }
}

/// The manifests of a service. Its addresses and its node port end in `number`.
fn manifests(number: usize, (name, backend, traffic): (&str, Backend, &str)) -> String {
    let ranges = if name == "ranged" {
        "loadBalancerSourceRanges: [192.0.2.0/24, '2001:db8:7::/48', 10.244.1.7/32, 'fd18::/64'],"
    } else {
        ""
    };
    let service = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, spec: {{type: LoadBalancer, {ranges} \
         clusterIPs: [10.96.0.{number}, 'fd96::{number}'], externalIPs: [203.0.113.{number}], externalTrafficPolicy: {traffic}, \
         ports: [{{port: 80, targetPort: 8080, nodePort: 3008{number}}}]}}, \
         status: {{loadBalancer: {{ingress: [{{ip: 198.51.100.{number}}}, {{ip: '2001:db8:1::{number}'}}]}}}}}}\n---\n"
    );
    let node = match backend {
        Backend::Near => "node-1",
        Backend::Far | Backend::Host | Backend::Nobody => "node-2",
    };
    let slices = backend.addresses().into_iter().flatten().zip(["IPv4", "IPv6"]).map(|(address, family)| {
        let slice = format!("{name}-{}", family.to_lowercase());
        format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {slice}, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}, \
             addressType: {family}, endpoints: [{{addresses: ['{address}'], nodeName: {node}}}], ports: [{{port: 8080}}]}}\n---\n"
        )
    });
    service + &slices.collect::<String>()
}

fn cluster(policies: &str) -> String {
    let services = SERVICES.into_iter().enumerate();
    CLUSTER.to_owned()
        + &pod("shop/a", 0, "{app: a}", &["10.244.1.7", "fd44:1::7"])
        + &pod("shop/b", 0, "{app: b}", &["10.244.1.8", "fd44:1::8"])
        + &pod("shop/far", 1, "{app: far}", &["10.244.2.7", "fd44:2::7"])
        + &services.map(|(number, it)| manifests(number + 1, it)).collect::<String>()
        + policies
}

/// In these tests, the nodes learn the addresses of services from cluster IPs.
fn routes() -> String {
    let of_service = |number| {
        let service = |name: &str, addresses: String| {
            format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: {name}-{number}, namespace: routes}}, \
                 spec: {{clusterIPs: [{addresses}], ports: [{{port: 80}}]}}}}\n---\n"
            )
        };
        service("balancer", format!("198.51.100.{number}, '2001:db8:1::{number}'"))
            + &service("external", format!("203.0.113.{number}"))
    };
    (1..=SERVICES.len()).map(of_service).collect()
}

fn settings() -> AgentSettings {
    AgentSettings { node_ports: (30_000, 32_767), external_ips: vec![EXTERNAL.parse().unwrap()] }
}

/// Nodes that both have the table of this node.
fn fabric(contents: &Contents, yaml: &str, node: usize) -> Fabric {
    let AgentSettings { node_ports, external_ips } = settings();
    let addresses = BTreeSet::from([IpAddr::from(UNDERLAY[node]), underlay_v6(node)]);
    let ports = NodePorts { range: node_ports, addresses, of_pods: true };
    let mut frontends = Frontends::new(NODES[node], ports).with_external_ips(&external_ips);
    let [four, six] = POOLS.map(|it| it.parse::<IpNet>().unwrap());
    let admits = |it: IpAddr| {
        let is_node = (0..2).any(|node| it == UNDERLAY[node] || it == underlay_v6(node));
        !four.contains(&it) && !six.contains(&it) && !is_node
    };
    frontends.follow(contents, &Changes::Everything, admits);
    let table = (**frontends.table()).clone();
    Fabric::with_manx_ports(&(yaml.to_owned() + &routes()), table, PORTS, (&POOLS, &POOLS))
}

/// A client of services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// The pod `shop/a`.
    Pod,
    /// A process of the first node.
    Process,
    /// One of [`WORLD`].
    Outside(usize),
}

impl Client {
    fn name(self, is_v4: bool) -> String {
        match self {
            Self::Pod => "shop/a".to_owned(),
            Self::Process => "node/node-1".to_owned(),
            Self::Outside(which) => WORLD[which][usize::from(!is_v4)].to_owned(),
        }
    }

    fn address(self, is_v4: bool) -> String {
        match self {
            Self::Pod => ["10.244.1.7", "fd44:1::7"][usize::from(!is_v4)].to_owned(),
            Self::Process => node_address(0, is_v4).to_string(),
            Self::Outside(_) => self.name(is_v4),
        }
    }
}

fn node_address(node: usize, is_v4: bool) -> IpAddr {
    if is_v4 { UNDERLAY[node].into() } else { underlay_v6(node) }
}

/// Sends the first packet of a connection; a packet from outside arrives at this node. Returns the
/// destination address with which it arrives, if it does, and the source address that is seen
/// there.
fn asks(
    fabric: &mut Fabric,
    client: Client,
    (to, port): (IpAddr, u16),
    by: usize,
) -> Option<[String; 2]> {
    let is_v4 = to.is_ipv4();
    let packet = Tuple::new(&client.address(is_v4), &to.to_string(), TCP, port).opening();
    let own = (0..2).find(|node| node_address(*node, is_v4) == to);
    let (mut node, mut at): (usize, PortId) = match (client, own) {
        (Client::Pod, _) => fabric.port("shop/a"),
        // The packet goes to another node's port, so the kernel sends it there.
        (_, Some(node)) => (node, MANX),
        (Client::Process, None) => (0, HOST),
        (Client::Outside(_), None) => (by, FORWARDED),
    };
    let mut packet = packet;
    for _ in 0..3 {
        let out = fabric.send_at(node, at, &packet);
        assert!(out.len() <= 1, "{out:?}");
        let out = out.into_iter().next()?;
        let [(source, _), (destination, number)] = ends(&out.frame.bytes);
        let there: IpAddr = destination.parse().unwrap();
        let is_answer = destination == client.address(is_v4) && number != port && number != 8080;
        if is_answer {
            return None;
        }
        let own = (0..2).find(|node| node_address(*node, is_v4) == there);
        packet = out.frame.bytes.to_vec();
        (node, at) = match (out.port, own) {
            // The packet leaves by the node's ports, for another node or a pod on it.
            (MANX | HOST, Some(own)) if number != 8080 => (own, MANX),
            (MANX | HOST, None) if Backend::Far.addresses().unwrap().contains(&&*destination) => {
                (1, FORWARDED)
            }
            (MANX | HOST, None) if Backend::Near.addresses().unwrap().contains(&&*destination) => {
                (0, FORWARDED)
            }
            _ => return Some([destination, source]),
        };
    }
    panic!("{client:?} to {to}:{port} goes round");
}

fn told(explainer: &Explainer<'_>, client: Client, (to, port): (IpAddr, u16)) -> (bool, String) {
    let packet = PacketSpec::Protocol(TCP, Some(port));
    let from = client.name(to.is_ipv4());
    let found = explainer.connections(&from, &to.to_string(), packet).unwrap();
    let request = ExplainRequest {
        routes: true,
        from,
        to: to.to_string(),
        packet,
        source_port: 49152,
        ipv6: to.is_ipv6(),
        uplink: None,
    };
    let passes =
        found.asked.iter().all(|it| explainer.explain_asked(&request, it).unwrap().story.allowed);
    (passes, format!("{found:#?}"))
}

#[test]
fn explain_and_packets_agree_about_services_that_manx_translates() {
    let only = |peers: &str| {
        policy("shop/p", &format!("{{podSelector: {{}}, ingress: [{{from: [{peers}]}}]}}"))
    };
    let egress = |to: &str| {
        policy(
            "shop/e",
            &format!(
                "{{podSelector: {{matchLabels: {{app: a}}}}, policyTypes: [Egress], egress: [{{to: [{to}]}}]}}"
            ),
        )
    };
    // Policy for forwarded packets of a node.
    let host = |of: &str, spec: &str| {
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {{name: h, labels: {{role: node}}}}, spec: {{{of}}}}}\n---\n\
             {{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: f}}, spec: {{selector: role == 'node', applyOnForward: true, {spec}}}}}\n---\n"
        )
    };
    let nets = |nets: [&str; 2]| nets.map(|it| format!("{{ipBlock: {{cidr: '{it}'}}}}")).join(", ");
    let [first, second, router] = [
        ["172.18.0.2/32", "fd18::2/128"],
        ["172.18.0.3/32", "fd18::3/128"],
        ["10.244.1.1/32", "fd44:1::1/128"],
    ]
    .map(nets);
    assert_eq!(ROUTER[0].to_string(), "10.244.1.1");
    let mut count = [0; 2];
    for policies in [
        String::new(),
        only("{podSelector: {matchLabels: {app: nobody}}}"),
        only("{podSelector: {}}"),
        only(&nets(["192.0.2.0/24", "2001:db8:7::/48"])),
        only(&first),
        only(&second),
        only(&router),
        egress("{podSelector: {}}"),
        egress(&nets(["203.0.113.0/24", "2001:db8:1::/64"])),
        egress(&first),
        egress(&second),
        host("node: node-2, interfaceName: eth0", "types: [Ingress], ingress: [{action: Deny}]"),
        host(
            "node: node-1, interfaceName: '*'",
            "types: [Egress], egress: [{action: Deny, source: {nets: [192.0.2.0/24]}}, {action: Allow}]",
        ),
    ] {
        let yaml = cluster(&policies);
        let contents = Contents::from_texts([("cluster.yaml", yaml.as_str())]);
        let assumed = BTreeMap::new();
        let explainer =
            Explainer::new(&contents, &assumed, "eth0").translated_by(Translates::Manx(settings()));
        for node in 0..2 {
            let mut fabric = fabric(&contents, &yaml, node);
            for ((_, backend, _), number) in SERVICES.into_iter().zip(1..) {
                let home = usize::from(backend != Backend::Near);
                let node_port = 30_080 + number;
                let published = [
                    (node_address(node, true), 30_099),
                    (node_address(node, true), node_port),
                    (node_address(node, false), node_port),
                    (format!("198.51.100.{number}").parse().unwrap(), 80),
                    (format!("198.51.100.{number}").parse().unwrap(), 81),
                    (format!("2001:db8:1::{number}").parse().unwrap(), 80),
                    (format!("203.0.113.{number}").parse().unwrap(), 80),
                ];
                for (to, port) in published {
                    let is_of_node = port >= 30_000;
                    for client in
                        [Client::Pod, Client::Process, Client::Outside(0), Client::Outside(1)]
                    {
                        // For an outside host at an address of any node, `explain` answers for the
                        // backend's own node.
                        let by = if matches!(client, Client::Outside(_)) { home } else { 0 };
                        if !is_of_node && by != node {
                            continue;
                        }
                        // Where the backend sees a node's address, `explain` does not know what that node forwards
                        // (docs/services.md).
                        let is_outside = matches!(client, Client::Outside(_));
                        let sees_node = (is_of_node && !is_outside) || backend == Backend::Host;
                        if policies.contains("HostEndpoint") && sees_node {
                            continue;
                        }
                        let (passes, found) = told(&explainer, client, (to, port));
                        let came = asks(&mut fabric, client, (to, port), node);
                        let drops = fabric.nodes.each_ref().map(|it| it.drops());
                        assert_eq!(
                            passes,
                            came.is_some(),
                            "{client:?} to {to}:{port}, {policies}: {found} {came:?} {drops:?}"
                        );
                        count[usize::from(passes)] += 1;
                    }
                }
            }
        }
    }
    assert!(count.iter().all(|verdicts| *verdicts > 100), "{count:?}");
}
