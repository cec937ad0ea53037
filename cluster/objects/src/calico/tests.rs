use std::fmt::Write as _;

use super::super::code::Code;
use super::super::object::calico::{
    Action, EndpointToHost, EntityRule, Failsafe, FelixConfiguration, HostEndpoint, IcmpMatch,
    Order, Policy, Port, Rule, ServiceAccountMatch, ServiceMatch, StagedAction, Subject, Tier,
};
use super::super::object::{
    self, AssignmentMode, EncapsulationMode, IpPool, Kind, Object, PolicyType, PoolUse,
};
use super::super::problem::Problem;
use super::super::tests::{clean, invalid, only, problems};
use super::super::{Entry, State, read};

const V3: &str = "projectcalico.org/v3";

/// A Calico object whose `spec` is `spec`, indented by two.
fn text(kind: &str, spec: &str) -> String {
    let body = spec.trim_matches('\n').replace('\n', "\n  ");
    let name = if kind == "FelixConfiguration" { "default" } else { "a" };
    format!("apiVersion: {V3}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {body}\n")
}

/// A policy without problems, except that a policy before tracking or translation is reported as
/// not enforced.
fn policy(kind: &str, spec: &str) -> Policy {
    let manifest = read("file.yaml", &text(kind, spec)).unwrap();
    let enforced = |problem: &Problem| problem.code() != Code::HostPolicyNotEnforced;
    assert!(!manifest.problems.iter().any(enforced), "{:?}", manifest.problems);
    let State::Valid(object) = &manifest.entries[0].state else { panic!("a policy") };
    let Object::CalicoPolicy(policy) = &**object else { panic!("a policy") };
    (**policy).clone()
}

/// The only ingress rule of a global policy.
fn rule(rule: &str) -> Rule {
    let body = rule.trim_matches('\n').replace('\n', "\n  ");
    let mut policy = policy("GlobalNetworkPolicy", &format!("ingress:\n- {body}"));
    assert_eq!(policy.ingress.len(), 1);
    policy.ingress.remove(0)
}

/// The messages of all cases, one after another. Checks for each case whether it is valid as
/// expected.
fn messages<'a>(cases: impl IntoIterator<Item = (&'a str, String)>, valid: bool) -> String {
    let mut all = String::new();
    for (name, text) in cases {
        let problems = problems(&text);
        assert!(!problems.is_empty(), "{name} has nothing to say");
        assert_eq!(invalid(&text).is_none(), valid, "{name}: {problems}");
        writeln!(all, "## {name}\n{}", problems.trim_end()).unwrap();
    }
    all
}

/// The objects of a file of `fixtures/refused`, each with its name. An API server refuses them,
/// too.
fn refused(file: &str) -> Vec<(&str, String)> {
    let mut all = Vec::new();
    for text in file.split("\n---\n") {
        let (name, object) = text.split_once('\n').unwrap();
        all.push((name.strip_prefix("# ").unwrap(), format!("{}\n", object.trim_end())));
    }
    all
}

#[test]
fn only_a_confirmed_affinity_of_a_host_that_is_not_deleted_is_in_force() {
    let of = |version: &str, more: &str| {
        let text = text("BlockAffinity", "cidr: 10.65.0.0/26\nnode: n1\n").replace(V3, version);
        let Object::BlockAffinity(affinity) = only(&(text.trim_end().to_owned() + "\n" + more))
        else {
            panic!("an affinity is wanted")
        };
        assert_eq!((affinity.cidr.to_string().as_str(), &*affinity.node), ("10.65.0.0/26", "n1"));
        affinity.is_in_force()
    };
    let v1 = "crd.projectcalico.org/v1";
    for (version, more, expected) in [
        (v1, "  state: confirmed\n  deleted: \"false\"\n", true),
        (v1, "  state: confirmed\n  deleted: \"\"\n", true),
        (v1, "  state: confirmed\n  deleted: \"true\"\n", false),
        (V3, "  state: confirmed\n", true),
        (V3, "  state: confirmed\n  deleted: false\n  type: host\n", true),
        (V3, "  state: confirmed\n  deleted: true\n", false),
        (V3, "  state: confirmed\n  type: virtual\n", false),
        (V3, "  state: pending\n", false),
        (V3, "  state: pendingDeletion\n", false),
    ] {
        assert_eq!(of(version, more), expected, "{version} {more}");
    }
}

