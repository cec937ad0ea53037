//! The endpoints of a service that a new connection may get, by the tables of the client's node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use manx_api::explain::PacketSpec;
use manx_calculation::services::{AddressKind, LeftOut};
use manx_objects::object::ObjectKey;
use manx_policy_compiler::model::ObjectName;

use super::Explainer;
use super::services::{Destination, Destinations};
use crate::services::{AgentSettings, ServiceTables, Translates};

/// A port of a service: the service, and the index among its ports.
pub(super) type PortOf<'a> = (&'a ObjectKey, usize);

impl<'a> Explainer<'a> {
    /// Returns the tables of services on the nodes.
    pub(super) fn tables(&self) -> &ServiceTables<'a> {
        self.services.get_or_init(|| {
            let settings = match &self.translates {
                Translates::Manx(settings) => settings.clone(),
                Translates::KubeProxy => AgentSettings::default(),
            };
            ServiceTables::with_routes(self.contents, Rc::clone(&self.routes), settings)
        })
    }

    /// Returns those ends of a service's port that clients of a node may get, with notes about the others. If clients
    /// get none, returns all ends, marked as dropped, with the reason. If the node has no tables, or if nodes do not
    /// translate the service, returns all ends unchanged.
    pub(super) fn backends(
        &self,
        ends: Vec<(String, PacketSpec)>,
        (key, index): PortOf<'_>,
        node: &str,
    ) -> Destinations {
        let tables = self.tables();
        let name = ObjectName::new(&key.namespace, &key.name);
        let view = tables.view(&name, node).ok().flatten().filter(|it| it.left_alone.is_none());
        let Some((is_known, port)) =
            view.and_then(|it| Some((it.is_known, it.ports.into_iter().nth(index)?)))
        else {
            return Destinations::passing(ends);
        };
        let mut notes = Vec::new();
        let mut fates: BTreeMap<IpAddr, Option<LeftOut>> = BTreeMap::new();
        let is_of_cluster = |it: AddressKind| it == AddressKind::ClusterIp;
        for choice in &port.choices {
            let mut frontends =
                choice.frontends.iter().filter(|it| is_of_cluster(it.kind)).peekable();
            if !choice.frontends.is_empty() && frontends.peek().is_none() {
                continue;
            }
            notes.extend(frontends.filter_map(|it| {
                let by = it.taken_by.as_ref()?;
                Some(format!("{} is not of {key} but of Service {by}, which is older", it.address))
            }));
            for it in &choice.endpoints {
                let fate = fates.entry(it.address).or_insert(it.left_out);
                *fate = (*fate).min(it.left_out);
            }
        }
        // An end that is in no slice has no entry in `fates`; policy alone decides about it.
        let why_not = |end: &str| {
            if !is_known {
                return Some(format!(
                    "an EndpointSlice of namespace {} is not valid",
                    key.namespace
                ));
            }
            let addresses = self.parties.named(end, &mut Vec::new()).unwrap_or_default();
            let fates = addresses.iter().filter_map(|it| fates.get(&it.address()));
            fates.min().copied().flatten().map(|why| why.to_string())
        };
        let all = ends.into_iter().map(|(end, packet)| {
            let why = why_not(&end);
            let dropped =
                why.map(|why| format!("clients of node {node} get no connection to it: {why}"));
            Destination { end, packet, dropped }
        });
        let mut ends: Vec<Destination> = all.collect();
        if ends.iter().any(|it| it.dropped.is_none()) {
            let left_out = ends.iter().filter_map(|it| Some((&it.end, it.dropped.as_ref()?)));
            notes.extend(left_out.map(|(end, why)| format!("{end} is left out: {why}")));
            ends.retain(|it| it.dropped.is_none());
        }
        Destinations { ends, notes }
    }
}

#[cfg(test)]
mod tests {
    use manx_objects::contents::Contents;

    use super::*;

    const OBJECTS: &str = "
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.1.0.0/16}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.1.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1}, status: {podIP: 10.1.1.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {nodeName: n1}, status: {podIP: 10.1.1.3}}
---
{apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {nodeName: n2}, status: {podIP: 10.1.2.3}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.7, POLICY ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, port: 53}, {name: dns-udp, port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: http, port: 8080}, {name: dns, port: 53}],
 endpoints: [{addresses: [10.1.1.3], nodeName: n1, conditions: {ready: READY}}, {addresses: [10.1.2.3], nodeName: n2}]}
