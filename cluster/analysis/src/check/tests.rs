//! The problems of all objects together, and correct input that has no problem. `docs/check.md` has an example of each
//! code.

mod made_pods;
mod meant;
mod ordered;
mod selectors;

use std::fmt::Write as _;

use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::problem::Severity;

use super::problems;

/// An object that a whole cluster has, but a part of a cluster does not.
const WHOLE: &str = "---\n{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}\n";

/// Returns the problems, one per line, without places.
pub(super) fn told(text: &str) -> String {
    let contents = Contents::from_texts([("all.yaml", text)]);
    assert!(contents.in_sync, "{:#?}", contents.problems);
    let mut lines = String::new();
    let errors = contents.problems.iter().filter(|it| it.severity == Severity::Error);
    let all = errors.cloned().chain(problems(&contents));
    // Every valid host endpoint has this problem.
    for problem in all.filter(|problem| problem.code() != Code::HostPolicyNotEnforced) {
        let object = problem.object.as_ref().map_or("input".to_owned(), ToString::to_string);
        writeln!(lines, "{}: {object}: {}: {}", problem.code(), problem.field, problem.cause)
            .unwrap();
    }
    lines
}

fn pod(namespace: &str, name: &str, labels: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}, spec: {{{spec}}}}}\n"
    )
}

fn policy(namespace: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: {namespace}}}, spec: {{{spec}}}}}\n"
    )
}

pub(super) fn global(spec: &str) -> String {
    format!(
        "---\n{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: g}}, spec: {{{spec}}}}}\n"
    )
}

