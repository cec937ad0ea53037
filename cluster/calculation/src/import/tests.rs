use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use manx_policy_compiler::model::{
    Action, Failsafe, Interface, KUBERNETES, Labels, Model, NAMESPACE, ORCHESTRATOR, ObjectName,
    Order, Policy, PolicyKind, PolicyName, PortMatch, Protocol, Rule,
};

use manx_policy_compiler::selector::{LabelSource as _, Selector};

use super::{Cluster, Ipam, OutgoingAddress, WayOut, assumed_ipam, import, import_as, import_for};
use crate::overlay::Overlay;
use manx_objects::State;
use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::{EncapsulationMode, Object};
use manx_objects::problem::{Problem, Severity};

fn cluster(text: &str) -> Cluster {
    import(&Contents::from_texts([("file.yaml", text)]))
}

/// Imports a text without errors. Warnings about probable mistakes are ignored.
fn clean(text: &str) -> Cluster {
    let cluster = cluster(text);
    let meant = [
        Code::EmptyCondition,
        Code::EmptyWithoutType,
        Code::HostBits,
        Code::RulesWithoutType,
        Code::SettingWithoutEffect,
    ];
    let problem = cluster.problems.iter().find(|problem| !meant.contains(&problem.code()));
    assert!(problem.is_none(), "{}", problem.unwrap());
    cluster
}

fn pod(name: &str, spec: &str, status: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}\n\
         spec: {{nodeName: node-1, {spec}}}\nstatus: {{{status}}}\n"
    )
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("shop", name)
}

fn addresses(cluster: &Cluster, pod: &str) -> Option<Vec<String>> {
    let endpoint = cluster.model.endpoints.get(&name(pod))?;
    Some(endpoint.addresses.iter().map(IpAddr::to_string).collect())
}

fn policy_name() -> PolicyName {
    PolicyName::new(PolicyKind::Kubernetes, "shop", "p")
}

fn policy(spec: &str) -> Policy {
    let cluster = clean(&format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: shop}}\nspec:\n  {spec}\n"
    ));
    let policy = cluster.model.policies[&policy_name()].as_ref().clone();
    assert_eq!((policy.tier.as_str(), policy.order), ("default", Order::KUBERNETES));
    policy
}

#[test]
fn only_pods_with_addresses_of_their_own_that_are_not_finished_are_endpoints() {
    let text = [
        pod("web", "", "podIP: 10.0.0.1"),
        pod("host", "hostNetwork: true", "podIP: 172.18.0.2"),
        pod("done", "", "phase: Succeeded, podIP: 10.0.0.2"),
        pod("failed", "", "phase: Failed, podIP: 10.0.0.3"),
        pod("pending", "", "phase: Pending"),
    ]
    .concat();
    let cluster = clean(&text);
    assert_eq!(cluster.model.endpoints.keys().collect::<Vec<_>>(), [&name("web")]);
    let placed: Vec<_> = cluster.pods_by_node.keys().map(|pod| pod.name.as_str()).collect();
    assert_eq!(placed, ["pending", "web"]);
}

