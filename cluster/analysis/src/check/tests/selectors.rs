//! The reasons why selectors match nothing, and the advice in the messages.

use super::{WHOLE, global, pod, policy, told};

fn namespace(name: &str, labels: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{{labels}}}}}}}\n"
    )
}

/// Returns a network set, in a namespace if one is given.
fn set(namespace: &str, labels: &str) -> String {
    let (kind, of) = match namespace {
        "" => ("GlobalNetworkSet", String::new()),
        name => ("NetworkSet", format!(", namespace: {name}")),
    };
    format!(
        "---\n{{apiVersion: projectcalico.org/v3, kind: {kind}, metadata: {{name: s{of}, labels: {{{labels}}}}}, spec: {{nets: [192.0.2.0/24]}}}}\n"
    )
}

fn calico(namespace: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {{name: c, namespace: {namespace}}}, spec: {{{spec}}}}}\n"
    )
}

fn cluster(spec: &str) -> String {
    format!(
        "---\n{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: c}}, spec: {{tier: Admin, priority: 1, subject: {{namespaces: {{}}}}, {spec}}}}}\n"
    )
}

fn host(labels: &str) -> String {
    format!(
        "---\n{{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {{name: h, labels: {{{labels}}}}}, spec: {{node: n1, interfaceName: eth0}}}}\n"
    )
}

/// Returns a policy for every pod of the namespace `shop` with this peer.
fn from(peer: &str) -> String {
    policy("shop", &format!("podSelector: {{}}, ingress: [{{from: [{peer}]}}]"))
}

#[test]
fn a_policy_that_fits_only_network_sets_selects_nothing() {
    let everywhere = global("selector: bad == 'yes'");
    let web = pod("shop", "web", "app: web", "");
    let sets = set("", "bad: 'yes'");
    insta::assert_snapshot!(told(&(everywhere.clone() + &sets + &web)), @"selector-matches-nothing: GlobalNetworkPolicy g: spec.selector: selects nothing, so the policy has no effect: it fits only network sets (such as GlobalNetworkSet s), to which no policy applies; a rule's source or destination selects them");
    // The message is the same with only the set.
    assert_eq!(told(&(everywhere.clone() + &sets)), told(&(everywhere.clone() + &sets + &web)));
    let namespaced = calico("shop", "selector: bad == 'yes'") + &web;
    insta::assert_snapshot!(told(&(namespaced.clone() + &set("shop", "bad: 'yes'"))), @"selector-matches-nothing: NetworkPolicy shop/c: spec.selector: selects nothing, so the policy has no effect: it fits only network sets (such as NetworkSet shop/s), to which no policy applies; a rule's source or destination selects them");
    let by_namespace = global("namespaceSelector: team == 'a'");
    let team = namespace("far", "team: a") + &set("far", "bad: 'yes'") + &web;
    insta::assert_snapshot!(told(&(by_namespace + &team)), @"selector-matches-nothing: GlobalNetworkPolicy g: spec.namespaceSelector: selects nothing, so the policy has no effect: it fits only network sets (such as NetworkSet far/s), to which no policy applies; a rule's source or destination selects them");
    for fine in [
        everywhere.clone() + &sets + &pod("shop", "web", "bad: 'yes'", ""),
        everywhere + &sets + &host("bad: 'yes'"),
        // The selector names no label of the set, so it may be meant for host endpoints that Calico
        // makes.
        global("selector: '!has(projectcalico.org/namespace)'") + &sets + &web,
        calico("shop", "selector: all()") + &set("shop", "bad: 'yes'"),
        global(
            "selector: all(), ingress: [{action: Deny, source: {selector: bad == 'yes'}}, {action: Allow}]",
        ) + &sets
            + &web,
    ] {
        assert_eq!(told(&fine), "", "{fine}");
    }
}