#[test]
fn error_texts_of_block_affinities() {
    let whole = |more: &str| format!("cidr: 10.0.0.0/26\nnode: n1\n{more}");
    let cases = [
        ("cidr_missing", "node: n1\nstate: confirmed".to_owned()),
        ("cidr_with_host_bits", "cidr: 10.0.0.1/26\nnode: n1\nstate: confirmed".to_owned()),
        ("node_missing", "cidr: 10.0.0.0/26\nstate: confirmed".to_owned()),
        ("state_missing", whole("type: host")),
        ("state_unknown", whole("state: claimed")),
        ("type_unknown", whole("state: confirmed\ntype: pod")),
        ("deleted_of_another_type", whole("state: confirmed\ndeleted: 1")),
    ];
    let cases = cases.map(|(name, spec)| (name, text("BlockAffinity", &spec)));
    insta::assert_snapshot!(messages(cases, false));
}

#[test]
fn error_texts_of_pools() {
    insta::assert_snapshot!(messages(
        refused(include_str!("../../../../fixtures/refused/pools.yaml")),
        false
    ));
}

fn plain_rule(action: Action) -> Rule {
    Rule {
        action,
        ip_version: None,
        protocol: None,
        not_protocol: None,
        icmp: None,
        not_icmp: None,
        source: EntityRule::default(),
        destination: EntityRule::default(),
        http: false,
    }
}

#[test]
fn a_global_policy_is_read_as_written_and_nothing_is_defaulted() {
    let policy = policy(
        "GlobalNetworkPolicy",
        "
tier: security
order: 1.5e2
selector: app == 'web'
namespaceSelector: team == 'a'
serviceAccountSelector: role == 'x'
types: [Ingress, Egress]
applyOnForward: true
doNotTrack: true
performanceHints: [AssumeNeededOnEveryNode]
ingress:
- action: allow
  ipVersion: 4
  protocol: TCP
  notProtocol: 17
  metadata: {annotations: {a: b}}
  source:
    nets: [10.0.0.0/8]
    notNets: [10.1.0.0/16]
    selector: a == 'b'
    notSelector: has(c)
    namespaceSelector: global()
    serviceAccounts: {names: [x, w], selector: z == 'z'}
  destination: {ports: [80, '81', '90:99', http], notPorts: [85]}
- {action: next-tier, protocol: ICMP, icmp: {type: 8, code: 0}, notICMP: {}}
- {action: Log, source: {services: {name: s, namespace: ns}, ports: [53]}, protocol: 17}
egress:
- {action: Deny, destination: {ports: [dns]}}
",
    );
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(policy.tier.as_deref(), Some("security"));
    assert_eq!(policy.order, Order::new(150.0));
    let subject = Subject {
        selector: text("app == 'web'"),
        namespace_selector: text("team == 'a'"),
        service_account_selector: text("role == 'x'"),
    };
    assert_eq!(policy.subject, subject);
    assert_eq!(policy.types, Some(vec![PolicyType::Ingress, PolicyType::Egress]));
    assert!(policy.apply_on_forward && policy.do_not_track && !policy.pre_dnat);
    let source = EntityRule {
        nets: vec!["10.0.0.0/8".parse().unwrap()],
        not_nets: vec!["10.1.0.0/16".parse().unwrap()],
        selector: text("a == 'b'"),
        not_selector: text("has(c)"),
        namespace_selector: text("global()"),
        service_accounts: Some(ServiceAccountMatch {
            names: vec!["x".to_owned(), "w".to_owned()],
            selector: text("z == 'z'"),
        }),
        ..EntityRule::default()
    };
    let ports = vec![
        Port::Range(80, 80),
        Port::Range(81, 81),
        Port::Range(90, 99),
        Port::Name("http".to_owned()),
    ];
    let destination =
        EntityRule { ports, not_ports: vec![Port::Range(85, 85)], ..EntityRule::default() };
    let first = Rule {
        ip_version: Some(4),
        protocol: Some(6),
        not_protocol: Some(17),
        source,
        destination,
        ..plain_rule(Action::Allow)
    };
    assert_eq!(policy.ingress[0], first);
    let second = Rule {
        protocol: Some(1),
        icmp: Some(IcmpMatch { kind: Some(8), code: Some(0) }),
        not_icmp: Some(IcmpMatch { kind: None, code: None }),
        ..plain_rule(Action::Pass)
    };
    assert_eq!(policy.ingress[1], second);
    let service = ServiceMatch { name: "s".to_owned(), namespace: text("ns") };
    assert_eq!(policy.ingress[2].source.service, Some(service));
    assert_eq!(policy.egress[0].destination.ports, [Port::Name("dns".to_owned())]);
}

