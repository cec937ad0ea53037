//! What is valid in policies and in the objects to which they refer. The tests cover the lines of
//! `docs/policy-semantics.md` and `docs/policy-input.md` that make an object valid or invalid. The tests of the import
//! cover the replacement of invalid objects.

use super::invalid;

/// Returns an object whose `spec` is a flow mapping of YAML.
fn object(version: &str, kind: &str, name: &str, spec: &str) -> String {
    format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}}}}}")
}

fn calico(kind: &str, spec: &str) -> String {
    object("projectcalico.org/v3", kind, "a", spec)
}

/// Returns a GlobalNetworkPolicy with one ingress rule.
fn rule(rule: &str) -> String {
    calico("GlobalNetworkPolicy", &format!("ingress: [{{action: Deny, {rule}}}]"))
}

/// Returns a NetworkPolicy of Kubernetes with one entry of `ports`.
fn port(port: &str) -> String {
    object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "a",
        &format!("ingress: [{{ports: [{{{port}}}]}}]"),
    )
}

/// Asserts that every text is a valid object, or that none is.
#[track_caller]
fn are<'a>(valid: bool, make: impl Fn(&str) -> String, specs: impl IntoIterator<Item = &'a str>) {
    for spec in specs {
        let text = make(spec);
        assert_eq!(invalid(&text).is_none(), valid, "{text}\n{}", super::problems(&text));
    }
}

#[test]
fn a_tiers_default_action_is_deny_or_pass_never_allow() {
    let tier = |action: &str| calico("Tier", &format!("defaultAction: {action}"));
    are(true, tier, ["Deny", "Pass", "deny", "PASS"]);
    are(false, tier, ["Allow", "allow", "Log", "Drop", "5"]);
}

#[test]
fn the_built_in_tiers_orders_and_default_actions_are_fixed() {
    let tiers = [
        ("kube-admin", "1000", "Pass"),
        ("default", "1000000", "Deny"),
        ("kube-baseline", "10000000", "Pass"),
    ];
    for (name, order, action) in tiers {
        let tier = |spec: &str| object("projectcalico.org/v3", "Tier", name, spec);
        let other = if action == "Pass" { "Deny" } else { "Pass" };
        are(
            true,
            tier,
            [&*format!("order: {order}"), &format!("order: {order}, defaultAction: {action}")],
        );
        are(
            false,
            tier,
            [
                "",
                "order: 1",
                &format!("order: {order}, defaultAction: {other}"),
                &format!("defaultAction: {action}"),
            ],
        );
    }
}

#[test]
fn one_rule_may_not_mix_families_over_its_four_net_lists() {
    let (v4, v6) = ("[10.0.0.0/8]", "['fd00::/8']");
    let lists = [
        "source: {nets: $}",
        "source: {notNets: $}",
        "destination: {nets: $}",
        "destination: {notNets: $}",
    ];
    let with = |list: &str, nets: &str| list.replace('$', nets);
    for first in lists {
        are(true, rule, [&*with(first, v4), &with(first, v6)]);
        are(false, rule, [&*with(first, "[10.0.0.0/8, 'fd00::/8']")]);
        for second in lists.into_iter().filter(|second| second[..6] != first[..6]) {
            are(true, rule, [&*format!("{}, {}", with(first, v4), with(second, v4))]);
            are(false, rule, [&*format!("{}, {}", with(first, v4), with(second, v6))]);
        }
    }
    are(false, rule, ["source: {nets: [10.0.0.0/8], notNets: ['fd00::/8']}"]);
}

#[test]
fn not_nets_of_everything_is_not_valid() {
    are(false, rule, ["source: {notNets: [0.0.0.0/0]}", "destination: {notNets: ['::/0']}"]);
    are(true, rule, ["source: {nets: [0.0.0.0/0]}", "source: {notNets: [0.0.0.0/1, 128.0.0.0/1]}"]);
}

#[test]
fn nets_in_rules_need_a_mask_and_no_host_bits_and_network_sets_take_both() {
    let nets = ["10.0.0.1", "10.0.0.1/8", "fd00::1", "fd00::1/8"];
    for kind in ["NetworkSet", "GlobalNetworkSet"] {
        are(true, |net| calico(kind, &format!("nets: ['{net}']")), nets);
    }
    are(false, |net| rule(&format!("source: {{nets: ['{net}']}}")), nets);
    are(false, |net| rule(&format!("destination: {{notNets: ['{net}']}}")), nets);
    are(
        true,
        |net| rule(&format!("source: {{nets: ['{net}']}}")),
        ["10.0.0.1/32", "10.0.0.0/8", "fd00::/8"],
    );
}