#[test]
fn addresses_come_from_pod_ips_then_pod_ip_then_the_annotations() {
    let noted = |deleting: &str, annotations: &str, status: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  namespace: shop\n  {deleting}\n\
             \x20 annotations: {{{annotations}}}\nspec: {{nodeName: node-1}}\nstatus: {{{status}}}\n---\n\
             apiVersion: v1\nkind: Node\nmetadata: {{name: node-1}}\nspec: {{podCIDRs: [8.0.0.0/5, 'fc00::/7']}}\n"
        );
        addresses(&clean(&text), "a")
    };
    let annotated = |deleting: &str, annotation: &str, status: &str| {
        noted(deleting, &format!("cni.projectcalico.org/podIPs: '{annotation}'"), status)
    };
    let deleting = "deletionTimestamp: x";
    let all = "podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.3}, {ip: 'fd00::3'}]";
    let some = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    assert_eq!(annotated("", "10.0.0.1/32", all), some(&["10.0.0.3", "fd00::3"]));
    assert_eq!(annotated("", "10.0.0.1/32", "podIP: 10.0.0.2"), some(&["10.0.0.2"]));
    assert_eq!(annotated("", "10.0.0.1/32", ""), some(&["10.0.0.1"]));
    assert_eq!(annotated(deleting, "10.0.0.1/32", all), some(&["10.0.0.3", "fd00::3"]));
    assert_eq!(annotated("", "", all), some(&["10.0.0.3", "fd00::3"]));
    // From an annotation, the first address of each family is used. The list of addresses comes first, then the single
    // address, then Amazon's list.
    let (list, one, amazons) = (
        "cni.projectcalico.org/podIPs: '10.0.0.1/32,fd00::1/128'",
        "cni.projectcalico.org/podIP: 10.0.0.4/32",
        "vpc.amazonaws.com/pod-ips: '10.0.0.5,10.0.0.6'",
    );
    let every = format!("{amazons}, {one}, {list}");
    assert_eq!(noted("", &every, all), some(&["10.0.0.3", "fd00::3"]));
    assert_eq!(noted("", &every, ""), some(&["10.0.0.1", "fd00::1"]));
    assert_eq!(noted("", &format!("{amazons}, {one}"), ""), some(&["10.0.0.4"]));
    assert_eq!(noted("", amazons, ""), some(&["10.0.0.5"]));
    let emptied = "cni.projectcalico.org/podIPs: '', cni.projectcalico.org/podIP: ''";
    assert_eq!(noted("", &format!("{emptied}, {amazons}"), ""), some(&["10.0.0.5"]));
    // Plugins empty their annotation when they have released the addresses. An empty list of Calico does not mean this.
    assert_eq!(noted(deleting, emptied, all), None);
    assert_eq!(noted(deleting, "cni.projectcalico.org/podIP: ''", all), None);
    assert_eq!(noted(deleting, "vpc.amazonaws.com/pod-ips: ''", all), None);
    assert_eq!(noted("", emptied, all), some(&["10.0.0.3", "fd00::3"]));
    assert_eq!(annotated(deleting, "", all), some(&["10.0.0.3", "fd00::3"]));
}

#[test]
fn named_ports_are_those_of_all_containers_and_of_their_own_protocol() {
    let cluster = clean(&pod(
        "web",
        "containers: [{name: a, ports: [{name: http, containerPort: 80}, {containerPort: 81}]}, \
         {name: b, ports: [{name: http, containerPort: 8080}]}], \
         initContainers: [{name: c, ports: [{name: dns, containerPort: 53, protocol: UDP}]}]",
        "podIP: 10.0.0.1",
    ));
    let ports: Vec<_> = cluster.model.endpoints[&name("web")]
        .named_ports
        .iter()
        .map(|port| (port.name.as_str(), port.protocol, port.port))
        .collect();
    assert_eq!(
        ports,
        [("dns", Protocol::Udp, 53), ("http", Protocol::Tcp, 80), ("http", Protocol::Tcp, 8080)]
    );
}

#[test]
fn a_namespace_without_a_manifest_has_the_label_that_every_namespace_has() {
    let cluster = clean(&pod("web", "", "podIP: 10.0.0.1"));
    let expected = Labels::from([("kubernetes.io/metadata.name".to_owned(), "shop".to_owned())]);
    assert_eq!(cluster.model.namespaces["shop"], expected);
}

#[test]
fn pods_of_an_invalid_namespace_are_no_endpoints() {
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {a: 5}}\n";
    let cluster = cluster(&format!("{namespace}{}", pod("web", "", "podIP: 10.0.0.1")));
    assert!(cluster.model.endpoints.is_empty());
    insta::assert_snapshot!(cluster.problems[1]);
}

#[test]
fn policy_types_are_defaulted_as_the_api_server_does() {
    let directions = |spec: &str| {
        let policy = policy(spec);
        (policy.ingress.map(|rules| rules.len()), policy.egress.map(|rules| rules.len()))
    };
    assert_eq!(directions("podSelector: {}"), (Some(0), None));
    assert_eq!(directions("policyTypes: []"), (Some(0), None));
    assert_eq!(directions("egress: []"), (Some(0), None));
    assert_eq!(directions("egress: [{}]"), (Some(0), Some(1)));
    assert_eq!(directions("{ingress: [{}], egress: [{}]}"), (Some(1), Some(1)));
    assert_eq!(directions("{policyTypes: [Egress], ingress: [{}]}"), (None, Some(0)));
    assert_eq!(directions("{policyTypes: [Ingress], egress: [{}]}"), (Some(0), None));
    assert_eq!(directions("policyTypes: [Egress, Ingress]"), (Some(0), Some(0)));
}

