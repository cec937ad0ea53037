//! `v1` Endpoints: the older form of a service's endpoints, which the cluster copies to `EndpointSlices`.
//!
//! Source: Kubernetes documentation, "`EndpointSlices`", section "`EndpointSlice` mirroring", and the controller of that
//! name.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::cursor::{Cursor, Findings};
use super::metadata::Metadata;
use super::object::{EndpointSlice, Endpoints};
use super::service::port;
use super::syntax::{ADDRESS, address};

/// The label of Endpoints that are not copied.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// The annotation of Endpoints that only serve as a lock.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// The most addresses of a subset that are copied.
const MOST_ADDRESSES: usize = 1000;

const SUBSET: &[&str] = &["addresses", "notReadyAddresses", "ports"];
const ADDRESS_IGNORED: &[&str] = &["hostname", "nodeName", "targetRef"];

/// Reads Endpoints. As with slices, it does not matter whether an address is ready.
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

/// The slices of a subset: one for each family.
fn subset(cursor: &Cursor<'_>, name: &str, out: &mut Findings) -> Option<Vec<EndpointSlice>> {
    if !cursor.mapping(out, SUBSET, &[]) {
        return None;
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    for key in ["addresses", "notReadyAddresses"] {
        if let Some(field) = cursor.field(key) {
            addresses.extend(field.items(out, |item, out| {
                if !item.mapping(out, &["ip"], ADDRESS_IGNORED) {
                    return None;
                }
                item.required(out, "ip", ADDRESS)?.parsed(out, ADDRESS, address)
            }));
        }
    }
    addresses.truncate(MOST_ADDRESSES);
    let ports = cursor.field("ports").map(|field| field.items(out, port)).unwrap_or_default();
    let (v4, v6): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) =
        addresses.into_iter().partition(IpAddr::is_ipv4);
    let of_family = [v4, v6].into_iter().filter(|addresses| !addresses.is_empty());
    let slice = |addresses| EndpointSlice {
        service: Some(name.to_owned()),
        addresses,
        ports: ports.clone(),
    };
    Some(of_family.map(slice).collect())
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

    #[test]
    fn a_subset_is_a_slice_of_each_family_whether_its_addresses_are_ready_or_not() {
        let found = slices(&endpoints(
            "",
            "{addresses: [{ip: 192.0.2.1}, {ip: 'fd00::1', hostname: a}], notReadyAddresses: [{ip: 192.0.2.2}], \
             ports: [{name: sql, port: 5432}]}, {addresses: [{ip: 192.0.2.3}]}",
        ));
        let slice = |addresses: &[&str], ports: &[EndpointPort]| EndpointSlice {
            service: Some("db".to_owned()),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
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