#[test]
fn what_is_absent_stays_absent() {
    for spec in ["{}", "selector: ''\ntier: ''\ningress: []\negress:"] {
        assert_eq!(policy("GlobalNetworkPolicy", spec), Policy::default(), "{spec}");
        assert_eq!(policy("NetworkPolicy", spec), Policy::default(), "{spec}");
    }
    let bare = format!("apiVersion: {V3}\nkind: NetworkPolicy\nmetadata: {{name: a}}\n");
    let State::Valid(object) = &read("file.yaml", &bare).unwrap().entries[0].state.clone() else {
        panic!("it is valid")
    };
    assert_eq!(**object, Object::CalicoPolicy(Box::default()));
    assert_eq!(rule("action: Deny\nsource: {notNets: []}\nprotocol:"), plain_rule(Action::Deny));
}

#[test]
fn actions_are_read_in_any_case_and_protocols_by_name_and_number() {
    for (written, action) in [
        ("ALLOW", Action::Allow),
        ("deny", Action::Deny),
        ("pASS", Action::Pass),
        ("Next-Tier", Action::Pass),
        ("log", Action::Log),
    ] {
        assert_eq!(rule(&format!("action: {written}")).action, action);
    }
    for (written, number) in [
        ("TCP", 6),
        ("UDP", 17),
        ("ICMP", 1),
        ("ICMPv6", 58),
        ("SCTP", 132),
        ("UDPLite", 136),
        ("'47'", 47),
        ("1", 1),
        ("255", 255),
    ] {
        assert_eq!(rule(&format!("action: Deny\nprotocol: {written}")).protocol, Some(number));
    }
}

#[test]
fn the_api_group_tells_calicos_policies_from_kubernetes() {
    let text = |version: &str| {
        format!("apiVersion: {version}\nkind: NetworkPolicy\nmetadata: {{name: a}}\nspec: {{}}\n")
    };
    for (version, kind) in [
        ("networking.k8s.io/v1", Kind::NetworkPolicy),
        ("projectcalico.org/v3", Kind::CalicoNetworkPolicy),
        ("crd.projectcalico.org/v1", Kind::CalicoNetworkPolicy),
    ] {
        assert_eq!(clean(&text(version)).entries[0].key.kind, kind);
    }
    let manifest = read("file.yaml", &text("projectcalico.org/v2")).unwrap();
    assert_eq!(manifest.entries[0].key.kind, Kind::CalicoNetworkPolicy);
    assert!(matches!(manifest.entries[0].state, State::Invalid(_)));
}

#[test]
fn staged_policies_say_their_action() {
    for (kind, spec) in [
        ("StagedNetworkPolicy", "stagedAction: Learn\nselector: a == 'b'"),
        ("StagedGlobalNetworkPolicy", "stagedAction: Learn\npreDNAT: true\napplyOnForward: true"),
    ] {
        assert_eq!(policy(kind, spec).staged_action, Some(StagedAction::Learn));
    }
    assert_eq!(policy("StagedNetworkPolicy", "stagedAction: ''").staged_action, None);
    let delete = policy("StagedNetworkPolicy", "stagedAction: Delete\ntier: x\ningress: []");
    assert_eq!(delete.staged_action, Some(StagedAction::Delete));
    let kubernetes = text("StagedKubernetesNetworkPolicy", "stagedAction: Ignore\npodSelector: {}");
    let Object::NetworkPolicy(policy) = only(&kubernetes) else { panic!("a policy") };
    assert_eq!(policy.staged_action, Some(StagedAction::Ignore));
}

