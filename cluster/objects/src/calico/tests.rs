use std::fmt::Write as _;
use std::time::Duration;

use super::super::code::Code;
use super::super::object::bgp::{
    Advertisement, BgpConfiguration, BgpFilter, BgpPeer, Community, FilterRule, NetMatch,
    NetOperator, NodeBgp, Operation, PeeringNodes, Remote, SecretKey,
};
use super::super::object::calico::{
    Action, EndpointToHost, EntityRule, Failsafe, FelixConfiguration, HostEndpoint, IcmpMatch,
    Order, Policy, Port, Rule, ServiceAccountMatch, ServiceMatch, StagedAction, Subject, Tier,
};
use super::super::object::{
    self, AssignmentMode, EncapsulationMode, IpPool, Kind, Object, PolicyType, PoolUse,
};
use super::super::problem::{Problem, Severity};
use super::super::tests::{clean, invalid, only, problems};
use super::super::{Entry, State, read};

const V3: &str = "projectcalico.org/v3";

/// Returns a Calico object with this `spec`, indented by two.
fn text(kind: &str, spec: &str) -> String {
    let body = spec.trim_matches('\n').replace('\n', "\n  ");
    let name = if kind == "FelixConfiguration" { "default" } else { "a" };
    format!("apiVersion: {V3}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {body}\n")
}

/// Reads a policy that has no problems. The exception is that policies before connection tracking
/// or translation are reported as not enforced.
fn policy(kind: &str, spec: &str) -> Policy {
    let manifest = read("file.yaml", &text(kind, spec)).unwrap();
    let enforced = |problem: &Problem| problem.code() != Code::HostPolicyNotEnforced;
    assert!(!manifest.problems.iter().any(enforced), "{:?}", manifest.problems);
    let State::Valid(object) = &manifest.entries[0].state else { panic!("a policy") };
    let Object::CalicoPolicy(policy) = &**object else { panic!("a policy") };
    (**policy).clone()
}

/// Reads the only ingress rule of a global policy.
fn rule(rule: &str) -> Rule {
    let body = rule.trim_matches('\n').replace('\n', "\n  ");
    let mut policy = policy("GlobalNetworkPolicy", &format!("ingress:\n- {body}"));
    assert_eq!(policy.ingress.len(), 1);
    policy.ingress.remove(0)
}

/// Returns the messages of all cases, one after another. Checks for each case that it is valid or
/// invalid, as expected.
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

/// Returns the objects of a file of `fixtures/refused`, each with its name. An API server refuses
/// them, too.
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

/// Reads the object with this spec, in both API versions. It has no problems.
fn bgp(kind: &str, spec: &str) -> Object {
    let [v3, v1] = [V3, "crd.projectcalico.org/v1"].map(|it| text(kind, spec).replace(V3, it));
    let object = only(&v3);
    assert_eq!(object, only(&v1));
    object
}

#[test]
fn settings_of_bgp_are_read_as_written() {
    let text = text(
        "BGPConfiguration",
        "
asNumber: 64567
bindMode: NodeIP
communities: [{name: blue, value: '65000:100'}]
ignoredInterfaces: [eth9]
ipv4NormalRoutePriority: 2048
listenPort: 1790
logSeverityScreen: Info
nodeMeshMaxRestartTime: 1m30s
nodeMeshPassword: {secretKeyRef: {name: bgp, key: mesh, optional: true}}
nodeToNodeMeshEnabled: true
prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: [blue, '65000:1:2']}]
programClusterRoutes: EnabledNoEncapOnly
serviceClusterIPs: [{cidr: 10.96.0.0/12}]
serviceExternalIPs: [{cidr: 192.0.2.1/24}]
serviceLoadBalancerAggregation: Disabled
serviceLoadBalancerIPs: [{cidr: 198.51.100.0/24}, {cidr: 'fd00::/64'}]
",
    )
    .replace("name: a}", "name: default}");
    let manifest = read("file.yaml", &text).unwrap();
    // Fields that are read but have no effect cause a warning.
    assert!(manifest.problems.iter().all(|it| it.severity == Severity::Warning), "{manifest:?}");
    let [Entry { state: State::Valid(object), .. }] = &manifest.entries[..] else {
        panic!("settings are wanted")
    };
    let Object::BgpConfiguration(read) = &**object else { panic!("settings are wanted") };
    let net = |text: &str| text.parse().unwrap();
    let communities = vec![Community::Standard(0xfde8_0064), Community::Large([65000, 1, 2])];
    let expected = BgpConfiguration {
        system: Some(64567),
        mesh: Some(true),
        mesh_password: Some(SecretKey { name: "bgp".to_owned(), key: "mesh".to_owned() }),
        mesh_restart_time: Some(Duration::from_secs(90)),
        listen_port: Some(1790),
        listens_at_node_address: true,
        cluster_ips: vec![net("10.96.0.0/12")],
        external_ips: vec![net("192.0.2.0/24")],
        load_balancer_ips: vec![net("198.51.100.0/24"), net("fd00::/64")],
        single_load_balancer_ips: true,
        advertisements: vec![Advertisement { cidr: net("10.0.0.0/8"), communities }],
        normal_priority_v4: Some(2048),
        normal_priority_v6: None,
    };
    assert_eq!(**read, expected);
}