#[test]
fn absent_and_empty_peers_and_ports_are_everybody_and_everything() {
    for spec in
        ["ingress: [{}]", "ingress: [{from: [], ports: []}]", "ingress: [{from: , ports: }]"]
    {
        let rules = policy(spec).ingress.unwrap();
        assert_eq!(rules, [Rule::every_packet(0, Action::Allow)], "{spec}");
    }
}

#[test]
fn peers_and_ports_mean_what_they_say() {
    let policy = policy(
        "ingress: [{from: [{podSelector: {}}, {namespaceSelector: {}}, {ipBlock: {cidr: 10.1.2.3/8, except: [10.9.9.9/16]}}], \
         ports: [{port: 80}, {port: 80, endPort: 90, protocol: UDP}, {port: http}, {protocol: SCTP}]}]",
    );
    let rules = policy.ingress.as_ref().unwrap();
    let here = Selector::equals(NAMESPACE, "shop");
    let pods = Selector::equals(ORCHESTRATOR, KUBERNETES);
    for rule in rules {
        let [pods_here, pods_anywhere, block] = &rule.source.entities.as_deref().unwrap() else {
            panic!()
        };
        let all = || Selector::and([]);
        let here = Selector::and([here.clone(), pods.clone(), all()]);
        assert_eq!(pods_here.selector, Some(here));
        let anywhere = Selector::and([pods.clone(), all(), Selector::all()]);
        assert_eq!(pods_anywhere.selector, Some(anywhere));
        assert_eq!(block.nets.first().unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(block.not_nets.first().unwrap().to_string(), "10.9.0.0/16");
    }
    let services: Vec<_> =
        rules.iter().map(|rule| (rule.index, rule.protocol, &rule.destination.ports)).collect();
    assert_eq!(
        services,
        [
            (
                0,
                Some(6),
                &vec![
                    PortMatch::Range { first: 80, last: 80 },
                    PortMatch::Named("http".to_owned())
                ],
            ),
            (0, Some(17), &vec![PortMatch::Range { first: 80, last: 90 }]),
            (0, Some(132), &vec![]),
        ]
    );
}

#[test]
fn an_invalid_policy_isolates_the_pods_that_it_may_mean() {
    let isolating = |spec: &str| {
        let cluster = cluster(&format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: shop}}\nspec: {spec}\n"
        ));
        assert_eq!(cluster.problems[0].severity, Severity::Error);
        let policy = cluster.model.policies[&policy_name()].as_ref().clone();
        assert_eq!((policy.ingress, policy.egress), (Some(Vec::new()), Some(Vec::new())));
        policy.selector.to_string()
    };
    let web = isolating("{podSelector: {matchLabels: {app: web}}, ingress: 5}");
    assert!(web.contains(r#"app == "web""#), "{web}");
    assert!(!isolating("{podSelector: 5}").contains("app"));
}

#[test]
fn nodes_and_pools_come_out_as_routing_needs_them() {
    let cluster = clean(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: node-1\n  annotations: {projectcalico.org/IPv4Address: 10.9.0.2/24, projectcalico.org/VXLANTunnelMACAddr: '02:00:00:00:00:09'}\n\
         spec: {podCIDR: 10.1.0.0/24}\nstatus: {addresses: [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: 10.9.0.2}]}\n---\n\
         apiVersion: v1\nkind: Node\nmetadata: {name: node-2}\n---\n\
         apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: a}\nspec: {cidr: 10.1.0.0/16, disabled: true, natOutgoing: false}\n---\n\
         apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: b}\nspec: {cidr: 10.0.0.0/16, ipipMode: Always}\n---\n\
         apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: c}\nspec: {cidr: 10.2.0.0/16, ipipMode: Never, vxlanMode: CrossSubnet}\n",
    );
    let node = &cluster.nodes["node-1"];
    let ips: Vec<_> = node.internal_ips.iter().map(IpAddr::to_string).collect();
    assert_eq!(ips, ["10.9.0.2", "172.18.0.2"]);
    assert_eq!(node.subnet.unwrap().to_string(), "10.9.0.0/24");
    assert_eq!(node.plan.blocks()[0].to_string(), "10.1.0.0/24");
    assert_eq!(cluster.nodes["node-2"].internal_ips, Vec::<IpAddr>::new());
    // The address is "f", followed by the first bytes of the name's SHA-1 as sha1sum prints it.
    assert_eq!(cluster.nodes["node-2"].vxlan_mac, [0x66, 0xc0, 0x93, 0x2e, 0x56, 0x2c]);
    assert_eq!(node.vxlan_mac, [2, 0, 0, 0, 0, 9]);
    let pools: Vec<_> = cluster
        .pools
        .iter()
        .map(|pool| (pool.cidr.to_string(), (pool.overlay, pool.mode)))
        .collect();
    assert_eq!(
        pools,
        [
            ("10.0.0.0/16".to_owned(), (Overlay::Ipip, EncapsulationMode::Always)),
            ("10.1.0.0/16".to_owned(), (Overlay::Ipip, EncapsulationMode::Never)),
            ("10.2.0.0/16".to_owned(), (Overlay::Vxlan, EncapsulationMode::CrossSubnet)),
        ]
    );
}

