//! Service accounts, services and their endpoints: the part that policy needs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::code::Code;
use super::cursor::{Cursor, Findings};
use super::metadata::{Metadata, pairs};
use super::network_policy::{number, protocol};
use super::object::{
    EndpointPort, EndpointSlice, PortNumber, Protocol, Service, ServiceAccount, ServicePort,
};
use super::syntax::{ADDRESS, PORT_NAME, PORT_NUMBER, address, is_port_name};
use super::tree::Value;

/// The label of an `EndpointSlice` that names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

const SERVICE_ACCOUNT_IGNORED: &[&str] =
    &["automountServiceAccountToken", "imagePullSecrets", "secrets"];
const SERVICE_SPEC: &[&str] = &[
    "clusterIP",
    "clusterIPs",
    "externalIPs",
    "externalName",
    "externalTrafficPolicy",
    "loadBalancerIP",
    "ports",
    "selector",
    "type",
];
const SERVICE_SPEC_IGNORED: &[&str] = &[
    "allocateLoadBalancerNodePorts",
    "healthCheckNodePort",
    "internalTrafficPolicy",
    "ipFamilies",
    "ipFamilyPolicy",
    "loadBalancerClass",
    "loadBalancerSourceRanges",
    "publishNotReadyAddresses",
    "sessionAffinity",
    "sessionAffinityConfig",
    "trafficDistribution",
];
const ENDPOINT_IGNORED: &[&str] =
    &["conditions", "deprecatedTopology", "hints", "hostname", "nodeName", "targetRef", "zone"];

/// Reads a service account.
pub(super) fn service_account(
    root: &Cursor<'_>,
    metadata: Metadata,
    out: &mut Findings,
) -> ServiceAccount {
    root.mapping(out, &["apiVersion", "kind", "metadata"], SERVICE_ACCOUNT_IGNORED);
    ServiceAccount { labels: metadata.labels }
}

/// Reads a service. The values `None` and the empty text are not addresses.
pub(super) fn service(root: &Cursor<'_>, metadata: Metadata, out: &mut Findings) -> Service {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec", "status"], &[]);
    let mut service = Service { labels: metadata.labels, ..Service::default() };
    let single = |item: &Cursor<'_>, out: &mut Findings| {
        let address = item.parsed(out, ADDRESS, |text| match text {
            "None" | "" => Some(None),
            text => address(text).map(Some),
        });
        address.flatten()
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
        let traffic = spec.field("externalTrafficPolicy");
        let keeps = traffic.and_then(|field| {
            field.parsed(out, "Cluster or Local", |text| match text {
                "Local" => Some(true),
                "Cluster" | "" => Some(false),
                _ => None,
            })
        });
        service.keeps_clients = keeps == Some(true);
        let cluster_ip = spec.field("clusterIP").map(|field| &field.node.value);
        service.headless = matches!(cluster_ip, Some(Value::String(text)) if text == "None");
        let text = |key| match &spec.field(key)?.node.value {
            Value::String(text) => Some(text.clone()),
            _ => None,
        };
        if text("type").as_deref() == Some("ExternalName") {
            service.external_name = text("externalName");
        }
        let one = |key, out: &mut Findings| spec.field(key).and_then(|field| single(&field, out));
        let several = |key, out: &mut Findings| {
            spec.field(key).map(|field| field.items(out, single)).unwrap_or_default()
        };
        service.cluster_ips.extend(one("clusterIP", out));
        service.cluster_ips.extend(several("clusterIPs", out));
        service.addresses.extend(&service.cluster_ips);
        service.addresses.extend(one("loadBalancerIP", out));
        service.addresses.extend(several("externalIPs", out));
    }
    if let Some(status) = root.field("status")
        && status.mapping(out, &["loadBalancer"], &["conditions"])
        && let Some(balancer) = status.field("loadBalancer")
        && balancer.mapping(out, &["ingress"], &[])
        && let Some(ingress) = balancer.field("ingress")
    {
        service.addresses.extend(ingress.items(out, |item, out| {
            if !item.mapping(out, &["ip"], &["hostname", "ipMode", "ports"]) {
                return None;
            }
            single(&item.field("ip")?, out)
        }));
    }
    service
}

fn service_port(cursor: &Cursor<'_>, out: &mut Findings) -> Option<ServicePort> {
    let read = &["name", "nodePort", "protocol", "port", "targetPort"];
    if !cursor.mapping(out, read, &["appProtocol"]) {
        return None;
    }
    let name = cursor.field("name").and_then(|field| field.string(out, "a name"));
    let protocol = cursor.field("protocol").and_then(|field| protocol(&field, out));
    let port = cursor.required(out, "port", PORT_NUMBER);
    let target = cursor.field("targetPort").and_then(|field| target(&field, out));
    let node_port = cursor.field("nodePort").filter(|it| it.node.value != Value::Integer(0));
    let node_port = node_port.and_then(|field| number(&field, out, PORT_NUMBER));
    let port = number(&port?, out, PORT_NUMBER)?;
    Some(ServicePort { name: name.map(str::to_owned), protocol, port, target, node_port })
}

/// A number or a name. In some old objects an absent one is written as 0.
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

