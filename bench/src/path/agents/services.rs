//! The manifests of the bench's services.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use crate::path::constants::{NAMESPACE, PORT};
use crate::path::way::{
    CLUSTER_IP, NODE_PORT, OTHER_BACKENDS, OTHER_SERVICES, SERVICE, SERVICE_PORT, other_service,
};

/// The services that get no traffic. Their backends are not pods of the bench.
pub(super) fn others() -> String {
    let backends: Vec<IpAddr> =
        (0..OTHER_BACKENDS).map(|it| Ipv4Addr::new(10, 244, 200, it).into()).collect();
    let mut text = String::new();
    for index in 0..OTHER_SERVICES {
        let (name, cluster_ip) = (format!("other-{index}"), other_service(index));
        service(&mut text, &name, cluster_ip, &["TCP"], None);
        slice(&mut text, &name, &["TCP"], &backends);
    }
    text
}

/// The Service that gets the traffic, with a cluster IP, a node port, and this backend.
pub(super) fn measured(backend: IpAddr) -> String {
    let mut text = String::new();
    service(&mut text, SERVICE, CLUSTER_IP, &["TCP", "UDP"], Some(NODE_PORT));
    slice(&mut text, SERVICE, &["TCP", "UDP"], &[backend]);
    text
}

/// Appends a Service with one port of these protocols.
fn service(
    text: &mut String,
    name: &str,
    cluster_ip: Ipv4Addr,
    protocols: &[&str],
    node_port: Option<u16>,
) {
    let node_port = node_port.map(|port| format!(", nodePort: {port}")).unwrap_or_default();
    let service_type = if node_port.is_empty() { "ClusterIP" } else { "NodePort" };
    let port = |protocol: &&str| {
        format!(
            "{{ name: {}, protocol: {protocol}, port: {SERVICE_PORT}, targetPort: {PORT}{node_port} }}",
            protocol.to_lowercase()
        )
    };
    let ports: Vec<String> = protocols.iter().map(port).collect();
    let _ = write!(
        text,
        "apiVersion: v1\nkind: Service\nmetadata: {{ name: {name}, namespace: {NAMESPACE} }}\n\
         spec: {{ type: {service_type}, clusterIP: {cluster_ip}, clusterIPs: [{cluster_ip}], ports: [{}] }}\n---\n",
        ports.join(", ")
    );
}

/// Appends the EndpointSlice of a Service. Its endpoints are ready.
fn slice(text: &mut String, service: &str, protocols: &[&str], backends: &[IpAddr]) {
    let port = |protocol: &&str| {
        format!("{{ name: {}, protocol: {protocol}, port: {PORT} }}", protocol.to_lowercase())
    };
    let ports: Vec<String> = protocols.iter().map(port).collect();
    let endpoint = |it: &IpAddr| format!("{{ addresses: [{it}], conditions: {{ ready: true }} }}");
    let endpoints: Vec<String> = backends.iter().map(endpoint).collect();
    let _ = write!(
        text,
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata:\n  name: {service}-1\n  namespace: {NAMESPACE}\n  \
         labels: {{ kubernetes.io/service-name: {service} }}\n\
         addressType: IPv4\nports: [{}]\nendpoints: [{}]\n---\n",
        ports.join(", "),
        endpoints.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use std::fs;

    use manx_calculation::import;
    use manx_datastore::Store;

    use super::*;

    #[test]
    fn the_manifests_are_valid() {
        let folder = tempfile::tempdir().unwrap();
        let text = others() + &measured(Ipv4Addr::new(10, 244, 1, 2).into());
        assert_eq!(text.matches("kind: Service\n").count(), usize::from(OTHER_SERVICES) + 1);
        fs::write(folder.path().join("services.yaml"), text).unwrap();
        let cluster = import::import(&Store::load(folder.path()));
        let problems: Vec<String> = cluster.problems.iter().map(ToString::to_string).collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