#[test]
fn what_comes_nearest_is_named_with_what_it_lacks() {
    let input = namespace("ingress-nginx", "metadata.name: ingress-nginx")
        + &namespace("shop", "")
        + &pod("ingress-nginx", "controller", "name: ingress-nginx", "")
        + &pod("shop", "web", "app: web, key1: val1", "");
    let peer = "{namespaceSelector: {matchLabels: {metadata.name: ingress-nginx}}, podSelector: {matchLabels: {name: ingress-nginx, key1: val1}}}";
    let of = |peer: &str| told(&(input.clone() + &from(peer)));
    insta::assert_snapshot!(of(peer), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no pod in the input fits all of it; without key1=val1 pod ingress-nginx/controller fits; it has no label key1");
    insta::assert_snapshot!(told(&(input.replace("name: ingress-nginx}}", "name: ingress-nginx, key1: val2}}") + &from(peer))), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no pod in the input fits all of it; without key1=val1 pod ingress-nginx/controller fits; it has key1=val2");
    // Kubernetes' policies select only pods.
    let set = told(&(input.clone() + &set("", "name: ingress-nginx, key1: val1") + &from(peer)));
    assert_eq!(set, of(peer));
    insta::assert_snapshot!(of(&peer.replace("val1", "val3")), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no pod in the input has the label key1=val3 (its values there: val1); without it pod ingress-nginx/controller fits");
    insta::assert_snapshot!(of("{namespaceSelector: {matchLabels: {metadata.name: ingress-nginx}}, podSelector: {matchLabels: {app: web}}}"), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no pod in the input fits all of it; without app=web pod ingress-nginx/controller fits; it has no label app");
    insta::assert_snapshot!(of("{podSelector: {matchLabels: {app: web, key1: val1}, matchExpressions: [{key: app, operator: NotIn, values: [web, api]}]}}"), @r#"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no pod in namespace shop fits `app not in {"api", "web"}`; without it pod shop/web fits"#);
    let several =
        r#"selector: "app == 'web' && name == 'ingress-nginx' && has(key2) && key1 in {'a', 'b'}""#;
    insta::assert_snapshot!(told(&(input.clone() + &global(several))), @"selector-matches-nothing: GlobalNetworkPolicy g: spec.selector: selects nothing, so the policy has no effect: no pod in the input has the label key2; the nearest is pod ingress-nginx/controller: it has no label app; it has no label key2; it has no label key1");
    insta::assert_snapshot!(told(&(input.clone() + &global("selector: app == 'web' && (name starts with 'in' || has(key2))"))), @"selector-matches-nothing: GlobalNetworkPolicy g: spec.selector: selects nothing, so the policy has no effect: no pod in the input fits all of it; without app=web pod ingress-nginx/controller fits; it has no label app");
    insta::assert_snapshot!(told(&(input + &global("selector: app == 'web', serviceAccountSelector: role == 'front'"))), @"selector-matches-nothing: GlobalNetworkPolicy g: spec.selector: selects nothing, so the policy has no effect: no service account of a pod in the input has the label role=front; without it pod shop/web fits");
}

#[test]
fn a_namespace_that_is_meant_by_its_name_has_another_label() {
    let input = namespace("kube-system", "")
        + &namespace("shop", "")
        + &pod("kube-system", "dns", "app: dns", "")
        + &pod("shop", "web", "app: web", "");
    let peer = "{namespaceSelector: {matchLabels: {name: kube-system}}}";
    insta::assert_snapshot!(told(&(input.clone() + &from(peer))), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no namespace with a pod in the input has the label name=kube-system; namespace kube-system is selected by kubernetes.io/metadata.name: kube-system");
    let rule = |spec: &str| {
        let spec = format!("selector: all(), ingress: [{{action: Allow, source: {{{spec}}}}}]");
        told(&(input.clone() + &calico("shop", &spec)))
    };
    insta::assert_snapshot!(rule("namespaceSelector: name == 'kube-system'"), @r#"selector-matches-nothing: NetworkPolicy shop/c: spec.ingress[0].source: matches nothing: no namespace with a pod in the input has the label name=kube-system; namespace kube-system is selected by projectcalico.org/name == "kube-system""#);
    insta::assert_snapshot!(told(&(input.clone() + &namespace("empty", "team: a") + &from("{namespaceSelector: {matchLabels: {team: a}}}"))), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no namespace with a pod in the input has the label team=a; namespace empty has it, and no pod that this may match");
}

#[test]
fn what_fits_elsewhere_is_named_with_what_reaches_it() {
    let input = pod("shop", "web", "app: web", "") + &pod("other", "db", "app: db", "");
    let rule = |spec: &str| {
        calico(
            "shop",
            &format!("selector: all(), ingress: [{{action: Allow, source: {{{spec}}}}}]"),
        )
    };
    let of = |more: &str| told(&(input.clone() + more));
    insta::assert_snapshot!(of(&(rule("selector: bad == 'yes'") + &set("", "bad: 'yes'"))), @"selector-matches-nothing: NetworkPolicy shop/c: spec.ingress[0].source: matches nothing: no pod in namespace shop has the label bad=yes; GlobalNetworkSet s fits: namespaceSelector: global() reaches it");
    insta::assert_snapshot!(of(&(rule("selector: edge == 'yes'") + &host("edge: 'yes'"))), @"selector-matches-nothing: NetworkPolicy shop/c: spec.ingress[0].source: matches nothing: no pod in namespace shop has the label edge=yes; HostEndpoint h fits: namespaceSelector: global() reaches it");
    insta::assert_snapshot!(of(&(rule("namespaceSelector: has(team), selector: bad == 'yes'") + &set("", "bad: 'yes'"))), @"selector-matches-nothing: NetworkPolicy shop/c: spec.ingress[0].source: matches nothing: no namespace with a pod in the input has the label team; GlobalNetworkSet s fits: namespaceSelector: global() reaches it");
    insta::assert_snapshot!(of(&rule("selector: app == 'db'")), @r#"selector-matches-nothing: NetworkPolicy shop/c: spec.ingress[0].source: matches nothing: no pod in namespace shop has the label app=db (its values there: web); pod other/db fits: namespaceSelector: projectcalico.org/name == "other" reaches it"#);
    insta::assert_snapshot!(of(&(rule("selector: bad == 'yes'") + &set("other", "bad: 'yes'"))), @r#"selector-matches-nothing: NetworkPolicy shop/c: spec.ingress[0].source: matches nothing: no pod in namespace shop has the label bad=yes; NetworkSet other/s fits: namespaceSelector: projectcalico.org/name == "other" reaches it"#);
    insta::assert_snapshot!(of(&from("{podSelector: {matchLabels: {app: db}}}")), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no pod in namespace shop has the label app=db (its values there: web); pod other/db fits: a namespaceSelector beside the podSelector reaches it (matchLabels: {kubernetes.io/metadata.name: other})");
    insta::assert_snapshot!(of(&(from("{podSelector: {matchLabels: {bad: 'yes'}}}") + &set("", "bad: 'yes'"))), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no pod in namespace shop has the label bad=yes; GlobalNetworkSet s fits, and this kind of policy selects pods only: its addresses can be named in an ipBlock");
    let peer = "ingress: [{action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {bad: 'yes'}}}}]}]";
    insta::assert_snapshot!(of(&(cluster(peer) + &set("", "bad: 'yes'"))), @"selector-matches-nothing: ClusterNetworkPolicy c: spec.ingress[0].from[0]: matches nothing: no pod in the input has the label bad=yes; GlobalNetworkSet s fits, and this kind of policy selects pods only: its addresses can be named in networks");
    insta::assert_snapshot!(of(&(calico("shop", "selector: edge == 'yes'") + &host("edge: 'yes'"))), @"selector-matches-nothing: NetworkPolicy shop/c: spec.selector: selects nothing, so the policy has no effect: no pod in namespace shop has the label edge=yes; HostEndpoint h fits, and only a GlobalNetworkPolicy selects it");
    insta::assert_snapshot!(of(&global("selector: app == 'db' && projectcalico.org/namespace == 'shop'")), @"selector-matches-nothing: GlobalNetworkPolicy g: spec.selector: selects nothing, so the policy has no effect: no pod in namespace shop has the label app=db (its values there: web); pod other/db fits all but where it is");
}

#[test]
fn a_label_of_a_namespace_is_none_of_its_pods_and_the_other_way_round() {
    let input = namespace("shop", "team: a") + &pod("shop", "web", "app: web", "") + WHOLE;
    let of = |more: &str| told(&(input.clone() + more));
    insta::assert_snapshot!(of(&from("{podSelector: {matchLabels: {team: a}}}")), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no pod in namespace shop has the label team=a; namespace shop has it, and only a namespaceSelector looks at labels of namespaces");
    insta::assert_snapshot!(of(&policy("shop", "podSelector: {matchLabels: {team: a}}")), @"selector-matches-nothing: NetworkPolicy shop/p: spec.podSelector: selects nothing, so the policy has no effect: no pod in namespace shop has the label team=a; namespace shop has it, and a podSelector looks at labels of pods only");
    insta::assert_snapshot!(of(&from("{namespaceSelector: {matchLabels: {app: web}}}")), @"selector-matches-nothing: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches nothing: no namespace with a pod in the input has the label app=web; pod shop/web has it, and only a podSelector looks at labels of pods");
    insta::assert_snapshot!(of(&global("selector: all(), ingress: [{action: Allow, source: {namespaceSelector: app == 'web'}}]")), @"selector-matches-nothing: GlobalNetworkPolicy g: spec.ingress[0].source: matches nothing: no namespace with a pod in the input has the label app=web; pod shop/web has it, and only a selector looks at labels of pods");
}

#[test]
fn a_label_that_a_deployment_or_service_has_alone_is_none_of_its_pods() {
    let deployment = "---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {template: {metadata: {labels: {name: web}}, spec: {}}}}\n";
    let service = "---\n{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {selector: {name: web}}}\n";
    let by = policy("shop", "podSelector: {matchLabels: {app: web}}");
    insta::assert_snapshot!(told(&(by.clone() + deployment)), @"selector-matches-nothing: NetworkPolicy shop/p: spec.podSelector: selects nothing, so the policy has no effect: no pod in namespace shop has the label app=web; Deployment shop/web has it in its own metadata, and its pods do not have it");
    insta::assert_snapshot!(told(&(by.clone() + service + &pod("shop", "web", "name: web", ""))), @"selector-matches-nothing: NetworkPolicy shop/p: spec.podSelector: selects nothing, so the policy has no effect: no pod in namespace shop has the label app=web; Service shop/web has it in its own metadata, and its pods do not have it");
    // The object is in another namespace.
    let elsewhere = told(&(by + &service.replace("shop", "far") + &pod("shop", "web", "", "")));
    assert!(!elsewhere.contains("metadata"), "{elsewhere}");
}

#[test]
fn a_peer_that_means_only_pods_on_their_nodes_network_is_told_with_what_says_nodes() {
    let input = pod("shop", "web", "app: web", "")
        + &pod("kube-system", "proxy", "app: proxy", "hostNetwork: true");
    let peer = "namespaceSelector: {}, podSelector: {matchLabels: {app: proxy}}";
    insta::assert_snapshot!(told(&(input.clone() + &from(&format!("{{{peer}}}")))), @"only-host-network: NetworkPolicy shop/p: spec.ingress[0].from[0]: matches only pods on their nodes' network (hostNetwork), such as pod kube-system/proxy: policy knows them by their nodes' addresses only, which can be named in an ipBlock");
    let rule = "selector: all(), ingress: [{action: Allow, source: {selector: app == 'proxy'}}]";
    insta::assert_snapshot!(told(&(input.clone() + &global(rule))), @"only-host-network: GlobalNetworkPolicy g: spec.ingress[0].source: matches only pods on their nodes' network (hostNetwork), such as pod kube-system/proxy: policy knows them by their nodes' addresses only, which can be named in nets");
    let cluster = cluster(&format!("ingress: [{{action: Accept, from: [{{pods: {{{peer}}}}}]}}]"));
    insta::assert_snapshot!(told(&(input.clone() + &cluster)), @"only-host-network: ClusterNetworkPolicy c: spec.ingress[0].from[0]: matches only pods on their nodes' network (hostNetwork), such as pod kube-system/proxy: policy knows them by their nodes' addresses only, which can be named in networks");
    let both = input + &pod("shop", "proxy", "app: proxy", "") + &from(&format!("{{{peer}}}"));
    assert_eq!(told(&both), "");
}

/// Returns an object of an operator's kind, in a namespace if one is given.
fn custom(kind: &str, namespace: &str) -> String {
    let of = if namespace.is_empty() { String::new() } else { format!(", namespace: {namespace}") };
    format!(
        "---\n{{apiVersion: monitoring.coreos.com/v1, kind: {kind}, metadata: {{name: k8s{of}}}, spec: {{replicas: 2}}}}\n"
    )
}

#[test]
fn pods_that_an_operator_may_make_are_told_with_a_code_of_their_own() {
    let grafana = pod("monitoring", "grafana", "app.kubernetes.io/name: grafana", "");
    let selects =
        policy("monitoring", "podSelector: {matchLabels: {app.kubernetes.io/name: prometheus}}");
    let of = |more: &str| told(&(grafana.clone() + &selects + more));
    let operators = custom("Prometheus", "monitoring") + &custom("Alertmanager", "monitoring");
    insta::assert_snapshot!(of(&operators), @"selector-may-match-skipped: NetworkPolicy monitoring/p: spec.podSelector: selects nothing of the input: no pod in namespace monitoring has the label app.kubernetes.io/name=prometheus (its values there: grafana); objects that are skipped may make such pods: Alertmanager (monitoring.coreos.com), Prometheus (monitoring.coreos.com)");
    let peer = policy(
        "monitoring",
        "podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app.kubernetes.io/name: prometheus}}}]}]",
    );
    insta::assert_snapshot!(told(&(grafana.clone() + &peer + &operators)), @"selector-may-match-skipped: NetworkPolicy monitoring/p: spec.ingress[0].from[0]: matches nothing of the input: no pod in namespace monitoring has the label app.kubernetes.io/name=prometheus (its values there: grafana); objects that are skipped may make such pods: Alertmanager (monitoring.coreos.com), Prometheus (monitoring.coreos.com)");
    for (made, elsewhere) in [
        (custom("Prometheus", ""), false),
        (custom("Prometheus", "far") + &custom("Prometheus", "monitoring"), false),
        (custom("Prometheus", "far"), true),
        (custom("ServiceMonitor", "monitoring"), true),
    ] {
        let code =
            if elsewhere { "selector-matches-nothing" } else { "selector-may-match-skipped" };
        assert!(of(&made).starts_with(code), "{made}: {}", of(&made));
    }
    let anywhere = from("{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}")
        + &pod("shop", "web", "", "")
        + WHOLE;
    assert!(
        told(&(anywhere + &custom("Thanos", "far"))).contains("Thanos (monitoring.coreos.com)")
    );
    let of_team =
        from("{namespaceSelector: {matchLabels: {team: a}}}") + &pod("shop", "web", "", "") + WHOLE;
    let of_team =
        |team: &str| told(&(of_team.clone() + &namespace("far", team) + &custom("Thanos", "far")));
    assert!(of_team("team: a").starts_with("selector-may-match-skipped"));
    assert!(of_team("team: b").starts_with("selector-matches-nothing"));
    // The namespace exists only as part of other objects.
    let alone = policy("monitoring", "podSelector: {}") + &pod("shop", "web", "", "");
    assert!(told(&alone).starts_with("no-such-namespace"));
    assert_eq!(told(&(alone + &custom("Prometheus", "monitoring"))), "");
}

#[test]
fn of_nothing_but_policies_neither_selectors_nor_names_are_told() {
    let policies = global(
        "selector: app == 'web', ingress: [{action: Allow, source: {serviceAccounts: {names: [web]}}}], egress: [{action: Allow, destination: {services: {name: dns, namespace: kube-system}}}]",
    ) + &policy("shop", "podSelector: {matchLabels: {app: web}}");
    assert_eq!(told(&policies), "");
    assert_eq!(told(&(policies.clone() + &namespace("shop", ""))), "");
    let with = told(&(policies + &pod("shop", "api", "app: web", "")));
    let codes: Vec<&str> = with.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(codes, ["no-such-service-account", "no-such-service"], "{with}");
    // Host endpoints alone do not show whether the input has the pods.
    let hosts = policy("shop", "podSelector: {matchLabels: {app: web}}") + &host("edge: 'yes'");
    assert_eq!(told(&hosts), "");
}

#[test]
fn reasons_are_found_for_a_bounded_number_of_comparisons_and_once_for_equal_selectors() {
    let pods: Vec<String> =
        (0..400).map(|n| pod("shop", &format!("p{n}"), "app: web", "")).collect();
    let peers: Vec<String> =
        (0..100).map(|n| format!("{{podSelector: {{matchLabels: {{app: a{n}}}}}}}")).collect();
    let policies: Vec<String> = (0..25)
        .map(|n| {
            from(&peers.join(", ").replace("app: a", &format!("app: a{n}x")))
                .replace("name: p,", &format!("name: p{n},"))
        })
        .collect();
    let told = told(&(pods.concat() + &policies.concat()));
    assert_eq!(told.lines().count(), 2_500);
    let short = told.lines().filter(|line| line.ends_with("nothing in the input fits all of it"));
    assert!(short.count() > 300);
}