#[test]
fn the_same_objects_in_any_order_are_the_same_cluster() {
    let one = pod("a", "", "podIP: 10.0.0.1");
    let two = pod("b", "", "podIP: 10.0.0.2");
    let [forward, backward] =
        [format!("{one}{two}"), format!("{two}{one}")].map(|text| clean(&text));
    assert_eq!(forward, backward);
}

const CALICO: &str = "apiVersion: projectcalico.org/v3\nkind: ";

#[test]
fn host_endpoints_inherit_their_profiles_labels_and_name_profiles_that_need_no_object() {
    let cluster = cluster(&format!(
        "{CALICO}HostEndpoint\nmetadata: {{name: h, labels: {{a: own}}}}\nspec:\n  node: n1\n  expectedIPs: [10.0.0.1]\n  \
         profiles: [one, two, kns.shop, ksa.shop.web, kns.none, missing]\n  ports: [{{name: ssh, protocol: TCP, port: 22}}]\n---\n\
         {CALICO}Profile\nmetadata: {{name: one}}\nspec: {{labelsToApply: {{a: first, b: first}}, ingress: [{{action: Allow}}]}}\n---\n\
         {CALICO}Profile\nmetadata: {{name: two}}\nspec: {{labelsToApply: {{b: second, c: second}}}}\n---\n\
         apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n"
    ));
    let host = &cluster.model.host_endpoints["h"];
    let view = Model::host_view(host);
    assert_eq!(
        ["a", "b", "c", "d"].map(|key| view.label(key)),
        [Some("own"), Some("first"), Some("second"), None]
    );
    assert_eq!(host.interface, Interface::OfAddresses);
    assert_eq!(host.named_ports.len(), 1);
    let profiles: Vec<&str> = cluster.model.profiles.keys().map(String::as_str).collect();
    assert_eq!(profiles, ["kns.shop", "ksa.shop.web", "one", "two"]);
    let open = vec![Rule::every_packet(0, Action::Allow)];
    assert_eq!(cluster.model.profiles["kns.shop"].egress, open);
    assert_eq!(cluster.model.profiles["one"].ingress, open);
    assert!(cluster.model.profiles["ksa.shop.web"].ingress.is_empty());
    insta::assert_snapshot!(cluster.problems[0]);
}

#[test]
fn tiers_without_an_order_come_after_every_order_and_before_tiers_that_nobody_defines() {
    let cluster = clean(&format!(
        "{CALICO}Tier\nmetadata: {{name: a}}\n---\n{CALICO}Tier\nmetadata: {{name: z}}\nspec: {{order: 1.7976931348623157e308}}\n"
    ));
    let mut tiers = ["0", "a", "z", "kube-baseline"].map(|name| cluster.model.tier_sort_key(name));
    tiers.sort_unstable();
    assert_eq!(tiers.map(|(.., name)| name), ["kube-baseline", "z", "a", "0"]);
}