#[test]
fn numeric_ports_are_of_tcp_udp_and_sctp_only_and_named_ports_need_no_protocol() {
    let ports = |field: &str, port: &str| format!("destination: {{{field}: [{port}]}}");
    for field in ["ports", "notPorts"] {
        for protocol in ["TCP", "UDP", "SCTP", "6", "17", "132"] {
            are(
                true,
                rule,
                [&*format!("protocol: {protocol}, {}", ports(field, "80, '90:99', http"))],
            );
        }
        for protocol in ["ICMP", "ICMPv6", "UDPLite", "47"] {
            are(
                false,
                rule,
                [
                    &*format!("protocol: {protocol}, {}", ports(field, "80")),
                    &format!("protocol: {protocol}, {}", ports(field, "http")),
                ],
            );
        }
        are(
            false,
            rule,
            [&*ports(field, "80"), &ports(field, "'90:99'"), &ports(field, "http, 80")],
        );
        are(true, rule, [&*ports(field, "http"), &ports(field, "http, dns")]);
    }
}

#[test]
fn an_end_port_is_at_least_the_port_which_is_a_number() {
    are(true, port, ["port: 80, endPort: 80", "port: 80, endPort: 65535", "port: 1", "port: http"]);
    are(
        false,
        port,
        [
            "port: 80, endPort: 79",
            "port: http, endPort: 80",
            "endPort: 80",
            "port: 80, endPort: 65536",
        ],
    );
}

#[test]
fn icmp_types_are_0_to_254_codes_0_to_255_and_a_code_needs_a_type() {
    for field in ["icmp", "notICMP"] {
        let icmp = |spec: &str| rule(&format!("protocol: ICMP, {field}: {{{spec}}}"));
        are(true, icmp, ["", "type: 0", "type: 254", "type: 3, code: 0", "type: 3, code: 255"]);
        are(false, icmp, ["type: 255", "type: -1", "type: 3, code: 256", "code: 1", "type: all"]);
    }
}

#[test]
fn the_ip_version_must_agree_with_protocol_and_nets() {
    are(
        true,
        rule,
        [
            "ipVersion: 4, protocol: ICMP",
            "ipVersion: 6, protocol: ICMPv6",
            "ipVersion: 4, protocol: TCP",
        ],
    );
    are(true, rule, ["ipVersion: 6, source: {nets: ['fd00::/8']}"]);
    are(
        false,
        rule,
        [
            "ipVersion: 6, protocol: ICMP",
            "ipVersion: 4, protocol: ICMPv6",
            "ipVersion: 6, protocol: 1",
        ],
    );
    are(
        false,
        rule,
        [
            "ipVersion: 4, source: {nets: ['fd00::/8']}",
            "ipVersion: 6, source: {notNets: [10.0.0.0/8]}",
        ],
    );
    are(false, rule, ["ipVersion: 5"]);
}

#[test]
fn pre_dnat_is_ingress_only_it_and_do_not_track_need_apply_on_forward_and_exclude_each_other() {
    let policy = |spec: &str| calico("GlobalNetworkPolicy", spec);
    let deny = "[{action: Deny}]";
    are(
        true,
        policy,
        [
            "applyOnForward: true",
            "preDNAT: true, applyOnForward: true",
            "doNotTrack: true, applyOnForward: true",
            &format!("preDNAT: true, applyOnForward: true, ingress: {deny}"),
            &format!("doNotTrack: true, applyOnForward: true, ingress: {deny}, egress: {deny}"),
        ],
    );
    are(
        false,
        policy,
        [
            "preDNAT: true",
            "doNotTrack: true",
            "preDNAT: true, applyOnForward: false",
            "preDNAT: true, doNotTrack: true, applyOnForward: true",
            "preDNAT: true, applyOnForward: true, types: [Ingress, Egress]",
            &format!("preDNAT: true, applyOnForward: true, egress: {deny}"),
        ],
    );
}

#[test]
fn a_selector_is_not_valid_over_two_lines_nor_with_a_space_behind_has() {
    for field in ["selector", "notSelector", "namespaceSelector"] {
        let of = |selector: &str| rule(&format!("source: {{{field}: \"{selector}\"}}"));
        are(
            true,
            of,
            [
                "has(a)",
                "a in {}",
                "a in {'b',}",
                "in in {'in'}",
                "a\\t== 'b'",
                "a starts  with 'b'",
            ],
        );
        are(false, of, ["a ==\\n'b'", "has (a)", "a = 'b'", "a in {,}", "a == b", "(a == 'b'"]);
        let global = of("global()");
        assert_eq!(invalid(&global).is_none(), field == "namespaceSelector", "{global}");
        are(false, of, ["!global()", "global() || has(a)"]);
    }
}

