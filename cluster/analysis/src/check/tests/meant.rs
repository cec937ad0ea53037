//! Policies that do something other than their author meant. Each is reported, and similar correct
//! policies are not.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use manx_objects::code::Code;
use manx_objects::contents::Contents;

use super::{WHOLE, global, pod, policy, problems, told};

#[test]
fn clusters_whose_policies_are_meant_as_they_are_have_none_of_these() {
    let told_of = [
        Code::OwnSideMatchesNothing,
        Code::ServiceAddress,
        Code::ServicePort,
        Code::EmptyCondition,
        Code::OnlyDenies,
        Code::SeparateRules,
        Code::EmptyWithoutType,
    ];
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let folders = ["shop", "dumps/yaml", "dumps/json", "dumps/per-kind", "dumps/cluster-info/shop"];
    let rigs = fs::read_dir(fixtures.join("rigs")).unwrap().map(|rig| rig.unwrap().path());
    let mut policies = 0;
    for folder in rigs.chain(folders.map(|folder| fixtures.join(folder))) {
        let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let files =
            files.filter(|path| path.extension().is_some_and(|it| it == "yaml" || it == "json"));
        let texts: Vec<(String, String)> = files
            .map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap()))
            .collect();
        let texts = texts.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let contents = Contents::from_texts(texts);
        policies += contents.objects.keys().filter(|key| key.kind.enforced_policy()).count();
        let mut found = problems(&contents);
        found.extend(contents.problems.iter().cloned());
        found.retain(|problem| told_of.contains(&problem.code()));
        assert_eq!(found, [], "{}", folder.display());
    }
    assert!(policies > 50, "{policies}");
}

const TIER: &str = "---\n{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: t}, spec: {order: 1, defaultAction: ACTION}}\n";

fn tier(action: &str) -> String {
    TIER.replace("ACTION", action)
}

fn service(name: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, spec: {{{spec}}}}}\n"
    )
}

fn pods() -> String {
    pod("shop", "web", "app: web", "") + &pod("shop", "db", "app: db", "")
}

const DENY: &str = "{action: Deny, destination: {nets: [169.254.169.254/32]}}";

