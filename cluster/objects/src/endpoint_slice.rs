//! `discovery.k8s.io/v1` `EndpointSlice`: some of a service's endpoints.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::code::Code;
use super::cursor::{Cursor, Findings};
use super::metadata::Metadata;
use super::network_policy::{number, protocol};
use super::object::{EndpointPort, EndpointSlice, Hints, Protocol, SliceEndpoint};
use super::syntax::{PORT_NUMBER, address};
use super::tree::Value;

/// The label of an `EndpointSlice` that names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

const ENDPOINT: &[&str] = &["addresses", "conditions", "hints", "nodeName"];
/// The fields of an endpoint that are ignored without a warning. `zone` is one of them because only the controller of
/// slices reads it: the controller turns zones into `hints`.
const ENDPOINT_IGNORED: &[&str] = &["deprecatedTopology", "hostname", "targetRef", "zone"];
const CONDITIONS: [&str; 3] = ["ready", "serving", "terminating"];

/// Reads an `EndpointSlice`. Domain names among its endpoints are not used, because they are not addresses.
pub(super) fn decode(root: &Cursor<'_>, metadata: &Metadata, out: &mut Findings) -> EndpointSlice {
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
    let mut endpoints = Vec::new();
    if let (Some(field), Some(Some(family))) = (root.field("endpoints"), family) {
        let mut shared = Shared::default();
        endpoints = field.items(out, |item, out| {
            let found = endpoint_addresses(item, family, out)?;
            addresses.extend(&found);
            Some(endpoint(item, *found.first()?, &mut shared, out))
        });
    }
    EndpointSlice {
        service: metadata.labels.get(SERVICE_NAME).cloned(),
        addresses,
        endpoints: endpoints.into(),
        ports: root.field("ports").map(|field| field.items(out, port)).unwrap_or_default(),
    }
}

/// The type of a slice's addresses.
#[derive(Debug, Clone, Copy)]
enum Family {
    V4,
    V6,
}

/// Values that several endpoints of a slice have in common; each value is stored once.
#[derive(Debug, Default)]
struct Shared {
    nodes: BTreeSet<Arc<str>>,
    hints: BTreeSet<Arc<Hints>>,
}

/// Returns the stored value that equals `value`, and stores `value` first if there is none.
fn share<T: Ord + ?Sized>(stored: &mut BTreeSet<Arc<T>>, value: Arc<T>) -> Arc<T> {
    if let Some(found) = stored.get(&value) {
        return Arc::clone(found);
    }
    stored.insert(Arc::clone(&value));
    value
}