/// Reads some endpoints of a service. Domain names among them are not addresses.
pub(super) fn endpoint_slice(
    root: &Cursor<'_>,
    metadata: &Metadata,
    out: &mut Findings,
) -> EndpointSlice {
    let read = &["apiVersion", "kind", "metadata", "addressType", "endpoints", "ports"];
    root.mapping(out, read, &[]);
    let types = "IPv4, IPv6 or FQDN";
    let family = root.required(out, "addressType", types).and_then(|field| {
        field.parsed(out, types, |text| match text {
            "IPv4" => Some(Some(Family::V4)),
            "IPv6" => Some(Some(Family::V6)),
            "FQDN" => Some(None),
            _ => None,
        })
    });
    let mut addresses = BTreeSet::new();
    if let (Some(endpoints), Some(Some(family))) = (root.field("endpoints"), family) {
        let of_all = endpoints.items(out, |item, out| endpoint(item, family, out));
        addresses.extend(of_all.into_iter().flatten());
    }
    EndpointSlice {
        service: metadata.labels.get(SERVICE_NAME).cloned(),
        addresses,
        ports: root.field("ports").map(|field| field.items(out, port)).unwrap_or_default(),
    }
}

/// The kind of a slice's addresses.
#[derive(Debug, Clone, Copy)]
enum Family {
    V4,
    V6,
}

fn endpoint(cursor: &Cursor<'_>, family: Family, out: &mut Findings) -> Option<Vec<IpAddr>> {
    if !cursor.mapping(out, &["addresses"], ENDPOINT_IGNORED) {
        return None;
    }
    let addresses = cursor.required(out, "addresses", "a list of addresses")?;
    let (expected, v4) = match family {
        Family::V4 => ("an IPv4 address, as the addressType says", true),
        Family::V6 => ("an IPv6 address, as the addressType says", false),
    };
    let of_family = |text: &str| address(text).filter(|address| address.is_ipv4() == v4);
    Some(addresses.items(out, |item, out| item.parsed(out, expected, of_family)))
}

/// Reads a port. In Kubernetes an entry without a number means every port; in Calico, and so here, it means none.
pub(super) fn port(cursor: &Cursor<'_>, out: &mut Findings) -> Option<EndpointPort> {
    if !cursor.mapping(out, &["name", "protocol", "port"], &["appProtocol"]) {
        return None;
    }
    let name = cursor.field("name").and_then(|field| field.string(out, "a name"));
    let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
    let protocol = match cursor.field("protocol") {
        Some(field) if field.node.value != Value::String(String::new()) => protocol(&field, out)?,
        _ => Protocol::Tcp,
    };
    let Some(field) = cursor.field("port") else {
        let message = "has no number: rules that name the service match nothing by it";
        cursor.told(out, Code::PortWithoutNumber, message);
        return None;
    };
    Some(EndpointPort { name, protocol, port: number(&field, out, PORT_NUMBER)? })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::object::{EndpointPort, Object, Protocol};
    use super::super::read;
    use super::super::tests::{invalid, only, problems};

    fn port(protocol: Protocol, port: u16) -> EndpointPort {
        EndpointPort { name: None, protocol, port }
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
        assert!(!service.headless);
        let headless = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: None, clusterIPs: [None]}\n";
        let Object::Service(service) = only(headless) else { panic!("a service") };
        assert!(service.addresses.is_empty() && service.headless);
        assert!(invalid(&headless.replace("name: web", "name: w.eb")).is_some());
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

    #[test]
    fn a_port_of_a_slice_without_a_number_is_none_and_is_warned_of() {
        let text = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n\
             endpoints: []\nports: [{protocol: UDP}, {port: 80}]\n";
        let manifest = read("file.yaml", text).unwrap();
        let State::Valid(object) = &manifest.entries[0].state else { panic!("it is valid") };
        let Object::EndpointSlice(slice) = &**object else { panic!("a slice") };
        assert_eq!(slice.ports, [port(Protocol::Tcp, 80)]);
        let told = "warning[port-without-number]: ports[0]: has no number: rules that name the service match nothing by it";
        assert!(problems(text).starts_with(told), "{}", problems(text));
    }

    #[test]
    fn an_endpoint_slice_names_its_service_and_domain_names_are_no_addresses() {
        let slice = |family: &str, address: &str| {
            let text = format!(
                "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}\naddressType: {family}\n\
                 endpoints: [{{addresses: [{address}], conditions: {{ready: false}}}}]\n\
                 ports: [{{port: 80}}, {{name: '', port: 53, protocol: UDP}}]\n"
            );
            invalid(&text).is_none().then(|| only(&text))
        };
        let Some(Object::EndpointSlice(read)) = slice("IPv4", "10.0.0.1") else { panic!() };
        assert_eq!(read.service.as_deref(), Some("web"));
        assert_eq!(read.addresses, ["10.0.0.1".parse().unwrap()].into());
        let ports = [port(Protocol::Tcp, 80), port(Protocol::Udp, 53)];
        assert_eq!(read.ports, ports);
        let Some(Object::EndpointSlice(read)) = slice("FQDN", "example.com") else { panic!() };
        assert!(read.addresses.is_empty());
        assert!(slice("IPv6", "'fd00::1'").is_some());
        for (family, address) in [
            ("IPv4", "example.com"),
            ("IPv4", "'fd00::1'"),
            ("IPv6", "10.0.0.1"),
            ("IPv5", "10.0.0.1"),
        ] {
            assert!(slice(family, address).is_none(), "{family} {address}");
        }
    }
}
