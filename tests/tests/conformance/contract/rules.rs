//! The traffic that a rule matches, from manifests.

use super::{
    calico, cluster, global, kubernetes, lets_in, object, says, says_of_what_is_not_valid,
};

const NONE: &str = "deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows";

#[test]
fn an_empty_selector_is_all_and_an_absent_one_in_a_rule_is_no_criterion() {
    for selector in ["", "selector: '', ", "selector: ' ', ", "selector: all(), "] {
        let policy = format!("{selector}ingress: [{{action: Log}}]");
        says(&calico("GlobalNetworkPolicy", "p", &policy), "lab/web < out tcp 80 = deny");
    }
    says(&lets_in("source: {}"), "shop/db < out tcp 80 = allow");
    says(&lets_in("source: {selector: ''}"), "shop/db < out tcp 80 = allow");
    says(
        &lets_in("source: {selector: all()}"),
        "shop/db < out tcp 80 = deny
         shop/db < lab/web tcp 80 = allow",
    );
}

#[test]
fn with_the_label_absent_not_equal_and_not_in_are_true_and_every_other_comparison_false() {
    for (selector, holds) in [
        ("none != 'x'", true),
        ("none not in {'x'}", true),
        ("none notin {}", true),
        ("!has(none)", true),
        ("!none == 'x'", true),
        ("none == ''", false),
        ("none in {'x'}", false),
        ("none contains ''", false),
        ("none starts with ''", false),
        ("none ends with ''", false),
        ("has(none)", false),
    ] {
        let verdict = if holds { "allow" } else { "deny" };
        says(
            &lets_in(&format!("source: {{selector: \"{selector}\"}}")),
            &format!("shop/db < shop/web tcp 80 = {verdict}"),
        );
    }
}

#[test]
fn empty_braces_and_a_trailing_comma_are_accepted_and_a_newline_is_an_error() {
    for (selector, verdict) in [
        ("app in {}", "deny"),
        ("app in {'web',}", "allow"),
        ("app in {'x', 'web' , }", "allow"),
        ("app not in { }", "allow"),
        ("app=='web'&&!has(x)", "allow"),
        ("app starts  \\t with 'w'", "allow"),
        ("app startswith 'w' && app endswith 'b'", "allow"),
        ("!app == 'web' || app == 'web' && has(x)", "deny"),
    ] {
        says(
            &lets_in(&format!("source: {{selector: \"{selector}\"}}")),
            &format!("shop/db < shop/web tcp 80 = {verdict}"),
        );
    }
    for selector in ["app ==\\n'web'", "has (app)", "app in {,}", "app == 'it\\\\'s'"] {
        says_of_what_is_not_valid(
            &lets_in(&format!("source: {{selector: \"{selector}\"}}")),
            "shop/db < shop/web tcp 80 = deny: GlobalNetworkPolicy p is not valid and denies ingress",
        );
    }
}

#[test]
fn a_namespace_selector_reads_the_namespaces_labels_all_has_one_and_global_has_none() {
    let sets = calico("GlobalNetworkSet", "world", "nets: [192.0.2.0/24]")
        + &calico("NetworkSet", "shop/own", "nets: [198.51.100.0/24]");
    for (selector, shop, lab, own, world) in [
        ("team == 'a'", "allow", "deny", "allow", "deny"),
        ("team != 'a'", "deny", "allow", "deny", "allow"),
        ("app == 'web'", "deny", "deny", "deny", "deny"),
        ("all()", "allow", "allow", "allow", "deny"),
        ("global()", "deny", "deny", "deny", "allow"),
    ] {
        says(
            &(sets.clone() + &lets_in(&format!("source: {{namespaceSelector: \"{selector}\"}}"))),
            &format!(
                "shop/db < shop/web tcp 80 = {shop}
                 shop/db < lab/web tcp 80 = {lab}
                 shop/db < 198.51.100.1 tcp 80 = {own}
                 shop/db < 192.0.2.1 tcp 80 = {world}
                 shop/db < out tcp 80 = deny"
            ),
        );
    }
}

