//! The forms, and what they say of one small shop.

mod nets;

use super::svg::Graph;
use super::*;
use crate::policy::live::Live;
use manx_objects::contents::Contents;

const SHOP: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.1.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-abc-1, namespace: shop, labels: {app: web, pod-template-hash: abc}, ownerReferences: [{kind: ReplicaSet, name: web-abc, controller: true}]}, spec: {nodeName: n1, containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-abc-2, namespace: shop, labels: {app: web, pod-template-hash: abc}, ownerReferences: [{kind: ReplicaSet, name: web-abc, controller: true}]}, spec: {nodeName: n2, containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}, status: {podIPs: [{ip: 10.1.1.9}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.2.9}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: dns, namespace: kube-system, labels: {app: dns}}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.2.8}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: proxy, namespace: kube-system}, spec: {nodeName: n2, hostNetwork: true, containers: [{name: c}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: api, namespace: shop}, spec: {podSelector: {matchLabels: {app: api}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: http}]}, {from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}], ports: [{port: 443, endPort: 445}]}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 5432}]}], egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: dns}}}], ports: [{port: 53, protocol: UDP}, {port: 53}]}]}}
";

fn asked(output: Form) -> MatrixOf {
    MatrixOf {
        from: Vec::new(),
        to: Vec::new(),
        namespace: Vec::new(),
        why: false,
        output,
        assume: Assume::default(),
        manifests: Manifests { recursive: false, paths: Vec::new(), live: Live::default() },
    }
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn completed(name: &str, text: &str) -> Completed {
    Completed::new(Contents::from_texts([(name, text)]), None).unwrap()
}

fn of(asked: &MatrixOf, name: &str, text: &str) -> Result<String, String> {
    let rendered = render(asked, &completed(name, text));
    rendered.map(|(text, _)| text).map_err(|error| error.to_string())
}

fn shop(asked: &MatrixOf) -> String {
    of(asked, "shop.yaml", SHOP).unwrap()
}

/// 200 pods in 8 namespaces of 5 workloads, with a policy for each workload.
fn two_hundred_pods() -> String {
    use std::fmt::Write as _;
    let mut text = String::from(
        "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.0.0/16}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}\n",
    );
    for namespace in 0..8 {
        for app in 0..5 {
            for pod in 0..5 {
                let _ = write!(
                    text,
                    "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: app{app}-{pod}, namespace: ns{namespace}, labels: {{app: app{app}}}, \
                     ownerReferences: [{{kind: StatefulSet, name: app{app}, controller: true}}]}}, spec: {{nodeName: n1, containers: [{{name: c}}]}}}}\n"
                );
            }
            let next = (app + 1) % 5;
            let _ = write!(
                text,
                "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: app{app}, namespace: ns{namespace}}}, \
                 spec: {{podSelector: {{matchLabels: {{app: app{app}}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: app{next}}}}}}}], ports: [{{port: 80{app}}}]}}, \
                 {{from: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: ns0}}}}}}], ports: [{{port: 9090}}]}}]}}}}\n"
            );
        }
    }
    text
}

#[test]
fn equal_rows_stand_together_and_most_destinations_are_everything_else() {
    insta::assert_snapshot!(shop(&asked(Form::Text)));
}

#[test]
fn what_fits_is_a_table() {
    let asked =
        MatrixOf { from: texts(&["shop/*"]), to: texts(&["*/api", "*/db"]), ..asked(Form::Text) };
    insta::assert_snapshot!(shop(&asked));
}

#[test]
fn reasons_name_the_rule_and_its_place() {
    let asked = MatrixOf { why: true, to: texts(&["shop/api"]), ..asked(Form::Text) };
    insta::assert_snapshot!(shop(&asked));
}

#[test]
fn the_other_forms_say_the_same() {
    insta::assert_snapshot!(
        "csv",
        shop(&MatrixOf { to: texts(&["shop/*"]), why: true, ..asked(Form::Csv) })
    );
    insta::assert_snapshot!(
        "markdown",
        shop(&MatrixOf { to: texts(&["shop/*"]), ..asked(Form::Markdown) })
    );
    insta::assert_snapshot!("markdown_list", shop(&asked(Form::Markdown)));
    let json = shop(&MatrixOf { to: texts(&["shop/api"]), ..asked(Form::Json) });
    insta::assert_snapshot!("json", json);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schemaVersion"], 1);
}

#[test]
fn a_namespace_keeps_the_pairs_with_an_end_in_it() {
    let asked = MatrixOf { namespace: texts(&["kube-system"]), ..asked(Form::Csv) };
    let text = shop(&asked);
    assert!(text.contains("kube-system/dns,shop/api,none\n"), "{text}");
    assert!(text.contains("shop/api,kube-system/dns,all\n"), "{text}");
    assert!(text.lines().skip(1).all(|line| line.contains("kube-system/")), "{text}");
}

#[test]
fn who_fits_no_pattern_is_told_what_is_expected() {
    let wrong = MatrixOf { from: texts(&["nobody"]), ..asked(Form::Text) };
    insta::assert_snapshot!(of(&wrong, "shop.yaml", SHOP).unwrap_err(), @"no party fits --from and --namespace; expected NAMESPACE/POD, NAMESPACE/WORKLOAD, node, outside, a net or an address, such as kube-system/dns, shop/api, shop/db");
    let empty = of(&asked(Form::Text), "none.yaml", "").unwrap_err();
    assert!(empty.starts_with("nothing to show: there is no pod"), "{empty}");
}

#[test]
fn names_of_files_are_no_markup() {
    let evil = "<img src=x onerror=alert(1)>|`*_\".yaml";
    for form in [Form::Html, Form::Svg, Form::Markdown] {
        let text = of(&MatrixOf { why: true, ..asked(form) }, evil, SHOP).unwrap();
        assert!(!text.contains("<img"), "{form:?}");
    }
    let html = of(&asked(Form::Html), evil, SHOP).unwrap();
    assert!(html.contains("\\u003cimg src=x onerror=alert(1)\\u003e|`*_"), "the path is in it");
    let markdown = of(&MatrixOf { why: true, ..asked(Form::Markdown) }, evil, SHOP).unwrap();
    assert!(markdown.contains("&lt;img src=x onerror=alert(1)>\\|\\`\\*\\_\".yaml"), "{markdown}");
}

#[test]
fn the_graph_of_two_hundred_pods_is_legible() {
    let text = two_hundred_pods();
    let Completed { contents, .. } = completed("big.yaml", &text);
    let matrix = Matrix::new(&contents);
    assert_eq!((matrix.pods, matrix.parties.len()), (200, 43), "{:?}", matrix.parties);
    let filter = Filter::default();
    let view = View::new(&matrix, &filter);
    let graph = Graph::new(&Shown { matrix: &matrix, view, why: false, notes: Vec::new() });
    assert!(graph.is_legible(), "{graph:#?}");
    // Forty workloads are forty boxes on either side, and each destination has an edge from the app beside it and from
    // the namespace that may reach all: not the 1,600 of a complete graph.
    assert!(graph.edges.len() < 300, "{}", graph.edges.len());
    assert!(graph.height() < 6000, "{}", graph.height());
    let svg = of(&asked(Form::Svg), "big.yaml", &text).unwrap();
    assert_eq!(svg.matches("<path").count(), graph.edges.len());
}

#[test]
fn the_graph_of_the_shop() {
    insta::assert_snapshot!(shop(&asked(Form::Svg)));
}
