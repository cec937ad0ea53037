//! The problems of policies that have an order.

use std::collections::BTreeSet;
use std::net::IpAddr;

use manx_calculation::import::import;
use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::model::{Direction, Family};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::{pod, policy, problems};

/// Returns the problems that concern the order of policies.
fn told(text: &str) -> String {
    let all = super::told(text);
    all.split_inclusive('\n').filter(|line| !line.starts_with("only-denies")).collect()
}

/// Returns a `GlobalNetworkPolicy` in the tier `default`.
fn global(name: &str, order: u32, spec: &str) -> String {
    in_tier(name, "default", order, spec)
}

fn in_tier(name: &str, tier: &str, order: u32, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: {name}}}, spec: {{tier: {tier}, order: {order}, {spec}}}}}\n"
    )
}

fn tier(name: &str, order: u32) -> String {
    format!(
        "---\n{{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {{name: {name}}}, spec: {{order: {order}}}}}\n"
    )
}

fn admin(name: &str, priority: u32, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {{name: {name}}}, spec: {{priority: {priority}, {spec}}}}}\n"
    )
}

/// Returns the problems of one policy for all endpoints with these rules.
fn alone(rules: &str) -> String {
    told(&global("g", 1, &format!("selector: all(), types: [Ingress], ingress: [{rules}]")))
}