/// A Calico policy in `shop` that allows this source into `db`.
fn in_shop(source: &str) -> String {
    calico("GlobalNetworkSet", "world, labels: {app: web}", "nets: [192.0.2.0/24]")
        + &calico(
            "NetworkPolicy",
            "shop/p",
            &format!("selector: app == 'db', ingress: [{{action: Allow, source: {{{source}}}}}]"),
        )
}

#[test]
fn in_a_namespaced_policy_what_selects_keeps_to_its_namespace_unless_a_namespace_selector_is_there()
{
    let says = |source: &str, shop: &str, lab: &str, world: &str| {
        says(
            &in_shop(source),
            &format!(
                "shop/db < shop/web tcp 80 = {shop}
                 shop/db < lab/web tcp 80 = {lab}
                 shop/db < 192.0.2.1 tcp 80 = {world}"
            ),
        );
    };
    says("", "allow", "allow", "allow");
    says("selector: app == 'web'", "allow", "deny", "deny");
    says("notSelector: app == 'db'", "allow", "deny", "deny");
    says("serviceAccounts: {names: [runner, default]}", "allow", "deny", "deny");
    says("selector: app == 'web', namespaceSelector: all()", "allow", "allow", "deny");
    says("selector: app == 'web', namespaceSelector: global()", "deny", "deny", "allow");
    says("namespaceSelector: team == 'b'", "deny", "allow", "deny");
}

#[test]
fn what_a_not_selector_excludes_may_be_anywhere() {
    // web's address is also in a set that has no namespace.
    let odd = calico("GlobalNetworkSet", "odd, labels: {kind: odd}", "nets: [10.0.1.1/32]");
    says(&in_shop("notSelector: kind == 'odd'"), "shop/db < shop/web tcp 80 = allow");
    says(&(odd + &in_shop("notSelector: kind == 'odd'")), "shop/db < shop/web tcp 80 = deny");
}

#[test]
fn pod_selectors_of_kubernetes_policies_never_match_host_endpoints_or_network_sets() {
    let others = calico("NetworkSet", "shop/s, labels: {app: web}", "nets: [192.0.2.0/24]")
        + &calico(
            "HostEndpoint",
            "h, labels: {app: web}",
            "node: n1, interfaceName: eth0, expectedIPs: [172.18.0.2]",
        );
    let of = "podSelector: {matchLabels: {app: db}}, ingress";
    for peer in [
        "{podSelector: {}}",
        "{podSelector: {matchLabels: {app: web}}}",
        "{namespaceSelector: {}}",
        "{namespaceSelector: {matchExpressions: [{key: x, operator: NotIn, values: [z]}]}}",
    ] {
        says(
            &(others.clone() + &kubernetes("shop/p", &format!("{of}: [{{from: [{peer}]}}]"))),
            "shop/db < shop/web tcp 80 = allow
             shop/db < 192.0.2.1 tcp 80 = deny
             shop/db < 172.18.0.2 tcp 80 = deny",
        );
    }
    let all = kubernetes("shop/p", "podSelector: {}");
    says(&(others + &all), "h@forward < out tcp 80 = allow: no host policy for ingress");
}

#[test]
fn pod_selector_alone_is_the_own_namespace_namespace_selector_alone_all_pods_there_and_both_both() {
    let from = |peer: &str| {
        let spec =
            format!("podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: [{peer}]}}]");
        kubernetes("shop/p", &spec)
    };
    for (peer, shop, own, lab) in [
        ("{podSelector: {matchLabels: {app: web}}}", "allow", "deny", "deny"),
        ("{podSelector: {}}", "allow", "allow", "deny"),
        ("{namespaceSelector: {matchLabels: {team: b}}}", "deny", "deny", "allow"),
        ("{namespaceSelector: {}}", "allow", "allow", "allow"),
        (
            "{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}",
            "allow",
            "deny",
            "allow",
        ),
    ] {
        says(
            &from(peer),
            &format!(
                "shop/db < shop/web tcp 80 = {shop}
                 shop/db < shop/db tcp 80 = {own}
                 shop/db < lab/web tcp 80 = {lab}
                 shop/db < out tcp 80 = deny"
            ),
        );
    }
}