#[test]
fn http_stands_in_an_allow_of_ingress_only() {
    let http = "http: {methods: [GET]}";
    let policy = |rules: &str| calico("GlobalNetworkPolicy", rules);
    are(true, policy, [&*format!("ingress: [{{action: Allow, {http}}}]")]);
    are(
        false,
        policy,
        [
            &*format!("ingress: [{{action: Deny, {http}}}]"),
            &format!("ingress: [{{action: Pass, {http}}}]"),
            &format!("ingress: [{{action: Log, {http}}}]"),
            &format!("egress: [{{action: Allow, {http}}}]"),
        ],
    );
}

#[test]
fn a_field_that_a_spec_of_calicos_does_not_have_is_warned_of_as_calico_passes_it_over() {
    for spec in [
        "GlobalNetworkPolicy egres: [{action: Deny}]",
        "NetworkPolicy namespaceSelector: a == 'b'",
        "StagedNetworkPolicy egres: []",
        "Tier oder: 1",
        "BlockAffinity cidr: 10.0.0.0/26, node: n1, state: confirmed, hostname: x",
        "BGPConfiguration asNumbers: 64512",
        "BGPPeer peerIP: 192.0.2.1, holdTime: 3s",
        "BGPFilter exportV5: []",
        "NetworkSet net: [10.0.0.0/8]",
        "GlobalNetworkSet nets: [], allowedEgressDomains: [a.example]",
        "HostEndpoint node: n1, interfaceName: eth0, profile: []",
        "Profile labelToApply: {}",
    ] {
        let (kind, fields) = spec.split_once(' ').unwrap();
        let text = calico(kind, fields);
        assert!(invalid(&text).is_none(), "{spec}");
        let told = super::problems(&text);
        assert!(
            told.contains("warning[ignored-field]: ") && !told.contains("error["),
            "{spec}: {told}"
        );
    }
    // Calico has this hint and Manx does not use it, so there is no message.
    let text = calico("GlobalNetworkPolicy", "performanceHints: [AssumeNeededOnEveryNode]");
    assert_eq!(super::problems(&text), "");
    let kubernetes = |spec: &str| super::policy_text(spec);
    are(false, kubernetes, ["egres: []", "policyType: [Egress]"]);
}

#[test]
fn a_pools_cidr_is_masked_holds_a_block_and_is_of_no_one_link() {
    let pool = |spec: &str| calico("IPPool", spec);
    are(
        true,
        pool,
        [
            "cidr: 10.0.0.0/16",
            "cidr: 10.0.0.0/26",
            "cidr: 10.0.0.0/30, disabled: true",
            "cidr: 10.0.0.0/30, blockSize: 30",
            "cidr: 10.0.0.0/16, blockSize: 0",
            "cidr: 10.0.0.0/16, blockSize: 20",
            "cidr: 10.0.0.1/32, blockSize: 32",
            "cidr: 'fd00::/64'",
            "cidr: 'fd00::/122'",
            "cidr: 'fd00::/64', blockSize: 116",
            "cidr: 'fd00::/128', blockSize: 128",
        ],
    );
    are(
        false,
        pool,
        [
            "cidr: 10.0.0.5/16",
            "cidr: 10.0.0.5",
            "cidr: 10.0.0.0/30",
            "cidr: 10.0.0.0/26, blockSize: 24",
            "cidr: 10.0.0.0/16, blockSize: 12",
            "cidr: 10.0.0.0/16, blockSize: 19",
            "cidr: 10.0.0.0/16, blockSize: 33",
            "cidr: 10.0.0.0/16, blockSize: big",
            "cidr: 10.0.0.0/16, blockSize: '26'",
            "cidr: 'fd00::1/64'",
            "cidr: 'fd00::/123'",
            "cidr: 'fd00::/64', blockSize: 115",
            "cidr: 'fd00::/64', blockSize: 26",
            "cidr: 169.254.0.0/16",
            "cidr: 169.254.8.0/24",
            "cidr: 169.0.0.0/8",
            "cidr: 0.0.0.0/0",
            "cidr: 'fe80::/64'",
            "cidr: 'fe00::/8'",
        ],
    );
}