#[test]
fn a_rule_after_one_that_takes_all_of_it_is_not_reached() {
    insta::assert_snapshot!(alone("{action: Deny}, {action: Allow, source: {nets: [10.0.0.0/8]}}"), @"unreachable-rule: GlobalNetworkPolicy g: spec.ingress[1]: no packet reaches this rule: what it matches is taken before by spec.ingress[0] of this policy (Deny)");
    insta::assert_snapshot!(alone("{action: Allow, source: {nets: [10.0.0.0/8]}}, {action: Log}, {action: Deny, protocol: TCP, source: {nets: [10.1.0.0/16]}, destination: {ports: [80]}}"), @"unreachable-rule: GlobalNetworkPolicy g: spec.ingress[2]: no packet reaches this rule: what it matches is taken before by spec.ingress[0] of this policy (Allow)");
    insta::assert_snapshot!(alone("{action: Allow, protocol: TCP, destination: {ports: ['1:100']}}, {action: Allow, protocol: TCP, destination: {ports: ['101:200']}}, {action: Deny, protocol: TCP, destination: {ports: ['50:150']}}"), @"unreachable-rule: GlobalNetworkPolicy g: spec.ingress[2]: no packet reaches this rule: what it matches is taken before by spec.ingress[0] of this policy (Allow), and 1 more");
    insta::assert_snapshot!(alone("{action: Pass, source: {selector: app == 'a'}}, {action: Deny, source: {selector: app == 'a'}}, {action: Log, source: {selector: app == 'a'}}"), @r"
    unreachable-rule: GlobalNetworkPolicy g: spec.ingress[1]: no packet reaches this rule: what it matches is taken before by spec.ingress[0] of this policy (Pass)
    unreachable-rule: GlobalNetworkPolicy g: spec.ingress[2]: no packet reaches this rule: what it matches is taken before by spec.ingress[0] of this policy (Pass)
    ");
    insta::assert_snapshot!(alone("{action: Allow, protocol: ICMP}, {action: Deny, protocol: ICMP, icmp: {type: 8}}"), @"unreachable-rule: GlobalNetworkPolicy g: spec.ingress[1]: no packet reaches this rule: what it matches is taken before by spec.ingress[0] of this policy (Allow)");
    insta::assert_snapshot!(alone("{action: Allow, source: {nets: [10.0.0.0/9]}}, {action: Allow, source: {nets: [10.128.0.0/9]}}, {action: Deny, source: {nets: [10.0.0.0/8]}}"), @"unreachable-rule: GlobalNetworkPolicy g: spec.ingress[2]: no packet reaches this rule: what it matches is taken before by spec.ingress[0] of this policy (Allow), and 1 more");
    for fine in [
        "{action: Log}, {action: Deny}",
        "{action: Allow, source: {nets: [10.1.0.0/16]}}, {action: Deny, source: {nets: [10.0.0.0/8]}}",
        "{action: Allow, source: {nets: [10.0.0.0/9]}}, {action: Deny, source: {nets: [10.0.0.0/8]}}",
        "{action: Deny, source: {nets: [10.0.0.0/8], notNets: [10.1.0.0/16]}}, {action: Allow, source: {nets: [10.1.0.0/16]}}",
        "{action: Allow, protocol: TCP, destination: {ports: [80]}}, {action: Deny, protocol: UDP, destination: {ports: [80]}}",
        // Later fragments have no ports.
        "{action: Allow, protocol: TCP, destination: {ports: ['1:65535']}}, {action: Deny, protocol: TCP}",
        "{action: Allow, protocol: TCP, source: {ports: [1000]}}, {action: Deny, protocol: TCP, destination: {ports: [80]}}",
        "{action: Allow, protocol: ICMP, icmp: {type: 8}}, {action: Deny, protocol: ICMP}",
        "{action: Allow, source: {nets: [0.0.0.0/0]}}, {action: Deny}",
        "{action: Allow, source: {selector: app == 'a'}}, {action: Deny, source: {selector: app == 'a' || app == 'b'}}",
        "{action: Allow, source: {notSelector: app == 'a'}}, {action: Deny, source: {selector: app == 'b'}}",
    ] {
        assert_eq!(alone(fine), "", "{fine}");
    }
}

#[test]
fn a_policy_before_takes_what_its_own_endpoints_cover() {
    let pods = pod("shop", "db", "app: db, tier: back", "") + &pod("shop", "web", "app: web", "");
    let of = |first: &str, second: &str| {
        told(&(pods.clone() + &global("first", 10, first) + &global("second", 20, second)))
    };
    let allow =
        "selector: app == 'db', ingress: [{action: Allow, source: {selector: app == 'web'}}]";
    insta::assert_snapshot!(of("selector: tier == 'back', ingress: [{action: Deny}]", allow), @"unreachable-rule: GlobalNetworkPolicy second: spec.ingress[0]: no packet reaches this rule: what it matches is taken before by GlobalNetworkPolicy first, spec.ingress[0] (Deny)");
    insta::assert_snapshot!(of("selector: all(), ingress: [{action: Allow, source: {selector: app == 'web'}, protocol: TCP}, {action: Deny}]", &allow.replace("app == 'web'}}", "app == 'web'}}, {action: Log, protocol: UDP}")), @"unreachable-rule: GlobalNetworkPolicy second: spec.ingress: no packet reaches any of these 2 rules: what they match is taken before by GlobalNetworkPolicy first, spec.ingress[1] (Deny), and 1 more");
    for (first, second) in [
        // Packets of later pods without the label of `db` reach the rule.
        (
            "selector: app == 'db', ingress: [{action: Allow}]",
            "selector: all(), ingress: [{action: Deny}]",
        ),
        ("selector: app == 'web', ingress: [{action: Deny}]", allow),
        // The rule repeats the effect of an earlier policy.
        ("selector: all(), ingress: [{action: Allow, source: {selector: app == 'web'}}]", allow),
        // The directions differ.
        ("selector: all(), egress: [{action: Deny}]", allow),
    ] {
        assert_eq!(of(first, second), "", "{first} {second}");
    }
    // A staged policy decides no packets, and its own rules need not be reachable.
    let staged = |text: &str| text.replacen("kind: Global", "kind: StagedGlobal", 1);
    let deny = global("first", 10, "selector: all(), ingress: [{action: Deny}]");
    let second = global("second", 20, allow);
    assert_eq!(told(&(pods.clone() + &staged(&deny) + &second)), "");
    assert_eq!(told(&(pods.clone() + &deny + &staged(&second))), "");
}

#[test]
fn a_tier_without_pass_takes_what_comes_after_it() {
    let pods = pod("shop", "db", "app: db", "") + &pod("shop", "web", "app: web", "");
    let app = global(
        "app",
        10,
        "selector: app == 'db', ingress: [{action: Allow, source: {selector: app == 'web'}}, {action: Allow, protocol: TCP}], egress: [{action: Allow}]",
    );
    let of = |spec: &str| {
        told(&(pods.clone() + &tier("security", 1) + &in_tier("bad", "security", 1, spec) + &app))
    };
    let rules = "{action: Deny, source: {nets: [192.0.2.0/24]}}";
    insta::assert_snapshot!(of(&format!("selector: all(), ingress: [{rules}]")), @"unreachable-rule: GlobalNetworkPolicy app: spec.ingress: no packet reaches any of these 2 rules: what they match is taken before by the end of tier security (Deny), which applies because of GlobalNetworkPolicy bad");
    insta::assert_snapshot!(of(&format!("selector: all(), ingress: [{rules}, {{action: Pass, source: {{selector: app == 'web'}}}}]")), @"unreachable-rule: GlobalNetworkPolicy app: spec.ingress[1]: no packet reaches this rule: what it matches is taken before by the end of tier security (Deny), which applies because of GlobalNetworkPolicy bad, and 2 more");
    assert_eq!(of(&format!("selector: all(), ingress: [{rules}, {{action: Pass}}]")), "");
    // A pod for which the rule is passed may have an address in the net.
    let net = app.replace("source: {selector: app == 'web'}", "source: {nets: [10.0.0.0/8]}");
    let pass = format!(
        "selector: all(), ingress: [{rules}, {{action: Pass, protocol: UDP, source: {{selector: app == 'web'}}}}]"
    );
    let passing = pods.clone() + &tier("security", 1) + &in_tier("bad", "security", 1, &pass);
    assert!(!told(&(passing + &net)).contains("spec.ingress[0]"));
    assert_eq!(of(&format!("selector: app == 'web', ingress: [{rules}]")), "");
    let passes = tier("security", 1).replace("order: 1", "order: 1, defaultAction: Pass");
    let bad = in_tier("bad", "security", 1, &format!("selector: all(), ingress: [{rules}]"));
    assert_eq!(told(&(pods.clone() + &passes + &bad + &app)), "");
}

#[test]
fn cluster_wide_policies_are_ordered_and_a_baseline_is_replaced_by_what_it_is_for() {
    let pods = pod("shop", "db", "app: db", "");
    let subject = "subject: {namespaces: {}}";
    let deny = admin(
        "deny",
        1,
        &format!(
            "{subject}, ingress: [{{action: Deny, from: [{{namespaces: {{}}}}], ports: [{{portRange: {{protocol: TCP, start: 1, end: 1000}}}}]}}]"
        ),
    );
    let allow = admin(
        "allow",
        2,
        &format!(
            "{subject}, ingress: [{{action: Allow, from: [{{namespaces: {{}}}}], ports: [{{portNumber: {{protocol: TCP, port: 80}}}}]}}, {{action: Pass, from: [{{namespaces: {{}}}}]}}]"
        ),
    );
    insta::assert_snapshot!(told(&(pods.clone() + &deny + &allow)), @"unreachable-rule: AdminNetworkPolicy allow: spec.ingress[0]: no packet reaches this rule: what it matches is taken before by AdminNetworkPolicy deny, spec.ingress[0] (Deny)");
    let baseline = "---\n{apiVersion: policy.networking.k8s.io/v1alpha1, kind: BaselineAdminNetworkPolicy, metadata: {name: default}, spec: {subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}, ingress: [{action: Allow, from: [{namespaces: {}}]}]}}\n";
    let closed = policy("shop", "podSelector: {}");
    assert_eq!(told(&(pods.clone() + baseline + &closed)), "");
    let taken = "ingress: [{action: Deny, from: [{namespaces: {}}]}, ";
    insta::assert_snapshot!(told(&(pods + &baseline.replace("ingress: [", taken))), @"unreachable-rule: BaselineAdminNetworkPolicy default: spec.ingress[1]: no packet reaches this rule: what it matches is taken before by spec.ingress[0] of this policy (Deny)");
    // Rules of Kubernetes only add to each other.
    let rules = "podSelector: {}, ingress: [{}, {from: [{podSelector: {}}]}]";
    assert_eq!(told(&(pod("shop", "a", "", "") + &policy("shop", rules))), "");
}

#[test]
fn at_a_host_only_what_applies_to_forwarded_traffic_takes_forwarded_traffic() {
    let host = "---\n{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {edge: 'yes'}}, spec: {node: n1, interfaceName: eth0}}\n";
    let of = |first: &str, second: &str| {
        let first = format!("selector: has(edge), {first}ingress: [{{action: Deny}}]");
        let second =
            format!("selector: has(edge), {second}ingress: [{{action: Allow, protocol: TCP}}]");
        told(&(host.to_owned() + &global("first", 1, &first) + &global("second", 2, &second)))
    };
    let forward = "applyOnForward: true, ";
    assert!(of("", "").starts_with("unreachable-rule"));
    assert!(of(forward, "").starts_with("unreachable-rule"));
    assert!(of(forward, forward).starts_with("unreachable-rule"));
    assert_eq!(of("", forward), "");
}

#[test]
fn beyond_the_bound_of_the_work_only_the_bound_is_told() {
    let rules = |at: u32| {
        let [high, low] = [at / 256, at % 256];
        format!("{{action: Deny, source: {{nets: [10.0.{high}.{low}/32]}}}}, ").repeat(2)
    };
    let many: String = (0..2500)
        .map(|at| {
            global(&format!("g{at:04}"), at, &format!("selector: all(), ingress: [{}]", rules(at)))
        })
        .collect();
    let told = told(&many);
    assert!(told.contains("GlobalNetworkPolicy g0100: spec.ingress[1]"), "{told}");
    assert!(!told.contains("GlobalNetworkPolicy g2499"), "{told}");
    let bound = "not-all-checked: input: : the input is too large to compare everything with everything, so not all are reported of unreachable-rule\n";
    assert!(told.ends_with(bound), "{told}");
}

#[test]
fn an_allow_of_most_ports_for_everyone_skips_what_kubernetes_denies() {
    let pods = pod("shop", "db", "app: db", "");
    let of = |order: u32, rules: &str, closed: &str| {
        let global =
            global("g", order, &format!("selector: all(), types: [Ingress], ingress: [{rules}]"));
        told(&(pods.clone() + &policy("shop", closed) + &global))
    };
    let closed = "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]";
    insta::assert_snapshot!(of(10, "{action: Deny, source: {nets: [192.0.2.0/24]}}, {action: Allow}", closed), @"allow-skips-policies: GlobalNetworkPolicy g: spec.ingress[1].action: Allow decides in tier default, so NetworkPolicy shop/p, which is in this tier, too, is not asked: what it denies is open to everyone, on most ports");
    insta::assert_snapshot!(of(10, "{action: Allow, protocol: TCP, destination: {notPorts: [22]}}", closed), @"allow-skips-policies: GlobalNetworkPolicy g: spec.ingress[0].action: Allow decides in tier default, so NetworkPolicy shop/p, which is in this tier, too, is not asked: what it denies is open to everyone, on most ports");
    insta::assert_snapshot!(of(10, "{action: Allow, source: {selector: all()}}", closed), @"allow-skips-policies: GlobalNetworkPolicy g: spec.ingress[0].action: Allow decides in tier default, so NetworkPolicy shop/p, which is in this tier, too, is not asked: what it denies is open to everyone, on most ports");
    for fine in [
        "{action: Allow, protocol: UDP, destination: {ports: [53]}}",
        "{action: Allow, source: {selector: app == 'db'}}",
        "{action: Allow, source: {nets: [10.0.0.0/8]}}",
        "{action: Allow, protocol: ICMP}",
        "{action: Pass}",
    ] {
        let told = of(10, fine, closed);
        assert!(!told.contains("allow-skips"), "{fine}: {told}");
    }
    // The rule comes after Kubernetes' policies, or Kubernetes' policies deny nothing.
    assert_eq!(of(2000, "{action: Allow}", closed), "");
    assert_eq!(of(10, "{action: Allow}", "podSelector: {}, ingress: [{}]"), "");
    assert_eq!(of(10, "{action: Allow}", "podSelector: {}, policyTypes: [Egress]"), "");
    assert_eq!(
        told(
            &(policy("shop", closed)
                + &pods
                + &global(
                    "g",
                    10,
                    "selector: app == 'web' && has(x) || app == 'y', ingress: [{action: Allow}]"
                ))
        )
        .lines()
        .filter(|it| it.starts_with("allow"))
        .count(),
        0
    );
}

#[test]
fn policies_of_one_priority_that_decide_a_packet_differently_are_told_with_the_packet() {
    let pods = pod("shop", "db", "app: db", "") + &pod("shop", "web", "app: web", "");
    let subject = "subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}";
    let rule = |action: &str, ports: &str| {
        format!(
            "{subject}, ingress: [{{action: {action}, from: [{{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: web}}}}}}}}], ports: [{{portRange: {{protocol: TCP, {ports}}}}}]}}]"
        )
    };
    let of = |second: u32, spec: &str| {
        told(
            &(pods.clone()
                + &admin("a", 5, &rule("Deny", "start: 1, end: 100"))
                + &admin("b", second, spec)),
        )
    };
    let every = format!("{subject}, egress: [{{action: Deny, to: [{{networks: [10.0.0.0/8]}}]}}]");
    let some = format!("{subject}, egress: [{{action: Pass, to: [{{networks: [10.1.0.0/16]}}]}}]");
    assert!(
        told(&(pods.clone() + &admin("a", 5, &some) + &admin("b", 5, &every)))
            .contains("to 10.1.0.0")
    );
    insta::assert_snapshot!(of(5, &rule("Allow", "start: 80, end: 200")), @"conflicting-priority: AdminNetworkPolicy b: spec.priority: AdminNetworkPolicy a has this priority, 5, too, and contradicts this policy: for TCP port 80 from pod shop/web, its spec.ingress[0] says Deny and spec.ingress[0] of this policy Allow; Kubernetes leaves open which of them decides, and Manx asks a first");
    for fine in [
        rule("Allow", "start: 101, end: 200"),
        rule("Deny", "start: 80, end: 200"),
        rule("Allow", "start: 80, end: 200").replacen("app: db", "app: web", 1),
        rule("Allow", "start: 80, end: 200").replace("app: web", "app: db"),
    ] {
        assert_eq!(of(5, &fine), "", "{fine}");
    }
    // One cause is reported as one problem.
    let all = of(5, &rule("Allow", "start: 80, end: 90"));
    assert!(all.starts_with("conflicting") && all.lines().count() == 1, "{all}");
    let other_priority = of(6, &rule("Allow", "start: 80, end: 200"));
    assert!(!other_priority.contains("conflicting"), "{other_priority}");
    // Packets that a policy before both decides cause no conflict.
    let before = admin("0", 1, &rule("Deny", "start: 1, end: 1000"));
    let told = told(
        &(pods.clone()
            + &before
            + &admin("a", 5, &rule("Deny", "start: 1, end: 100"))
            + &admin("b", 5, &rule("Allow", "start: 80, end: 200"))),
    );
    assert!(!told.contains("conflicting"), "{told}");
}

/// Generates a policy with rules of every kind that may decide packets or be reached by them.
fn some_policy(number: u32) -> impl Strategy<Value = String> {
    let nets =
        prop::sample::select(vec!["", "10.0.0.0/8", "10.1.0.0/16", "10.128.0.0/9", "10.0.0.0/9"]);
    let labels = prop::sample::select(vec![
        "",
        "all()",
        "app == 'a'",
        "app == 'b'",
        "has(app)",
        "set == 'x'",
    ]);
    let ports = prop::sample::select(vec!["", "'1:100'", "'1:65535'", "80"]);
    let action = prop::sample::select(vec!["Allow", "Deny", "Pass", "Log"]);
    let rule = (nets, labels, ports, action).prop_map(|(nets, labels, ports, action)| {
        let mut peer = Vec::new();
        if !nets.is_empty() {
            peer.push(format!("nets: [{nets}]"));
        }
        if !labels.is_empty() {
            peer.push(format!("selector: {labels}"));
        }
        let ports = if ports.is_empty() {
            String::new()
        } else {
            format!("protocol: TCP, destination: {{ports: [{ports}]}}, ")
        };
        format!("{{action: {action}, {ports}source: {{{}}}}}", peer.join(", "))
    });
    let subject = prop::sample::select(vec![
        "all()",
        "app == 'a'",
        "app == 'a' || app == 'b'",
        "tier == 'back'",
    ]);
    let tier = prop::sample::select(vec!["default", "default", "early"]);
    (prop::collection::vec(rule, 1..4), subject, tier).prop_map(move |(rules, subject, tier)| {
        let rules = rules.join(", ");
        let spec = format!("selector: {subject}, ingress: [{rules}]");
        in_tier(&format!("g{number}"), tier, number, &spec)
    })
}

/// Returns the rules on all paths of the tables between these ends.
fn met(contents: &Contents) -> BTreeSet<(String, u32)> {
    let model = import(contents).model;
    let pods: BTreeSet<_> = model.endpoints.keys().cloned().collect();
    let image = Compiler::new().compile(&model, &pods);
    let mut met = BTreeSet::new();
    let outside = ["10.0.0.1", "10.1.0.1", "10.2.0.1", "10.200.0.1", "192.0.2.1", "172.16.0.1"];
    let outside = outside.map(|text| text.parse::<IpAddr>().unwrap());
    let peers = model.endpoints.values().flat_map(|pod| pod.addresses.iter().copied());
    let peers: Vec<IpAddr> = peers.chain(outside).collect();
    for (name, pod) in &model.endpoints {
        let Some(chain) = image.chain(name, Direction::Ingress) else { continue };
        let local = image.identity(pod.addresses[0]);
        for peer in &peers {
            let of = image.decisions(chain, local, image.identity(*peer), Family::V4, 50_000);
            let runs = of.ports.iter().chain([&of.icmp, &of.others]).flatten();
            for run in runs {
                let decision = &image.path(run.path).decision;
                let noted = decision.noted.iter().filter_map(|noted| noted.rule());
                let rules = decision.reason.rule().into_iter().chain(noted);
                met.extend(rules.map(|rule| (rule.policy.name.clone(), rule.index)));
            }
        }
    }
    met
}

#[test]
fn no_path_of_the_tables_meets_a_rule_that_is_told() {
    let pods: String = [("a", "app: a, tier: back", "10.1.0.9"), ("b", "app: b", "10.200.0.9"), ("c", "", "172.16.0.9")]
        .map(|(name, labels, address)| {
            format!("---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{{labels}}}}}, status: {{podIPs: [{{ip: {address}}}]}}}}\n")
        })
        .concat();
    let set = "---\n{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: s, labels: {set: x}}, spec: {nets: [10.2.0.0/16]}}\n";
    let fixed = pods + set + &tier("early", 1);
    let mut runner = TestRunner::deterministic();
    let mut count = 0;
    for _ in 0..300 {
        let policies = (some_policy(1), some_policy(2), some_policy(3));
        let (one, two, three) = policies.new_tree(&mut runner).unwrap().current();
        let contents =
            Contents::from_texts([("all.yaml", &*(fixed.clone() + &one + &two + &three))]);
        assert!(contents.problems.is_empty(), "{:?}", contents.problems);
        let met = met(&contents);
        for problem in problems(&contents).iter().filter(|it| it.code() == Code::UnreachableRule) {
            let name = &problem.object.as_ref().unwrap().name;
            let index = problem.field.strip_prefix("spec.ingress").unwrap();
            let index = index.trim_matches(['[', ']']).parse::<u32>().ok();
            let is_it = |(of, at): &&(String, u32)| of == name && index.is_none_or(|it| it == *at);
            assert_eq!(met.iter().find(is_it), None, "{problem}\n{one}{two}{three}");
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}