#[test]
fn a_peer_of_bgp_is_read_as_written() {
    let Object::BgpPeer(read) = bgp(
        "BGPPeer",
        "
nodeSelector: rack == 'a'
peerIP: '[fd00::1]:1790'
asNumber: '1.10'
localASNumber: 64513
keepOriginalNextHop: true
password: {secretKeyRef: {name: bgp, key: tor}}
sourceAddress: None
maxRestartTime: 10s
numAllowedLocalASNumbers: -1
ttlSecurity: 2
filters: [one, two]
reversePeering: Manual
",
    ) else {
        panic!("a peer is wanted")
    };
    let expected = BgpPeer {
        nodes: PeeringNodes::Selected("rack == 'a'".to_owned()),
        remote: Remote::Address { address: "fd00::1".parse().unwrap(), port: Some(1790) },
        system: Some(65546),
        local_system: Some(64513),
        next_hop: None,
        keeps_next_hop: true,
        password: Some(SecretKey { name: "bgp".to_owned(), key: "tor".to_owned() }),
        any_source: true,
        restart_time: Some(Duration::from_secs(10)),
        own_system_allowed: 0,
        hops: Some(2),
        reachable_by: None,
        filters: vec!["one".to_owned(), "two".to_owned()],
        is_one_way: true,
    };
    assert_eq!(*read, expected);
    for (spec, nodes, remote) in [
        (
            "{node: n1, peerSelector: has(rr), nextHopMode: Auto, ttlSecurity: 0}",
            PeeringNodes::Named("n1".to_owned()),
            Remote::Nodes("has(rr)".to_owned()),
        ),
        (
            "{node: '', nodeSelector: '', peerIP: 192.0.2.1, peerSelector: '', asNumber: 0}",
            PeeringNodes::All,
            Remote::Address { address: "192.0.2.1".parse().unwrap(), port: None },
        ),
    ] {
        let Object::BgpPeer(read) = bgp("BGPPeer", spec) else { panic!("a peer is wanted") };
        assert_eq!((read.nodes, read.remote, read.system), (nodes, remote, None), "{spec}");
        assert_eq!(read.hops, None);
    }
}

#[test]
fn a_filter_of_bgp_is_read_as_written() {
    let Object::BgpFilter(read) = bgp(
        "BGPFilter",
        "
exportV4:
- {action: Accept, cidr: 10.0.0.0/8, matchOperator: In, prefixLength: {min: 16, max: 24}, source: RemotePeers, interface: 'eth*', peerType: eBGP, communities: {values: ['65000:1']}, asPathPrefix: [65000, '65001'], priority: 512, operations: [{addCommunity: {value: '65000:1:2'}}, {prependASPath: {prefix: [65000]}}, {setPriority: {value: 100}}]}
- {action: Reject}
importV6:
- {action: Reject, cidr: 'fd00::/8', matchOperator: NotEqual, peerType: iBGP}
",
    ) else {
        panic!("a filter is wanted")
    };
    let any = FilterRule {
        net: None,
        from_peers: false,
        interface: None,
        internal_peer: None,
        community: None,
        path_begins: Vec::new(),
        priority: None,
        accepts: false,
        operations: Vec::new(),
    };
    let net = |cidr: &str, operator, shortest, longest| {
        Some(NetMatch { cidr: cidr.parse().unwrap(), operator, shortest, longest })
    };
    let first = FilterRule {
        net: net("10.0.0.0/8", NetOperator::In, Some(16), Some(24)),
        from_peers: true,
        interface: Some("eth*".to_owned()),
        internal_peer: Some(false),
        community: Some(Community::Standard(0xfde8_0001)),
        path_begins: vec![65000, 65001],
        priority: Some(512),
        accepts: true,
        operations: vec![
            Operation::AddCommunity(Community::Large([65000, 1, 2])),
            Operation::PrependPath(vec![65000]),
            Operation::SetPriority(100),
        ],
    };
    let of_v6 = FilterRule {
        net: net("fd00::/8", NetOperator::NotEqual, None, None),
        internal_peer: Some(true),
        ..any.clone()
    };
    let expected = BgpFilter {
        export_v4: vec![first, any],
        export_v6: Vec::new(),
        import_v4: Vec::new(),
        import_v6: vec![of_v6],
    };
    assert_eq!(*read, expected);
}

