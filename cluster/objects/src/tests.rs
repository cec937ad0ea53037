mod limits;
mod validity;

use std::fmt::Write as _;

use super::object::{
    AnnotatedIps, Kind, LabelSelector, NetworkPolicy, Object, ObjectKey, Peer, Phase, Pod,
    PolicyType, Port, PortNumber, Protocol, Subject,
};
use super::problem::Severity;
use super::tree::{MAX_DEPTH, Node, Value};
use super::{Entry, Manifest, State, read, yaml};

/// Returns every problem of a text in the form for users.
pub(super) fn problems(text: &str) -> String {
    let problems = match read("file.yaml", text) {
        Ok(manifest) => manifest.problems,
        Err(problem) => vec![*problem],
    };
    let mut all = String::new();
    for problem in problems {
        writeln!(all, "{problem}\n").unwrap();
    }
    all
}

pub(super) fn clean(text: &str) -> Manifest {
    let manifest = read("file.yaml", text).unwrap();
    assert!(manifest.problems.is_empty(), "{}", problems(text));
    manifest
}

pub(super) fn only(text: &str) -> Object {
    let manifest = clean(text);
    let [entry] = &manifest.entries[..] else { panic!("{:?}", manifest.entries) };
    let State::Valid(object) = &entry.state else { panic!("{entry:?}") };
    (**object).clone()
}

fn pod(text: &str) -> Pod {
    let Object::Pod(pod) = only(text) else { panic!("a pod is wanted") };
    *pod
}

/// Returns a policy with this `spec`, indented by two.
fn policy_text(spec: &str) -> String {
    let head = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: web\n";
    let body = spec.trim_matches('\n').replace('\n', "\n  ");
    format!("{head}  namespace: shop\nspec:\n  {body}\n")
}

fn policy(spec: &str) -> NetworkPolicy {
    let Object::NetworkPolicy(policy) = only(&policy_text(spec)) else { panic!("a policy") };
    *policy
}

pub(super) fn invalid(text: &str) -> Option<ObjectKey> {
    let manifest = read("file.yaml", text).unwrap();
    let entry = manifest.entries.first()?;
    matches!(entry.state, State::Invalid(_)).then(|| entry.key.clone())
}

fn root(text: &str) -> Node<'_> {
    let mut documents = yaml::parse(text).unwrap();
    assert_eq!(documents.len(), 1);
    let document = documents.remove(0);
    assert!(document.flaws.is_empty(), "{:?}", document.flaws);
    document.root
}

#[test]
fn every_value_knows_its_line_and_column() {
    let root = root("a: 1\nb:\n  - x\n  - {c: 'é', d: y}\n");
    let Value::Mapping(entries) = &root.value else { panic!() };
    assert_eq!(entries[1].at.to_string(), "2:1");
    let Value::Sequence(items) = &entries[1].node.value else { panic!() };
    assert_eq!(items[0].at.to_string(), "3:5");
    assert_eq!(items[1].get("c").unwrap().at.to_string(), "4:9");
    assert_eq!(items[1].get("d").unwrap().at.to_string(), "4:17");
}

#[test]
fn quotes_and_tags_decide_what_plain_text_would_not_be() {
    let root = root("a: '80'\nb: \"yes\"\nc: !!str 80\nd: |\n  on\ne: ! 5\n");
    for (key, text) in [("a", "80"), ("b", "yes"), ("c", "80"), ("d", "on\n"), ("e", "5")] {
        assert_eq!(root.get(key).unwrap().value, Value::String(text.into()), "{key}");
    }
}

#[test]
fn json_with_tabs_is_read_by_the_same_parser() {
    let root = root("{\n\t\"a\": [1, true, null, \"x\\u00e9\\/\"],\n\t\"b\": {}\n}\n");
    let Value::Sequence(items) = &root.get("a").unwrap().value else { panic!() };
    assert_eq!(items[3].value, Value::String("xé/".into()));
    assert_eq!(root.get("b").unwrap().value, Value::Mapping(Vec::new()));
}

#[test]
fn aliases_repeat_and_merge_keys_fill_in_what_is_absent() {
    let root = root("base: &b {x: 1, z: 2}\nuse:\n  <<: *b\n  z: 3\nlist: [*b]\n'<<': 4\n");
    let used = root.get("use").unwrap();
    assert_eq!(used.get("x").unwrap().value, Value::Integer(1));
    assert_eq!(used.get("z").unwrap().value, Value::Integer(3));
    let Value::Sequence(items) = &root.get("list").unwrap().value else { panic!() };
    assert_eq!(items[0].get("z").unwrap().value, Value::Integer(2));
    assert_eq!(root.get("<<").unwrap().value, Value::Integer(4));
}

#[test]
fn depth_is_bounded() {
    let deep = "[".repeat(MAX_DEPTH + 1);
    assert!(matches!(yaml::parse(&deep), Err(yaml::SyntaxError::TooDeep { .. })));
    let fits = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
    assert!(yaml::parse(&fits).is_ok());
    assert!(yaml::parse("a: &a [*a]\n").is_err());
}

