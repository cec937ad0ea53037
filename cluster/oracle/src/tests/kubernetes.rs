use super::cluster::{CLUSTER, ICMP, SCTP, TCP, UDP, address, db, lab, web};
use crate::{Oracle, Packet, Party, VerdictReason};
use manx_objects::contents::Contents;

fn oracle(policies: &[&str]) -> Oracle {
    let mut texts = vec![("cluster.yaml".to_owned(), CLUSTER.to_owned())];
    for (index, spec) in policies.iter().enumerate() {
        let text = format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
             metadata: {{name: p{index}, namespace: shop}}\nspec: {{{spec}}}\n"
        );
        texts.push((format!("p{index}.yaml"), text));
    }
    let texts = texts.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    Oracle::new(&Contents::from_texts(texts).objects)
}

fn allowed(policies: &[&str], from: &Party, to: &Party, protocol: u8, port: u16) -> bool {
    oracle(policies).judge(from, to, Packet::to_port(protocol, Some(port))).allowed()
}

#[test]
fn without_policies_everything_passes() {
    let judgement = oracle(&[]).judge(&web(), &db(), Packet::to_port(TCP, Some(80)));
    let profile = VerdictReason::DefaultProfile("kns.shop".to_owned());
    assert_eq!(judgement.egress.why, profile);
    assert_eq!(judgement.ingress.why, profile);
}

#[test]
fn both_sides_must_allow() {
    let egress_only = "policyTypes: [Egress], podSelector: {matchLabels: {app: web}}";
    assert!(!allowed(&[egress_only], &web(), &db(), TCP, 80));
    assert!(allowed(&[egress_only], &db(), &web(), TCP, 80));
    let ingress_only = "podSelector: {matchLabels: {app: db}}";
    assert!(!allowed(&[ingress_only], &web(), &db(), TCP, 80));
    assert!(allowed(&[ingress_only], &db(), &web(), TCP, 80));
}

#[test]
fn a_policy_isolates_only_pods_of_its_own_namespace() {
    assert!(allowed(&["podSelector: {}"], &web(), &lab(), TCP, 80));
    assert!(!allowed(&["podSelector: {}"], &lab(), &web(), TCP, 80));
}

#[test]
fn policy_types_default_to_ingress_and_to_egress_where_there_are_egress_rules() {
    assert!(allowed(&["egress: []"], &web(), &lab(), TCP, 80));
    assert!(!allowed(&["egress: [{ports: [{port: 81}]}]"], &web(), &lab(), TCP, 80));
    assert!(!allowed(&["policyTypes: [Egress], ingress: [{}]"], &web(), &lab(), TCP, 80));
    assert!(allowed(&["policyTypes: [Egress], ingress: []"], &lab(), &web(), TCP, 80));
}

#[test]
fn rules_add_up_and_the_first_is_named() {
    let judgement = oracle(&[
        "ingress: [{ports: [{port: 1}]}]",
        "ingress: [{ports: [{port: 2}]}, {ports: [{port: 80}]}]",
        "ingress: [{}]",
    ])
    .judge(&lab(), &web(), Packet::to_port(TCP, Some(80)));
    assert_eq!(judgement.ingress.to_string(), "allowed by shop/p1 ingress[1]");
}

#[test]
fn pod_selectors_stay_in_the_namespace_unless_a_namespace_selector_is_there() {
    let here = "ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]";
    assert!(!allowed(&[here], &lab(), &db(), TCP, 80));
    assert!(allowed(&[here], &web(), &db(), TCP, 80));
    let anywhere =
        "ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]}]";
    assert!(allowed(&[anywhere], &lab(), &db(), TCP, 80));
    let named = "ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: lab}}}]}]";
    assert!(allowed(&[named], &lab(), &db(), TCP, 80));
    assert!(!allowed(&[named], &web(), &db(), TCP, 80));
}

#[test]
fn selectors_never_match_what_is_no_pod() {
    let all = "ingress: [{from: [{namespaceSelector: {}}]}]";
    assert!(!allowed(&[all], &address("192.0.2.1"), &db(), TCP, 80));
    assert!(allowed(&["ingress: [{from: []}]"], &address("192.0.2.1"), &db(), TCP, 80));
}

#[test]
fn every_operator_means_what_the_documentation_says() {
    let from = |expression: &str, peer: &Party| {
        let spec = format!(
            "podSelector: {{matchLabels: {{app: db}}}}, \
             ingress: [{{from: [{{podSelector: {{matchExpressions: [{{{expression}}}]}}}}]}}]"
        );
        allowed(&[&spec], peer, &db(), TCP, 80)
    };
    for (expression, matches) in [
        ("key: app, operator: In, values: [x, web]", true),
        ("key: app, operator: In, values: [x]", false),
        ("key: other, operator: In, values: [web]", false),
        ("key: app, operator: NotIn, values: [x]", true),
        ("key: app, operator: NotIn, values: [web]", false),
        ("key: other, operator: NotIn, values: [web]", true),
        ("key: app, operator: Exists", true),
        ("key: other, operator: Exists", false),
        ("key: app, operator: DoesNotExist", false),
        ("key: other, operator: DoesNotExist", true),
    ] {
        assert_eq!(from(expression, &web()), matches, "{expression}");
    }
}

