//! Tests of the matrix's forms, with one small shop.

mod nets;

use super::graph::{Graph, MOST_LETTERS};
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

fn asked(output: Form) -> MatrixSettings {
    MatrixSettings {
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

fn of(asked: &MatrixSettings, name: &str, text: &str) -> Result<String, String> {
    let rendered = render(asked, &completed(name, text));
    rendered.map(|(text, _)| text).map_err(|error| error.to_string())
}

fn shop(asked: &MatrixSettings) -> String {
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
    let asked = MatrixSettings {
        from: texts(&["shop/*"]),
        to: texts(&["*/api", "*/db"]),
        ..asked(Form::Text)
    };
    insta::assert_snapshot!(shop(&asked));
}

#[test]
fn reasons_name_the_rule_and_its_place() {
    let asked = MatrixSettings { why: true, to: texts(&["shop/api"]), ..asked(Form::Text) };
    insta::assert_snapshot!(shop(&asked));
}

#[test]
fn the_other_forms_say_the_same() {
    insta::assert_snapshot!(
        "csv",
        shop(&MatrixSettings { to: texts(&["shop/*"]), why: true, ..asked(Form::Csv) })
    );
    insta::assert_snapshot!(
        "markdown",
        shop(&MatrixSettings { to: texts(&["shop/*"]), ..asked(Form::Markdown) })
    );
    insta::assert_snapshot!("markdown_list", shop(&asked(Form::Markdown)));
    let json = shop(&MatrixSettings { to: texts(&["shop/api"]), ..asked(Form::Json) });
    insta::assert_snapshot!("json", json);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schemaVersion"], 1);
}

#[test]
fn a_namespace_keeps_the_pairs_with_an_end_in_it() {
    let asked = MatrixSettings { namespace: texts(&["kube-system"]), ..asked(Form::Csv) };
    let text = shop(&asked);
    assert!(text.contains("kube-system/dns,shop/api,none\n"), "{text}");
    assert!(text.contains("shop/api,kube-system/dns,all\n"), "{text}");
    assert!(text.lines().skip(1).all(|line| line.contains("kube-system/")), "{text}");
}

#[test]
fn who_fits_no_pattern_is_told_what_is_expected() {
    let wrong = MatrixSettings { from: texts(&["nobody"]), ..asked(Form::Text) };
    insta::assert_snapshot!(of(&wrong, "shop.yaml", SHOP).unwrap_err(), @"no party fits --from and --namespace; expected NAMESPACE/POD, NAMESPACE/WORKLOAD, node, outside, a net or an address, such as kube-system/dns, shop/api, shop/db");
    let empty = of(&asked(Form::Text), "none.yaml", "").unwrap_err();
    assert!(empty.starts_with("nothing to show: there is no pod"), "{empty}");
}

#[test]
fn a_service_stands_for_its_endpoints() {
    let service = "---\n{apiVersion: v1, kind: Service, metadata: {name: front, namespace: shop}, spec: {selector: {app: api}, ports: [{port: 80}]}}\n";
    let text = format!("{SHOP}{service}");
    let of_service =
        |to: &[&str]| of(&MatrixSettings { to: texts(to), ..asked(Form::Csv) }, "shop.yaml", &text);
    assert_eq!(of_service(&["svc/shop/front"]), of_service(&["shop/api"]));
    assert_eq!(of_service(&["shop/db", "svc/shop/front"]), of_service(&["shop/db", "shop/api"]));
    insta::assert_snapshot!(of_service(&["svc/shop/none"]).unwrap_err(), @"there is no Service or EndpointSlice of shop/none in the manifests");
    insta::assert_snapshot!(of_service(&["svc/shop/front:http"]).unwrap_err(), @"svc/shop/front:http names a port, which belongs only to --to of `manx policy explain`: expected svc/shop/front");
    let from = MatrixSettings { from: texts(&["svc/shop/front:80"]), ..asked(Form::Csv) };
    assert!(of(&from, "shop.yaml", &text).unwrap_err().contains("expected svc/shop/front"));
}

#[test]
fn names_of_files_are_no_markup() {
    let evil = "<img src=x onerror=alert(1)>|`*_\".yaml";
    for form in [Form::Html, Form::Svg, Form::Markdown] {
        let text = of(&MatrixSettings { why: true, ..asked(form) }, evil, SHOP).unwrap();
        assert!(!text.contains("<img"), "{form:?}");
    }
    let html = of(&asked(Form::Html), evil, SHOP).unwrap();
    assert!(html.contains("\\u003cimg src=x onerror=alert(1)\\u003e|`*_"), "the path is in it");
    let markdown = of(&MatrixSettings { why: true, ..asked(Form::Markdown) }, evil, SHOP).unwrap();
    assert!(markdown.contains("&lt;img src=x onerror=alert(1)>\\|\\`\\*\\_\".yaml"), "{markdown}");
}

/// A rectangle of a picture: its left, upper, right and lower side.
type Rectangle = [usize; 4];

/// The rectangles of a class.
fn rectangles(svg: &str, class: &str) -> Vec<Rectangle> {
    let begin = format!("<rect class=\"{class}\"");
    let tags = svg.split(&begin).skip(1);
    tags.map(|tag| {
        let [x, y, width, height] = ["x", "y", "width", "height"].map(|name| {
            let value = tag.split(&format!(" {name}=\"")).nth(1).unwrap();
            value.split('"').next().unwrap().parse::<usize>().unwrap()
        });
        [x, y, x + width, y + height]
    })
    .collect()
}

fn is_inside(inner: Rectangle, outer: Rectangle) -> bool {
    inner[0] > outer[0] && inner[1] > outer[1] && inner[2] < outer[2] && inner[3] < outer[3]
}

fn overlap(all: &[Rectangle]) -> bool {
    let mut pairs =
        all.iter().enumerate().flat_map(|(at, a)| all[..at].iter().map(move |b| (a, b)));
    pairs.any(|(a, b)| a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3])
}

/// The namespaces of the frames.
fn frames(svg: &str) -> Vec<&str> {
    let names = svg.split("<g><title>").filter(|part| part.contains("<rect class=\"frame\""));
    names.map(|part| part.split('<').next().unwrap()).collect()
}

/// All texts in a picture.
fn lines(svg: &str) -> Vec<&str> {
    let texts = svg.split("<text ").skip(1);
    texts.map(|text| text.split(['>', '<']).nth(1).unwrap()).collect()
}

#[test]
fn namespaces_are_frames_that_hold_their_boxes() {
    let of_shop = ["kube-system", "shop"].map(str::to_owned).to_vec();
    let of_many: Vec<String> = (0..8).map(|number| format!("ns{number}")).collect();
    for (text, namespaces) in [(SHOP.to_owned(), of_shop), (two_hundred_pods(), of_many)] {
        let svg = of(&asked(Form::Svg), "shop.yaml", &text).unwrap();
        // Each namespace has a frame on the side of the sources and one on the side of the
        // destinations.
        let namespaces = namespaces.iter().map(String::as_str).chain(["nodes and outside"]);
        let expected: Vec<&str> = namespaces.flat_map(|name| [name, name]).collect();
        assert_eq!(frames(&svg), expected);
        let (frames, boxes) = (rectangles(&svg, "frame"), rectangles(&svg, "box"));
        assert!(!overlap(&frames), "{frames:?}");
        assert!(!overlap(&boxes), "{boxes:?}");
        for placed in &boxes {
            let around = frames.iter().filter(|frame| is_inside(*placed, **frame)).count();
            assert_eq!(around, 1, "{placed:?} of {frames:?}");
        }
        // A namespace begins at one height on both sides.
        assert!(frames.chunks(2).all(|pair| pair[0][1] == pair[1][1]), "{frames:?}");
        // The namespace is in the frame's title, so it is not in the box.
        let named = |line: &&str| line.starts_with("shop/") || line.starts_with("ns0/");
        assert_eq!(lines(&svg).into_iter().find(named), None);
    }
}

#[test]
fn what_holds_for_everybody_is_said_once() {
    let silent = "
---
{apiVersion: v1, kind: Pod, metadata: {name: silent, namespace: shop, labels: {app: silent}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.20}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: silent, namespace: shop}, spec: {podSelector: {matchLabels: {app: silent}}, policyTypes: [Egress]}}
";
    let svg = of(&asked(Form::Svg), "shop.yaml", &(SHOP.to_owned() + silent)).unwrap();
    for (source, line) in
        [("its own node", "\u{25b8} everyone: all"), ("silent", "\u{25b8} nothing")]
    {
        let lines = format!(">{source}</text>\n<text x=\"38\" ");
        let after = svg.split(&lines).nth(1).unwrap();
        assert!(after.split('>').nth(1).unwrap().starts_with(line), "{source} in {svg}");
        assert_eq!(svg.matches(line).count(), 1, "{source} in {svg}");
        assert!(!svg.contains(&format!("{source} -&gt;")), "{source} in {svg}");
    }
    // Without exceptions the text is in each destination's box, and there are no edges.
    let open: Vec<&str> = SHOP.split("---\n").filter(|it| !it.contains("NetworkPolicy")).collect();
    let svg = of(&asked(Form::Svg), "shop.yaml", &open.join("---\n")).unwrap();
    assert!(!svg.contains("<path") && !svg.contains('\u{25b8}'), "{svg}");
}