#[test]
fn a_selector_that_matches_nothing_says_which_label_is_missing() {
    let pods =
        pod("shop", "web", "app: web, tier: front", "") + &pod("far", "db", "app: db", "") + WHOLE;
    let of = |spec: &str| told(&(pods.clone() + &policy("shop", spec)));
    insta::assert_snapshot!(of("podSelector: {matchLabels: {app: db}}"), @"selector-matches-nothing: NetworkPolicy shop/p: spec.podSelector: selects nothing, so the policy has no effect: no pod in namespace shop has the label app=db (its values there: web); pod far/db fits, and a policy selects in its own namespace only");
    insta::assert_snapshot!(of("podSelector: {matchExpressions: [{key: role, operator: Exists}]}"), @"selector-matches-nothing: NetworkPolicy shop/p: spec.podSelector: selects nothing, so the policy has no effect: no pod in namespace shop has the label role");
    insta::assert_snapshot!(of("podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}]}]"), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no namespace with a pod in the input has the label team=a");
    insta::assert_snapshot!(of("podSelector: {}, egress: [{}, {to: [{podSelector: {}}, {podSelector: {matchLabels: {app: db}}}], ports: [{port: 80}, {port: 53, protocol: UDP}]}]"), @"selector-matches-nothing: NetworkPolicy shop/p: spec.egress[1].to[1]: matches nothing: no pod in namespace shop has the label app=db (its values there: web); pod far/db fits: a namespaceSelector beside the podSelector reaches it (matchLabels: {kubernetes.io/metadata.name: far})");
    let global = global("selector: app == 'web' && tier == 'back'");
    insta::assert_snapshot!(told(&(pods.clone() + &global)), @"selector-matches-nothing: GlobalNetworkPolicy g: spec.selector: selects nothing, so the policy has no effect: no pod in the input has the label tier=back (its values there: front); without it pod shop/web fits");
    for fine in [
        "podSelector: {matchLabels: {app: web}}",
        "podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}",
        "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: far}}}]}]",
    ] {
        assert_eq!(of(fine), "", "{fine}");
    }
}

#[test]
fn without_pods_or_with_labels_that_are_not_known_nothing_is_told_of_selectors() {
    let wrong = policy("shop", "podSelector: {matchLabels: {app: db}}");
    assert_eq!(told(&wrong), "");
    let set = "---\n{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: s}, spec: {}}\n";
    assert_eq!(told(&(wrong.clone() + set)), "");
    let web = pod("shop", "web", "app: web", "");
    assert!(told(&(wrong.clone() + &web)).starts_with("selector-matches-nothing"));
    let invalid = pod("shop", "broken", "app: [db]", "");
    let told = told(&(wrong + &web + &invalid));
    assert!(
        told.starts_with("unexpected-value: Pod shop/broken") && told.lines().count() == 1,
        "{told}"
    );
}

#[test]
fn pods_that_will_be_and_pods_that_have_ended_are_matches_and_pods_on_the_host_are_not() {
    let by =
        policy("shop", "podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: sql}]}]");
    let template = "{metadata: {labels: {app: db}}, spec: {containers: [{name: c, ports: [{name: sql, containerPort: 5432}]}]}}";
    for (kind, version, spec) in [
        ("Deployment", "apps/v1", format!("{{template: {template}}}")),
        (
            "CronJob",
            "batch/v1",
            format!("{{suspend: true, jobTemplate: {{spec: {{template: {template}}}}}}}"),
        ),
    ] {
        let workload = format!(
            "---\n{{apiVersion: {version}, kind: {kind}, metadata: {{name: db, namespace: shop}}, spec: {spec}}}\n"
        );
        assert_eq!(told(&(by.clone() + &workload)), "", "{kind}");
        assert!(
            told(&(by.replace("sql", "slq") + &workload)).starts_with("no-such-port"),
            "{kind}"
        );
    }
    let ended = "---\n{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, labels: {app: db}}, status: {phase: Succeeded}}\n";
    assert_eq!(told(&(policy("shop", "podSelector: {matchLabels: {app: db}}") + ended)), "");
    let host = pod("shop", "a", "app: db", "hostNetwork: true");
    insta::assert_snapshot!(told(&(by + &host)), @"only-host-network: NetworkPolicy shop/p: spec.podSelector: selects only pods on their nodes' network (hostNetwork), such as pod shop/a, to which no policy applies");
}

#[test]
fn a_global_policy_may_mean_host_endpoints_only() {
    let host = "---\n{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {edge: 'yes'}}, spec: {node: n1, interfaceName: eth0, ports: [{name: ssh, protocol: TCP, port: 22}]}}\n";
    let rule = "ingress: [{action: Allow, protocol: TCP, destination: {ports: [ssh]}}]";
    assert_eq!(told(&(global(&format!("selector: edge == 'yes', {rule}")) + host)), "");
    assert!(
        told(&(global("selector: edge == 'no'") + host)).starts_with("selector-matches-nothing")
    );
}

#[test]
fn a_port_is_looked_for_where_the_rule_looks_and_of_its_protocol() {
    let web = pod(
        "shop",
        "web",
        "app: web",
        "containers: [{name: c, ports: [{name: http, containerPort: 80}]}]",
    );
    let dns = pod(
        "shop",
        "dns",
        "app: dns",
        "containers: [{name: c, ports: [{name: dns, containerPort: 53, protocol: UDP}]}]",
    );
    let of = |spec: &str| told(&(web.clone() + &dns + &policy("shop", spec)));
    insta::assert_snapshot!(of("podSelector: {matchLabels: {app: dns}}, ingress: [{ports: [{port: 80}, {port: http}]}]"), @"no-such-port: NetworkPolicy shop/p: spec.ingress[0].ports[1]: no container of the pods that this rule is about has a port named http of TCP, so it matches nothing by it: they have dns (UDP)");
    insta::assert_snapshot!(of("podSelector: {}, egress: [{to: [{podSelector: {matchLabels: {app: dns}}}], ports: [{port: dns}]}]"), @"no-such-port: NetworkPolicy shop/p: spec.egress[0].ports[0]: no container of the pods that this rule is about has a port named dns of TCP, so it matches nothing by it: they have dns (UDP)");
    for fine in [
        "podSelector: {}, ingress: [{ports: [{port: http}]}]",
        "podSelector: {matchLabels: {app: web}}, egress: [{ports: [{port: dns, protocol: UDP}]}]",
        // The ports behind an address are not known.
        "podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: http}]}]",
    ] {
        assert_eq!(of(fine), "", "{fine}");
    }
}

#[test]
fn a_policys_namespace_is_defined_or_has_more_than_policies() {
    let policy = policy("shop", "podSelector: {}");
    let elsewhere = pod("far", "a", "", "");
    insta::assert_snapshot!(told(&(policy.clone() + &elsewhere)), @"no-such-namespace: NetworkPolicy shop/p: metadata.namespace: namespace shop is not defined: the policy selects nothing");
    // The input contains only policies.
    assert_eq!(told(&policy), "");
    let namespace = "---\n{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n";
    assert_eq!(told(&(policy.clone() + &elsewhere + namespace)), "");
    assert_eq!(told(&(policy.clone() + &pod("shop", "a", "", ""))), "");
    assert_eq!(told(&(policy.replace("shop", "kube-system") + &elsewhere)), "");
    // One cause is reported as one problem.
    let wrong = policy.replace("{}}", "{matchLabels: {app: web}}}");
    assert_eq!(told(&(wrong + &elsewhere)).lines().count(), 1);
}

#[test]
fn a_node_that_many_pods_name_is_told_once() {
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n1}}\n";
    let pods = ["a", "b", "c"].map(|name| pod("shop", name, "", "nodeName: n2")).concat();
    insta::assert_snapshot!(told(&(node.to_owned() + &pods)), @"no-such-node: Pod shop/a: spec.nodeName: node n2 is not defined: no agent attaches this pod and 2 others, and nothing is routed to them");
    assert_eq!(told(&pods), "");
    assert_eq!(told(&(node.to_owned() + &pods.replace("n2", "n1"))), "");
}