#[test]
fn documents_are_counted_and_empty_ones_skipped() {
    let documents = yaml::parse("---\na: 1\n---\n# nothing\n---\nb: 2\n...\n").unwrap();
    assert_eq!(documents.iter().map(|document| document.number).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(yaml::parse("").unwrap(), []);
}

#[test]
fn a_pod_is_read_whole() {
    let pod = pod(r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  labels: {app: web, tier: "1"}
  annotations: {cni.projectcalico.org/podIPs: "10.0.0.4/32,fd00::4/128"}
  deletionTimestamp: "2026-01-01T00:00:00Z"
spec:
  nodeName: node-1
  hostNetwork: no
  containers:
    - name: web
      image: web
      ports: [{name: http, containerPort: 0x50}, {containerPort: 53, protocol: UDP}]
  initContainers:
    - name: init
      ports: [{name: init, containerPort: 9000, protocol: SCTP}]
status:
  phase: Running
  podIP: 10.0.0.4
  podIPs: [{ip: 10.0.0.4}, {ip: "fd00::4"}]
"#);
    assert_eq!(pod.labels.get("tier").unwrap(), "1");
    assert!(pod.deleting && !pod.host_network);
    assert_eq!(pod.node_name.as_deref(), Some("node-1"));
    assert_eq!(pod.containers[0][0].port, 80);
    assert_eq!(pod.containers[0][1].protocol, Some(Protocol::Udp));
    assert_eq!(pod.init_containers[0][0].name.as_deref(), Some("init"));
    assert_eq!(pod.phase, Some(Phase::Running));
    assert_eq!(pod.pod_ip, "10.0.0.4".parse().ok());
    assert_eq!(pod.pod_ips.len(), 2);
    let annotated = AnnotatedIps { pod_ips: Some(pod.pod_ips.clone()), ..AnnotatedIps::default() };
    assert_eq!(pod.annotated_ips, annotated);
}

#[test]
fn a_pods_annotations_tell_addresses_or_that_there_are_none() {
    let of = |name: &str, text: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{{name}: '{text}'}}}}\n"
        )
    };
    let annotated = |name: &str, text: &str| {
        let text = of(name, text);
        invalid(&text).is_none().then(|| pod(&text).annotated_ips)
    };
    let addresses = |texts: &[&str]| Some(texts.iter().map(|text| text.parse().unwrap()).collect());
    let none = AnnotatedIps::default();
    let (ips, ip) = ("cni.projectcalico.org/podIPs", "cni.projectcalico.org/podIP");
    let aws = "vpc.amazonaws.com/pod-ips";
    let noted = annotated(ips, "10.0.0.1/32,fd00::1/128").unwrap();
    assert_eq!(
        noted,
        AnnotatedIps { pod_ips: addresses(&["10.0.0.1", "fd00::1"]), ..none.clone() }
    );
    let noted = annotated(ip, "10.0.0.1/32").unwrap();
    assert_eq!(noted, AnnotatedIps { pod_ip: addresses(&["10.0.0.1"]), ..none.clone() });
    let noted = annotated(ip, "").unwrap();
    assert_eq!(noted, AnnotatedIps { pod_ip: addresses(&[]), ..none.clone() });
    let noted = annotated(aws, "10.0.0.1, 10.0.0.2").unwrap();
    assert_eq!(noted, AnnotatedIps { aws_pod_ips: addresses(&["10.0.0.1", "10.0.0.2"]), ..none });
    // One illegal part makes the pod invalid. The addresses in the other parts are closed.
    for (name, text, closed) in [
        (ip, "10.0.0.1,10.0.0.2", &["10.0.0.1", "10.0.0.2"][..]),
        (ip, "here", &[]),
        (ips, ",", &[]),
        (ips, "10.0.0.1,", &["10.0.0.1"]),
        (ips, "10.0.0.1/32,fd00::zz/128", &["10.0.0.1"]),
        (ips, "10.0.0.1/24", &["10.0.0.1"]),
        (aws, "10.0.0.1;10.0.0.2", &[]),
        (aws, "none, 10.0.0.2", &["10.0.0.2"]),
    ] {
        assert_eq!(annotated(name, text), None, "{name}: {text}");
        let manifest = read("pod.yaml", &of(name, text)).unwrap();
        let State::Invalid(invalid) = &manifest.entries[0].state else { panic!("{text}") };
        let expected = closed.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(invalid.annotated, expected, "{name}: {text}");
        assert!(invalid.reported.is_empty(), "{name}: {text}");
        // Calico does not read the annotation if status has the address.
        let filled = of(name, text) + "status: {podIP: 10.0.0.9}\n";
        let manifest = read("pod.yaml", &filled).unwrap();
        assert!(matches!(manifest.entries[0].state, State::Valid(_)), "{name}: {text}");
        let [problem] = &manifest.problems[..] else { panic!("{:?}", manifest.problems) };
        assert_eq!(problem.severity, Severity::Warning, "{name}: {text}");
        let broken = filled.replace("status: {", "status: {phase: Odd, ");
        let manifest = read("pod.yaml", &broken).unwrap();
        let State::Invalid(invalid) = &manifest.entries[0].state else { panic!("{text}") };
        assert!(closed.iter().all(|text| invalid.annotated.contains(&text.parse().unwrap())));
        assert_eq!(invalid.reported, ["10.0.0.9".parse().unwrap()].into());
    }
}