#[test]
fn blocks_match_addresses_whoever_has_them_and_exceptions_take_away() {
    let block = "egress: [{to: [{ipBlock: {cidr: 10.0.255.255/16, except: [10.0.2.0/24]}}]}], policyTypes: [Egress]";
    assert!(allowed(&[block], &web(), &db(), TCP, 80));
    assert!(!allowed(&[block], &web(), &lab(), TCP, 80));
    assert!(allowed(&[block], &web(), &address("10.0.3.255"), TCP, 80));
    assert!(!allowed(&[block], &web(), &address("10.1.0.0"), TCP, 80));
    let v6 = Party::Pod {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        address: "fd00::1".parse().unwrap(),
    };
    let all4 = "egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}], policyTypes: [Egress]";
    let all6 = "egress: [{to: [{ipBlock: {cidr: '::/0'}}]}], policyTypes: [Egress]";
    assert!(!allowed(&[all4], &v6, &address("2001:db8::1"), TCP, 80));
    assert!(allowed(&[all6], &v6, &address("2001:db8::1"), TCP, 80));
}

#[test]
fn ports_are_ranges_with_both_ends_and_of_one_protocol() {
    let spec = |ports: &str| format!("ingress: [{{ports: [{ports}]}}]");
    for (ports, protocol, port, expected) in [
        ("{port: 80}", TCP, 80, true),
        ("{port: 80}", TCP, 81, false),
        ("{port: 80}", UDP, 80, false),
        ("{port: 80, endPort: 82}", TCP, 80, true),
        ("{port: 80, endPort: 82}", TCP, 82, true),
        ("{port: 80, endPort: 82}", TCP, 83, false),
        ("{port: 80, endPort: 82}", TCP, 79, false),
        ("{protocol: SCTP}", SCTP, 9, true),
        ("{protocol: SCTP}", TCP, 9, false),
        ("{}", TCP, 9, true),
        ("{}", UDP, 9, false),
    ] {
        assert_eq!(allowed(&[&spec(ports)], &web(), &db(), protocol, port), expected, "{ports}");
    }
    let judge = |ports: &str| {
        oracle(&[&spec(ports)]).judge(&web(), &db(), Packet::to_port(ICMP, None)).allowed()
    };
    assert!(!judge("{}") && !judge("{protocol: UDP}"));
    assert!(oracle(&["ingress: [{}]"]).judge(&web(), &db(), Packet::to_port(ICMP, None)).allowed());
}

#[test]
fn a_port_name_is_the_destinations() {
    let egress = "egress: [{ports: [{port: http}]}], policyTypes: [Egress]";
    assert!(allowed(&[egress], &web(), &db(), TCP, 8080));
    assert!(!allowed(&[egress], &web(), &db(), TCP, 80));
    assert!(allowed(&[egress], &db(), &web(), TCP, 80));
    assert!(!allowed(&[egress], &db(), &lab(), TCP, 80));
    assert!(!allowed(&[egress], &db(), &address("192.0.2.1"), TCP, 80));
    let ingress = "ingress: [{ports: [{port: http}]}]";
    assert!(allowed(&[ingress], &lab(), &web(), TCP, 80));
    assert!(allowed(&[ingress], &lab(), &db(), TCP, 8080));
    assert!(!allowed(&[ingress], &lab(), &db(), TCP, 80));
    // A named port has only its own protocol, and may be a port of an init container.
    let dns =
        |protocol: &str| format!("ingress: [{{ports: [{{port: dns, protocol: {protocol}}}]}}]");
    assert!(allowed(&[&dns("UDP")], &lab(), &web(), UDP, 53));
    assert!(!allowed(&[&dns("TCP")], &lab(), &web(), TCP, 53));
}

#[test]
fn a_pod_reaches_itself_and_a_node_its_own_pods() {
    let closed = "policyTypes: [Ingress, Egress]";
    assert!(allowed(&[closed], &web(), &web(), TCP, 80));
    let node =
        |name: &str| Party::Node { name: name.to_owned(), address: "172.18.0.2".parse().unwrap() };
    assert!(allowed(&[closed], &node("node-1"), &web(), TCP, 80));
    assert!(!allowed(&[closed], &node("node-1"), &db(), TCP, 80));
    assert!(
        !allowed(&[closed], &web(), &node("node-1"), TCP, 80),
        "Calico judges the pod's egress"
    );
}

#[test]
fn an_invalid_policy_isolates_both_ways() {
    let broken = "podSelector: {matchLabels: {app: db}}, ingress: 5";
    assert!(!allowed(&[broken], &web(), &db(), TCP, 80));
    assert!(!allowed(&[broken], &db(), &web(), TCP, 80));
    assert!(allowed(&[broken], &lab(), &web(), TCP, 80));
    assert!(!allowed(&["podSelector: 5"], &lab(), &web(), TCP, 80));
}

#[test]
fn who_is_no_endpoint_passes_nothing() {
    let stranger = Party::Pod {
        namespace: "shop".to_owned(),
        name: "stranger".to_owned(),
        address: "10.0.9.9".parse().unwrap(),
    };
    let judgement = oracle(&[]).judge(&stranger, &web(), Packet::to_port(TCP, Some(80)));
    assert_eq!(judgement.egress.why, VerdictReason::NoEndpoint);
    assert!(!judgement.allowed());
}

#[test]
fn a_judgement_explains_itself() {
    let judgement =
        oracle(&["podSelector: {}"]).judge(&web(), &db(), Packet::to_port(TCP, Some(80)));
    insta::assert_snapshot!(judgement, @"denied: egress: no policy decides, and profile kns.shop allows everything; ingress: isolated by shop/p0, and no rule allows it");
}