#[test]
fn resources_are_read_whole() {
    let tier = |name: &str, spec: &str| {
        let text = text("Tier", spec).replace("name: a", &format!("name: {name}"));
        let Object::Tier(tier) = only(&text) else { panic!("a tier") };
        tier
    };
    let pass = Tier { order: Order::new(-3.5), default_action: Some(Action::Pass) };
    assert_eq!(tier("a", "order: -3.5\ndefaultAction: Pass"), pass);
    assert_eq!(tier("a", "{}"), Tier { order: None, default_action: None });
    assert_eq!(tier("default", "order: 1e6").order, Order::new(1_000_000.0));
    assert_eq!(
        tier("kube-admin", "order: 1000\ndefaultAction: Pass"),
        Tier { order: Order::new(1000.0), default_action: Some(Action::Pass) }
    );

    for kind in ["NetworkSet", "GlobalNetworkSet"] {
        let spec = "nets: [10.0.0.1, 10.2.3.4/16, 'fd00::/64']";
        let Object::NetworkSet(set) = only(&text(kind, spec)) else { panic!("a set") };
        let nets: Vec<_> = set.nets.iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["10.0.0.1/32", "10.2.0.0/16", "fd00::/64"]);
    }

    let host = text(
        "HostEndpoint",
        "node: n1\ninterfaceName: eth0\nexpectedIPs: [10.0.0.1]\nprofiles: [p]\nports:\n- {name: ssh, protocol: TCP, port: 22}",
    )
    .replace("name: a", "name: a, labels: {role: edge}");
    let Object::HostEndpoint(host) = only(&host) else { panic!("a host endpoint") };
    let expected = HostEndpoint {
        labels: [("role".to_owned(), "edge".to_owned())].into(),
        node: "n1".to_owned(),
        interface: Some("eth0".to_owned()),
        expected_ips: vec!["10.0.0.1".parse().unwrap()],
        profiles: vec!["p".to_owned()],
        ports: vec![("ssh".to_owned(), 6, 22)],
    };
    assert_eq!(*host, expected);
    assert!(matches!(
        only(&text("HostEndpoint", "node: n1\ninterfaceName: '*'")),
        Object::HostEndpoint(_)
    ));

    let spec = "labelsToApply: {a: b}\ningress: [{action: Allow}]\negress: [{action: Deny}]";
    let Object::Profile(profile) = only(&text("Profile", spec)) else { panic!("a profile") };
    assert_eq!(profile.labels.get("a").unwrap(), "b");
    assert_eq!(profile.ingress, [plain_rule(Action::Allow)]);
    assert_eq!(profile.egress, [plain_rule(Action::Deny)]);
}

