//! Service accounts, services, and the ranges of services' addresses.

use std::net::IpAddr;

use super::cursor::{Cursor, Findings};
use super::metadata::{Metadata, pairs};
use super::network_policy::{number, protocol};
use super::object::{
    ClientAffinity, PortNumber, Service, ServiceAccount, ServiceCidr, ServicePort, ServiceType,
};
use super::syntax::{ADDRESS, CIDR, PORT_NAME, PORT_NUMBER, address, cidr, is_port_name};
use super::tree::Value;

const SERVICE_ACCOUNT_IGNORED: &[&str] =
    &["automountServiceAccountToken", "imagePullSecrets", "secrets"];
const SERVICE_SPEC: &[&str] = &[
    "clusterIP",
    "clusterIPs",
    "externalIPs",
    "externalName",
    "externalTrafficPolicy",
    "healthCheckNodePort",
    "internalTrafficPolicy",
    "loadBalancerIP",
    "loadBalancerSourceRanges",
    "ports",
    "selector",
    "sessionAffinity",
    "sessionAffinityConfig",
    "type",
];
/// The fields of `spec` that are ignored without a warning. `publishNotReadyAddresses` and `trafficDistribution` are
/// two of them because only the controller of `EndpointSlices` reads them: the slices contain the result.
const SERVICE_SPEC_IGNORED: &[&str] = &[
    "allocateLoadBalancerNodePorts",
    "ipFamilies",
    "ipFamilyPolicy",
    "loadBalancerClass",
    "publishNotReadyAddresses",
    "trafficDistribution",
];
/// Calico's annotation of a Service, and its value, with which all nodes choose the same endpoint for a connection.
const EXTERNAL_STRATEGY: (&str, &str) =
    ("lb.projectcalico.org/external-traffic-strategy", "maglev");
/// The maximum of `sessionAffinityConfig.clientIP.timeoutSeconds`: one day.
const MOST_AFFINITY: u32 = 86_400;

/// Reads a service account.
pub(super) fn service_account(
    root: &Cursor<'_>,
    metadata: Metadata,
    out: &mut Findings,
) -> ServiceAccount {
    root.mapping(out, &["apiVersion", "kind", "metadata"], SERVICE_ACCOUNT_IGNORED);
    ServiceAccount { labels: metadata.labels }
}

/// Reads a service.
pub(super) fn service(root: &Cursor<'_>, metadata: Metadata, out: &mut Findings) -> Service {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec", "status"], &[]);
    let (annotation, maglev) = EXTERNAL_STRATEGY;
    let mut service = Service {
        maglev: metadata.annotations.get(annotation).is_some_and(|it| it == maglev),
        labels: metadata.labels,
        created: metadata.created,
        ..Service::default()
    };
    if let Some(spec) = root.field("spec")
        && spec.mapping(out, SERVICE_SPEC, SERVICE_SPEC_IGNORED)
    {
        if let Some(field) = spec.field("selector") {
            service.selector = pairs(&field, out, true);
        }
        if let Some(field) = spec.field("ports") {
            service.ports = field.items(out, service_port);
        }
        let cluster_ip = spec.field("clusterIP").map(|field| &field.node.value);
        service.headless = matches!(cluster_ip, Some(Value::String(text)) if text == "None");
        service.service_type = service_type(&spec, out);
        if service.service_type == Some(ServiceType::ExternalName)
            && let Some(field) = spec.field("externalName")
            && let Value::String(name) = &field.node.value
        {
            service.external_name = Some(name.to_string());
        }
        traffic(&spec, &mut service, out);
        let one = |key, out: &mut Findings| {
            spec.field(key).and_then(|field| address_or_none(&field, out))
        };
        let several = |key, out: &mut Findings| {
            spec.field(key).map(|field| field.items(out, address_or_none)).unwrap_or_default()
        };
        service.cluster_ips.extend(one("clusterIP", out));
        service.cluster_ips.extend(several("clusterIPs", out));
        service.addresses.extend(&service.cluster_ips);
        service.addresses.extend(one("loadBalancerIP", out));
        service.external_ips.extend(several("externalIPs", out));
        service.addresses.extend(&service.external_ips);
    }
    if let Some(status) = root.field("status")
        && status.mapping(out, &["loadBalancer"], &["conditions"])
        && let Some(balancer) = status.field("loadBalancer")
        && balancer.mapping(out, &["ingress"], &[])
        && let Some(ingress) = balancer.field("ingress")
    {
        for (address, is_vip) in ingress.items(out, load_balancer_address) {
            service.addresses.insert(address);
            if is_vip {
                service.load_balancer_vips.insert(address);
            } else {
                service.load_balancer_proxied.insert(address);
            }
        }
    }
    service
}