#[test]
fn a_long_name_is_shortened_in_the_middle_and_whole_on_hover() {
    let pod = "a-pod-".repeat(12) + "end";
    let namespace = "a-team-".repeat(8) + "end";
    let text = SHOP.replace("name: dns,", &format!("name: {pod},"));
    let text = text.replace("kube-system", &namespace);
    let svg = of(&asked(Form::Svg), "shop.yaml", &text).unwrap();
    assert!(svg.contains(&format!("<g><title>{namespace}</title><rect class=\"frame\"")), "{svg}");
    assert!(svg.contains(&format!("<g><title>{pod}</title><rect class=\"box\"")), "{svg}");
    let texts = lines(&svg);
    for end in ["-pod-end", "-team-end"] {
        assert!(texts.iter().any(|it| it.contains('\u{2026}') && it.ends_with(end)), "{svg}");
    }
    // Notes below the picture are wrapped if they are too long.
    assert!(texts.iter().all(|it| it.chars().count() <= 100 || it.contains(&pod)), "{svg}");
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
    let boxes = graph.sources.iter().chain(&graph.destinations);
    let mut lines = boxes.flat_map(|it| &it.lines);
    assert!(lines.all(|line| line.chars().count() <= MOST_LETTERS), "{graph:#?}");
    // Forty workloads are forty boxes on either side, and each destination has an edge from the app beside it and from
    // the namespace that may reach all: not the 1,600 of a complete graph.
    assert!(graph.edges.len() < 300, "{}", graph.edges.len());
    assert!(graph.height < 6000, "{}", graph.height);
    let svg = of(&asked(Form::Svg), "big.yaml", &text).unwrap();
    assert_eq!(svg.matches("<path").count(), graph.edges.len());
}

#[test]
fn a_graph_with_too_many_edges_says_how_many_it_leaves_out() {
    use std::fmt::Write as _;
    let mut text = String::new();
    for namespace in 0..50 {
        for role in ["client", "server"] {
            let _ = write!(
                text,
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {role}, namespace: ns{namespace}, labels: {{role: {role}}}}}, spec: {{containers: [{{name: c}}]}}}}\n---\n"
            );
        }
        let _ = write!(
            text,
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: ns{namespace}}}, spec: {{podSelector: {{matchLabels: {{role: server}}}}, \
             ingress: [{{from: [{{namespaceSelector: {{}}, podSelector: {{matchLabels: {{role: client}}}}}}], ports: [{{port: 80}}]}}]}}}}\n---\n"
        );
    }
    let svg = of(&asked(Form::Svg), "many.yaml", &text).unwrap();
    assert_eq!(svg.matches("<path").count(), 2_000);
    assert!(svg.contains(">500 edges are left out. Choose fewer with --namespace"), "{svg}");
}

#[test]
fn the_graph_of_the_shop() {
    insta::assert_snapshot!(shop(&asked(Form::Svg)));
}