#[test]
fn a_pool_says_who_gets_which_of_its_addresses() {
    let pool = |spec: &str| match read("a.yaml", &text("IPPool", spec)).unwrap().entries.remove(0) {
        Entry { state: State::Valid(object), .. } => match &*object {
            Object::IpPool(pool) => (**pool).clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let allowed = |pool: &IpPool| {
        [PoolUse::Workload, PoolUse::Tunnel, PoolUse::LoadBalancer].map(|one| pool.allows(one))
    };

    // What is absent stays absent. The methods know Calico's defaults.
    for absent in ["", "\nblockSize: 0\nnodeSelector: ''\nnamespaceSelector: ''\nallowedUses: []"] {
        for (cidr, size) in [("10.0.0.0/16", 26), ("fd00::/48", 122)] {
            let net = cidr.parse().unwrap();
            let pool = pool(&format!("cidr: {cidr}{absent}"));
            assert_eq!(
                pool,
                IpPool { ipip_mode: None, ..IpPool::ipip(net, EncapsulationMode::Never) }
            );
            assert_eq!(pool.block_size(), size);
            assert_eq!(allowed(&pool), [true, true, false]);
        }
    }

    let whole = pool(
        "cidr: 10.0.0.0/16\nblockSize: 29\ndisabled: true\nnodeSelector: rack == 'a'\n\
         namespaceSelector: has(team)\nassignmentMode: Manual\nallowedUses: [Workload]",
    );
    assert_eq!((whole.block_size(), whole.disabled), (29, true));
    assert_eq!(whole.node_selector.as_deref(), Some("rack == 'a'"));
    assert_eq!(whole.namespace_selector.as_deref(), Some("has(team)"));
    assert_eq!(whole.assignment_mode, Some(AssignmentMode::Manual));
    assert_eq!(allowed(&whole), [true, false, false]);
    let balancer =
        pool("cidr: 10.0.0.0/16\nassignmentMode: Automatic\nallowedUses: [LoadBalancer]");
    assert_eq!(balancer.assignment_mode, Some(AssignmentMode::Automatic));
    assert_eq!(allowed(&balancer), [false, false, true]);
}

#[test]
fn failsafe_ports_are_read_as_objects_and_as_text() {
    let felix = |spec: &str| {
        let Object::FelixConfiguration(felix) = only(&text("FelixConfiguration", spec)) else {
            panic!("Felix's settings")
        };
        *felix
    };
    let failsafe = |protocol, port, net: Option<&str>| Failsafe {
        protocol,
        port,
        net: net.map(|net| net.parse().unwrap()),
    };
    let read = felix(
        "
defaultEndpointToHostAction: ACCEPT
bpfEnabled: false
failsafeInboundHostPorts:
- {protocol: UDP, port: 68}
- {port: 22, net: 10.0.0.0/8}
- tcp:179
- tcp:10.1.0.0/16:6443
- udp:[fd00::/8]:53
failsafeOutboundHostPorts: []
",
    );
    assert_eq!(read.endpoint_to_host, Some(EndpointToHost::Accept));
    let expected = [
        failsafe(17, 68, None),
        failsafe(6, 22, Some("10.0.0.0/8")),
        failsafe(6, 179, None),
        failsafe(6, 6443, Some("10.1.0.0/16")),
        failsafe(17, 53, Some("fd00::/8")),
    ];
    assert_eq!(read.failsafe_inbound.as_deref(), Some(&expected[..]));
    assert_eq!(read.failsafe_outbound, Some(Vec::new()));
    let read = felix("failsafeInboundHostPorts: 'udp:68, 22'\nfailsafeOutboundHostPorts: none");
    assert_eq!(read.failsafe_inbound, Some(vec![failsafe(17, 68, None), failsafe(6, 22, None)]));
    assert_eq!(read.failsafe_outbound, Some(Vec::new()));
    let read = felix("failsafeInboundHostPorts: [{port: 0}, 'udp:0', '65535']");
    let ends = vec![failsafe(6, 0, None), failsafe(17, 0, None), failsafe(6, 65535, None)];
    assert_eq!(read.failsafe_inbound, Some(ends));
    let read = felix("failsafeInboundHostPorts: '0, udp:0'");
    assert_eq!(read.failsafe_inbound, Some(vec![failsafe(6, 0, None), failsafe(17, 0, None)]));
    for ports in ["[{port: -1}]", "[{port: 65536}]", "['tcp:65536']", "'-1'"] {
        let refused = text("FelixConfiguration", &format!("failsafeInboundHostPorts: {ports}"));
        assert!(invalid(&refused).is_some(), "{ports}");
    }
    assert_eq!(felix("{}"), FelixConfiguration::default());
}

#[test]
fn what_calicos_client_stored_as_json_counts_as_the_objects_metadata() {
    let stored = r#"'{"name":"web","labels":{"a":"stored","b":"c"}}'"#;
    let text = |version: &str, stored: &str| {
        format!(
            "apiVersion: {version}\nkind: GlobalNetworkSet\nmetadata:\n  name: default.web\n  labels: {{a: own, d: e}}\n  \
             annotations:\n    projectcalico.org/metadata: {stored}\nspec: {{nets: []}}\n"
        )
    };
    let manifest = clean(&text("crd.projectcalico.org/v1", stored));
    assert_eq!(manifest.entries[0].key.name, "web");
    let Object::NetworkSet(set) = only(&text("crd.projectcalico.org/v1", stored)) else { panic!() };
    let pairs = |pairs: &[(&str, &str)]| -> object::Pairs {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(set.labels, pairs(&[("a", "stored"), ("b", "c"), ("d", "e")]));
    let Object::NetworkSet(set) = only(&text(V3, stored)) else { panic!() };
    assert_eq!(set.labels, pairs(&[("a", "own"), ("d", "e")]));
    for broken in ["'{'", "'[]'", r#"'{"labels":{"a":5}}'"#] {
        assert!(invalid(&text("crd.projectcalico.org/v1", broken)).is_some(), "{broken}");
    }
}

#[test]
fn an_invalid_object_keeps_what_others_need_of_it() {
    let kept = |text: &str| {
        let manifest = read("file.yaml", text).unwrap();
        let State::Invalid(invalid) = &manifest.entries[0].state else { panic!("{text}") };
        invalid.clone()
    };
    let subject = kept(&text("GlobalNetworkPolicy", "selector: a == 'b'\norder: x")).subject;
    let expected = Subject { selector: Some("a == 'b'".to_owned()), ..Subject::default() };
    assert_eq!(subject, Some(object::Subject::Calico(expected)));
    assert_eq!(kept(&text("GlobalNetworkPolicy", "selector: 5")).subject, None);

    let set = |labels: &str| {
        let text = text("NetworkSet", "nets: [x]");
        kept(&text.replace("name: a", &format!("name: a, labels: {labels}"))).labels
    };
    assert_eq!(set("{a: b}").unwrap().get("a").unwrap(), "b");
    assert_eq!(set("{a: 5}"), None);
}

#[test]
fn a_policy_without_a_name_still_fails_closed() {
    for kind in ["NetworkPolicy", "GlobalNetworkPolicy"] {
        let key = invalid(&format!("apiVersion: {V3}\nkind: {kind}\nmetadata: {{}}\n")).unwrap();
        assert!(key.name.starts_with("(no name"), "{key}");
        assert_eq!(key.namespace.is_empty(), kind == "GlobalNetworkPolicy");
    }
}

#[test]
fn error_texts_of_rules() {
    insta::assert_snapshot!(messages(
        refused(include_str!("../../../../fixtures/refused/rules.yaml")),
        false
    ));
}

#[test]
fn error_texts_of_calicos_policies() {
    insta::assert_snapshot!(messages(
        refused(include_str!("../../../../fixtures/refused/policies.yaml")),
        false
    ));
}

#[test]
fn error_texts_of_calicos_resources() {
    insta::assert_snapshot!(messages(
        refused(include_str!("../../../../fixtures/refused/resources.yaml")),
        false
    ));
}

#[test]
fn warning_texts_of_calicos_kinds() {
    let texts = [
        ("spec_field_unknown", text("NetworkPolicy", "namespaceSelector: a == 'b'\nselectr: x")),
        (
            "rule_selector_empty",
            text("NetworkPolicy", "ingress: [{action: Deny, source: {selector: ''}}]"),
        ),
        (
            "http",
            text(
                "NetworkPolicy",
                "ingress: [{action: Allow, protocol: TCP, http: {methods: [GET], paths: [{prefix: /a}]}}]",
            ),
        ),
        (
            "felix_misspelled",
            text("FelixConfiguration", "failsafeInboundHostPort: []\nbpfEnabled: true"),
        ),
        ("pool_vxlan", text("IPPool", "cidr: fd00::/48\nvxlanMode: CrossSubnet")),
    ];
    insta::assert_snapshot!(messages(texts, true));
}

#[test]
fn a_felix_configuration_that_no_node_heeds_is_told_of() {
    let told = |name: &str| {
        let named = text("FelixConfiguration", "{}").replace("default", name);
        let manifest = read("file.yaml", &named).unwrap();
        manifest.problems.iter().map(Problem::summary).collect::<Vec<_>>()
    };
    assert!(told("default").is_empty() && told("node.a").is_empty());
    let said = "file.yaml:3:18: FelixConfiguration general: metadata.name: is neither default nor node.NAME, so no node uses this configuration";
    assert_eq!(told("general"), [said]);
}

#[test]
fn what_of_felix_is_not_heeded_is_told_where_it_is_not_as_by_default() {
    let told = |spec: &str| {
        let manifest = read("file.yaml", &text("FelixConfiguration", spec)).unwrap();
        let fields = manifest.problems.into_iter().map(|problem| problem.field);
        fields.collect::<Vec<String>>()
    };
    let other = "vxlanVNI: 5\nvxlanPort: 8472\nvxlanEnabled: false\nipipEnabled: false";
    let fields = ["spec.vxlanVNI", "spec.vxlanPort", "spec.vxlanEnabled", "spec.ipipEnabled"];
    assert_eq!(told(other), fields);
    let default = "vxlanVNI: 4096\nvxlanPort: 4789\nvxlanEnabled: true\nipipEnabled: true";
    assert!(told(default).is_empty());
}
