//! Service addresses that the node's kernel translates, as with kube-proxy. Real TCP, real nftables.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use manx_api::Device;
use manx_fixtures::skip::{Need, skip};
use manx_linux::{netlink, netns};

use crate::node::{Call, NODE, Node};

const SERVICE: &str = "10.96.0.7";
/// A service whose endpoint is a process of the node.
const OF_NODE: &str = "10.96.0.1";
const SERVED: u16 = 8080;
const PATIENCE: Duration = Duration::from_secs(10);

/// A node with the pods `a` and `b`, each with its address.
struct Pods {
    node: Node,
    pods: [(OwnedFd, IpAddr); 2],
}

impl Pods {
    fn start(device: Option<Device>) -> Option<Self> {
        let found = Self::of(Node::start_with_services(&["10.244.1.0/24"], device)?);
        found.serve("web", SERVICE, 80, &found.pods[1].1.to_string());
        found.serve("kubernetes", OF_NODE, 443, NODE);
        Some(found)
    }

    fn of(node: Node) -> Self {
        let pods = ["a", "b"].map(|name| {
            let netns = node.add_namespace(name);
            let result = node.call("ADD", &Call::new(name, &netns)).result();
            (netns::open(&netns).unwrap(), node.show(name, &result)[0])
        });
        Self { node, pods }
    }