/// Reads an address. The text `None` and the empty text stand for no address.
fn address_or_none(field: &Cursor<'_>, out: &mut Findings) -> Option<IpAddr> {
    let address = field.parsed(out, ADDRESS, |text| match text {
        "None" | "" => Some(None),
        text => address(text).map(Some),
    });
    address.flatten()
}

fn service_type(spec: &Cursor<'_>, out: &mut Findings) -> Option<ServiceType> {
    let expected = "ClusterIP, NodePort, LoadBalancer or ExternalName";
    let field = spec.field("type")?;
    let found = field.parsed(out, expected, |text| match text {
        "" => Some(None),
        "ClusterIP" => Some(Some(ServiceType::ClusterIp)),
        "NodePort" => Some(Some(ServiceType::NodePort)),
        "LoadBalancer" => Some(Some(ServiceType::LoadBalancer)),
        "ExternalName" => Some(Some(ServiceType::ExternalName)),
        _ => None,
    });
    found.flatten()
}

/// Reads the fields that say which endpoints a client may get and which clients are served.
fn traffic(spec: &Cursor<'_>, service: &mut Service, out: &mut Findings) {
    let local = |key, out: &mut Findings| {
        let policy = spec.field(key).and_then(|field| {
            field.parsed(out, "Cluster or Local", |text| match text {
                "Local" => Some(true),
                "Cluster" | "" => Some(false),
                _ => None,
            })
        });
        policy == Some(true)
    };
    service.keeps_clients = local("externalTrafficPolicy", out);
    service.internal_local = local("internalTrafficPolicy", out);
    let affinity = spec.field("sessionAffinity").and_then(|field| {
        field.parsed(out, "None or ClientIP", |text| match text {
            "ClientIP" => Some(true),
            "None" | "" => Some(false),
            _ => None,
        })
    });
    let mut timeout = None;
    if let Some(config) = spec.field("sessionAffinityConfig")
        && config.mapping(out, &["clientIP"], &[])
        && let Some(client) = config.field("clientIP")
        && client.mapping(out, &["timeoutSeconds"], &[])
        && let Some(field) = client.field("timeoutSeconds")
    {
        let expected = format!("a number of seconds from 1 to {MOST_AFFINITY}, which is a day");
        timeout = field.integer(out, &expected, 1..=MOST_AFFINITY.into());
    }
    service.client_affinity = (affinity == Some(true)).then_some(ClientAffinity { timeout });
    if let Some(field) = spec.field("loadBalancerSourceRanges") {
        // Spaces around a range are accepted, as in the API server.
        service.source_ranges =
            field.items(out, |item, out| item.parsed(out, CIDR, |text| cidr(text.trim())));
    }
    let port = spec.field("healthCheckNodePort").filter(is_not_zero);
    service.health_check_port = port.and_then(|field| number(&field, out, PORT_NUMBER));
}

/// Returns whether the value is not 0. The API treats 0 as an absent number.
fn is_not_zero(field: &Cursor<'_>) -> bool {
    field.node.value != Value::Integer(0)
}