#[test]
fn a_policy_that_only_denies_or_logs_closes_everything_else() {
    let of = |spec: &str| told(&(pods() + &tier("Deny") + &global(spec)));
    let web = |rules: &str| of(&format!("selector: app == 'web', {rules}"));
    insta::assert_snapshot!(web(&format!("types: [Egress], egress: [{DENY}]")), @"only-denies: GlobalNetworkPolicy g: spec.egress: only denies: everything else from the endpoints that it selects is denied at the end of tier default, where nothing allows or passes it");
    insta::assert_snapshot!(web(&format!("tier: t, ingress: [{{action: Log}}], egress: [{{action: Log}}, {DENY}]")), @r"
    only-denies: GlobalNetworkPolicy g: spec.ingress: only logs: everything else to the endpoints that it selects is denied at the end of tier t, where nothing allows or passes it
    only-denies: GlobalNetworkPolicy g: spec.egress: only logs and denies: everything else from the endpoints that it selects is denied at the end of tier t, where nothing allows or passes it
    ");
    for deliberate in [
        "ingress: []",
        "ingress: [{action: Deny}]",
        "ingress: [{action: Log}, {action: Deny}]",
        "ingress: [{action: Deny, source: {nets: [0.0.0.0/0]}}]",
        "ingress: [{action: Deny, protocol: TCP}, {action: Deny, protocol: UDP}]",
        "ingress: [{action: Deny, protocol: TCP}, {action: Allow}]",
        "ingress: [{action: Log}, {action: Pass}]",
        "types: [Egress], egress: [{action: Deny}]",
    ] {
        assert_eq!(web(deliberate), "", "{deliberate}");
    }
    for mistake in [
        "ingress: [{action: Deny, protocol: TCP}]",
        "ingress: [{action: Deny, source: {notNets: [10.0.0.0/8]}}]",
        "ingress: [{action: Deny, source: {nets: [0.0.0.0/0], notNets: [10.0.0.0/8]}}]",
    ] {
        assert!(web(mistake).starts_with("only-denies"), "{mistake}");
    }
    let passes =
        pods() + &tier("Pass") + &global(&format!("selector: all(), tier: t, egress: [{DENY}]"));
    assert_eq!(told(&passes), "");
}

#[test]
fn what_else_the_tier_decides_about_the_same_endpoints_is_meant_to_be_asked() {
    let denies = global(&format!("order: 5, selector: all(), types: [Egress], egress: [{DENY}]"));
    let with = |other: &str| told(&(pods() + &denies + other));
    insta::assert_snapshot!(with(&policy("shop", "podSelector: {matchLabels: {app: web}}, egress: [{}]")), @"only-denies: GlobalNetworkPolicy g: spec.egress: only denies: everything else from 1 of the 2 endpoints that it selects is denied at the end of tier default, where nothing allows or passes it");
    // The other policy is not for this direction.
    assert!(with(&policy("shop", "podSelector: {}, ingress: [{}]")).starts_with("only-denies"));
    for other in ["egress: [{}]", "egress: [{ports: [{port: 443}]}]", "policyTypes: [Egress]"] {
        assert_eq!(with(&policy("shop", &format!("podSelector: {{}}, {other}"))), "", "{other}");
    }
    let staged = denies.replace("GlobalNetworkPolicy", "StagedGlobalNetworkPolicy");
    assert_eq!(told(&(pods() + &staged)), "");
    // The packets that the invalid policy would allow are not known.
    let invalid = policy("shop", "podSelector: {}, egress: [{ports: [{port: 70000}]}]");
    assert!(!with(&invalid).contains("only-denies"));
    // The end of the tier denies nothing before NAT.
    let host = "---\n{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h}, spec: {node: n1, interfaceName: eth0}}\n";
    let early = global(
        "selector: all(), applyOnForward: true, preDNAT: true, ingress: [{action: Deny, source: {nets: [192.0.2.0/24]}}]",
    );
    assert_eq!(told(&(early + host)), "");
}

#[test]
fn without_pods_a_policy_that_only_denies_is_told_if_no_other_may_be_about_the_same() {
    let denies = global(&format!("selector: app == 'web', types: [Egress], egress: [{DENY}]"));
    assert!(told(&denies).starts_with("only-denies: GlobalNetworkPolicy g: spec.egress"));
    let other = policy("shop", "podSelector: {}, egress: [{}]");
    assert!(!told(&(denies + &other)).contains("only-denies"));
    let namespaced = |namespace: &str| {
        format!(
            "---\n{{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {{name: c, namespace: {namespace}}}, spec: {{types: [Egress], egress: [{DENY}]}}}}\n"
        )
    };
    assert!(!told(&(namespaced("shop") + &other)).contains("only-denies"));
    assert!(told(&(namespaced("far") + &other)).starts_with("only-denies"));
}

#[test]
fn a_rule_whose_own_side_fits_no_endpoint_of_its_policy_matches_nothing() {
    let of = |rules: &str| {
        told(&(pods() + WHOLE + &global(&format!("selector: app == 'web', {rules}"))))
    };
    insta::assert_snapshot!(of("ingress: [{action: Allow}, {action: Allow, destination: {selector: app == 'db'}}]"), @"own-side-matches-nothing: GlobalNetworkPolicy g: spec.ingress[1].destination: the rule matches nothing: in an ingress rule the destination is an endpoint of the policy's own, and none of these fits; the peer is the source");
    insta::assert_snapshot!(of("egress: [{action: Allow, source: {notSelector: has(app)}}]"), @"own-side-matches-nothing: GlobalNetworkPolicy g: spec.egress[0].source: the rule matches nothing: in an egress rule the source is an endpoint of the policy's own, and none of these fits; the peer is the destination");
    for fine in [
        "ingress: [{action: Allow, source: {selector: app == 'db'}, destination: {selector: has(app)}}]",
        "ingress: [{action: Allow, destination: {nets: [192.0.2.1/32]}}]",
        "egress: [{action: Allow, source: {notSelector: app == 'db'}}]",
    ] {
        assert_eq!(of(fine), "", "{fine}");
    }
    // One cause is reported as one problem.
    let nothing = of("ingress: [{action: Allow, destination: {selector: app == 'dbb'}}]");
    assert!(nothing.starts_with("selector-matches-nothing") && nothing.lines().count() == 1);
    // The destination of a packet that a node forwards to a pod is the pod.
    let host = "---\n{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {edge: 'yes'}}, spec: {node: n1, interfaceName: eth0}}\n";
    let forwarded = |forward: bool| {
        let policy = global(&format!(
            "selector: edge == 'yes', applyOnForward: {forward}, ingress: [{{action: Allow, destination: {{selector: app == 'web'}}}}]"
        ));
        told(&(pods() + host + &policy))
    };
    assert_eq!(forwarded(true), "");
    assert!(forwarded(false).starts_with("own-side-matches-nothing"));
}

/// Returns Services for the pods `web` and `db`, and the pods with their addresses.
fn served() -> String {
    let mut text = service(
        "web",
        "clusterIP: 10.96.0.7, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]",
    );
    text += &service("db", "clusterIP: 10.111.0.9, selector: {app: db}, ports: [{port: 5432}]");
    text += &service("outside", "clusterIP: 10.97.0.1, ports: [{port: 443}]");
    for (name, address) in [("web", "10.244.1.2"), ("db", "10.244.1.3")] {
        writeln!(
            text,
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}, status: {{podIP: {address}, hostIP: 172.18.0.2}}}}"
        )
        .unwrap();
    }
    text
}