#[test]
fn a_node_is_leaving_if_it_is_being_deleted_or_has_the_autoscalers_taint() {
    let is_leaving = |metadata: &str, spec: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: node{metadata}}}\nspec: {{{spec}}}\n"
        );
        let Object::Node(node) = only(&text) else { panic!("{text}") };
        node.is_leaving
    };
    let taint =
        format!("{{key: {}, value: '1', effect: NoSchedule}}", crate::object::TO_BE_DELETED);
    let other = "{key: node.kubernetes.io/unschedulable, effect: NoSchedule}";
    assert!(is_leaving(", deletionTimestamp: '2026-01-01T00:00:00Z'", ""));
    assert!(is_leaving("", &format!("taints: [{other}, {taint}]")));
    for spec in ["", "taints: null", "taints: x", "taints: [x, {}]", &format!("taints: [{other}]")]
    {
        assert!(!is_leaving("", spec), "{spec}");
    }
}

#[test]
fn nodes_namespaces_and_pools_are_read_whole() {
    let Object::Node(node) = only(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: node-1\n  annotations: {projectcalico.org/IPv4Address: 172.18.0.2/24}\n\
         spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, 'fd00:1::/64']}\n\
         status:\n  addresses:\n  - {type: Hostname, address: node-1}\n  - {type: InternalIP, address: 172.18.0.2}\n",
    ) else {
        panic!()
    };
    assert_eq!(node.pod_cidrs.len(), 2);
    assert_eq!(node.internal_ips, ["172.18.0.2".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(node.calico_address.unwrap().to_string(), "172.18.0.2/24");
    assert!(!node.is_leaving && node.tunnel_addresses.is_empty());

    let Object::Namespace(namespace) =
        only("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a}}\n")
    else {
        panic!()
    };
    assert_eq!(namespace.labels.get("kubernetes.io/metadata.name").unwrap(), "shop");
    assert_eq!(namespace.labels.get("team").unwrap(), "a");

    let pool = read(
        "file.yaml",
        "apiVersion: crd.projectcalico.org/v1\nkind: IPPool\nmetadata: {name: p}\n\
         spec: {cidr: 10.0.0.0/8, ipipMode: CrossSubnet, vxlanMode: Never, natOutgoing: true, blockSize: 26}\n",
    )
    .unwrap();
    let told: Vec<_> = pool.problems.iter().map(|it| (it.severity, it.field.as_str())).collect();
    assert_eq!(told, []);
    let State::Valid(pool) = &pool.entries[0].state else { panic!() };
    let Object::IpPool(pool) = &**pool else { panic!() };
    assert_eq!(pool.ipip_mode, Some(super::object::EncapsulationMode::CrossSubnet));
}

#[test]
fn the_addresses_of_a_nodes_tunnels_are_of_their_families() {
    let of = |annotations: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n  annotations: {{{annotations}}}\n"
        )
    };
    let all = "projectcalico.org/IPv6VXLANTunnelAddr: 'fd00::9', projectcalico.org/IPv4VXLANTunnelAddr: 10.1.0.9, projectcalico.org/IPv4IPIPTunnelAddr: 10.1.0.1";
    let Object::Node(node) = only(&of(all)) else { panic!() };
    let expected = ["10.1.0.1", "10.1.0.9", "fd00::9"];
    assert_eq!(node.tunnel_addresses, expected.map(|it| it.parse::<std::net::IpAddr>().unwrap()));
    for wrong in [
        "projectcalico.org/IPv4IPIPTunnelAddr: 10.1.0.1/32",
        "projectcalico.org/IPv4VXLANTunnelAddr: 'fd00::9'",
        "projectcalico.org/IPv6VXLANTunnelAddr: 10.1.0.1",
        "projectcalico.org/IPv4IPIPTunnelAddr: x",
    ] {
        assert!(invalid(&of(wrong)).is_some(), "{wrong}");
    }
    let told = problems(&of("projectcalico.org/IPv4IPIPTunnelAddr: 10.1.0.1/32"));
    assert!(
        told.contains(
            "found the string \"10.1.0.1/32\", expected an IPv4 address without a prefix length"
        ),
        "{told}"
    );
}

#[test]
fn a_pool_is_as_old_as_the_api_server_says_and_nobody_else() {
    for (stamp, known) in [
        ("2026-11-26T10:00:00Z", true),
        ("'2026-11-26T10:00:00Z'", true),
        ("2026-11-26T10:00:00+01:00", false),
        ("2026-11-26T10:00:00.5Z", false),
        ("2026-11-26 10:00:00Z", false),
        ("null", false),
        ("12", false),
    ] {
        let text = format!(
            "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {{name: p, creationTimestamp: {stamp}}}\nspec: {{cidr: 10.0.0.0/8}}\n"
        );
        let pool = read("file.yaml", &text).unwrap();
        let State::Valid(pool) = &pool.entries[0].state else { panic!("{stamp}") };
        let Object::IpPool(pool) = &**pool else { panic!() };
        assert_eq!(pool.created.is_some(), known, "{stamp}");
    }
}