#[test]
fn a_list_of_nets_without_the_packets_family_takes_the_rule_away_from_it() {
    let v6 = "2001:db8::1";
    let question = |source: &str, four: &str, six: &str| {
        says(
            &lets_in(source),
            &format!("shop/db < out tcp 80 = {four}\nshop/db < {v6} tcp 80 = {six}"),
        );
    };
    question("source: {notNets: [10.0.0.0/8]}", "allow", "deny");
    question("source: {notNets: ['fd00::/8']}", "deny", "allow");
    question("destination: {notNets: [10.99.0.0/16]}", "allow", "deny");
    question("source: {nets: [0.0.0.0/0]}", "allow", "deny");
    question("source: {nets: ['::/0']}", "deny", "allow");
    question("notProtocol: UDP", "allow", "allow");
}

#[test]
fn ip_block_is_about_addresses_whoever_has_them_and_except_takes_away_from_its_own_block() {
    let policy = kubernetes(
        "shop/p",
        "podSelector: {matchLabels: {app: db}}, ingress: [{from: [\
         {ipBlock: {cidr: 10.0.0.0/16, except: [10.0.2.0/24]}}, {ipBlock: {cidr: 203.0.113.0/24}}, \
         {ipBlock: {cidr: 10.0.2.128/25}}]}]",
    );
    says(
        &policy,
        "shop/db < shop/web tcp 80 = allow
         shop/db < lab/web tcp 80 = deny
         shop/db < 10.0.2.129 tcp 80 = allow
         shop/db < out tcp 80 = allow
         shop/db < 198.51.100.1 tcp 80 = deny",
    );
}

#[test]
fn an_absent_protocol_is_tcp_an_absent_port_all_of_the_protocol_and_an_end_port_is_included() {
    let ports = |ports: &str| {
        let spec =
            format!("podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{ports: [{ports}]}}]");
        kubernetes("shop/p", &spec)
    };
    says(
        &ports("{port: 80}, {port: 90, endPort: 92, protocol: UDP}, {protocol: SCTP}"),
        "shop/db < shop/web tcp 80 = allow
         shop/db < shop/web udp 80 = deny
         shop/db < shop/web udp 89 = deny
         shop/db < shop/web udp 90 = allow
         shop/db < shop/web udp 92 = allow
         shop/db < shop/web udp 93 = deny
         shop/db < shop/web sctp 1 = allow
         shop/db < shop/web sctp = allow
         shop/db < shop/web tcp = deny",
    );
    says(&ports("{}"), "shop/db < shop/web tcp 1 = allow\nshop/db < shop/web udp 1 = deny");
}

#[test]
fn a_rule_without_ports_matches_every_protocol_sctp_too() {
    says(
        &kubernetes(
            "shop/p",
            "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}]}]",
        ),
        "shop/db < shop/web tcp 80 = allow
         shop/db < shop/web sctp 80 = allow
         shop/db < shop/web icmp 8/0 = allow
         shop/db < shop/web 6 icmp6 128/0 = allow
         shop/db < shop/web proto 50 = allow
         shop/db < shop/web udp = allow",
    );
}

#[test]
fn a_port_name_that_no_container_may_have_matches_nothing_and_leaves_the_rest_of_the_policy() {
    let admin = |kind: &str, version: &str, spec: &str| {
        let spec = format!("subject: {{namespaces: {{}}}}, priority: 1, {spec}");
        object(&format!("policy.networking.k8s.io/{version}"), kind, "a", &spec)
    };
    let from = "from: [{namespaces: {}}]";
    for name in ["8080", "Web_Port", "a--b", "sixteen-letters-x"] {
        let entry = format!("destinationNamedPort: '{name}'");
        let rules = format!(
            "tier: Admin, ingress: [{{action: Deny, {from}, protocols: [{{{entry}}}]}}, \
             {{action: Deny, {from}, protocols: [{{{entry}}}, {{tcp: {{destinationPort: {{number: 81}}}}}}]}}]"
        );
        says(
            &admin("ClusterNetworkPolicy", "v1alpha2", &rules),
            "shop/db < shop/web tcp 8080 = allow: no policy selects it for ingress
             shop/db < shop/web tcp 81 = deny: ClusterNetworkPolicy a ingress[1]
             shop/web < lab/web tcp 80 = allow: no policy selects it for ingress",
        );
        let rules =
            format!("ingress: [{{action: Deny, {from}, ports: [{{namedPort: '{name}'}}]}}]");
        says(
            &admin("AdminNetworkPolicy", "v1alpha1", &rules),
            "shop/db < shop/web tcp 8080 = allow: no policy selects it for ingress",
        );
    }
}