#[test]
fn a_net_of_services_only_matches_nothing_that_is_meant() {
    let of = |peers: &str| {
        told(
            &(served()
                + &policy("shop", &format!("podSelector: {{}}, egress: [{{to: [{peers}]}}]"))),
        )
    };
    let block = |cidr: &str| format!("{{ipBlock: {{cidr: {cidr}}}}}");
    insta::assert_snapshot!(of(&block("10.96.0.7/32")), @"service-address: NetworkPolicy shop/p: spec.egress[0].to[0].ipBlock.cidr: holds only 10.96.0.7, the address of Service shop/web: it matches no packet, because policy sees the address behind a Service; select its pods (app=web, in namespace shop)");
    insta::assert_snapshot!(of(&block("10.96.0.0/12")), @"service-address: NetworkPolicy shop/p: spec.egress[0].to[0].ipBlock.cidr: holds only addresses of Services (Service shop/web and 2 more): it matches no packet, because policy sees the address behind a Service; select its pods (app=web, in namespace shop)");
    insta::assert_snapshot!(of(&format!("{}, {}", block("192.0.2.0/24"), block("10.97.0.1/32"))), @"service-address: NetworkPolicy shop/p: spec.egress[0].to[1].ipBlock.cidr: holds only 10.97.0.1, the address of Service shop/outside: it matches no packet, because policy sees the address behind a Service; say the addresses of the endpoints of Service shop/outside");
    for fine in [
        // The net is wider than a range of Service addresses may be, or contains other addresses.
        block("10.0.0.0/8"),
        block("10.96.0.0/11"),
        block("0.0.0.0/0"),
        block("10.96.0.8/32"),
        block("10.244.1.3/32"),
        // Another peer of the rule matches the pods behind the Service.
        format!("{}, {{podSelector: {{matchLabels: {{app: web}}}}}}", block("10.96.0.7/32")),
        format!("{}, {}", block("10.96.0.7/32"), block("10.244.0.0/16")),
    ] {
        assert_eq!(of(&fine), "", "{fine}");
    }
    let calico = |rule: &str| {
        told(
            &(served() + &global(&format!("selector: all(), egress: [{rule}, {{action: Allow}}]"))),
        )
    };
    assert_eq!(calico("{action: Allow, destination: {nets: [10.96.0.7/32]}}"), "");
    let denied = "{action: Deny, destination: {nets: [192.0.2.0/24, 10.96.0.7/32]}}";
    assert!(
        calico(denied).starts_with("service-address: GlobalNetworkPolicy g: spec.egress[0].destination.nets[1]: holds only 10.96.0.7, the address of Service shop/web"),
        "{}", calico(denied)
    );
    let named = "{action: Deny, destination: {nets: [10.96.0.7/32]}}, {action: Deny, destination: {services: {name: web, namespace: shop}}}";
    assert_eq!(calico(named), "");
}