#[test]
fn a_policy_is_read_as_written_and_nothing_is_defaulted() {
    let policy = policy(
        "
podSelector:
  matchLabels: {app: web}
  matchExpressions: [{key: tier, operator: NotIn, values: [db]}, {key: x, operator: Exists}]
policyTypes: [Ingress, Egress]
ingress:
- from:
  - podSelector: {}
    namespaceSelector: {matchLabels: {team: a}}
  - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}
  ports:
  - {port: 80, endPort: 90}
  - {port: http, protocol: UDP}
  - {protocol: SCTP}
- {}
",
    );
    assert_eq!(policy.policy_types, Some(vec![PolicyType::Ingress, PolicyType::Egress]));
    let rules = policy.ingress.unwrap();
    assert_eq!(policy.egress, None);
    assert_eq!((&rules[1].peers, &rules[1].ports), (&None, &None));
    assert_eq!(
        rules[0].ports.as_deref().unwrap(),
        [
            Port { protocol: None, port: Some(PortNumber::Number { port: 80, end: Some(90) }) },
            Port { protocol: Some(Protocol::Udp), port: Some(PortNumber::Name("http".into())) },
            Port { protocol: Some(Protocol::Sctp), port: None },
        ]
    );
    let Peer::IpBlock(block) = &rules[0].peers.as_ref().unwrap()[1] else { panic!() };
    assert_eq!(block.cidr.to_string(), "10.0.0.0/8");
}

#[test]
fn null_is_absent() {
    let policy = policy("podSelector: null\ningress:\negress: ~\n");
    assert_eq!(policy.pod_selector, LabelSelector::default());
    assert_eq!((policy.ingress, policy.egress), (None, None));
}

#[test]
fn lists_of_every_kind_are_flattened() {
    let manifest = clean(
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace, metadata: {name: a}}\n\
         - {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Namespace, metadata: {name: b}}]}\n---\n\
         apiVersion: v1\nkind: NamespaceList\nitems: [{metadata: {name: c}}]\n",
    );
    let names: Vec<_> = manifest.entries.iter().map(|entry| entry.key.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(manifest.entries[2].place.document, 2);
}

#[test]
fn one_bad_object_leaves_the_others_alone() {
    let good = "apiVersion: v1\nkind: Namespace\nmetadata: {name: good}\n";
    let bad = policy_text("policyTypes: [Sideways]");
    let manifest = read("file.yaml", &format!("{good}---\n{bad}")).unwrap();
    let states: Vec<_> =
        manifest.entries.iter().map(|entry| matches!(entry.state, State::Valid(_))).collect();
    assert_eq!(states, [true, false]);
}

#[test]
fn an_invalid_policy_keeps_the_selector_that_could_be_read() {
    let selector = |spec: &str| {
        let manifest = read("file.yaml", &policy_text(spec)).unwrap();
        let State::Invalid(invalid) = &manifest.entries[0].state else { panic!() };
        invalid.subject.clone().map(|subject| match subject {
            Subject::Kubernetes(selector) => selector,
            other => panic!("{other:?}"),
        })
    };
    let kept = selector("podSelector: {matchLabels: {app: web}}\ningress: 5").unwrap();
    assert_eq!(kept.match_labels.get("app").unwrap(), "web");
    assert_eq!(selector("podSelector: {matchLabels: {app: web, b: 5}}"), None);
    assert_eq!(selector("podSelector: {matchLabel: {app: web}}\ningress: 5"), None);
}

#[test]
fn a_policy_without_a_name_still_fails_closed_in_its_namespace() {
    let text =
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: shop}\n";
    let key = invalid(text).unwrap();
    assert_eq!((key.kind, key.namespace.as_str()), (Kind::NetworkPolicy, "shop"));
    assert_eq!(
        invalid("apiVersion: extensions/v1beta1\nkind: NetworkPolicy\nmetadata: {name: old}\n")
            .unwrap()
            .name,
        "old"
    );
}

/// Returns `KIND NAMESPACE` of every object in a text. None of them may be valid.
fn closing(text: &str) -> Vec<String> {
    let manifest = read("file.yaml", text).unwrap();
    assert!(manifest.problems.iter().any(|it| it.severity == Severity::Error), "{text}");
    let entries = manifest.entries.into_iter();
    entries
        .map(|Entry { key, state, .. }| {
            assert!(matches!(state, State::Invalid(_)), "{key}");
            format!("{:?} {}", key.kind, key.namespace).trim_end().to_owned()
        })
        .collect()
}