/// Reads an address of a load balancer, and whether nodes translate it (`ipMode: VIP`). A load balancer that has only a
/// host name has no address.
fn load_balancer_address(item: &Cursor<'_>, out: &mut Findings) -> Option<(IpAddr, bool)> {
    if !item.mapping(out, &["ip", "ipMode"], &["hostname", "ports"]) {
        return None;
    }
    let mode = item.field("ipMode").and_then(|field| {
        field.parsed(out, "VIP or Proxy", |text| match text {
            "VIP" => Some(true),
            "Proxy" => Some(false),
            _ => None,
        })
    });
    Some((address_or_none(&item.field("ip")?, out)?, mode != Some(false)))
}

/// Reads a `ServiceCIDR`.
pub(super) fn service_cidr(root: &Cursor<'_>, out: &mut Findings) -> ServiceCidr {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec"], &["status"]);
    let mut cidrs = Vec::new();
    if let Some(spec) = root.required(out, "spec", "a mapping with cidrs")
        && spec.mapping(out, &["cidrs"], &[])
        && let Some(field) = spec.required(out, "cidrs", "a list of one or two CIDRs")
    {
        cidrs = field.items(out, |item, out| item.parsed(out, CIDR, cidr).map(|net| net.trunc()));
    }
    ServiceCidr { cidrs }
}

fn service_port(cursor: &Cursor<'_>, out: &mut Findings) -> Option<ServicePort> {
    let read = &["name", "nodePort", "protocol", "port", "targetPort"];
    if !cursor.mapping(out, read, &["appProtocol"]) {
        return None;
    }
    let name = cursor.field("name").and_then(|field| field.filled(out, "a name"));
    let protocol = cursor.field("protocol").and_then(|field| protocol(&field, out));
    let port = cursor.required(out, "port", PORT_NUMBER);
    let target = cursor.field("targetPort").and_then(|field| target(&field, out));
    let node_port = cursor.field("nodePort").filter(is_not_zero);
    let node_port = node_port.and_then(|field| number(&field, out, PORT_NUMBER));
    let port = number(&port?, out, PORT_NUMBER)?;
    Some(ServicePort { name: name.map(str::to_owned), protocol, port, target, node_port })
}

