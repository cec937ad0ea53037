//! Nets and addresses outside: which are chosen, which are listed, and the result if there is no
//! pod.

use std::fmt::Write as _;

use super::*;
use manx_analysis::explain::packet;
use manx_api::explain::PacketSpec;
use manx_oracle::{Oracle, Party};

const PODS: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.244.1.7}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.244.1.8}}
";

/// An egress policy of the web with a port for each net.
fn naming(nets: &[&str]) -> String {
    let mut text = String::from(PODS);
    text.push_str("---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [");
    for (index, net) in nets.iter().enumerate() {
        let port = 1000 + index;
        let _ =
            write!(text, "{{to: [{{ipBlock: {{cidr: '{net}'}}}}], ports: [{{port: {port}}}]}}, ");
    }
    text + "]}}\n"
}

/// More kinds of nets than a matrix may have.
fn many() -> String {
    let mut nets = vec!["10.0.0.0/8".to_owned(), "192.0.2.0/24".to_owned()];
    nets.extend((0..30).map(|index| format!("10.{index}.0.0/16")));
    naming(&nets.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The destinations of the web, and what passes.
fn to(patterns: &[&str], text: &str) -> Vec<String> {
    let asked =
        MatrixSettings { from: texts(&["shop/web"]), to: texts(patterns), ..asked(Form::Csv) };
    match of(&asked, "nets.yaml", text) {
        Ok(csv) => csv.lines().skip(1).map(|line| line.replace("shop/web,", "")).collect(),
        Err(error) => vec![error],
    }
}

#[test]
fn a_net_or_address_chooses_what_holds_or_overlaps_it() {
    let few = naming(&["10.0.0.0/8", "192.0.2.0/24", "10.1.0.0/16"]);
    for text in [&few, &many()] {
        assert_eq!(to(&["192.0.2.7"], text), ["net 192.0.2.0/24,TCP 1001"]);
        assert_eq!(to(&["198.51.100.4"], text), ["outside,none"]);
        // This pattern overlaps no smaller net, so it chooses the net that holds it.
        assert_eq!(to(&["10.200.0.0/16"], text), ["net 10.0.0.0/8,TCP 1000"]);
        // This pattern chooses the net within it, and the rest of the world.
        assert_eq!(to(&["192.0.0.0/16"], text).len(), 2);
        // The address of a pod stands for the pod.
        assert_eq!(to(&["10.244.1.8"], text), ["shop/db,TCP 1000"]);
        let wrong = to(&["2001:db8::1"], text);
        assert!(wrong[0].starts_with("no party fits --to"), "{wrong:?}");
    }
    assert_eq!(
        to(&["10.0.0.0/8"], &few),
        ["net 10.0.0.0/8,TCP 1000", "net 10.1.0.0/16,\"TCP 1000, 1002\""]
    );
    assert_eq!(to(&["10.0.0.0/8"], &many()).len(), 31, "all that are within it");
    assert_eq!(
        to(&["10.3.0.0/15"], &many()),
        ["net 10.2.0.0/16,\"TCP 1000, 1004\"", "net 10.3.0.0/16,\"TCP 1000, 1005\""]
    );
    // Without a chosen net, so many nets are left out; the note says how to choose one.
    assert!(to(&["10.3*"], &many())[0].starts_with("no party fits --to"));
    let whole = of(&asked(Form::Text), "nets.yaml", &many()).unwrap().replace("\n  ", " ");
    let note = "Policies tell 32 kinds of nets apart, more than 24: here are those that --from and --to ask for by a net or address, 400 at most.";
    assert!(whole.contains(note), "{whole}");
}

#[test]
fn what_is_said_of_an_address_is_what_the_oracle_says() {
    let text = naming(&[
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.0/24",
        "10.1.2.3/32",
        "0.0.0.0/0",
        "192.0.2.0/24",
    ]);
    let contents = completed("nets.yaml", &text).contents;
    let oracle = Oracle::new(&contents.objects);
    let web = oracle.pods().find(|party| party.to_string().starts_with("shop/web")).unwrap();
    for address in
        ["10.9.9.9", "10.1.0.0", "10.1.2.2", "10.1.2.3", "10.1.2.4", "11.0.0.0", "192.0.2.255"]
    {
        let said = to(&[address], &text);
        let [said] = said.as_slice() else { panic!("{address}: {said:?}") };
        for port in 1000..1006 {
            let packet = packet(PacketSpec::Protocol(6, Some(port)), true, 49152);
            let expected =
                oracle.judge(&web, &Party::Address(address.parse().unwrap()), packet).allowed();
            let is_in = |range: &str| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse::<u16>().unwrap()..=last.parse().unwrap()).contains(&port)
            };
            let ranges = said.split("TCP ").nth(1).unwrap().trim_end_matches('"');
            assert_eq!(ranges.split(", ").any(is_in), expected, "{address} {port}: {said}");
        }
    }
}