#[test]
fn a_policy_that_does_not_say_what_it_is_closes_all_that_it_may_be() {
    let metadata = "metadata: {name: a, namespace: shop}\n";
    for (head, kind) in [
        ("kind: NetworkPolicy", "CalicoNetworkPolicy shop"),
        ("kind: NetworkPolicy\napiVersion: networking.k8s.io", "CalicoNetworkPolicy shop"),
        ("kind: NetworkPolicy\napiVersion: networking.k8s.io/v2", "NetworkPolicy shop"),
        ("kind: NetworkPolicy\napiVersion: [networking.k8s.io/v1]", "CalicoNetworkPolicy shop"),
        ("kind: GlobalNetworkPolicy", "GlobalNetworkPolicy"),
        ("kind: GlobalNetworkPolicy\napiVersion: projectcalico/v3", "GlobalNetworkPolicy"),
        ("kind: ClusterNetworkPolicy\napiVersion: v1", "ClusterNetworkPolicy"),
        ("kind: HostEndpoint\napiVersion: v3", "HostEndpoint"),
        ("kind: NetworkSet", "NetworkSet shop"),
        ("kind: Pod", "Pod shop"),
        ("apiVersion: networking.k8s.io/v1", "NetworkPolicy shop"),
        ("apiVersion: policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"),
        ("apiVersion: projectcalico.org/v3", "CalicoNetworkPolicy shop"),
    ] {
        assert_eq!(closing(&format!("{head}\n{metadata}")), [kind], "{head}");
        let list = head.replace('\n', "\n  ");
        let items = format!("items:\n- {list}\n  {metadata}");
        for list in ["apiVersion: v1\nkind: List", "kind: List", "apiVersion: v1"] {
            // The list may provide what an item lacks.
            let expected = usize::from(!list.contains("v1") || kind != "Pod shop");
            let found = read("file.yaml", &format!("{list}\n{items}")).unwrap();
            let invalid = |entry: &&Entry| matches!(entry.state, State::Invalid(_));
            assert_eq!(found.entries.iter().filter(invalid).count(), expected, "{list} of {head}");
        }
    }
    let items = "items: [{metadata: {name: a, namespace: shop}}]";
    assert_eq!(closing(&format!("kind: NetworkPolicyList\n{items}")), ["CalicoNetworkPolicy shop"]);
    let old = format!("kind: NetworkPolicyList\napiVersion: networking.k8s.io/v1beta1\n{items}");
    assert_eq!(closing(&old), ["NetworkPolicy shop"]);
    assert_eq!(closing("apiVersion: projectcalico.org/v3\nspec: {}\n"), ["GlobalNetworkPolicy"]);
    assert!(closing("metadata: {name: a}\n").is_empty());
    // Kinds of other projects with these names are not read.
    let knative = read("file.yaml", "apiVersion: serving.knative.dev/v1\nkind: Service\n").unwrap();
    assert!(knative.entries.is_empty() && knative.problems[0].severity == Severity::Note);
}

#[test]
fn a_kind_that_is_spelled_nearly_like_one_that_is_read_is_that_one_and_not_valid() {
    let metadata = "metadata: {name: a, namespace: shop}\n";
    for (head, kind) in [
        ("apiVersion: networking.k8s.io/v1\nkind: NetworkPolcy", "NetworkPolicy shop"),
        ("apiVersion: networking.k8s.io/v1\nkind: networkpolicy", "NetworkPolicy shop"),
        ("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicies", "NetworkPolicy shop"),
        ("apiVersion: projectcalico.org/v3\nkind: NetworkPolicie", "CalicoNetworkPolicy shop"),
        ("apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolcy", "GlobalNetworkPolicy"),
        ("apiVersion: crd.projectcalico.org/v1\nkind: GlobalNetworkPolicys", "GlobalNetworkPolicy"),
        ("apiVersion: networking.k8s.io/v1\nkind: GlobalNetwrkPolicy", "GlobalNetworkPolicy"),
        (
            "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolcy",
            "ClusterNetworkPolicy",
        ),
        (
            "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicies",
            "AdminNetworkPolicy",
        ),
        ("apiVersion: projectcalico.org/v3\nkind: Tiers", "Tier"),
        ("apiVersion: projectcalico.org/v3\nkind: NetworkSets", "NetworkSet shop"),
        ("apiVersion: projectcalico.org/v3\nkind: HostEndPoints", "HostEndpoint"),
        ("apiVersion: v1\nkind: NameSpace", "Namespace"),
        // If it is not known which NetworkPolicy is meant, it counts as the one that denies more.
        ("kind: NetworkPolcy", "CalicoNetworkPolicy shop"),
    ] {
        assert_eq!(closing(&format!("{head}\n{metadata}")), [kind], "{head}");
        assert!(
            problems(&format!("{head}\n{metadata}"))
                .contains("error[unexpected-value]: kind: found"),
            "{head}"
        );
    }
    let items = "items: [{metadata: {name: a, namespace: shop}}]";
    let list = format!("apiVersion: networking.k8s.io/v1\nkind: NetworkPolcyList\n{items}");
    assert_eq!(closing(&list), ["NetworkPolicy shop"]);
    // The subject is read in the form of the intended kind.
    let text = "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolcy\nmetadata: {name: a}\nspec: {selector: app == 'web'}\n";
    let manifest = read("file.yaml", text).unwrap();
    let State::Invalid(invalid) = &manifest.entries[0].state else { panic!() };
    assert!(invalid.subject.is_some());
}