";

    /// Returns the connections to a destination and the notes, as text.
    fn asked(objects: &str, from: &str, to: &str) -> String {
        let contents = Contents::from_texts([("objects.yaml", objects)]);
        let explainer = Explainer::new(&contents, &BTreeMap::new(), "eth0");
        let packet = PacketSpec::Protocol(6, Some(80));
        let found = explainer.connections(from, to, packet).unwrap();
        let ends = found.asked.into_iter().map(|it| {
            let PacketSpec::Protocol(_, Some(port)) = it.packet else { panic!("{:?}", it.packet) };
            let dropped = it.dropped.map(|why| format!(": {why}")).unwrap_or_default();
            format!("{} port {port}{dropped}", it.to)
        });
        ends.chain(found.notes).collect::<Vec<_>>().join("\n")
    }

    fn with(policy: &str, ready: &str) -> String {
        OBJECTS.replace("POLICY", policy).replace("READY", ready)
    }

    #[test]
    fn the_ends_of_a_service_are_those_that_the_clients_node_chooses() {
        let objects = with("", "true");
        insta::assert_snapshot!(asked(&objects, "a", "svc/web"), @"
        default/b port 8080
        default/c port 8080
        port 80 of Service default/web is port 8080 of its endpoints
        ");
        insta::assert_snapshot!(asked(&with("", "false"), "a", "10.96.0.7"), @"
        default/c port 8080
        10.96.0.7 is an address of Service default/web: judged at its endpoints
        port 80 of Service default/web is port 8080 of its endpoints
        default/b is left out: clients of node n1 get no connection to it: not ready
        ");
        let local = "internalTrafficPolicy: Local,";
        insta::assert_snapshot!(asked(&with(local, "true"), "c", "svc/default/web"), @"
        default/c port 8080
        port 80 of Service default/web is port 8080 of its endpoints
        default/b is left out: clients of node n2 get no connection to it: it is on another node, and the traffic policy is Local
        ");
        insta::assert_snapshot!(asked(&with(local, "false"), "a", "svc/default/web"), @"
        default/b port 8080: clients of node n1 get no connection to it: not ready
        default/c port 8080: clients of node n1 get no connection to it: it is on another node, and the traffic policy is Local
        port 80 of Service default/web is port 8080 of its endpoints
        ");
    }

    #[test]
    fn who_has_no_node_may_be_judged_at_every_endpoint() {
        insta::assert_snapshot!(asked(&with("", "false"), "192.0.2.1", "svc/default/web"), @"
        default/b port 8080
        default/c port 8080
        port 80 of Service default/web is port 8080 of its endpoints
        ");
    }

    #[test]
    fn a_slice_that_is_not_valid_leaves_no_end() {
        let broken = "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x}, addressType: 4}\n";
        insta::assert_snapshot!(asked(&(with("", "true") + broken), "a", "svc/web"), @"
        default/b port 8080: clients of node n1 get no connection to it: an EndpointSlice of namespace default is not valid
        default/c port 8080: clients of node n1 get no connection to it: an EndpointSlice of namespace default is not valid
        port 80 of Service default/web is port 8080 of its endpoints
        ");
    }

    #[test]
    fn an_older_service_that_has_the_address_is_named() {
        let older = "---\n{apiVersion: v1, kind: Service, metadata: {name: a, namespace: x, creationTimestamp: '2026-01-01T00:00:00Z'}, \
                     spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}}\n";
        let told = asked(&(with("", "true") + older), "a", "svc/web");
        let last = told.lines().last().unwrap();
        insta::assert_snapshot!(last, @"10.96.0.7 is not of Service default/web but of Service x/a, which is older");
    }

    #[test]
    fn a_port_of_a_service_is_named_by_its_name_or_number() {
        let objects = with("", "true");
        let contents = Contents::from_texts([("objects.yaml", objects.as_str())]);
        let explainer = Explainer::new(&contents, &BTreeMap::new(), "eth0");
        let found = |text: &str| explainer.service_port(text);
        let web = |service: &str, protocol, port| {
            Ok(Some((service.to_owned(), PacketSpec::Protocol(protocol, Some(port)))))
        };
        assert_eq!(found("svc/web:http"), web("svc/web", 6, 80));
        assert_eq!(found("svc/default/web:80"), web("svc/default/web", 6, 80));
        assert_eq!(found("svc/web:dns-udp"), web("svc/web", 17, 53));
        assert_eq!(found("svc/web"), Ok(None));
        assert_eq!(found("2001:db8::1"), Ok(None));
        insta::assert_snapshot!(found("svc/web:53").unwrap_err(), @"port 53 of Service default/web has several protocols: name the port, or give --port; found TCP 80, TCP 53, UDP 53");
        insta::assert_snapshot!(found("svc/web:x").unwrap_err(), @"Service default/web has no port x; found TCP 80, TCP 53, UDP 53");
        insta::assert_snapshot!(found("svc/b:80").unwrap_err(), @"there is no valid Service default/b in the manifests");
    }
}
