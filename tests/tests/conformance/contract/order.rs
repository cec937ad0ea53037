//! Order of evaluation, from manifests.

use super::{
    calico, cluster, global, kubernetes, lets_in, object, says, says_of_what_is_not_valid,
};

#[test]
fn actions_compare_case_insensitively_and_next_tier_is_pass() {
    let first = calico("Tier", "first", "order: 1");
    let rules = |action: &str| {
        format!("{first}{}", global("p", &format!("tier: first, ingress: [{{action: {action}}}]")))
    };
    for action in ["allow", "ALLOW", "Allow"] {
        says(&rules(action), "shop/db < shop/web tcp 80 = allow: GlobalNetworkPolicy p ingress[0]");
    }
    for action in ["deny", "DeNy"] {
        says(&rules(action), "shop/db < shop/web tcp 80 = deny: GlobalNetworkPolicy p ingress[0]");
    }
    for action in ["pass", "Pass", "next-tier", "Next-Tier", "NEXT-TIER"] {
        says(&rules(action), "shop/db < shop/web tcp 80 = allow: no policy selects it for ingress");
    }
    let logged = global("p", "tier: first, ingress: [{action: LOG}, {action: allow}]");
    says(
        &format!("{first}{logged}"),
        "shop/db < shop/web tcp 80 = allow: GlobalNetworkPolicy p ingress[1]",
    );
}

#[test]
fn a_tiers_default_action_compares_case_insensitively_too() {
    let with = |action: &str| {
        let tier = calico("Tier", "first", &format!("order: 1, defaultAction: {action}"));
        tier + &global("p", "tier: first, ingress: [{action: Log}]")
    };
    for action in ["Deny", "DENY", "''"] {
        says(&with(action), "shop/db < shop/web tcp 80 = deny");
    }
    for action in ["Pass", "pass"] {
        says(&with(action), "shop/db < shop/web tcp 80 = allow");
    }
}

#[test]
fn a_tier_whose_default_action_is_allow_is_not_valid_and_its_policies_deny() {
    let tier = calico("Tier", "first", "order: 1, defaultAction: Allow");
    let policy = global("p", "tier: first, ingress: [{action: Allow}]");
    says_of_what_is_not_valid(
        &(tier + &policy),
        "shop/db < shop/web tcp 80 = deny: GlobalNetworkPolicy p is not valid and denies ingress
         shop/db > shop/web tcp 80 = deny: GlobalNetworkPolicy p is not valid and denies egress
         shop/web < shop/db tcp 80 = allow",
    );
}

#[test]
fn the_built_in_tiers_orders_and_default_actions_are_fixed_whatever_objects_say() {
    let objects = calico("Tier", "kube-admin", "order: 9, defaultAction: Deny")
        + &calico("Tier", "default", "order: 1, defaultAction: Pass")
        + &calico("Tier", "kube-baseline", "order: 2, defaultAction: Deny");
    let policies = cluster(
        "a",
        "tier: Admin, priority: 1, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {team: b}}}]}]",
    ) + &cluster(
        "b",
        "tier: Baseline, priority: 1, ingress: [{action: Deny, from: [{namespaces: {}}]}]",
    ) + &kubernetes(
        "shop/db",
        "podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 80}]}]",
    );
    says_of_what_is_not_valid(
        &(objects + &policies),
        "shop/db < lab/web tcp 1 = allow: ClusterNetworkPolicy a ingress[0]
         shop/db < shop/web tcp 80 = allow: shop/db ingress[0]
         shop/db < shop/web tcp 1 = deny: isolated by shop/db for ingress, no rule allows
         shop/web < shop/db tcp 1 = deny: ClusterNetworkPolicy b ingress[0]
         shop/web < out tcp 1 = allow: no policy selects it for ingress",
    );
}

#[test]
fn admin_goes_to_kube_admin_baseline_to_kube_baseline_and_priority_is_the_order() {
    let rule =
        |action: &str| format!("ingress: [{{action: {action}, from: [{{namespaces: {{}}}}]}}]");
    let admin = |name: &str, priority: u32, action: &str| {
        cluster(name, &format!("tier: Admin, priority: {priority}, {}", rule(action)))
    };
    let deny = global("p", "order: -1, ingress: [{action: Deny}]");
    says(
        &(deny.clone() + &admin("z", 0, "Accept") + &admin("a", 1, "Deny")),
        "shop/db < shop/web tcp 80 = allow: ClusterNetworkPolicy z ingress[0]
         shop/db < out tcp 80 = deny: GlobalNetworkPolicy p ingress[0]",
    );
    says(
        &(deny.clone() + &admin("z", 0, "Pass") + &admin("a", 1, "Accept")),
        "shop/db < shop/web tcp 80 = deny: GlobalNetworkPolicy p ingress[0]",
    );
    let baseline =
        |action: &str| cluster("b", &format!("tier: Baseline, priority: 0, {}", rule(action)));
    says(
        &(deny + &baseline("Accept")),
        "shop/db < shop/web tcp 80 = deny: GlobalNetworkPolicy p ingress[0]",
    );
    says(&baseline("Deny"), "shop/db < shop/web tcp 80 = deny: ClusterNetworkPolicy b ingress[0]");
}