#[test]
fn kinds_that_are_not_read_are_skipped_with_a_word_and_policies_with_an_error() {
    for (version, kind, severity) in [
        ("projectcalico.org/v3", "CalicoNodeStatus", Some(Severity::Warning)),
        ("projectcalico.org/v3", "KubeControllersConfiguration", Some(Severity::Warning)),
        ("projectcalico.org/v3", "IPReservation", Some(Severity::Warning)),
        ("crd.projectcalico.org/v1", "IPAMBlock", Some(Severity::Warning)),
        ("crd.projectcalico.org/v1", "ClusterInformation", Some(Severity::Warning)),
        ("cert-manager.io/v1", "Certificate", Some(Severity::Note)),
        ("v1", "Something", Some(Severity::Warning)),
        ("example.com/v1", "ConfigMap", Some(Severity::Note)),
        ("networking.k8s.io/v1", "Something", Some(Severity::Warning)),
        // Every cluster has these kinds.
        ("networking.k8s.io/v1", "Ingress", None),
        ("networking.k8s.io/v1", "IngressClass", None),
        ("v1", "Secret", None),
        ("v1", "ConfigMap", None),
        ("v1", "Event", None),
        ("events.k8s.io/v1", "Event", None),
        ("apps/v1", "ControllerRevision", None),
        ("policy/v1", "PodDisruptionBudget", None),
        ("coordination.k8s.io/v1", "Lease", None),
        ("projectcalico.org/v3", "EgressGatewayPolicy", Some(Severity::Error)),
        ("policy.networking.k8s.io/v1alpha1", "SomePolicy", Some(Severity::Error)),
        ("cilium.io/v2", "CiliumNetworkPolicy", Some(Severity::Error)),
    ] {
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n");
        let manifest = read("file.yaml", &text).unwrap();
        assert!(manifest.entries.is_empty(), "{kind}");
        let told: Vec<Severity> = manifest.problems.iter().map(|it| it.severity).collect();
        assert_eq!(told, Vec::from_iter(severity), "{kind}");
        // An unknown kind is reported once for each file, but a policy is reported each time.
        let manifest = read("file.yaml", &format!("{text}---\n{text}")).unwrap();
        let times =
            usize::from(severity.is_some()) + usize::from(severity == Some(Severity::Error));
        assert_eq!(manifest.problems.len(), times, "{kind}");
    }
}

#[test]
fn an_object_that_a_watch_prints_again_is_the_later_one() {
    let pod = |uid: &str, label: &str| {
        format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"name\": \"a\", \"uid\": \"{uid}\", \"labels\": {{\"app\": {label}}}}}}}\n"
        )
    };
    let labels = |text: &str| -> Vec<String> {
        let entries = read("file.json", text).unwrap().entries;
        let label = |entry: &Entry| match &entry.state {
            State::Valid(object) => match &**object {
                Object::Pod(pod) => pod.labels.get("app").unwrap().clone(),
                other => panic!("{other:?}"),
            },
            State::Invalid(_) => "invalid".to_owned(),
        };
        entries.iter().map(label).collect()
    };
    assert_eq!(labels(&(pod("1", "\"x\"") + &pod("1", "\"y\"") + &pod("1", "\"z\""))), ["z"]);
    assert_eq!(labels(&(pod("", "\"x\"") + &pod("", "\"y\""))), ["x", "y"]);
    assert_eq!(labels(&(pod("1", "\"x\"") + &pod("1", "{}"))), ["invalid"]);
}

#[test]
fn a_list_without_items_is_a_warning_unless_it_says_of_what_there_is_none() {
    for (kind, warns) in [
        ("List", true),
        ("NetworkPolicyList", true),
        ("GlobalNetworkPolicyList", true),
        ("PodList", false),
        ("EventList", false),
        ("ReplicationControllerList", false),
    ] {
        for items in ["[]", "null"] {
            let text = format!("{{apiVersion: v1, kind: {kind}, metadata: {{}}, items: {items}}}");
            let manifest = read("file.yaml", &text).unwrap();
            assert_eq!(manifest.problems.len(), usize::from(warns), "{text}");
        }
    }
}

#[test]
fn what_an_invalid_policy_selects_is_kept_without_its_api_version() {
    let text = "kind: GlobalNetworkPolicy\nmetadata: {name: a}\nspec: {selector: app == 'web'}\n";
    let manifest = read("file.yaml", text).unwrap();
    let State::Invalid(invalid) = &manifest.entries[0].state else { panic!() };
    assert!(invalid.subject.is_some());
    // If the API is not known, the meaning of `selector` and `podSelector` is not certain.
    let manifest = read("file.yaml", &text.replace("Global", "")).unwrap();
    assert_eq!(manifest.entries[0].state, State::Invalid(Box::default()));
}