#[test]
fn outside_is_an_address_of_a_host_in_no_net_that_is_named() {
    let documentation = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"];
    let text = of(&asked(Form::Text), "nets.yaml", &naming(&documentation)).unwrap();
    assert!(text.contains("outside: an address that no object names, asked as 1.0.0.0."), "{text}");
}

#[test]
fn json_has_the_whole_of_each_list() {
    let sets = naming(&["192.0.2.0/24"]).replace(
        "{ipBlock: {cidr: '192.0.2.0/24'}}",
        "{ipBlock: {cidr: 192.0.2.0/26}}, {ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: 203.0.113.0/28}}, \
         {ipBlock: {cidr: 203.0.113.64/28}}, {ipBlock: {cidr: 203.0.113.128/28}}",
    );
    let nodes = (3..9)
        .map(|number| format!("---\n{{apiVersion: v1, kind: Node, metadata: {{name: n{number}}}, spec: {{podCIDR: 10.244.{number}.0/24}}, status: {{addresses: [{{type: InternalIP, address: 172.18.0.{number}}}]}}}}\n"))
        .collect::<Vec<_>>()
        .concat();
    let done = "---\n{apiVersion: v1, kind: Pod, metadata: {name: done, namespace: shop}, spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Succeeded}}\n";
    let json = of(&asked(Form::Json), "nets.yaml", &format!("{sets}{nodes}{done}")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let party = |kind: &str| {
        let parties = json["parties"].as_array().unwrap();
        parties.iter().find(|party| party["kind"] == kind).unwrap().clone()
    };
    let nets = [
        "192.0.2.0/26",
        "198.51.100.0/24",
        "203.0.113.0/28",
        "203.0.113.64/28",
        "203.0.113.128/28",
    ];
    assert_eq!(party("nets")["nets"], serde_json::json!(nets));
    assert_eq!(
        party("nets")["name"],
        "nets 192.0.2.0/26, 198.51.100.0/24, 203.0.113.0/28 and 2 more"
    );
    assert_eq!(party("nodes")["nodes"].as_array().unwrap().len(), 7);
    assert_eq!(party("outside")["addresses"], serde_json::json!(["1.0.0.0"]));
    assert_eq!(json["leftOut"], serde_json::json!([{"pod": "shop/done", "why": "finished"}]));
}

#[test]
fn if_no_pod_counts_the_answer_says_what_there_is() {
    let told = |text: &str| of(&asked(Form::Text), "none.yaml", text).unwrap_err();
    let hosts = "
{apiVersion: v1, kind: Pod, metadata: {name: proxy, namespace: kube-system}, spec: {nodeName: n1, hostNetwork: true, containers: [{name: c}]}}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent, namespace: kube-system}, spec: {template: {spec: {hostNetwork: true, containers: [{name: c}]}}}}
";
    insta::assert_snapshot!(told(hosts), @"nothing to show: no pod of the manifests counts. 2 pods (kube-system/agent-n1, kube-system/proxy): on the host's network: it is its node.");
    let refused = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {nodeName: 5}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: api, namespace: shop}, spec: 5}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: db, namespace: shop}, spec: {replicas: 0, template: {spec: {containers: [{name: c}]}}}}
";
    insta::assert_snapshot!(told(refused), @"nothing to show: no pod of the manifests counts. 1 pod (shop/web): not valid, so nothing passes. 1 workload (Deployment shop/api): not valid, so it is not known which pods it has. 1 workload (Deployment shop/db): has no pod: scaled to 0, suspended, ended, or no node is selected. See the errors.");
}