/// Reads a number or a name. Some old objects write an absent value as 0.
fn target(field: &Cursor<'_>, out: &mut Findings) -> Option<PortNumber> {
    match &field.node.value {
        Value::Integer(0) => None,
        Value::Integer(_) => {
            number(field, out, PORT_NUMBER).map(|port| PortNumber::Number { port, end: None })
        }
        _ => field.parsed(out, PORT_NAME, |text| {
            is_port_name(text).then(|| PortNumber::Name(text.to_owned()))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::object::Object;
    use super::super::tests::{invalid, only};
    use super::*;

    fn service(spec: &str, status: &str) -> Option<Service> {
        let text = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: 9web, creationTimestamp: '2026-01-31T09:30:00Z'}}, \
             spec: {{{spec}}}, status: {{{status}}}}}"
        );
        if invalid(&text).is_some() {
            return None;
        }
        let Object::Service(service) = only(&text) else { panic!("{text}") };
        Some(*service)
    }

    #[test]
    fn a_service_is_known_by_every_address_that_it_has() {
        let Object::Service(service) = only(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.96.0.1\n  clusterIPs: [10.96.0.1, 'fd00::1']\n  \
             externalIPs: [192.0.2.1]\n  ports: [{port: 80}]\n\
             status: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {hostname: web.example.com}]}}\n",
        ) else {
            panic!("a service")
        };
        let addresses: Vec<_> = service.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.96.0.1", "192.0.2.1", "198.51.100.1", "fd00::1"]);
        let cluster_ips: Vec<_> = service.cluster_ips.iter().map(ToString::to_string).collect();
        assert_eq!(cluster_ips, ["10.96.0.1", "fd00::1"]);
        assert!(service.external_ips.iter().map(ToString::to_string).eq(["192.0.2.1"]));
        assert!(!service.headless);
        let headless = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: None, clusterIPs: [None]}\n";
        let Object::Service(service) = only(headless) else { panic!("a service") };
        assert!(service.addresses.is_empty() && service.headless);
        assert!(invalid(&headless.replace("name: web", "name: w.eb")).is_some());
    }

    #[test]
    fn a_service_says_which_endpoints_a_client_gets_and_which_clients_are_served() {
        let found = service(
            "type: LoadBalancer, internalTrafficPolicy: Local, externalTrafficPolicy: Local, sessionAffinity: ClientIP, \
             sessionAffinityConfig: {clientIP: {timeoutSeconds: 86400}}, healthCheckNodePort: 31000, \
             loadBalancerSourceRanges: [' 192.0.2.0/24', 'fd00::/8'], trafficDistribution: PreferSameZone",
            "loadBalancer: {ingress: [{ip: 198.51.100.1}, {ip: 198.51.100.2, ipMode: VIP}, {ip: 198.51.100.3, ipMode: Proxy}]}",
        )
        .unwrap();
        let vips: Vec<_> = found.load_balancer_vips.iter().map(ToString::to_string).collect();
        assert_eq!(vips, ["198.51.100.1", "198.51.100.2"]);
        let proxied: Vec<_> = found.load_balancer_proxied.iter().map(ToString::to_string).collect();
        assert_eq!(proxied, ["198.51.100.3"]);
        assert_eq!(found.addresses.len(), 3);
        let ranges: Vec<_> = found.source_ranges.iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["192.0.2.0/24", "fd00::/8"]);
        assert!(found.created.is_some() && found.keeps_clients && found.internal_local);
        assert_eq!(
            (found.service_type, found.client_affinity, found.health_check_port),
            (
                Some(ServiceType::LoadBalancer),
                Some(ClientAffinity { timeout: Some(86_400) }),
                Some(31_000)
            )
        );
        let absent =
            service("healthCheckNodePort: 0, type: '', sessionAffinity: None", "").unwrap();
        assert_eq!(absent, Service { created: found.created, ..Service::default() });
        for wrong in [
            "type: Balancer",
            "internalTrafficPolicy: local",
            "sessionAffinity: Client",
            "sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}",
            "sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}",
            "loadBalancerSourceRanges: [192.0.2.1]",
            "healthCheckNodePort: 65536",
        ] {
            assert_eq!(service(wrong, ""), None, "{wrong}");
        }
        let of_another_mode = "loadBalancer: {ingress: [{ip: 198.51.100.3, ipMode: DSR}]}";
        assert_eq!(service("", of_another_mode), None);
    }

    #[test]
    fn calicos_annotation_asks_that_all_nodes_choose_alike() {
        for (annotations, expected) in [
            ("lb.projectcalico.org/external-traffic-strategy: maglev", true),
            ("lb.projectcalico.org/external-traffic-strategy: other", false),
            ("example.com/external-traffic-strategy: maglev", false),
        ] {
            let text = format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: web, annotations: {{{annotations}}}}}, spec: {{}}}}"
            );
            let Object::Service(found) = only(&text) else { panic!("{text}") };
            assert_eq!(found.maglev, expected, "{annotations}");
        }
    }

    #[test]
    fn ranges_of_services_have_no_host_bits() {
        let text = "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, \
                    spec: {cidrs: [10.96.0.1/12, 'fd00::/112']}, status: {}}";
        let Object::ServiceCidr(found) = only(text) else { panic!("ranges") };
        let cidrs: Vec<_> = found.cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(cidrs, ["10.96.0.0/12", "fd00::/112"]);
        for wrong in ["10.96.0.1", "10.96.0.0/33"] {
            assert!(invalid(&text.replace("10.96.0.1/12", wrong)).is_some(), "{wrong}");
        }
        assert!(invalid(&text.replace("cidrs:", "cidr:")).is_some());
    }

    #[test]
    fn a_service_account_has_labels() {
        let Object::ServiceAccount(account) = only(
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, labels: {b: c}}\nsecrets: []\n",
        ) else {
            panic!("a service account")
        };
        assert_eq!(account.labels.get("b").unwrap(), "c");
    }
}