fn endpoint_addresses(
    cursor: &Cursor<'_>,
    family: Family,
    out: &mut Findings,
) -> Option<Vec<IpAddr>> {
    if !cursor.mapping(out, ENDPOINT, ENDPOINT_IGNORED) {
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

/// Reads an endpoint. `address` is the first of its addresses.
fn endpoint(
    cursor: &Cursor<'_>,
    address: IpAddr,
    shared: &mut Shared,
    out: &mut Findings,
) -> SliceEndpoint {
    let node = cursor.field("nodeName").and_then(|field| field.filled(out, "a node's name"));
    let node = node.map(|name| share(&mut shared.nodes, name.into()));
    let hints = cursor.field("hints").and_then(|field| hints(&field, out));
    let hints = hints.map(|hints| share(&mut shared.hints, Arc::new(hints)));
    let mut conditions = [None; 3];
    if let Some(field) = cursor.field("conditions")
        && field.mapping(out, &CONDITIONS, &[])
    {
        conditions = CONDITIONS.map(|key| field.field(key)?.boolean(out));
    }
    let [ready, serving, terminating] = conditions;
    let ready = ready.unwrap_or(true);
    let serving = serving.unwrap_or(ready);
    let terminating = terminating.unwrap_or(false);
    SliceEndpoint { address, ready, serving, terminating, node, hints }
}

/// Reads the nodes and zones that an endpoint is meant for. Returns `None` if it is meant for all.
fn hints(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Hints> {
    if !cursor.mapping(out, &["forNodes", "forZones"], &[]) {
        return None;
    }
    let [nodes, zones] = ["forNodes", "forZones"].map(|key| {
        let names = cursor.field(key).map(|field| {
            field.items(out, |item, out| {
                if !item.mapping(out, &["name"], &[]) {
                    return None;
                }
                Some(item.required(out, "name", "a name")?.filled(out, "a name")?.into())
            })
        });
        names.unwrap_or_default().into_boxed_slice()
    });
    (!nodes.is_empty() || !zones.is_empty()).then_some(Hints { nodes, zones })
}

/// Reads a port. An entry without a number means every port in Kubernetes. Calico takes it as no port, and so does this
/// reader.
pub(super) fn port(cursor: &Cursor<'_>, out: &mut Findings) -> Option<EndpointPort> {
    if !cursor.mapping(out, &["name", "protocol", "port"], &["appProtocol"]) {
        return None;
    }
    let name = cursor.field("name").and_then(|field| field.string(out, "a name"));
    let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
    let protocol = match cursor.field("protocol") {
        Some(field) if field.node.value != Value::String("".into()) => protocol(&field, out)?,
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
    use super::super::object::Object;
    use super::super::read;
    use super::super::tests::{invalid, only, problems};
    use super::*;

    fn port_of(protocol: Protocol, port: u16) -> EndpointPort {
        EndpointPort { name: None, protocol, port }
    }

    #[test]
    fn a_port_of_a_slice_without_a_number_is_none_and_is_warned_of() {
        let text = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n\
             endpoints: []\nports: [{protocol: UDP}, {port: 80}]\n";
        let manifest = read("file.yaml", text).unwrap();
        let State::Valid(object) = &manifest.entries[0].state else { panic!("it is valid") };
        let Object::EndpointSlice(slice) = &**object else { panic!("a slice") };
        assert_eq!(slice.ports, [port_of(Protocol::Tcp, 80)]);
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
        let ports = [port_of(Protocol::Tcp, 80), port_of(Protocol::Udp, 53)];
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

    #[test]
    fn an_endpoint_has_its_conditions_its_node_and_the_hints_for_whom_it_is() {
        let slice = |endpoint: &str| {
            let text = format!(
                "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: a}}, addressType: IPv4, \
                 endpoints: [{endpoint}]}}"
            );
            invalid(&text).is_none().then(|| only(&text))
        };
        let read = |fields: &str| {
            let Some(Object::EndpointSlice(slice)) =
                slice(&format!("{{addresses: [10.0.0.2, 10.0.0.1]{fields}}}"))
            else {
                panic!("{fields}")
            };
            assert_eq!(slice.addresses.len(), 2);
            let [endpoint] = &*slice.endpoints else { panic!("{slice:?}") };
            assert_eq!(endpoint.address.to_string(), "10.0.0.2", "the first one");
            endpoint.clone()
        };
        for (conditions, expected) in [
            ("", [true, true, false]),
            (", conditions: {}", [true, true, false]),
            (", conditions: {ready: null}", [true, true, false]),
            (", conditions: {ready: false}", [false, false, false]),
            (", conditions: {ready: false, serving: true, terminating: true}", [false, true, true]),
            (", conditions: {serving: false}", [true, false, false]),
        ] {
            let it = read(conditions);
            assert_eq!([it.ready, it.serving, it.terminating], expected, "{conditions}");
        }
        assert_eq!((read("").node, read(", hints: {}").hints), (None, None));
        let it = read(
            ", nodeName: n1, zone: z, hints: {forNodes: [{name: n1}], forZones: [{name: a}, {name: b}]}",
        );
        assert_eq!(it.node.as_deref(), Some("n1"));
        let hints = it.hints.unwrap();
        assert_eq!(
            (&*hints.nodes, &*hints.zones),
            (&["n1".into()][..], &["a".into(), "b".into()][..])
        );
        for wrong in [
            "conditions: {ready: 'yes'}",
            "conditions: []",
            "nodeName: 1",
            "hints: {forZones: a}",
            "hints: {forNodes: [{}]}",
        ] {
            assert!(slice(&format!("{{addresses: [10.0.0.2], {wrong}}}")).is_none(), "{wrong}");
        }
        let two = "{addresses: [10.0.0.1], nodeName: n1, hints: {forZones: [{name: z}]}}";
        let Some(Object::EndpointSlice(slice)) = slice(&format!("{two}, {two}")) else { panic!() };
        let [one, other] = &*slice.endpoints else { panic!("{slice:?}") };
        assert!(Arc::ptr_eq(one.node.as_ref().unwrap(), other.node.as_ref().unwrap()));
        assert!(Arc::ptr_eq(one.hints.as_ref().unwrap(), other.hints.as_ref().unwrap()));
    }
}
