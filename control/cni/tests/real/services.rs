//! Service addresses that the node's kernel translates, as kube-proxy has it do. Real TCP, real nftables.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use manx_api::Device;
use manx_fixtures::skip::{Need, skip};
use manx_linux::netns;

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
        let node = Node::start_with_services(&["10.244.1.0/24"], device)?;
        let pods = ["a", "b"].map(|name| {
            let netns = node.add_namespace(name);
            let result = node.call("ADD", &Call::new(name, &netns)).result();
            (netns::open(&netns).unwrap(), node.show(name, &result)[0])
        });
        let found = Self { node, pods };
        found.serve("web", SERVICE, 80, &found.pods[1].1.to_string());
        found.serve("kubernetes", OF_NODE, 443, NODE);
        Some(found)
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
        let start = Instant::now();
        let prefix = format!("{address}/32");
        let is_translated = || {
            let status = self.node.client().unwrap().status().unwrap();
            status.routes.iter().any(|it| it.prefix == prefix && it.via == "service")
        };
        while is_translated() != wanted {
            assert!(start.elapsed() < PATIENCE, "{address}: {wanted}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Has the node's kernel translate, as kube-proxy does in the mode nftables. `false`: there is no nft.
    fn translate(&self, more: &str) -> bool {
        let rules = format!(
            "add table ip kube\nflush table ip kube\n\
             add chain ip kube pre {{ type nat hook prerouting priority dstnat; }}\n\
             add chain ip kube post {{ type nat hook postrouting priority srcnat; }}\n\
             add chain ip kube forward {{ type filter hook forward priority filter; }}\n\
             add rule ip kube forward ip daddr {SERVICE} reject\n\
             add rule ip kube pre ip daddr {SERVICE} tcp dport 80 dnat to {}:{SERVED}\n\
             add rule ip kube pre ip daddr {OF_NODE} tcp dport 443 dnat to {NODE}:{SERVED}\n{more}\n",
            self.pods[1].1
        );
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

    /// Connects from pod `a`, and exchanges some bytes with whoever accepts.
    fn call(&self, address: &str, port: u16) -> bool {
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
        netns::run_in(&self.pods[0].0, talk).unwrap().is_ok()
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
        let start = Instant::now();
        while self.node.client().unwrap().status().unwrap().tables == before {
            assert!(start.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Answers with what it hears, for ever.
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
    // The node's own devices are like its pods'.
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
    // The kernel's limit of ICMP errors is not used up by others.
    for _ in 0..3 {
        assert!(all.is_refused(SERVICE, 81), "the service has no such port");
    }

    // Policy names what is behind the services.
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

    // As node-local DNS does: a process of the node answers at the service's address, and policy is asked about that.
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

    // A masqueraded connection would be the node's, which may always reach its pods.
    assert!(all.call(SERVICE, 80));
    let before = all.drops("service-source");
    all.translate("add rule ip kube post ip daddr 10.244.0.0/16 masquerade");
    assert!(!all.call(SERVICE, 80));
    assert!(all.drops("service-source") > before);
}

#[test]
fn the_service_port_and_its_rule_go_with_the_agent() {
    let Some(mut node) = Node::start_with_services(&["10.244.1.0/24"], None) else { return };
    let rules = |node: &Node| {
        let output = node.inside(|| Command::new("ip").args(["rule", "list"]).output().unwrap());
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(rules(&node).contains("iif manx1 lookup 77"), "{}", rules(&node));
    node.kill_agent();
    node.start_agent();
    assert_eq!(rules(&node).matches("lookup 77").count(), 1, "{}", rules(&node));
    assert!(node.stop_agent());
    assert!(!rules(&node).contains("lookup 77"), "{}", rules(&node));
}
