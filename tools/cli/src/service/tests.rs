//! The output about Services, with every reason.

use manx_analysis::services::{AgentSettings, ServiceTables};
use manx_assume::Options;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, ObjectKey};
use manx_policy_compiler::model::ObjectName;

use super::*;
use crate::policy::assume::Completed;

const NODES: &str = "
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.0/16, ipipMode: Never}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: za}}, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/zone: zb}}, spec: {podCIDR: 10.244.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {podCIDR: 10.244.3.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.4}]}}
";

const SERVICES: &str = "
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {type: LoadBalancer, clusterIP: 10.96.0.7, externalIPs: [198.51.100.3, 198.51.100.9], sessionAffinity: ClientIP, externalTrafficPolicy: Local, ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}, {name: metrics, port: 9100, nodePort: 22}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.7}, {ip: 192.0.2.8, ipMode: Proxy}, {ip: '2001:db8::7'}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: shop}, spec: {clusterIP: None, ports: [{port: 5432}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: outside, namespace: shop}, spec: {type: ExternalName, externalName: a.example.com}}
---
{apiVersion: v1, kind: Service, metadata: {name: other-proxy, namespace: shop, labels: {service.kubernetes.io/service-proxy-name: x}}, spec: {clusterIP: 10.96.0.5, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: by-label, namespace: shop, labels: {service.kubernetes.io/headless: ''}}, spec: {clusterIP: 10.96.0.6, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: zonal, namespace: shop}, spec: {clusterIP: 10.96.0.8, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: local, namespace: shop}, spec: {clusterIP: 10.96.0.9, internalTrafficPolicy: Local, ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: unready, namespace: shop}, spec: {clusterIPs: [10.96.0.10, 'fd00:96::10'], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: unborn, namespace: shop}, spec: {selector: {app: x}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: wrong, namespace: wrong}, spec: {clusterIP: ten, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: taken, namespace: z}, spec: {clusterIP: 10.96.0.8, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: of-pods, namespace: z}, spec: {clusterIP: 10.244.0.8, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: of-node, namespace: z}, spec: {clusterIP: 172.18.0.3, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: unknown, namespace: broken}, spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: broken, namespace: broken}, addressType: IPv4, endpoints: [{addresses: [ten]}]}
";

/// Slices of the namespace `shop`: the Service, the port, the endpoints.
const SLICES: [(&str, &str, &str); 4] = [
    (
        "web",
        "name: http, port: 8080",
        "{addresses: [10.244.1.2], nodeName: n1}, {addresses: [10.244.2.2], nodeName: n2}, \
         {addresses: [10.244.2.3], nodeName: n2, conditions: {ready: false}}, \
         {addresses: [10.244.2.4], nodeName: n2, conditions: {ready: false, serving: true, terminating: true}}, \
         {addresses: [169.254.169.254]}",
    ),
    (
        "zonal",
        "port: 80",
        "{addresses: [10.244.1.2], nodeName: n1, hints: {forZones: [{name: za}]}}, \
         {addresses: [10.244.2.2], nodeName: n2, hints: {forZones: [{name: zb}]}}",
    ),
    ("local", "port: 53, protocol: UDP", "{addresses: [10.244.2.2], nodeName: n2}"),
    ("unready", "port: 80", "{addresses: [10.244.1.2], conditions: {ready: false}}"),
];

fn objects() -> Completed {
    let slices = SLICES.map(|(service, port, endpoints)| {
        format!(
            "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {service}-1, namespace: shop, \
             labels: {{kubernetes.io/service-name: {service}}}}}, addressType: IPv4, ports: [{{{port}}}], \
             endpoints: [{endpoints}]}}\n"
        )
    });
    completed(&format!("{NODES}---{SERVICES}{}", slices.concat()))
}

fn completed(text: &str) -> Completed {
    let mut contents = Contents::from_texts([("objects.yaml", text)]);
    let assumed = manx_assume::complete(&mut contents, Options::default()).unwrap();
    let mut completed = Completed { contents, assumed };
    asked::with_cluster_ips(&mut completed);
    completed
}

fn tables<'a>(completed: &'a Completed, node: Option<&str>) -> ServiceTables<'a> {
    let external_ips = vec!["198.51.100.0/29".parse().unwrap()];
    let settings = AgentSettings { node_ports: (30_000, 32_767), external_ips };
    ServiceTables::new(&completed.contents, settings, node).unwrap()
}

fn shown(name: &str, node: Option<&str>) -> Result<String, String> {
    shown_of(&objects(), name, node)
}