#[test]
fn what_has_no_name_fails_closed() {
    let calico = "projectcalico.org/v3";
    for (version, kind, named, unknown) in [
        ("v1", "Namespace", Some("GlobalNetworkPolicy"), Some("GlobalNetworkPolicy")),
        ("v1", "ServiceAccount", Some("CalicoNetworkPolicy shop"), Some("GlobalNetworkPolicy")),
        ("v1", "Pod", Some("Pod shop"), Some("Pod default")),
        ("v1", "Service", None, None),
        ("v1", "Node", None, None),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            Some("EndpointSlice shop"),
            Some("GlobalNetworkPolicy"),
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            Some("NetworkPolicy shop"),
            Some("GlobalNetworkPolicy"),
        ),
        (calico, "NetworkPolicy", Some("CalicoNetworkPolicy shop"), Some("GlobalNetworkPolicy")),
        (calico, "NetworkSet", Some("NetworkSet shop"), Some("GlobalNetworkPolicy")),
        (calico, "GlobalNetworkSet", Some("GlobalNetworkSet"), Some("GlobalNetworkSet")),
        (calico, "HostEndpoint", Some("HostEndpoint"), Some("HostEndpoint")),
        (calico, "Tier", Some("GlobalNetworkPolicy"), Some("GlobalNetworkPolicy")),
        (calico, "FelixConfiguration", Some("FelixConfiguration"), Some("FelixConfiguration")),
        (calico, "IPPool", Some("IpPool"), Some("IpPool")),
        (calico, "BlockAffinity", None, None),
        (calico, "BGPConfiguration", Some("BgpConfiguration"), Some("BgpConfiguration")),
        (calico, "BGPPeer", None, None),
        (calico, "BGPFilter", None, None),
        (calico, "Profile", None, None),
        (calico, "StagedNetworkPolicy", None, None),
    ] {
        let head = format!("apiVersion: {version}\nkind: {kind}\n");
        let found = closing(&format!("{head}metadata: {{namespace: shop}}\n"));
        assert_eq!(found, named.into_iter().collect::<Vec<_>>(), "{kind}");
        // In these texts, the namespace is not known either.
        for metadata in ["", "metadata: [shop]\n", "metadata: {namespace: [shop]}\n"] {
            let found = closing(&format!("{head}{metadata}"));
            assert_eq!(found, unknown.into_iter().collect::<Vec<_>>(), "{kind} {metadata}");
        }
    }
    // A name is useless if the namespace is not known.
    let text = policy_text("podSelector: {}").replace("namespace: shop", "namespace: [shop]");
    assert_eq!(closing(&text), ["GlobalNetworkPolicy"]);
}

/// Every error, each with a manifest that causes it. All texts are written out here, because users read them.
#[test]
fn error_texts_of_policies() {
    for (name, spec) in [
        ("port_out_of_range", "ingress:\n- ports:\n  - port: 70000"),
        ("port_zero", "ingress:\n- ports:\n  - port: 0"),
        ("port_in_quotes", "ingress:\n- ports:\n  - port: \"80\""),
        ("port_name_illegal", "ingress:\n- ports:\n  - port: Web_Port"),
        ("port_of_another_type", "ingress:\n- ports:\n  - port: 8.5"),
        ("end_port_below_port", "ingress:\n- ports:\n  - port: 80\n    endPort: 79"),
        ("end_port_with_name", "ingress:\n- ports:\n  - port: http\n    endPort: 90"),
        ("end_port_alone", "egress:\n- ports:\n  - endPort: 90"),
        ("protocol_unknown", "ingress:\n- ports:\n  - protocol: tcp"),
        ("peer_empty", "ingress:\n- from:\n  - {}"),
        ("peer_null", "ingress:\n- from:\n  -"),
        ("peer_both", "egress:\n- to:\n  - podSelector: {}\n    ipBlock: {cidr: 10.0.0.0/8}"),
        ("cidr_without_mask", "egress:\n- to:\n  - ipBlock: {cidr: 10.0.0.1}"),
        ("cidr_missing", "egress:\n- to:\n  - ipBlock: {except: [10.0.0.0/8]}"),
        ("except_outside", "egress:\n- to:\n  - ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/8]}"),
        ("except_same", "egress:\n- to:\n  - ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}"),
        ("policy_type_unknown", "policyTypes: [ingress]"),
        ("policy_types_three", "policyTypes: [Ingress, Ingress, Egress]"),
        ("label_value_a_number", "podSelector: {matchLabels: {tier: 1}}"),
        ("label_value_yes", "podSelector: {matchLabels: {on-call: yes}}"),
        ("label_key_illegal", "podSelector: {matchLabels: {-app: web}}"),
        ("label_value_illegal", "podSelector: {matchLabels: {app: a/b}}"),
        ("operator_unknown", "podSelector: {matchExpressions: [{key: a, operator: Equals}]}"),
        ("in_without_values", "podSelector: {matchExpressions: [{key: a, operator: In}]}"),
        (
            "exists_with_values",
            "podSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}",
        ),
        ("rules_no_list", "ingress: {from: []}"),
        ("from_in_egress", "egress:\n- from:\n  - podSelector: {}"),
        ("spec_no_mapping", "- podSelector"),
        ("key_twice", "podSelector: {}\ningress: []\npodSelector: {matchLabels: {a: b}}"),
        ("key_a_list", "podSelector: {}\n? [a]\n: b"),
        ("tag_unknown", "podSelector: !secret {}"),
        ("tag_contradicted", "ingress:\n- ports:\n  - port: !!int http"),
    ] {
        let text = policy_text(spec);
        insta::with_settings!({description => text.clone()}, {
            insta::assert_snapshot!(name, problems(&text));
        });
        assert!(invalid(&text).is_some(), "{name}: {}", problems(&text));
    }
}