#[test]
fn a_nodes_own_settings_come_before_everybodys() {
    let felix = |name: &str, spec: &str| {
        format!("{CALICO}FelixConfiguration\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n")
    };
    let at = |text: &str, node: &str| {
        let cluster = import_for(&Contents::from_texts([("file.yaml", text)]), node);
        (cluster.drops_to_node, cluster.model.failsafe)
    };
    let calicos = Failsafe::default();
    assert_eq!(at(&felix("other", "failsafeInboundHostPorts: []"), "n1"), (false, calicos.clone()));
    let all = felix(
        "default",
        "defaultEndpointToHostAction: Drop, failsafeInboundHostPorts: [{port: 22, net: 10.0.0.0/8}]",
    );
    let own =
        felix("node.n1", "defaultEndpointToHostAction: Accept, failsafeOutboundHostPorts: []");
    let (drops, told) = at(&format!("{all}{own}"), "n1");
    assert!(!drops);
    let net = "10.0.0.0/8".parse().ok();
    assert_eq!(told.ports, [[(Protocol::Tcp, 22, net)].into(), [].into()]);
    let (drops, told) = at(&format!("{all}{own}"), "n2");
    assert!(drops);
    assert_eq!(told.ports[1], calicos.ports[1]);
    // Port 0 is an ordinary entry, and pods still reach their node.
    let (drops, told) = at(&felix("default", "failsafeInboundHostPorts: [{port: 0}]"), "n1");
    assert!(!drops);
    assert_eq!(told.ports[0], [(Protocol::Tcp, 0, None)].into());
    // The content of the invalid configuration is not known.
    let broken = felix("node.n1", "failsafeInboundHostPorts: 5");
    assert_eq!(at(&broken, "n1"), (true, calicos.clone()));
    assert_eq!(at(&broken, "n2"), (false, calicos));
}

#[test]
fn a_node_leaves_by_the_address_that_its_own_settings_name_before_everybodys() {
    use OutgoingAddress::{First, Named, Unknown};
    let felix = |name: &str, spec: &str| {
        format!("{CALICO}FelixConfiguration\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n")
    };
    let [one, two] = [1, 2].map(|last| Named(Ipv4Addr::new(192, 0, 2, last)));
    let address = |last: u8| format!("natOutgoingAddress: 192.0.2.{last}");
    let hosts = "natOutgoingExclusions: IPPoolsAndHostIPs".to_owned();
    let pools = "natOutgoingExclusions: ippoolsonly".to_owned();
    let wrong = "natOutgoingAddress: '2001:db8::1'".to_owned();
    for (everybodys, own, address, excludes_hosts) in [
        (None, None, First, false),
        (Some(address(1)), None, one, false),
        (Some(address(1)), Some(address(2)), two, false),
        (Some(address(1)), Some(hosts.clone()), one, true),
        (Some(hosts.clone()), Some(pools.clone()), First, false),
        (Some("natOutgoingAddress: ''".to_owned()), None, First, false),
        (Some(wrong.clone()), None, Unknown, false),
        (Some(wrong.clone()), Some(address(2)), two, false),
        (Some(address(1)), Some(wrong), Unknown, false),
        (Some("natOutgoingExclusions: None".to_owned()), Some(hosts), Unknown, true),
    ] {
        let objects = [("default", everybodys), ("node.n1", own), ("node.n2", Some(pools.clone()))];
        let named = objects.into_iter().filter_map(|(name, spec)| Some(felix(name, &spec?)));
        let text: String = named.collect();
        let cluster = import_for(&Contents::from_texts([("file.yaml", &text[..])]), "n1");
        assert_eq!(cluster.way_out, WayOut { address, excludes_hosts }, "{text}");
    }
}