fn shown_of(objects: &Completed, name: &str, node: Option<&str>) -> Result<String, String> {
    let (namespace, name) = name.split_once('/').unwrap();
    let tables = tables(objects, node);
    let shown = tables.shown(&ObjectName::new(namespace, name))?;
    let key = ObjectKey::new(Kind::Service, namespace, name);
    let assumed = objects.assumed.cluster_ips.get(&key).cloned().unwrap_or_default();
    Ok(show::render(&shown, &assumed))
}

fn listed(objects: &Completed) -> String {
    let rows = tables(objects, None).rows(&[]).unwrap();
    list::render(&rows, &objects.assumed.cluster_ips)
}

#[test]
fn every_port_has_a_row_and_one_without_backends_says_why() {
    let objects = objects();
    insta::assert_snapshot!("list", listed(&objects));
    let of_z = tables(&objects, None).rows(&["z".to_owned()]).unwrap();
    assert!(of_z.len() == 3 && of_z.iter().all(|it| it.name.namespace == "z"));
    let of_local = |node| {
        let rows = tables(&objects, Some(node)).rows(&["shop".to_owned()]).unwrap();
        rows.into_iter().find(|it| it.name.name == "local").unwrap().backends
    };
    assert_eq!(["n1", "n2", "n3"].map(of_local), [0, 1, 0]);
}

#[test]
fn a_service_is_told_with_every_address_and_endpoint_that_is_left_out_and_why() {
    insta::assert_snapshot!("web", shown("shop/web", None).unwrap());
    insta::assert_snapshot!("web_on_n3", shown("shop/web", Some("n3")).unwrap());
    let several = ["zonal", "local", "unready", "unborn"].map(|it| format!("shop/{it}"));
    let more = ["z/taken", "z/of-pods", "z/of-node", "broken/unknown"].map(str::to_owned);
    let told = several.iter().chain(&more).map(|it| shown(it, None).unwrap());
    insta::assert_snapshot!("several", told.collect::<Vec<_>>().join("\n"));
}