#[test]
fn a_named_port_is_each_owners_own_and_init_containers_count() {
    let ingress = |rule: &str| global("p", &format!("ingress: [{{action: Allow, {rule}}}]"));
    says(
        &ingress("protocol: TCP, destination: {ports: [http]}"),
        "shop/db < shop/web tcp 8080 = allow
         shop/db < shop/web tcp 80 = deny
         shop/db < shop/web udp 8080 = deny",
    );
    says(
        &ingress("destination: {ports: [dns]}"),
        "shop/db < shop/web udp 53 = allow
         shop/db < shop/web tcp 53 = deny",
    );
    says(
        &ingress("protocol: TCP, destination: {ports: [1, http]}"),
        "shop/db < shop/web tcp 1 = allow
         shop/db < shop/web tcp 8080 = allow
         shop/db < shop/web tcp 2 = deny",
    );
    let egress = calico(
        "GlobalNetworkPolicy",
        "p",
        "selector: app == 'web', egress: [{action: Allow, protocol: TCP, destination: {ports: [http]}}]",
    );
    says(
        &egress,
        "shop/web > shop/db tcp 8080 = allow
         shop/web > shop/db tcp 80 = deny
         lab/web > shop/web tcp 80 = allow
         lab/web > shop/web tcp 8080 = deny",
    );
}

#[test]
fn a_port_of_an_endpoint_slice_without_a_number_is_no_member() {
    let policy = calico(
        "NetworkPolicy",
        "shop/p",
        "selector: app == 'db', egress: [{action: Allow, destination: {services: {name: web}}}]",
    );
    let slice = |ports: &str| {
        format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: web-1, namespace: shop, \
             labels: {{kubernetes.io/service-name: web}}}}, addressType: IPv4, \
             endpoints: [{{addresses: [10.0.1.1]}}], ports: [{ports}]}}\n---\n"
        )
    };
    for ports in ["{protocol: TCP}", "{name: web}", "{port: null}", "{}"] {
        says(
            &(slice(ports) + &policy),
            "shop/db > shop/web tcp 80 = deny
             shop/db > shop/web udp 80 = deny",
        );
        says(
            &(slice(&format!("{ports}, {{port: 80}}")) + &policy),
            "shop/db > shop/web tcp 80 = allow
             shop/db > shop/web tcp 81 = deny",
        );
        // If only addresses matter, the endpoint counts.
        let into = lets_in("source: {services: {name: web, namespace: shop}}");
        says(&(slice(ports) + &into), "shop/db < shop/web tcp 81 = allow");
    }
}

#[test]
fn services_match_in_egress_address_and_port_and_in_ingress_the_address_only() {
    let slice = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: shop, \
        labels: {kubernetes.io/service-name: web}}, addressType: IPv4, endpoints: [{addresses: [10.0.1.1]}], \
        ports: [{port: 80, protocol: TCP}]}\n---\n";
    let egress = calico(
        "NetworkPolicy",
        "shop/p",
        "selector: app == 'db', egress: [{action: Allow, destination: {services: {name: web}}}]",
    );
    says(
        &format!("{slice}{egress}"),
        "shop/db > shop/web tcp 80 = allow
         shop/db > shop/web tcp 81 = deny
         shop/db > shop/web udp 80 = deny
         shop/db > lab/web tcp 80 = deny",
    );
    let ingress = lets_in("source: {services: {name: web, namespace: shop}}");
    says(
        &format!("{slice}{ingress}"),
        "shop/db < shop/web tcp 9 = allow
         shop/db < shop/web icmp 8/0 = allow
         shop/db < lab/web tcp 80 = deny",
    );
}