#[test]
fn what_makes_a_policy_deny_everything_is_told() {
    let cluster = cluster(&format!(
        "{CALICO}Tier\nmetadata: {{name: t}}\nspec: {{order: x}}\n---\n\
         {CALICO}GlobalNetworkPolicy\nmetadata: {{name: p}}\nspec: {{tier: t}}\n---\n\
         {CALICO}StagedGlobalNetworkPolicy\nmetadata: {{name: p}}\nspec: {{tier: t}}\n"
    ));
    let broken: Vec<_> =
        cluster.model.policies.iter().map(|(name, policy)| (name.kind, policy.broken)).collect();
    assert_eq!(broken, [(PolicyKind::Global, true)]);
    let told: Vec<String> = cluster.problems.iter().map(Problem::summary).collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn what_is_staged_and_would_not_be_set_is_not_evaluated() {
    for (action, there) in
        [("Set", true), ("''", true), ("Delete", false), ("Learn", false), ("Ignore", false)]
    {
        let cluster = clean(&format!(
            "{CALICO}StagedNetworkPolicy\nmetadata: {{name: p}}\nspec: {{stagedAction: {action}}}\n---\n\
             {CALICO}StagedKubernetesNetworkPolicy\nmetadata: {{name: p}}\nspec: {{stagedAction: {action}}}\n"
        ));
        assert_eq!(cluster.model.policies.len(), if there { 2 } else { 0 }, "{action}");
    }
}

#[test]
fn an_http_match_does_not_match_in_an_allow_and_matches_in_a_deny() {
    // A manifest may have an HTTP match only in an Allow, so the test adds it to the objects.
    let text = format!(
        "{CALICO}GlobalNetworkPolicy\nmetadata: {{name: p}}\nspec: {{ingress: [{{action: Allow}}, {{action: Pass}}, {{action: Log}}, {{action: Deny}}]}}\n"
    );
    let mut contents = Contents::from_texts([("file.yaml", &*text)]);
    let stored = contents.objects.values_mut().next().unwrap();
    let State::Valid(object) = &mut stored.state else { panic!("it is valid") };
    let Object::CalicoPolicy(policy) = Arc::make_mut(object) else { panic!("a policy") };
    policy.ingress.iter_mut().for_each(|rule| rule.http = true);
    let cluster = import(&contents);
    let (_, policy) = cluster.model.policies.first_key_value().unwrap();
    assert_eq!(policy.ingress, Some(vec![Rule::every_packet(3, Action::Deny)]));
}

#[test]
fn policy_for_the_nodes_own_traffic_is_reported_not_enforced() {
    let cluster = cluster(&format!(
        "{CALICO}HostEndpoint\nmetadata: {{name: h}}\nspec: {{node: n1, interfaceName: eth0}}\n"
    ));
    let [told] = &cluster.problems[..] else { panic!("{:?}", cluster.problems) };
    assert_eq!(told.severity, Severity::Warning);
    assert!(told.summary().starts_with("file.yaml") && told.summary().ends_with("NOT ENFORCED"));
}

#[test]
fn profiles_of_namespaces_allow_everything_those_of_service_accounts_have_no_rules() {
    let cluster = cluster(&format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n---\n\
         {CALICO}HostEndpoint\nmetadata: {{name: h}}\nspec: {{node: n1, interfaceName: eth0, \
         profiles: [kns.shop, kns.none, ksa.shop.web, projectcalico-default-allow]}}\n"
    ));
    let open = vec![Rule::every_packet(0, Action::Allow)];
    let profile = |name: &str| {
        let profile = cluster.model.profiles.get(name)?;
        Some((profile.ingress.clone(), profile.egress.clone()))
    };
    assert_eq!(profile("kns.shop"), Some((open.clone(), open.clone())));
    assert_eq!(profile("projectcalico-default-allow"), Some((open.clone(), open)));
    assert_eq!(profile("ksa.shop.web"), Some((vec![], vec![])));
    assert_eq!(profile("kns.none"), None, "missing, which denies");
}

#[test]
fn of_pools_that_overlap_and_are_of_unknown_age_none_is_valid() {
    let pool = |name: &str, cidr: &str| {
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {{name: {name}}}, spec: {{cidr: {cidr}, disabled: true}}}}\n---\n"
        )
    };
    let text = [
        pool("wide", "10.0.0.0/8"),
        pool("inner", "10.1.0.0/16"),
        pool("other", "10.2.0.0/16"),
        pool("same", "10.2.0.0/16"),
        pool("apart", "192.168.0.0/16"),
        pool("six", "'fd00::/48'"),
    ];
    let cluster = import(&Contents::from_texts([("file.yaml", &*text.concat())]));
    assert_eq!(cluster.invalid_pools, ["wide", "inner", "other", "same"]);
    let overlaps = cluster.problems.iter().filter(|it| it.code() == Code::OverlappingPools);
    let told: Vec<_> = overlaps.map(Problem::summary).collect();
    assert_eq!(told.len(), 4);
    assert_eq!(
        told[1],
        "file.yaml:3:1: IPPool inner: its CIDR 10.1.0.0/16 overlaps 10.0.0.0/8 of IPPool wide: give each pool its own"
    );
}

fn aged_pool(name: &str, cidr: &str, second: u8) -> String {
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {{name: {name}, creationTimestamp: '2026-11-26T10:00:{second:02}Z'}}, spec: {{cidr: '{cidr}'}}}}\n---\n"
    )
}

fn cidrs(cluster: &Cluster) -> Vec<String> {
    cluster.pools.iter().map(|pool| pool.cidr.to_string()).collect()
}