#[test]
fn admin_and_baseline_admin_network_policies_are_read_as_cluster_network_policies() {
    let of = |kind: &str, name: &str, spec: &str| {
        let spec = format!("subject: {{namespaces: {{}}}}, {spec}");
        object("policy.networking.k8s.io/v1alpha1", kind, name, &spec)
    };
    let everybody = "from: [{namespaces: {}}]";
    let admin = of(
        "AdminNetworkPolicy",
        "a",
        &format!(
            "priority: 3, ingress: [{{action: Allow, {everybody}, ports: [{{portNumber: {{port: 80}}}}]}}]"
        ),
    );
    let baseline = of(
        "BaselineAdminNetworkPolicy",
        "default",
        &format!("ingress: [{{action: Deny, {everybody}}}]"),
    );
    let policy = kubernetes("shop/db", "podSelector: {matchLabels: {app: db}}");
    says(
        &(admin + &baseline + &policy),
        "shop/db < shop/web tcp 80 = allow: AdminNetworkPolicy a ingress[0]
         shop/db < shop/web tcp 81 = deny: isolated by shop/db for ingress, no rule allows
         shop/web < shop/db tcp 81 = deny: BaselineAdminNetworkPolicy default ingress[0]
         shop/web < out tcp 81 = allow",
    );
}

#[test]
fn kubernetes_network_policies_sit_in_tier_default_at_order_1000() {
    let policy = kubernetes(
        "shop/db",
        "podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 80}]}]",
    );
    let at = |order: &str| {
        global("p", &format!("tier: default, order: {order}, ingress: [{{action: Deny}}]"))
    };
    let denied = "shop/db < shop/web tcp 80 = deny: GlobalNetworkPolicy p ingress[0]";
    let allowed = "shop/db < shop/web tcp 80 = allow: shop/db ingress[0]";
    says(&(policy.clone() + &at("999.9")), denied);
    says(&(policy.clone() + &at("-1e9")), denied);
    says(&(policy.clone() + &at("1000.1")), allowed);
    // With equal order, "db/shop/…" comes before "p//…".
    says(&(policy + &at("1000")), allowed);
}

#[test]
fn ties_go_by_the_text_name_slash_namespace_slash_kind() {
    let two = |first: &str, second: &str| {
        let one = |name: &str, action: &str| {
            let kind = if name.contains('/') { "NetworkPolicy" } else { "GlobalNetworkPolicy" };
            calico(kind, name, &format!("ingress: [{{action: {action}}}]"))
        };
        one(first, "Allow") + &one(second, "Deny")
    };
    // A hyphen sorts before the slash, so the longer name comes first.
    for (first, second) in [("a-b", "a"), ("a", "ab"), ("a", "shop/a"), ("shop/a", "b")] {
        says(&two(first, second), "shop/db < shop/web tcp 80 = allow");
    }
}

#[test]
fn types_default_to_ingress_unless_there_are_egress_rules_only_and_to_egress_if_there_are_any() {
    for kind in ["GlobalNetworkPolicy", "shop NetworkPolicy"] {
        let (namespace, kind) = kind.split_once(' ').unwrap_or(("", kind));
        let name = if namespace.is_empty() { "p".to_owned() } else { format!("{namespace}/p") };
        let of = |spec: &str| calico(kind, &name, &format!("selector: app == 'db'{spec}"));
        let verdicts = |ingress: &str, egress: &str| {
            format!("shop/db < shop/web tcp 80 = {ingress}\nshop/db > shop/web tcp 80 = {egress}")
        };
        let rule = "[{action: Log}]";
        says(&of(""), &verdicts("deny", "allow"));
        says(&of(", ingress: [], egress: []"), &verdicts("deny", "allow"));
        says(&of(&format!(", ingress: {rule}")), &verdicts("deny", "allow"));
        says(&of(&format!(", egress: {rule}")), &verdicts("allow", "deny"));
        says(&of(&format!(", ingress: {rule}, egress: {rule}")), &verdicts("deny", "deny"));
        says(&of(&format!(", types: [Egress], ingress: {rule}")), &verdicts("allow", "deny"));
    }
}