#[test]
fn the_address_of_dns_is_seen_by_policy_where_every_node_listens_at_it() {
    let dns = service(
        "dns",
        "clusterIP: 10.96.0.10, selector: {app: web}, ports: [{port: 53, protocol: UDP}]",
    );
    let policy =
        policy("shop", "podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.96.0.10/32}}]}]");
    let local = pod("kube-system", "dns", "k8s-app: node-local-dns", "hostNetwork: true");
    assert!(told(&(pods() + &dns + &policy)).starts_with("service-address"));
    assert_eq!(told(&(pods() + &dns + &policy + &local)), "");
}

#[test]
fn a_port_that_only_a_service_has_matches_nothing() {
    let web = |ports: &str| {
        pod("shop", "web", "app: web", &format!("containers: [{{name: c, ports: [{ports}]}}]"))
    };
    let pods = |ports: &str| web(ports) + &pod("shop", "db", "app: db", "");
    let http = "{name: http, containerPort: 8080}";
    let mapped = service(
        "web",
        "selector: {app: web}, ports: [{port: 80, targetPort: http, nodePort: 30080}]",
    );
    let of = |ports: &str, spec: &str| told(&(pods(ports) + &mapped + &policy("shop", spec)));
    let to = |peer: &str, ports: &str| {
        format!("podSelector: {{}}, egress: [{{to: [{peer}], ports: [{ports}]}}]")
    };
    let selected = "{podSelector: {matchLabels: {app: web}}}";
    insta::assert_snapshot!(of(http, &to(selected, "{port: 443}, {port: 80}")), @"service-port: NetworkPolicy shop/p: spec.egress[0].ports[1]: matches nothing: only Service shop/web has port 80, and policy sees the port of the pods behind it: 8080");
    insta::assert_snapshot!(of(http, "podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 30080}]}]"), @"service-port: NetworkPolicy shop/p: spec.ingress[0].ports[0]: matches nothing: only Service shop/web has port 30080, and policy sees the port of the pods behind it: 8080");
    for (ports, spec) in [
        // The rule names the pods' own port, or no port.
        (http, to(selected, "{port: 8080}")),
        (http, to(selected, "{port: 80}, {port: 8080}")),
        (http, to(selected, "{port: 80}, {port: http}")),
        (http, to(selected, "{port: 80, endPort: 90}")),
        (http, to(selected, "{port: 80, protocol: UDP}")),
        // A pod has the port itself.
        ("{name: http, containerPort: 8080}, {containerPort: 80}", to(selected, "{port: 80}")),
        // The rule also selects pods that are not behind the Service.
        (http, to("{podSelector: {}}", "{port: 80}")),
        (http, to(&format!("{selected}, {{ipBlock: {{cidr: 192.0.2.0/24}}}}"), "{port: 80}")),
        (http, "podSelector: {}, egress: [{ports: [{port: 80}]}]".to_owned()),
        (http, "podSelector: {}, ingress: [{ports: [{port: 80}]}]".to_owned()),
        // The name of the Service's target port is not a port name of the pod.
        ("{containerPort: 8080}", to(selected, "{port: 80}")),
    ] {
        assert_eq!(of(ports, &spec), "", "{ports} {spec}");
    }
    // Another Service has the port as one of its own.
    let other = service("other", "selector: {app: web}, ports: [{port: 9000, targetPort: 80}]");
    let both = pods(http) + &mapped + &other + &policy("shop", &to(selected, "{port: 80}"));
    assert_eq!(told(&both), "");
    let headless = pods(http) + &mapped.replace("selector", "clusterIP: None, selector");
    assert_eq!(told(&(headless + &policy("shop", &to(selected, "{port: 80}")))), "");
    // A second, headless Service shows that the pods have the port.
    let own = service("own", "clusterIP: None, selector: {app: web}, ports: [{port: 80}]");
    let beside = pods(http) + &mapped + &own + &policy("shop", &to(selected, "{port: 80}"));
    assert_eq!(told(&beside), "");
    let calico = global(
        "selector: all(), egress: [{action: Deny, protocol: TCP, destination: {selector: app == 'web', ports: [80]}}, {action: Allow}]",
    );
    assert!(
        told(&(pods(http) + &mapped + &calico)).starts_with(
            "service-port: GlobalNetworkPolicy g: spec.egress[0].destination.ports[0]"
        )
    );
}