    fn serve(&self, name: &str, address: &str, port: u16, endpoint: &str) {
        let service = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, spec: {{clusterIP: {address}, ports: [{{port: {port}}}]}}}}\n---\n\
             {{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}, \
             addressType: IPv4, endpoints: [{{addresses: [{endpoint}]}}], ports: [{{port: {SERVED}}}]}}\n"
        );
        self.node.write(name, &service);
        self.wait_for_translation(address, true);
    }

    fn wait_for_translation(&self, address: &str, wanted: bool) {
        self.wait_for_route(&format!("{address}/32"), "service", wanted);
    }

    fn wait_for_route(&self, prefix: &str, via: &str, wanted: bool) {
        let start = Instant::now();
        let is_there = || {
            let status = self.node.client().unwrap().status().unwrap();
            status.routes.iter().any(|it| it.prefix == prefix && it.via == via)
        };
        while is_there() != wanted {
            assert!(start.elapsed() < PATIENCE, "{prefix}: {wanted}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Makes the node's kernel translate, like kube-proxy in the mode nftables. `false` if there is no nft.
    fn translate(&self, more: &str) -> bool {
        self.load_rules(&format!(
            "add table ip kube\nflush table ip kube\n\
             add chain ip kube pre {{ type nat hook prerouting priority dstnat; }}\n\
             add chain ip kube post {{ type nat hook postrouting priority srcnat; }}\n\
             add chain ip kube forward {{ type filter hook forward priority filter; }}\n\
             add rule ip kube forward ip daddr {SERVICE} reject\n\
             add rule ip kube pre ip daddr {SERVICE} tcp dport 80 dnat to {}:{SERVED}\n\
             add rule ip kube pre ip daddr {OF_NODE} tcp dport 443 dnat to {NODE}:{SERVED}\n{more}\n",
            self.pods[1].1
        ))
    }

    /// Loads rules into nftables. `false` if there is no nft.
    fn load_rules(&self, rules: &str) -> bool {
        let mut nft = Command::new("nft");
        nft.args(["-f", "-"]).stdin(Stdio::piped());
        let Ok(mut child) = self.node.inside(|| nft.spawn()) else {
            skip(
                Need::Namespaces,
                "service addresses",
                "there is no nft: apt-get install nftables",
            );
            return false;
        };
        child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        true
    }

    fn drops(&self, reason: &str) -> u64 {
        let status = self.node.client().unwrap().status().unwrap();
        status.ports.iter().filter_map(|port| port.drops.get(reason)).sum()
    }

    /// Connects from pod `a`, and exchanges some bytes with the process that accepts.
    fn call(&self, address: &str, port: u16) -> bool {
        netns::run_in(&self.pods[0].0, || talk(address, port)).unwrap()
    }

    fn is_refused(&self, address: &str, port: u16) -> bool {
        let address = SocketAddr::new(address.parse().unwrap(), port);
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(2));
        let error = netns::run_in(&self.pods[0].0, connect).unwrap().unwrap_err();
        error.kind() == std::io::ErrorKind::ConnectionRefused
    }

    fn deny(&self, spec: &str) {
        let before = self.node.client().unwrap().status().unwrap().tables;
        self.node.write(
            "policy",
            &format!("{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: shop}}, spec: {spec}}}"),
        );
        self.wait_for_tables(before);
    }

    fn wait_for_tables(&self, before: u64) {
        let start = Instant::now();
        while self.node.client().unwrap().status().unwrap().tables == before {
            assert!(start.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Connects, and exchanges some bytes with the process that accepts.
fn talk(address: &str, port: u16) -> bool {
    let address = SocketAddr::new(address.parse().unwrap(), port);
    let talk = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        stream.write_all(b"hello")?;
        let mut heard = [0; 5];
        stream.read_exact(&mut heard)?;
        assert_eq!(&heard, b"hello");
        Ok(())
    };
    talk().is_ok()
}

/// Whether one of several calls gets an answer. If an answer is expected, it tries many times, because the machine may be
/// slow; otherwise it tries twice.
fn is_answered(wanted: bool, call: impl Fn() -> bool) -> bool {
    (0..if wanted { 8 } else { 2 }).any(|_| call())
}

/// Sends back everything that it receives, for ever.
fn echo(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut heard = [0; 5];
            let _ = stream.read_exact(&mut heard).and_then(|()| stream.write_all(&heard));
        }
    });
}

#[test]
fn pods_reach_services_by_the_nodes_translation_and_policy_judges_the_endpoint() {
    // The node's own devices are of the same kind as its pods'.
    for device in [Device::Tun, Device::Tap] {
        pods_reach_services(device);
    }
}

fn pods_reach_services(device: Device) {
    let Some(all) = Pods::start(Some(device)) else { return };
    let (server, own) = &all.pods[1];
    echo(netns::run_in(server, || TcpListener::bind((*own, SERVED)).unwrap()).unwrap());
    echo(all.node.inside(|| TcpListener::bind((NODE, SERVED)).unwrap()));
    assert!(!all.call(SERVICE, 80), "nothing translates yet");
    assert!(all.drops("service-untranslated") > 0);
    if !all.translate("") {
        return;
    }
    assert!(all.call(&own.to_string(), SERVED), "without the service");
    assert!(all.call(SERVICE, 80));
    assert!(all.call(OF_NODE, 443));
    // Other traffic does not use up the kernel's limit of ICMP errors.
    for _ in 0..3 {
        assert!(all.is_refused(SERVICE, 81), "the service has no such port");
    }

    // Policy names the pods that are the services' endpoints.
    let only = |to: &str| {
        format!(
            "{{podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{{ipBlock: {{cidr: {to}}}}}]}}]}}"
        )
    };
    all.deny(&only(&format!("{own}/32")));
    assert!(all.call(SERVICE, 80) && !all.call(OF_NODE, 443));
    all.deny(&only(&format!("{NODE}/32")));
    assert!(!all.call(SERVICE, 80) && all.call(OF_NODE, 443));
    all.deny(&only("10.96.0.0/16"));
    assert!(!all.call(SERVICE, 80) && !all.call(OF_NODE, 443));
    all.deny("{podSelector: {}, ingress: []}");
    assert!(!all.call(SERVICE, 80) && all.call(OF_NODE, 443));
    all.deny("{podSelector: {}, policyTypes: [Egress], egress: [{}]}");

    // Like node-local DNS: a process of the node answers at the service's address, and policy is evaluated for that
    // address.
    let ip = |verb: &str| {
        let mut ip = Command::new("ip");
        ip.args(["address", verb, &format!("{SERVICE}/32"), "dev", "lo"]);
        assert!(all.node.inside(|| ip.status().unwrap()).success());
    };
    ip("add");
    all.wait_for_translation(SERVICE, false);
    all.node.inside(|| echo(TcpListener::bind((SERVICE, 81)).unwrap()));
    assert!(all.call(SERVICE, 81));
    all.deny(&only(&format!("{own}/32")));
    assert!(!all.call(SERVICE, 81));
    ip("del");
    all.wait_for_translation(SERVICE, true);

    // A masqueraded connection would come from the node, which may always reach its pods.
    assert!(all.call(SERVICE, 80));
    let before = all.drops("service-source");
    all.translate("add rule ip kube post ip daddr 10.244.0.0/16 masquerade");
    assert!(!all.call(SERVICE, 80));
    assert!(all.drops("service-source") > before);
}

/// The ports of `NODE` at which kube-proxy publishes pod `b`. With `externalTrafficPolicy: Cluster` it masquerades, and
/// with `Local` it does not.
const CLUSTER: u16 = 30080;
const LOCAL: u16 = 30081;
const OUTSIDE: &str = "172.18.0.9";

#[test]
fn a_node_port_leads_around_no_policy_over_tun() {
    a_node_port_leads_nobody_around(Device::Tun);
}

#[test]
fn a_node_port_leads_around_no_policy_over_tap() {
    a_node_port_leads_nobody_around(Device::Tap);
}

fn a_node_port_leads_nobody_around(device: Device) {
    for translates in [false, true] {
        a_node_port_leads_nobody_around_where(device, translates);
    }
}

fn a_node_port_leads_nobody_around_where(device: Device, translates: bool) {
    let cidrs = ["10.244.1.0/24"];
    let node = if translates {
        Node::start_with_services(&cidrs, Some(device))
    } else {
        Node::start_with_device(&cidrs, device)
    };
    let Some(node) = node else { return };
    let all = Pods::of(node);
    netlink::in_netns(&all.node.outside, async |netlink| {
        let link = netlink.existing("far").await?;
        netlink.add_address(link.index, format!("{OUTSIDE}/24").parse().unwrap()).await?;
        netlink.set_up(link.index).await
    })
    .unwrap();
    let (server, own) = &all.pods[1];
    echo(netns::run_in(server, || TcpListener::bind((*own, SERVED)).unwrap()).unwrap());
    // In the mode nftables kube-proxy marks the packets that it will masquerade.
    let dnat = format!(
        "ip daddr {NODE} tcp dport {CLUSTER} meta mark set 0x4000 dnat to {own}:{SERVED}\n"
    );
    let [forwarded, sent] = ["pre", "out"].map(|chain| format!("add rule ip kube {chain} {dnat}"));
    let has_nft = all.load_rules(&format!(
        "add table ip kube\n\
         add chain ip kube pre {{ type nat hook prerouting priority dstnat; }}\n\
         add chain ip kube out {{ type nat hook output priority -100; }}\n\
         add chain ip kube post {{ type nat hook postrouting priority srcnat; }}\n\
         {forwarded}{sent}\
         add rule ip kube pre ip daddr {NODE} tcp dport {LOCAL} dnat to {own}:{SERVED}\n\
         add rule ip kube post meta mark 0x4000 masquerade\n"
    ));
    if !has_nft {
        return;
    }
    let outside = |port| netns::run_in(&all.node.outside, || talk(NODE, port)).unwrap();
    let inside = |address: &str, port| all.node.inside(|| talk(address, port));
    let reached = |wanted: [bool; 3]| {
        // The node itself can always connect.
        assert!(is_answered(true, || inside(&own.to_string(), SERVED)), "{device:?}: a probe");
        assert!(is_answered(true, || inside(NODE, CLUSTER)), "{device:?}: by its node port");
        // The calls run at the same time, because a denied one waits.
        let calls: [&(dyn Fn() -> bool + Sync); 3] =
            [&|| all.call(NODE, CLUSTER), &|| outside(CLUSTER), &|| outside(LOCAL)];
        thread::scope(|scope| {
            let running =
                [0, 1, 2].map(|at| scope.spawn(move || is_answered(wanted[at], calls[at])));
            running.map(|call| call.join().unwrap())
        })
    };
    assert_eq!(reached([true; 3]), [true; 3], "{device:?} {translates}");
    let masquerade = "10.244.1.0/32";
    for (peers, wanted) in [
        ("{podSelector: {matchLabels: {pod: nobody}}}".to_owned(), [false, false, false]),
        (format!("{{ipBlock: {{cidr: {NODE}/32}}}}"), [false, false, false]),
        (format!("{{ipBlock: {{cidr: {OUTSIDE}/32}}}}"), [false, false, true]),
        (format!("{{ipBlock: {{cidr: {masquerade}}}}}"), [true, true, false]),
        ("{ipBlock: {cidr: 0.0.0.0/0, except: [10.244.0.0/16]}}".to_owned(), [false, false, true]),
        ("{ipBlock: {cidr: 0.0.0.0/0}}".to_owned(), [true; 3]),
    ] {
        all.deny(&format!(
            "{{podSelector: {{matchLabels: {{pod: b}}}}, ingress: [{{from: [{peers}]}}]}}"
        ));
        assert_eq!(reached(wanted), wanted, "{device:?} {translates}: from {peers}");
    }
    // The published port does not lead out of a pod that policy confines, either.
    all.deny("{podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress]}");
    let wanted = [false, true, true];
    assert_eq!(reached(wanted), wanted, "{device:?} {translates}");
}

/// The address of another program's bridge on the node.
const BRIDGE: &str = "172.17.0.1";

/// `defaultEndpointToHostAction: Drop` applies to every address at which the node's kernel accepts packets.
#[test]
fn a_node_that_takes_nothing_from_pods_takes_it_at_no_address_of_any_interface() {
    let Some(node) = Node::start(&["10.244.1.0/24"]) else { return };
    let all = Pods::of(node);
    let bridge = |works: bool| {
        let name = "docker0";
        all.node.inside(|| {
            let here = netns::current().unwrap();
            netlink::in_netns(&here, async |netlink| {
                if works {
                    netlink.add_bridge(name).await?;
                }
                let link = netlink.existing(name).await?;
                if !works {
                    return netlink.delete_link(link.index).await;
                }
                netlink.add_address(link.index, format!("{BRIDGE}/16").parse().unwrap()).await
            })
            .unwrap();
        });
    };
    bridge(true);
    all.wait_for_route(&format!("{BRIDGE}/32"), "node", true);
    let hears = all.node.inside(|| UdpSocket::bind(("0.0.0.0", 0)).unwrap());
    hears.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let port = hears.local_addr().unwrap().port();
    let says = netns::run_in(&all.pods[0].0, || UdpSocket::bind(("0.0.0.0", 0)).unwrap()).unwrap();
    says.set_broadcast(true).unwrap();
    let is_heard = |wanted: bool, address: &str| {
        while hears.recv(&mut [0; 8]).is_ok() {}
        is_answered(wanted, || {
            says.send_to(b"hello", (address, port)).unwrap();
            hears.recv(&mut [0; 8]).is_ok()
        })
    };
    let taken = [BRIDGE, NODE, "10.244.1.1", "10.244.1.0", "172.17.255.255", "172.18.0.255"];
    for address in taken {
        assert!(is_heard(true, address), "{address}");
    }
    let before = all.node.client().unwrap().status().unwrap().tables;
    all.node.write(
        "felix",
        "{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: default}, spec: {defaultEndpointToHostAction: Drop}}",
    );
    all.wait_for_tables(before);
    for address in taken.into_iter().chain(["255.255.255.255", "224.0.0.1"]) {
        assert!(!is_heard(false, address), "{address}");
    }
    bridge(false);
    all.wait_for_route(&format!("{BRIDGE}/32"), "node", false);
}

#[test]
fn the_ports_of_the_node_and_their_rules_go_with_the_agent() {
    let Some(mut node) = Node::start_with_services(&["10.244.1.0/24"], None) else { return };
    let rules = |node: &Node| {
        let output = node.inside(|| Command::new("ip").args(["rule", "list"]).output().unwrap());
        String::from_utf8(output.stdout).unwrap()
    };
    let all = [("iif manx1 lookup 77", "lookup 77"), ("iif lo lookup 78", "lookup 78")];
    for (whole, _) in all {
        assert!(rules(&node).contains(whole), "{}", rules(&node));
    }
    node.kill_agent();
    node.start_agent();
    for (_, table) in all {
        assert_eq!(rules(&node).matches(table).count(), 1, "{}", rules(&node));
    }
    assert!(node.stop_agent());
    for (_, table) in all {
        assert!(!rules(&node).contains(table), "{}", rules(&node));
    }
}