#[test]
fn error_texts_of_bgp() {
    let rule = |fields: &str| format!("exportV4: [{{{fields}}}]");
    let cases = [
        (
            "password_beside_no_mesh",
            "BGPConfiguration",
            "nodeToNodeMeshEnabled: false\nnodeMeshPassword: {secretKeyRef: {name: a, key: b}}"
                .to_owned(),
        ),
        (
            "community_not_defined",
            "BGPConfiguration",
            "prefixAdvertisements: [{cidr: 10.0.0.0/8, communities: [blue]}]".to_owned(),
        ),
        ("system_of_33_bits", "BGPConfiguration", "asNumber: 4294967296".to_owned()),
        ("password_of_no_secret", "BGPPeer", "peerIP: 192.0.2.1\npassword: {secret: a}".to_owned()),
        ("nobody_named", "BGPPeer", "asNumber: 64512".to_owned()),
        ("two_named", "BGPPeer", "peerIP: 192.0.2.1\npeerSelector: all()".to_owned()),
        ("system_beside_selector", "BGPPeer", "peerSelector: all()\nasNumber: 64512".to_owned()),
        (
            "node_beside_selector",
            "BGPPeer",
            "peerIP: 192.0.2.1\nnode: n1\nnodeSelector: all()".to_owned(),
        ),
        (
            "gateway_of_another_family",
            "BGPPeer",
            "peerIP: 192.0.2.1\nreachableBy: 'fd00::1'".to_owned(),
        ),
        (
            "next_hop_twice",
            "BGPPeer",
            "peerIP: 192.0.2.1\nkeepOriginalNextHop: true\nnextHopMode: Keep".to_owned(),
        ),
        ("time_without_unit", "BGPPeer", "peerIP: 192.0.2.1\nmaxRestartTime: '120'".to_owned()),
        ("unknown_field_of_rule", "BGPFilter", rule("action: Accept, cdir: 10.0.0.0/8")),
        ("operator_without_cidr", "BGPFilter", rule("action: Accept, matchOperator: In")),
        ("cidr_without_operator", "BGPFilter", rule("action: Accept, cidr: 10.0.0.0/8")),
        (
            "cidr_of_another_family",
            "BGPFilter",
            rule("action: Accept, cidr: 'fd00::/8', matchOperator: In"),
        ),
        (
            "operations_of_reject",
            "BGPFilter",
            rule("action: Reject, operations: [{setPriority: {value: 1}}]"),
        ),
        (
            "two_operations_in_one",
            "BGPFilter",
            rule(
                "action: Accept, operations: [{setPriority: {value: 1}, addCommunity: {value: '1:1'}}]",
            ),
        ),
        (
            "two_communities",
            "BGPFilter",
            rule("action: Accept, communities: {values: ['1:1', '1:2']}"),
        ),
        ("action_missing", "BGPFilter", rule("cidr: 10.0.0.0/8, matchOperator: In")),
    ];
    let cases = cases
        .map(|(name, kind, spec)| (name, text(kind, &spec).replace("name: a}", "name: default}")));
    insta::assert_snapshot!(messages(cases, false));
}

#[test]
fn a_node_says_its_system_and_cluster_and_what_cannot_be_read_is_told() {
    let node = |annotations: &str| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: n1, annotations: {{{annotations}}}}}}}"
        )
    };
    let whole = node(
        "projectcalico.org/ASNumber: '65001', projectcalico.org/RouteReflectorClusterID: 244.0.0.1, projectcalico.org/IPv6Address: 'fd00::2/64'",
    );
    clean(&whole);
    let Object::Node(read) = only(&whole) else { panic!("a node is wanted") };
    let expected = NodeBgp {
        system: Some(65001),
        cluster: Some([244, 0, 0, 1].into()),
        ipv6_address: Some("fd00::2/64".parse().unwrap()),
    };
    assert_eq!(read.bgp, expected);
    for annotation in [
        "projectcalico.org/ASNumber: x",
        "projectcalico.org/RouteReflectorClusterID: one",
        "projectcalico.org/IPv6Address: 10.0.0.1/24",
    ] {
        let text = node(annotation);
        assert!(problems(&text).starts_with("warning[ignored-annotation]"), "{}", problems(&text));
        let State::Valid(object) = &read_one(&text).state else { panic!("{annotation}") };
        let Object::Node(read) = &**object else { panic!("a node is wanted") };
        assert_eq!(read.bgp, NodeBgp::default(), "{annotation}");
    }
}

fn read_one(text: &str) -> Entry {
    read("file.yaml", text).unwrap().entries.remove(0)
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

    // Absent fields stay absent. The methods know Calico's defaults.
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