#[test]
fn error_texts_of_other_objects() {
    let v1 = |kind: &str, rest: &str| format!("apiVersion: v1\nkind: {kind}\n{rest}");
    let pod = |rest: &str| v1("Pod", &format!("metadata: {{name: web}}\n{rest}"));
    for (name, text) in [
        ("not_yaml", "a: [1, 2\nb: }\n".to_owned()),
        ("half_written", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a\n".to_owned()),
        ("too_deep", "[".repeat(70)),
        ("no_kind", "apiVersion: v1\nmetadata: {name: a}\n".to_owned()),
        ("no_api_version", "kind: Pod\nmetadata: {name: a}\n".to_owned()),
        ("policy_without_api_version", "kind: NetworkPolicy\nmetadata: {name: a}\n".to_owned()),
        ("no_object", "- a\n- b\n".to_owned()),
        ("kind_unknown", "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: a}\n".to_owned()),
        (
            "policy_unsupported",
            "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: a}\n"
                .to_owned(),
        ),
        (
            "policy_of_an_old_version",
            "apiVersion: extensions/v1beta1\nkind: NetworkPolicy\nmetadata: {name: a}\n".to_owned(),
        ),
        ("no_metadata", v1("Pod", "spec: {}\n")),
        ("no_name", v1("Pod", "metadata: {namespace: a}\n")),
        ("name_illegal", v1("Namespace", "metadata: {name: Shop}\n")),
        ("name_a_number", v1("Namespace", "metadata: {name: 80}\n")),
        ("namespace_of_a_node", v1("Node", "metadata: {name: a, namespace: b}\n")),
        ("label_of_a_pod", v1("Pod", "metadata:\n  name: a\n  labels:\n    app: {}\n")),
        ("field_unknown", pod("spec: {nodename: node-1}\n")),
        ("container_nameless", pod("spec: {containers: [{ports: [{containerPort: 80}]}]}\n")),
        ("container_port_missing", pod("spec: {containers: [{name: a, ports: [{name: http}]}]}\n")),
        (
            "container_port_name_twice",
            pod("spec:\n  containers:\n  - name: a\n    ports:\n    - {name: http, containerPort: 80}\n    - {name: http, containerPort: 81}\n"),
        ),
        ("phase_unknown", pod("status: {phase: Sleeping}\n")),
        ("pod_ip_illegal", pod("status: {podIP: 10.0.0.256}\n")),
        ("pod_ip_mapped", pod("status: {podIPs: [{ip: '::ffff:10.0.0.1'}]}\n")),
        ("host_network_text", pod("spec: {hostNetwork: \"true\"}\n")),
        (
            "pod_ips_annotation",
            v1("Pod", "metadata:\n  name: a\n  annotations:\n    cni.projectcalico.org/podIPs: here\n"),
        ),
        (
            "calico_address",
            v1("Node", "metadata:\n  name: a\n  annotations:\n    projectcalico.org/IPv4Address: fd00::1/64\n"),
        ),
        (
            "node_address",
            v1("Node", "metadata: {name: a}\nstatus: {addresses: [{type: InternalIP, address: node}]}\n"),
        ),
        (
            "pool_vxlan",
            "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: a}\nspec: {cidr: 10.0.0.0/8, vxlanMode: Always, ipipMode: Always}\n"
                .to_owned(),
        ),
        (
            "pool_ipip_of_ipv6",
            "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: a}\nspec: {cidr: 'fd00::/8', ipipMode: Always}\n"
                .to_owned(),
        ),
        (
            "pool_without_cidr",
            "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: a}\nspec: {}\n".to_owned(),
        ),
    ] {
        insta::with_settings!({description => text.clone()}, {
            insta::assert_snapshot!(name, problems(&text));
        });
        assert!(!problems(&text).is_empty(), "{name}");
    }
}

#[test]
fn a_problem_is_one_line_in_logs() {
    let manifest = read("file.yaml", &policy_text("policyTypes: [Sideways]")).unwrap();
    insta::assert_snapshot!(manifest.problems[0].summary());
}

proptest::proptest! {
    /// Law: reading any text ends without a panic.
    #[test]
    fn reading_never_panics(text in "[ -~\n\t\u{e9}]{0,200}") {
        let _ = read("file.yaml", &text);
    }

    /// Law: reading a valid manifest that is cut or changed anywhere ends without a panic.
    #[test]
    fn reading_a_damaged_manifest_never_panics(at in 0_usize..400, with in "[ -~\n]{0,3}") {
        let whole = policy_text("podSelector: {matchLabels: {a: b}}\ningress:\n- from:\n  - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}\n  ports:\n  - {port: 80, endPort: 90}");
        let at = at.min(whole.len());
        let damaged = format!("{}{with}{}", &whole[..at], &whole[(at + with.len()).min(whole.len())..]);
        let _ = read("file.yaml", &damaged);
        let _ = read("file.yaml", &whole[..at]);
    }
}