#[test]
fn an_address_of_two_pods_that_run_is_told_at_the_second() {
    let pod = |name: &str, phase: &str, spec: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}, status: {{phase: {phase}, podIPs: [{{ip: 10.0.0.1}}, {{ip: 'fd00::1'}}]}}}}\n"
        )
    };
    let first = pod("a", "Running", "");
    insta::assert_snapshot!(told(&(first.clone() + &pod("b", "Running", ""))), @"shared-address: Pod default/b: status.podIPs: its address 10.0.0.1 is also Pod default/a's: what a rule says of one of them holds for both, and packets reach one only");
    assert_eq!(told(&(first.clone() + &pod("b", "Succeeded", ""))), "");
    assert_eq!(told(&(first + &pod("b", "Running", "hostNetwork: true"))), "");
}

#[test]
fn a_pass_that_skips_no_policy_of_kubernetes_is_not_told() {
    let closed = policy("shop", "podSelector: {}");
    let of = |head: &str, action: &str| {
        told(
            &(closed.clone()
                + &global(&format!(
                    "selector: all(), {head}ingress: [{{action: Log}}, {{action: {action}}}]"
                ))),
        )
    };
    insta::assert_snapshot!(of("order: 5, ", "next-tier"), @"pass-skips-policies: GlobalNetworkPolicy g: spec.ingress[1].action: Pass goes on after tier default, so NetworkPolicy shop/p, which is in this tier, too, is not asked: what no later tier denies, the namespace's profile allows");
    assert!(of("order: 5, ", "Allow").starts_with("allow-skips-policies"));
    // The rule comes after Kubernetes' policies, which have the order 1000.
    assert_eq!(of("", "Pass"), "");
    assert_eq!(of("order: 2000, ", "Pass"), "");
    let tier = "---\n{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: t}, spec: {order: 1}}\n";
    assert_eq!(
        told(
            &(closed.clone()
                + tier
                + &global("tier: t, order: 5, selector: all(), ingress: [{action: Pass}]"))
        ),
        ""
    );
    // The Kubernetes policy has no egress rules.
    assert_eq!(
        told(&(closed + &global("order: 5, selector: all(), egress: [{action: Pass}]"))),
        ""
    );
}

#[test]
fn nodes_of_a_cluster_wide_policy_that_fit_no_node_are_told_and_other_peers_keep_their_place() {
    let node = |name: &str, labels: &str, address: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{{labels}}}}}, status: {{addresses: [{address}]}}}}\n"
        )
    };
    let policy = |to: &str| {
        format!(
            "---\n{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: c}}, spec: {{tier: Admin, priority: 1, subject: {{namespaces: {{}}}}, egress: [{{action: Deny, to: [{to}]}}]}}}}\n"
        )
    };
    let nodes = node("n1", "zone: a, disk: ssd", "{type: InternalIP, address: 172.18.0.2}")
        + &node("n2", "zone: b", "{type: Hostname, address: n2}")
        + &pod("shop", "web", "app: web", "");
    let of = |to: &str| told(&(nodes.clone() + &policy(to)));
    insta::assert_snapshot!(of("{nodes: {matchLabels: {zone: c}}}"), @"nodes-match-nothing: ClusterNetworkPolicy c: spec.egress[0].to[0].nodes: matches nothing: no Node has the label zone=c (the values of Nodes: a, b)");
    insta::assert_snapshot!(of("{nodes: {matchExpressions: [{key: role, operator: Exists}]}}"), @"nodes-match-nothing: ClusterNetworkPolicy c: spec.egress[0].to[0].nodes: matches nothing: no Node has the label role");
    insta::assert_snapshot!(of("{nodes: {matchLabels: {zone: b, disk: ssd}}}"), @"nodes-match-nothing: ClusterNetworkPolicy c: spec.egress[0].to[0].nodes: matches nothing: no Node fits all of it; without zone=b Node n1 fits; it has zone=a");
    insta::assert_snapshot!(of("{nodes: {matchLabels: {zone: b}}}"), @"nodes-match-nothing: ClusterNetworkPolicy c: spec.egress[0].to[0].nodes: matches nothing: Node n2 has these labels and no address");
    insta::assert_snapshot!(of("{nodes: {matchLabels: {zone: c}}}, {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: wbe}}}}"), @r"
    nodes-match-nothing: ClusterNetworkPolicy c: spec.egress[0].to[0].nodes: matches nothing: no Node has the label zone=c (the values of Nodes: a, b)
    selector-matches-nothing: ClusterNetworkPolicy c: spec.egress[0].to[1]: matches nothing: no pod in the input has the label app=wbe (its values there: web)
    ");
    for fine in ["{nodes: {}}", "{nodes: {matchLabels: {zone: a}}}"] {
        assert_eq!(of(fine), "", "{fine}");
    }
    // Without any Node, nodes are not part of the input.
    assert_eq!(told(&policy("{nodes: {matchLabels: {zone: c}}}")), "");
}
