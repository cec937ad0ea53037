//! The nftables rules with which the kernel translates addresses: Services, as kube-proxy writes them in its mode
//! `nftables` (Kubernetes, `pkg/proxy/nftables`), and the masquerading of pods.
//!
//! A map leads from a service's address to its chain, which chooses the chain of a backend at random. The number of
//! services does not affect the cost of a packet.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use super::constants::PORT;
use super::way::{
    CLUSTER_IP, NODE, NODE_PORT, OTHER_BACKENDS, OTHER_SERVICES, SERVICE, SERVICE_PORT,
    other_service,
};

/// The chains that every cluster has. Those with a hook come first.
const CHAINS: &str = "
 chain filter-prerouting { type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }
 chain filter-input {
  type filter hook input priority filter - 10
  ct state new jump nodeport-endpoints-check
  ct state new jump service-endpoints-check
 }
 chain filter-forward {
  type filter hook forward priority filter - 10
  ct state new jump service-endpoints-check
  ct state new jump cluster-ips-check
 }
 chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
 chain nat-output { type nat hook output priority -100; jump services; }
 chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
 chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
 chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
 chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
 chain cluster-ips-check { ip daddr @cluster-ips reject; }
 chain services {
  ip daddr . meta l4proto . th dport vmap @service-ips
  ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
 }
 chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
 chain masquerading {
  meta mark and 0x4000 == 0 return
  meta mark set meta mark xor 0x4000
  masquerade fully-random
 }
";

/// One port of a service.
struct ServicePort {
    name: String,
    protocol: &'static str,
    cluster_ip: Ipv4Addr,
    node_port: Option<u16>,
    backends: Vec<IpAddr>,
}

/// The complete table: [`SERVICE`] with its node port and one backend, and the other services. Clients outside of
/// `pods` (in CIDR notation) are masqueraded.
pub(super) fn services(backend: IpAddr, pods: &str) -> String {
    let measured = ["tcp", "udp"].map(|protocol| ServicePort {
        name: format!("bench/{SERVICE}/{protocol}"),
        protocol,
        cluster_ip: CLUSTER_IP,
        node_port: Some(NODE_PORT),
        backends: vec![backend],
    });
    let other = |index| ServicePort {
        name: format!("bench/other-{index}/tcp"),
        protocol: "tcp",
        cluster_ip: other_service(index),
        node_port: None,
        backends: (0..OTHER_BACKENDS).map(|it| Ipv4Addr::new(10, 99, 200, it).into()).collect(),
    };
    let ports: Vec<ServicePort> =
        measured.into_iter().chain((0..OTHER_SERVICES).map(other)).collect();
    let (mut chains, mut addresses) = (String::new(), String::new());
    let (mut at_addresses, mut at_nodes) = (String::new(), String::new());
    for port in &ports {
        let ServicePort { name, protocol, cluster_ip, node_port, .. } = port;
        write_chains(&mut chains, port, pods);
        let _ = write!(addresses, "{cluster_ip}, ");
        let _ = write!(
            at_addresses,
            "{cluster_ip} . {protocol} . {SERVICE_PORT} : goto service-{name}, "
        );
        if let Some(node_port) = node_port {
            let _ = write!(at_nodes, "{protocol} . {node_port} : goto external-{name}, ");
        }
    }
    format!(
        "table ip kube-proxy {{
 set cluster-ips {{ type ipv4_addr; elements = {{ {addresses} }}; }}
 set nodeport-ips {{ type ipv4_addr; elements = {{ {NODE} }}; }}
 map no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
 map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}
 map firewall-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
 map service-ips {{
  type ipv4_addr . inet_proto . inet_service : verdict
  elements = {{ {at_addresses} }}
 }}
 map service-nodeports {{ type inet_proto . inet_service : verdict; elements = {{ {at_nodes} }}; }}
{chains}{CHAINS}}}
"
    )
}

/// Writes the chains of a Service port: one for each backend, one for the port itself, and one for its node port.
fn write_chains(text: &mut String, port: &ServicePort, pods: &str) {
    let ServicePort { name, protocol, cluster_ip, node_port, backends } = port;
    let mut choices = String::new();
    for (at, backend) in backends.iter().enumerate() {
        let _ = writeln!(
            text,
            " chain endpoint-{name}__{backend}/{PORT} {{\n  \
             ip saddr {backend} jump mark-for-masquerade\n  \
             meta l4proto {protocol} dnat to {backend}:{PORT}\n }}"
        );
        let _ = write!(choices, "{at} : goto endpoint-{name}__{backend}/{PORT}, ");
    }
    let _ = writeln!(
        text,
        " chain service-{name} {{\n  \
         ip daddr {cluster_ip} {protocol} dport {SERVICE_PORT} ip saddr != {pods} jump mark-for-masquerade\n  \
         numgen random mod {} vmap {{ {choices} }}\n }}",
        backends.len()
    );
    if node_port.is_some() {
        let _ = writeln!(
            text,
            " chain external-{name} {{\n  jump mark-for-masquerade\n  goto service-{name}\n }}"
        );
    }
}

/// The rules that masquerade: packets from pods to destinations that are not pods get the node's address as their
/// source.
pub(super) fn way_out(pods: &str) -> String {
    format!(
        "table ip way-out {{\n chain postrouting {{\n  \
         type nat hook postrouting priority srcnat\n  \
         ip saddr {pods} ip daddr != {pods} masquerade random\n }}\n}}\n"
    )
}