#[test]
fn of_pools_that_overlap_the_oldest_counts_and_a_later_one_costs_it_nothing() {
    let text = [
        // These pools are: younger than the pool that it contains; with the same CIDR; and overlapping only a pool that
        // is not used.
        aged_pool("a-wide", "10.0.0.0/8", 3),
        aged_pool("same", "10.1.0.0/16", 2),
        aged_pool("z-first", "10.1.0.0/16", 1),
        aged_pool("beside", "10.2.0.0/16", 4),
        aged_pool("apart", "192.168.0.0/16", 5),
    ];
    let cluster = import(&Contents::from_texts([("file.yaml", &*text.concat())]));
    assert_eq!(cluster.invalid_pools, Vec::<String>::new());
    assert_eq!(cidrs(&cluster), ["10.1.0.0/16", "10.2.0.0/16", "192.168.0.0/16"]);
    let told: Vec<_> = cluster.problems.iter().map(Problem::summary).collect();
    assert_eq!(
        told,
        [
            "file.yaml:3:1: IPPool same: its CIDR 10.1.0.0/16 overlaps 10.1.0.0/16 of IPPool z-first, which is older: this pool does not count; give each pool its own",
            "file.yaml:1:1: IPPool a-wide: its CIDR 10.0.0.0/8 overlaps 10.1.0.0/16 of IPPool z-first, which is older: this pool does not count; give each pool its own",
        ]
    );
}

#[test]
fn of_pools_that_overlap_and_are_as_old_none_is_valid_and_a_later_one_neither() {
    let text = [
        aged_pool("one", "10.1.0.0/16", 1),
        aged_pool("two", "10.1.0.0/16", 1),
        aged_pool("three", "10.1.0.0/17", 2),
    ];
    let cluster = import(&Contents::from_texts([("file.yaml", &*text.concat())]));
    assert_eq!(cluster.invalid_pools, ["one", "two"]);
    assert_eq!(cluster.later_pools, ["three".to_owned()].into());
    assert_eq!(cluster.problems.len(), 3);
}

#[test]
fn a_pool_that_holds_addresses_of_nodes_is_told_and_those_that_nodes_take_of_their_blocks_are_none()
{
    let node = |name: &str, block: &str, address: &str| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, spec: {{podCIDR: {block}}}, status: {{addresses: [{{type: InternalIP, address: {address}}}]}}}}\n---\n"
        )
    };
    let nodes = node("n1", "10.1.0.0/24", "192.0.2.1");
    let pools = aged_pool("pods", "10.0.0.0/8", 1) + &aged_pool("hosts", "192.0.2.0/24", 2);
    let clean = import(&Contents::from_texts([(
        "f",
        &*(nodes.clone() + &aged_pool("p", "10.0.0.0/8", 1)),
    )]));
    assert_eq!(clean.problems, []);
    // If a node claims an address in another node's block, nothing changes.
    let liar = node("n2", "10.2.0.0/24", "10.1.0.7");
    let cluster = import(&Contents::from_texts([("file.yaml", &*(nodes + &liar + &pools))]));
    let told: Vec<_> = cluster.problems.iter().map(Problem::summary).collect();
    assert_eq!(
        told,
        [
            "file.yaml:7:1: IPPool hosts: its CIDR 192.0.2.0/24 holds 192.0.2.1 of Node \"n1\": only nodes' pod CIDRs are routed of it; give the pool addresses that no host has"
        ]
    );
    assert_eq!(
        cluster.pools.iter().map(|pool| pool.holds_nodes).collect::<Vec<_>>(),
        [false, true]
    );
}

#[test]
fn nodes_that_do_not_exist_are_no_address() {
    let cluster = clean(
        "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone: a}}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: ExternalIP, address: 'fd00::1'}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: p}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Accept, to: [{nodes: {matchLabels: {zone: b}}}]}, {action: Accept, to: [{nodes: {matchLabels: {zone: a}}}]}]}}
",
    );
    let (_, policy) = cluster.model.policies.first_key_value().unwrap();
    let [none, own] = &policy.egress.as_ref().unwrap()[..] else { panic!("{policy:?}") };
    assert_eq!(none.destination.entities, Some(Vec::new()), "no address");
    let [own] = &own.destination.entities.as_ref().unwrap()[..] else { panic!("{own:?}") };
    let nets: Vec<_> = own.nets.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["192.0.2.1/32", "fd00::1/128"]);
}

/// Returns an affinity of node `node` to a block, with further fields in its `spec`.
fn affinity(name: &str, node: &str, cidr: &str, more: &str) -> String {
    format!(
        "---\n{{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {{name: {name}}}, spec: {{node: {node}, cidr: {cidr}, {more}}}}}\n"
    )
}