#[test]
fn not_icmp_negates_type_and_code_as_one() {
    says(
        &lets_in("protocol: ICMP, notICMP: {type: 8, code: 1}"),
        "shop/db < shop/web icmp 8/1 = deny
         shop/db < shop/web icmp 8/0 = allow
         shop/db < shop/web icmp 3/1 = allow",
    );
    says(
        &lets_in("protocol: ICMP, icmp: {type: 254, code: 255}"),
        "shop/db < shop/web icmp 254/255 = allow
         shop/db < shop/web icmp 254/0 = deny",
    );
}

#[test]
fn a_rule_with_ports_never_matches_icmp_nor_a_later_fragment() {
    says(
        &kubernetes(
            "shop/p",
            "podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 1, endPort: 65535}, \
             {port: 1, endPort: 65535, protocol: UDP}]}]",
        ),
        "shop/db < shop/web tcp 80 = allow
         shop/db < shop/web udp 80 = allow
         shop/db < shop/web tcp = deny
         shop/db < shop/web udp = deny
         shop/db < shop/web icmp 8/0 = deny
         shop/db < shop/web 6 icmp6 128/0 = deny",
    );
}

#[test]
fn an_allow_with_http_does_not_match_and_a_deny_with_it_denies() {
    let http = "http: {methods: [GET]}, protocol: TCP";
    says(
        &global(
            "p",
            &format!("ingress: [{{action: Allow, {http}}}, {{action: Allow, protocol: UDP}}]"),
        ),
        &format!(
            "shop/db < shop/web tcp 80 = {NONE}
             shop/db < shop/web udp 80 = allow: GlobalNetworkPolicy p ingress[1]"
        ),
    );
    // Calico knows http only in an Allow rule, so this policy is invalid, and denies.
    says_of_what_is_not_valid(
        &global("p", &format!("ingress: [{{action: Deny, {http}}}, {{action: Allow}}]")),
        "shop/db < shop/web tcp 80 = deny
         shop/db < shop/web udp 80 = deny: GlobalNetworkPolicy p is not valid and denies ingress",
    );
}

#[test]
fn of_a_cluster_network_policy_what_cannot_be_converted_denies_everything_unless_it_would_accept() {
    let rule = |action: &str| {
        cluster(
            "a",
            &format!(
                "tier: Admin, priority: 1, egress: [\
                 {{action: {action}, to: [{{namespaces: {{}}}}, {{domainNames: [example.com]}}]}}]"
            ),
        )
    };
    for action in ["Deny", "Pass"] {
        says(
            &rule(action),
            "shop/db > shop/web tcp 80 = deny: ClusterNetworkPolicy a egress[0]
             shop/db > out udp 9 = deny: ClusterNetworkPolicy a egress[0]",
        );
    }
    let baseline = kubernetes("shop/p", "podSelector: {}, policyTypes: [Egress]");
    says(
        &(rule("Accept") + &baseline),
        "shop/db > shop/web tcp 80 = deny: isolated by shop/p for egress, no rule allows",
    );
}

#[test]
fn nobody_may_choose_labels_under_reserved_keys() {
    let forger = "{apiVersion: v1, kind: Pod, metadata: {name: forger, namespace: lab, labels: \
        {pcns.team: a, projectcalico.org/namespace: shop, projectcalico.org/serviceaccount: runner}}, \
        spec: {nodeName: n1}, status: {podIP: 10.0.2.9}}\n---\n";
    for selector in [
        "pcns.team == 'a'",
        "projectcalico.org/namespace == 'shop'",
        "projectcalico.org/serviceaccount == 'runner'",
    ] {
        says(
            &(forger.to_owned() + &lets_in(&format!("source: {{selector: \"{selector}\"}}"))),
            "shop/db < shop/web tcp 80 = allow
             shop/db < 10.0.2.9 tcp 80 = deny",
        );
    }
}

/// A selector that matches no node means no address, and not every address.
#[test]
fn nodes_that_do_not_exist_are_no_address() {
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone: a}}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}\n---\n";
    let rules = "tier: Admin, priority: 1, egress: [{action: Accept, to: [{nodes: {matchLabels: {zone: none}}}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]";
    says(
        &format!("{node}{}", cluster("a", rules)),
        "shop/db > shop/web tcp 80 = deny: ClusterNetworkPolicy a egress[1]
         shop/db > out tcp 80 = deny: ClusterNetworkPolicy a egress[1]",
    );
}