#[test]
fn a_pools_uses_modes_and_selectors_are_those_that_there_are() {
    let pool = |spec: &str| calico("IPPool", &format!("cidr: 10.0.0.0/16, {spec}"));
    are(
        true,
        pool,
        [
            "allowedUses: []",
            "allowedUses: [Workload, Tunnel]",
            "allowedUses: [LoadBalancer], nodeSelector: all(), ipipMode: Never",
            "nodeSelector: ''",
            "nodeSelector: has(rack), namespaceSelector: team == 'a'",
            "allowedUses: [Workload], namespaceSelector: team == 'a'",
            "allowedUses: [], namespaceSelector: team == 'a'",
            "allowedUses: [Tunnel], namespaceSelector: ''",
            "assignmentMode: Manual",
            "assignmentMode: null",
            "disableBGPExport: true",
            "ipipMode: '', vxlanMode: Always",
            "nat-outgoing: false",
        ],
    );
    are(
        false,
        pool,
        [
            "allowedUses: [Foo]",
            "allowedUses: Workload",
            "allowedUses: [Workload, Workload]",
            "allowedUses: [LoadBalancer, Workload]",
            "allowedUses: [LoadBalancer], ipipMode: Always",
            "allowedUses: [LoadBalancer], vxlanMode: CrossSubnet",
            "allowedUses: [LoadBalancer], nodeSelector: has(rack)",
            "allowedUses: [LoadBalancer], disableBGPExport: true",
            "nodeSelector: a =",
            "namespaceSelector: a =",
            "allowedUses: [Tunnel], namespaceSelector: team == 'a'",
            "allowedUses: [Tunnel], namespaceSelector: all()",
            "allowedUses: [Workload, Tunnel], namespaceSelector: team == 'a'",
            "assignmentMode: automatic",
            "assignmentMode: ''",
            "disableBGPExport: 1",
            "disabled: 'no'",
            "ipipMode: always",
            "ipipMode: Always, vxlanMode: Always",
            "ipip: {enabled: true}",
            "nat-outgoing: true",
        ],
    );
}

#[test]
fn a_calico_policys_name_has_one_dot_at_most_unless_it_says_what_it_was_made_from() {
    for kind in
        ["NetworkPolicy", "StagedNetworkPolicy", "GlobalNetworkPolicy", "StagedGlobalNetworkPolicy"]
    {
        let policy = |name: &str| object("projectcalico.org/v3", kind, name, "");
        are(true, policy, ["a", "a-b", "security.a", "knp.a"]);
        are(false, policy, ["a.b.c", "knp.other.a", "A", "a.", "a..b"]);
        let made = ["knp.default.a", "knp.default.a.b", "ossg.default.a"];
        are(!kind.contains("Global"), policy, made);
    }
    let kubernetes = |name: &str| object("networking.k8s.io/v1", "NetworkPolicy", name, "");
    are(true, kubernetes, ["a.b.c"]);
}

#[test]
fn there_is_one_performance_hint() {
    for kind in ["NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy"] {
        let policy = |hints: &str| calico(kind, &format!("performanceHints: {hints}"));
        are(true, policy, ["[]", "[AssumeNeededOnEveryNode]"]);
        let two = "[AssumeNeededOnEveryNode, AssumeNeededOnEveryNode]";
        are(false, policy, ["[Foo]", "[assumeNeededOnEveryNode]", "AssumeNeededOnEveryNode", two]);
    }
}

#[test]
fn a_rules_metadata_has_annotations_with_legal_keys() {
    let metadata = |metadata: &str| rule(&format!("metadata: {metadata}"));
    are(true, metadata, ["{}", "{annotations: {a: b}}", "{annotations: {Example.com/a: ''}}"]);
    are(
        false,
        metadata,
        ["5", "[a]", "{annotations: {'a b': c}}", "{annotations: {a: 5}}", "{annotations: [a]}"],
    );
    // Unknown metadata does not affect packets, because it is never a condition.
    let unknown = metadata("{foo: c}");
    assert!(invalid(&unknown).is_none());
    assert!(super::problems(&unknown).contains("metadata.foo: unknown field"));
}

#[test]
fn a_block_affinity_says_which_block_is_whose_and_how_far_that_is() {
    let affinity = |spec: &str| calico("BlockAffinity", spec);
    are(
        true,
        affinity,
        [
            "cidr: 10.0.0.0/26, node: n1, state: confirmed",
            "cidr: 10.0.0.0/26, node: n1, state: pending, type: ''",
            "cidr: 10.0.0.0/26, node: n1, state: pendingDeletion, type: host, deleted: 'true'",
            "cidr: 10.0.0.0/32, node: load-balancer, state: confirmed, type: virtual, deleted: false",
            "cidr: 'fd00::/122', node: n1.example, state: confirmed, deleted: ''",
        ],
    );
    are(
        false,
        affinity,
        [
            "",
            "cidr: 10.0.0.0/26, node: n1",
            "cidr: 10.0.0.0/26, state: confirmed",
            "node: n1, state: confirmed",
            "cidr: 10.0.0.1/26, node: n1, state: confirmed",
            "cidr: 10.0.0.0, node: n1, state: confirmed",
            "cidr: 10.0.0.0/26, node: 'n 1', state: confirmed",
            "cidr: 10.0.0.0/26, node: n1, state: Confirmed",
            "cidr: 10.0.0.0/26, node: n1, state: ''",
            "cidr: 10.0.0.0/26, node: n1, state: confirmed, type: pod",
            "cidr: 10.0.0.0/26, node: n1, state: confirmed, deleted: 'no'",
            "cidr: 10.0.0.0/26, node: n1, state: confirmed, deleted: 0",
        ],
    );
}