#[test]
fn with_calicos_ipam_a_nodes_blocks_are_those_of_its_affinities_in_force() {
    let annotations = "projectcalico.org/IPv4IPIPTunnelAddr: 10.65.0.9, projectcalico.org/IPv6VXLANTunnelAddr: 'fd00:9::1'";
    let text = format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: n1, annotations: {{{annotations}}}}}, spec: {{podCIDR: 10.1.0.0/24}}}}\n---\n\
         {{apiVersion: v1, kind: Node, metadata: {{name: n2}}, spec: {{podCIDR: 10.2.0.0/24}}}}\n{}{}{}{}{}{}{}{}",
        affinity("n1-later", "n1", "10.65.7.0/26", "state: confirmed"),
        affinity(
            "n1-first",
            "n1",
            "10.65.0.0/26",
            "state: confirmed, type: host, deleted: 'false'"
        ),
        affinity("n1-six", "n1", "'fd00:65::/122'", "state: confirmed"),
        affinity("n1-pending", "n1", "10.65.1.0/26", "state: pending"),
        affinity("n1-going", "n1", "10.65.2.0/26", "state: pendingDeletion"),
        affinity("n1-gone", "n1", "10.65.3.0/26", "state: confirmed, deleted: 'true'"),
        affinity("n1-virtual", "n1", "10.65.4.0/26", "state: confirmed, type: virtual"),
        affinity("n3-first", "n3", "10.65.5.0/26", "state: confirmed"),
    );
    let contents = Contents::from_texts([("file.yaml", &*text)]);
    let blocks = |cluster: &Cluster, node: &str| {
        cluster.nodes[node].plan.blocks().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let cluster = import_as(&contents, Ipam::Calico, None);
    assert_eq!(cluster.problems, []);
    assert_eq!(blocks(&cluster, "n1"), ["10.65.0.0/26", "10.65.7.0/26", "fd00:65::/122"]);
    assert_eq!(blocks(&cluster, "n2"), Vec::<String>::new());
    assert!(!cluster.nodes.contains_key("n3"));
    let node = &cluster.nodes["n1"];
    let tunnels = ["10.65.0.9", "fd00:9::1"].map(|it| it.parse::<IpAddr>().unwrap());
    assert_eq!(node.plan.tunnel_addresses(), tunnels);
    assert_eq!(node.plan.masquerade_addresses(), [] as [IpAddr; 0]);
    assert_eq!(node.addresses, tunnels.into());
    assert_eq!(cluster.borrowed_tunnels, [tunnels[1]].into());
    // The objects alone indicate Calico's IPAM, but an agent's settings may say otherwise.
    assert_eq!(assumed_ipam(&contents), Ipam::Calico);
    assert_eq!(import(&contents), cluster);
    let host_local = import_as(&contents, Ipam::HostLocal, None);
    assert_eq!(blocks(&host_local, "n1"), ["10.1.0.0/24"]);
    assert_eq!(host_local.borrowed_tunnels, [].into());
}

#[test]
fn affinities_that_are_not_in_force_make_no_cluster_calicos() {
    for (state, ipam) in [
        ("state: pending", Ipam::HostLocal),
        ("state: confirmed, type: virtual", Ipam::HostLocal),
        ("state: confirmed, deleted: true", Ipam::HostLocal),
        ("state: x", Ipam::HostLocal),
        ("state: confirmed", Ipam::Calico),
    ] {
        let text = affinity("a", "n1", "10.65.0.0/26", state);
        assert_eq!(assumed_ipam(&Contents::from_texts([("f", &*text)])), ipam, "{state}");
    }
}

#[test]
fn a_block_that_two_nodes_claim_by_affinities_is_told_as_a_block() {
    let node =
        |name: &str| format!("---\n{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}\n");
    let text = node("n1")
        + &node("n2")
        + &affinity("n1-a", "n1", "10.65.0.0/26", "state: confirmed")
        + &affinity("n2-a", "n2", "10.65.0.0/26", "state: confirmed");
    let cluster = cluster(&text);
    let told: Vec<_> = cluster.problems.iter().map(Problem::summary).collect();
    insta::assert_snapshot!(told.join("\n"), @"file.yaml:4:1: Node n2: its block 10.65.0.0/26 overlaps 10.65.0.0/26 of node n1: neither is routed");
}
