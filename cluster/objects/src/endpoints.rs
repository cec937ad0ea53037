//! `v1` Endpoints: the older form of a service's endpoints, which the cluster copies to `EndpointSlices`.
//!
//! Source: Kubernetes documentation, "`EndpointSlices`", section "`EndpointSlice` mirroring", and the controller of that
//! name.

use std::net::IpAddr;
use std::sync::Arc;

use super::cursor::{Cursor, Findings};
use super::endpoint_slice::port;
use super::metadata::Metadata;
use super::object::{EndpointSlice, Endpoints, SliceEndpoint};
use super::syntax::{ADDRESS, address};

/// The label of Endpoints that are not copied.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// The annotation of Endpoints that only serve as a lock.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// The maximum number of addresses of a subset that the cluster copies.
const MOST_ADDRESSES: usize = 1000;

const SUBSET: &[&str] = &["addresses", "notReadyAddresses", "ports"];
const ADDRESS_IGNORED: &[&str] = &["hostname", "targetRef"];

/// Reads Endpoints.
pub(super) fn decode(
    root: &Cursor<'_>,
    name: &str,
    metadata: &Metadata,
    out: &mut Findings,
) -> Endpoints {
    root.mapping(out, &["apiVersion", "kind", "metadata", "subsets"], &[]);
    let skips = metadata.labels.get(SKIP_MIRROR).is_some_and(|it| it == "true")
        || metadata.annotations.get(LEADER).is_some();
    let Some(field) = root.field("subsets") else { return Endpoints::default() };
    let slices = field.items(out, |item, out| subset(item, name, out));
    if skips { Endpoints::default() } else { Endpoints { slices: slices.concat() } }
}

/// Returns the slices of a subset, one for each address family.
fn subset(cursor: &Cursor<'_>, name: &str, out: &mut Findings) -> Option<Vec<EndpointSlice>> {
    if !cursor.mapping(out, SUBSET, &[]) {
        return None;
    }
    let mut endpoints = Vec::new();
    for (key, ready) in [("addresses", true), ("notReadyAddresses", false)] {
        if let Some(field) = cursor.field(key) {
            endpoints.extend(field.items(out, |item, out| endpoint(item, ready, out)));
        }
    }
    endpoints.truncate(MOST_ADDRESSES);
    let ports = cursor.field("ports").map(|field| field.items(out, port)).unwrap_or_default();
    let (v4, v6): (Vec<_>, Vec<_>) =
        endpoints.into_iter().partition(|endpoint| endpoint.address.is_ipv4());
    let of_family = [v4, v6].into_iter().filter(|endpoints| !endpoints.is_empty());
    let slice = |endpoints: Vec<SliceEndpoint>| EndpointSlice {
        service: Some(name.to_owned()),
        addresses: endpoints.iter().map(|endpoint| endpoint.address).collect(),
        endpoints: endpoints.into(),
        ports: ports.clone(),
    };
    Some(of_family.map(slice).collect())
}

fn endpoint(cursor: &Cursor<'_>, ready: bool, out: &mut Findings) -> Option<SliceEndpoint> {
    if !cursor.mapping(out, &["ip", "nodeName"], ADDRESS_IGNORED) {
        return None;
    }
    let address: IpAddr = cursor.required(out, "ip", ADDRESS)?.parsed(out, ADDRESS, address)?;
    let node = cursor.field("nodeName").and_then(|field| field.filled(out, "a node's name"));
    let node = node.map(Arc::from);
    Some(SliceEndpoint { address, ready, serving: ready, terminating: false, node, hints: None })
}

#[cfg(test)]
mod tests {
    use super::super::object::{EndpointPort, Object, Protocol};
    use super::super::tests::{invalid, only};
    use super::*;

    fn slices(text: &str) -> Vec<EndpointSlice> {
        let Object::Endpoints(endpoints) = only(text) else { panic!("{text}") };
        endpoints.slices
    }

    fn endpoints(metadata: &str, subsets: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: Endpoints, metadata: {{name: db, namespace: shop{metadata}}}, subsets: [{subsets}]}}"
        )
    }

    /// The address 192.0.2.2 is not ready, and `fd00::1` is on a node.
    fn endpoint(address: &str) -> SliceEndpoint {
        let ready = address != "192.0.2.2";
        SliceEndpoint {
            address: address.parse().unwrap(),
            ready,
            serving: ready,
            terminating: false,
            node: (address == "fd00::1").then(|| "n1".into()),
            hints: None,
        }
    }

    #[test]
    fn a_subset_is_a_slice_of_each_family_whether_its_addresses_are_ready_or_not() {
        let found = slices(&endpoints(
            "",
            "{addresses: [{ip: 192.0.2.1}, {ip: 'fd00::1', hostname: a, nodeName: n1}], notReadyAddresses: [{ip: 192.0.2.2}], \
             ports: [{name: sql, port: 5432}]}, {addresses: [{ip: 192.0.2.3}]}",
        ));
        let slice = |addresses: &[&str], ports: &[EndpointPort]| EndpointSlice {
            service: Some("db".to_owned()),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            endpoints: addresses.iter().map(|it| endpoint(it)).collect(),
            ports: ports.to_vec(),
        };
        let sql =
            [EndpointPort { name: Some("sql".to_owned()), protocol: Protocol::Tcp, port: 5432 }];
        let v4 = slice(&["192.0.2.1", "192.0.2.2"], &sql);
        assert_eq!(found, [v4, slice(&["fd00::1"], &sql), slice(&["192.0.2.3"], &[])]);
    }

    #[test]
    fn what_is_no_services_is_not_copied_and_a_subset_gives_a_thousand_addresses() {
        let subset = "{addresses: [{ip: 192.0.2.1}]}";
        for metadata in [
            ", labels: {endpointslice.kubernetes.io/skip-mirror: 'true'}",
            ", annotations: {control-plane.alpha.kubernetes.io/leader: '{}'}",
        ] {
            assert_eq!(slices(&endpoints(metadata, subset)), [], "{metadata}");
        }
        let copied = ", labels: {endpointslice.kubernetes.io/skip-mirror: 'false'}";
        assert_eq!(slices(&endpoints(copied, subset)).len(), 1);
        let many: Vec<String> =
            (0..1200).map(|n| format!("{{ip: 10.0.{}.{}}}", n / 250, n % 250)).collect();
        let found = slices(&endpoints("", &format!("{{addresses: [{}]}}", many.join(", "))));
        assert_eq!(found[0].addresses.len(), 1000);
        assert!(invalid(&endpoints("", "{addresses: [{ip: db.example.com}]}")).is_some());
    }
}