#[test]
fn policy_types_default_to_ingress_always_and_egress_if_there_are_egress_rules() {
    let of = |spec: &str| {
        kubernetes("shop/p", &format!("podSelector: {{matchLabels: {{app: db}}}}{spec}"))
    };
    let verdicts = |ingress: &str, egress: &str| {
        format!("shop/db < shop/web tcp 80 = {ingress}\nshop/db > shop/web tcp 80 = {egress}")
    };
    let outside = "[{to: [{ipBlock: {cidr: 192.0.2.0/24}}]}]";
    says(&of(""), &verdicts("deny", "allow"));
    says(&of(", egress: []"), &verdicts("deny", "allow"));
    says(&of(&format!(", egress: {outside}")), &verdicts("deny", "deny"));
    says(&of(", policyTypes: [Egress], ingress: [{}]"), &verdicts("allow", "deny"));
}

#[test]
fn a_cluster_network_policy_speaks_of_the_directions_that_it_has_rules_for() {
    let deny = "{action: Deny, to: [{namespaces: {}}]}";
    says(
        &cluster("a", &format!("tier: Admin, priority: 1, egress: [{deny}]")),
        "shop/db > shop/web tcp 80 = deny
         shop/db < shop/web tcp 80 = allow: no policy selects it for ingress",
    );
    says(
        &cluster("a", "tier: Admin, priority: 1"),
        "shop/db > shop/web tcp 80 = allow: no policy selects it for egress",
    );
}

#[test]
fn staged_kinds_are_never_enforced_and_never_make_a_tier_count_as_present() {
    let deny = "ingress: [{action: Deny}], egress: [{action: Deny}]";
    let staged = calico("Tier", "first", "order: 1")
        + &calico("StagedGlobalNetworkPolicy", "s", &format!("tier: first, {deny}"))
        + &calico("StagedNetworkPolicy", "shop/s", &format!("tier: first, {deny}"))
        + &calico("StagedKubernetesNetworkPolicy", "shop/s", "podSelector: {}");
    says(
        &staged,
        "shop/db < shop/web tcp 80 = allow: no policy selects it for ingress
         shop/db > shop/web tcp 80 = allow: no policy selects it for egress",
    );
}

#[test]
fn a_tier_that_a_policy_names_and_nobody_defines_sorts_last_and_denies() {
    let of = |tier: &str, action: &str| {
        calico(
            "GlobalNetworkPolicy",
            tier,
            &format!("tier: {tier}, ingress: [{{action: {action}, protocol: TCP}}]"),
        )
    };
    says(
        &(of("missing", "Allow") + &of("last", "Deny") + &calico("Tier", "last", "defaultAction: Pass")),
        "shop/db < shop/web tcp 80 = deny: GlobalNetworkPolicy last ingress[0]
         shop/db < shop/web udp 80 = deny: isolated by GlobalNetworkPolicy missing for ingress, no rule allows",
    );
}

#[test]
fn profiles_come_after_the_tiers_and_without_a_match_it_is_deny() {
    let host = |profiles: &str| {
        calico(
            "HostEndpoint",
            "eth0",
            &format!("node: n1, interfaceName: eth0, profiles: [{profiles}]"),
        )
    };
    let verdicts = |ingress: &str, egress: &str| {
        format!("eth0@host < out tcp 80 = {ingress}\neth0@host > out tcp 80 = {egress}")
    };
    says(&host("kns.shop"), &verdicts("allow", "allow"));
    says(&host("projectcalico-default-allow"), &verdicts("allow", "allow"));
    says(
        &host("ksa.shop.runner"),
        &verdicts("deny: no profile allows ingress", "deny: no profile allows egress"),
    );
    says(
        &host("ghost, kns.shop"),
        &verdicts(
            "deny: profile ghost does not exist, ingress",
            "deny: profile ghost does not exist, egress",
        ),
    );
    let mine =
        calico("Profile", "mine", "ingress: [{action: Pass, protocol: TCP}, {action: Allow}]");
    says(
        &(host("mine, kns.shop") + &mine),
        "eth0@host < out tcp 80 = deny: profile mine ingress[0]
         eth0@host < out udp 80 = allow: profile mine ingress[1]
         eth0@host > out tcp 80 = allow: profile kns.shop egress[0]",
    );
}

#[test]
fn log_records_and_continues_with_the_next_rule() {
    says(
        &global("p", "ingress: [{action: Log}, {action: Log}, {action: Allow, protocol: TCP}]"),
        "shop/db < shop/web tcp 80 = allow: GlobalNetworkPolicy p ingress[2]
         shop/db < shop/web udp 80 = deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows",
    );
}

#[test]
fn a_packet_between_two_pods_needs_egress_of_the_source_and_ingress_of_the_destination() {
    says(
        &lets_in("source: {selector: app == 'web'}"),
        "shop/db < shop/web tcp 80 = allow: GlobalNetworkPolicy p ingress[0]
         shop/web > shop/db tcp 80 = allow: no policy selects it for egress
         shop/db < out tcp 80 = deny",
    );
}