#[test]
fn what_is_left_alone_is_told_with_the_reason() {
    let told = ["headless", "outside", "other-proxy", "by-label"];
    let told = told.map(|it| shown(&format!("shop/{it}"), None).unwrap());
    let told: Vec<&str> = told.iter().map(|it| it.lines().nth(1).unwrap()).collect();
    insta::assert_snapshot!(told.join("\n"), @"
    not translated: headless (clusterIP: None)
    not translated: of type ExternalName
    not translated: its label service.kubernetes.io/service-proxy-name leaves it to another proxy
    not translated: its label service.kubernetes.io/headless says that nobody translates it
    ");
}

#[test]
fn a_service_or_node_that_is_not_there_is_told_with_those_that_are() {
    insta::assert_snapshot!(shown("z/web", None).unwrap_err(), @"Service z/web is not in the manifests; found shop/web, z/of-node, z/of-pods, z/taken");
    insta::assert_snapshot!(shown("wrong/wrong", None).unwrap_err(), @"Service wrong/wrong is not valid, so nothing of it is translated");
    let objects = objects();
    let settings = AgentSettings::default();
    let error = ServiceTables::new(&objects.contents, settings, Some("n9")).unwrap_err();
    insta::assert_snapshot!(error, @r#"there is no node "n9" in the manifests; found n1, n2, n3"#);
    let error = tables(&objects, None).rows(&["z".to_owned(), "nope".to_owned()]).unwrap_err();
    insta::assert_snapshot!(error, @"no Service in namespace nope; found broken, shop, wrong, z");
}

/// Manifests as users write them, which no API server has completed; and settings that a load
/// balancer needs.
const NEW: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: new, labels: {app: a}}, spec: {nodeName: n1}}
---
{apiVersion: v1, kind: Service, metadata: {name: ports, namespace: new}, spec: {type: NodePort, selector: {app: a}, externalIPs: [198.51.100.2, '2001:db8::2'], ports: [{name: http, port: 80, nodePort: 30080}, {name: low, port: 81, nodePort: 22}, {name: any, port: 82}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: plain, namespace: new}, spec: {selector: {app: a}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: new}, spec: {clusterIP: None, selector: {app: a}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: balanced, namespace: new, creationTimestamp: '2026-01-01T00:00:00Z'}, spec: {type: LoadBalancer, clusterIP: 10.96.0.2, selector: {app: a}, externalTrafficPolicy: Local, internalTrafficPolicy: Local, healthCheckNodePort: 31000, loadBalancerSourceRanges: [203.0.113.0/24, 192.0.2.0/28], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, ports: [{port: 80, nodePort: 30081}, {name: low, port: 81, nodePort: 23}]}, status: {loadBalancer: {ingress: [{ip: 198.51.100.4}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: second, namespace: new, creationTimestamp: '2026-01-02T00:00:00Z'}, spec: {type: LoadBalancer, clusterIP: 10.96.0.3, selector: {app: a}, externalTrafficPolicy: Local, healthCheckNodePort: 31000, loadBalancerSourceRanges: [203.0.113.0/24], ports: [{port: 80}]}}
";

#[test]
fn services_that_are_not_applied_yet_are_told_with_cluster_ips_that_are_assumed() {
    let objects = completed(&format!("{NODES}---{NEW}"));
    let notes = &objects.assumed.notes;
    assert!(
        notes.contains(&"no clusterIP: new/plain 10.43.0.2, new/ports 10.43.0.3".to_owned()),
        "{notes:?}"
    );
    let yaml = objects.assumed.yaml();
    assert!(yaml.contains("clusterIP: 10.43.0.3"), "{yaml}");
    insta::assert_snapshot!("not_applied", shown_of(&objects, "new/ports", None).unwrap());
}

#[test]
fn what_a_service_says_of_its_clients_is_told_where_it_counts() {
    let objects = completed(&format!("{NODES}---{NEW}"));
    insta::assert_snapshot!("clients_list", listed(&objects));
    let told = ["balanced", "second"].map(|it| {
        let told = shown_of(&objects, &format!("new/{it}"), None).unwrap();
        told.split("\n\n").next().unwrap().to_owned()
    });
    insta::assert_snapshot!(told.join("\n"), @"
    Service new/balanced: type LoadBalancer, internalTrafficPolicy Local, externalTrafficPolicy Local, sessionAffinity ClientIP for 60 s
    loadBalancerSourceRanges 203.0.113.0/24, 192.0.2.0/28: at the load balancer's addresses other clients get no answer
    healthCheckNodePort 31000: 200 on n1 (with ready endpoints), 503 on n2, n3 (without)
    Service new/second: type LoadBalancer, internalTrafficPolicy Cluster, externalTrafficPolicy Local
    its healthCheckNodePort 31000 is a port of Service new/balanced, which comes first, so it is not served: give one of them another
    ");
    let tables = tables(&objects, None);
    let json = |name| show::as_json(&tables.shown(&ObjectName::new("new", name)).unwrap(), &[]);
    let balanced = json("balanced");
    assert_eq!(balanced["source_ranges"], serde_json::json!(["203.0.113.0/24", "192.0.2.0/28"]));
    let check = &balanced["health_check"];
    assert_eq!(check["port"], 31_000);
    assert_eq!(check["nodes"][0]["ready_ipv4"], 1);
    assert_eq!(check["nodes"][0]["ready_ipv6"], serde_json::Value::Null);
    let second = json("second");
    assert!(second["health_check"]["left_out"].as_str().unwrap().contains("Service new/balanced"));
    let rows = list::as_json(&tables.rows(&[]).unwrap(), &objects.assumed.cluster_ips);
    let row = |name: &str| {
        let rows = rows["services"].as_array().unwrap();
        rows.iter().find(|it| it["name"] == name).unwrap().clone()
    };
    assert_eq!(row("plain")["assumed_addresses"], serde_json::json!(["10.43.0.2"]));
    assert_eq!(row("plain")["external_traffic_policy"], serde_json::Value::Null);
    assert_eq!(row("balanced")["external_traffic_policy"], "Local");
    assert_eq!(row("balanced")["affinity_s"], 60);
    assert_eq!(row("balanced")["health_check_port"], 31_000);
}

#[test]
fn in_json_nodes_are_named() {
    let objects = objects();
    let tables = tables(&objects, None);
    let shown = tables.shown(&ObjectName::new("shop", "local")).unwrap();
    let json = show::as_json(&shown, &[]);
    let group = &json["ports"][0]["groups"][0];
    assert_eq!(group["endpoints"][0]["backend_for"], serde_json::json!(["n2"]));
    assert_eq!(group["endpoints"][0]["left_out"][0]["nodes"], serde_json::json!(["n1", "n3"]));
    assert_eq!(group["dropped"], serde_json::json!(["n1", "n3"]));
    assert_eq!(group["frontends"][0]["address"], "10.96.0.9");
}
