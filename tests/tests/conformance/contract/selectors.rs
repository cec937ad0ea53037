//! The meaning of Calico's selectors of accounts, and of `all()` in each place, from manifests.
//!
//! Only these tests check that Calico replaces the exact text `all()`: the oracle and the import read that in the same
//! way, so they would also agree if both were wrong.

use super::{calico, global, lets_in, says, says_of_what_is_not_valid};

/// A host endpoint, a network set of no namespace and one of `shop`.
fn not_pods() -> String {
    calico("HostEndpoint", "h", "node: n1, interfaceName: eth0, expectedIPs: [172.18.0.2]")
        + &calico("GlobalNetworkSet", "world", "nets: [192.0.2.0/24]")
        + &calico("NetworkSet", "shop/own", "nets: [198.51.100.0/24]")
}

#[test]
fn in_a_rule_all_accounts_are_host_endpoints_and_network_sets_too_as_is_what_no_account_fails() {
    for (accounts, pod, set, unknown) in [
        ("selector: all()", "allow", "allow", "deny"),
        ("selector: \"role != 'x'\"", "allow", "allow", "deny"),
        ("selector: \"!has(role)\"", "allow", "allow", "deny"),
        ("selector: '!all()'", "deny", "deny", "deny"),
        ("selector: has(role)", "deny", "deny", "deny"),
        ("selector: ''", "allow", "allow", "allow"),
        ("names: [runner], selector: all()", "allow", "deny", "deny"),
    ] {
        says(
            &(not_pods() + &lets_in(&format!("source: {{serviceAccounts: {{{accounts}}}}}"))),
            &format!(
                "shop/db < shop/web tcp 80 = {pod}
                 shop/db < 192.0.2.1 tcp 80 = {set}
                 shop/db < 198.51.100.1 tcp 80 = {set}
                 shop/db < 172.18.0.2 tcp 80 = {set}
                 shop/db < out tcp 80 = {unknown}"
            ),
        );
    }
    let closed =
        "ingress: [{action: Deny, source: {serviceAccounts: {selector: all()}}}, {action: Allow}]";
    says(
        &(not_pods() + &global("p", closed)),
        "shop/db < 192.0.2.1 tcp 80 = deny: GlobalNetworkPolicy p ingress[0]
         shop/db < 172.18.0.2 tcp 80 = deny: GlobalNetworkPolicy p ingress[0]
         shop/db < out tcp 80 = allow: GlobalNetworkPolicy p ingress[1]",
    );
    let own = "selector: app == 'db', ingress: [{action: Allow, source: {serviceAccounts: {selector: all()}}}]";
    says(
        &(not_pods() + &calico("NetworkPolicy", "shop/p", own)),
        "shop/db < shop/web tcp 80 = allow
         shop/db < 198.51.100.1 tcp 80 = allow
         shop/db < lab/web tcp 80 = deny
         shop/db < 192.0.2.1 tcp 80 = deny
         shop/db < 172.18.0.2 tcp 80 = deny",
    );
}

#[test]
fn a_set_of_which_nothing_is_known_may_be_among_what_runs_as_nobody() {
    let unknown = calico("GlobalNetworkSet", "s, labels: 5", "nets: []");
    let denied = |accounts: &str| {
        let rule = format!("{{action: Deny, source: {{serviceAccounts: {{{accounts}}}}}}}");
        unknown.clone() + &global("p", &format!("ingress: [{rule}, {{action: Allow}}]"))
    };
    for accounts in ["selector: all()", "selector: \"role != 'x'\""] {
        says_of_what_is_not_valid(
            &denied(accounts),
            "shop/db < out tcp 80 = deny: GlobalNetworkPolicy p is not valid and denies ingress",
        );
    }
    for accounts in ["selector: has(role)", "selector: all(), names: [runner]", "names: [runner]"] {
        says_of_what_is_not_valid(
            &denied(accounts),
            "shop/db < out tcp 80 = allow: GlobalNetworkPolicy p ingress[1]",
        );
    }
}

#[test]
fn an_accounts_name_is_a_label_of_its_object_and_default_exists_in_every_namespace() {
    let object =
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: runner, namespace: shop}}\n---\n";
    for (selector, without, with) in [
        ("projectcalico.org/name == 'runner'", "deny", "allow"),
        ("has(projectcalico.org/name)", "deny", "allow"),
        ("projectcalico.org/name != 'runner'", "allow", "deny"),
    ] {
        let policy = lets_in(&format!("source: {{serviceAccounts: {{selector: \"{selector}\"}}}}"));
        says(&policy, &format!("shop/db < shop/web tcp 80 = {without}"));
        says(&format!("{policy}{object}"), &format!("shop/db < shop/web tcp 80 = {with}"));
    }
    says(
        &lets_in("source: {serviceAccounts: {selector: \"projectcalico.org/name == 'default'\"}}"),
        "shop/db < lab/web tcp 80 = allow
         shop/db < shop/web tcp 80 = deny",
    );
    // A name in the list is compared with the pod's own field.
    says(
        &lets_in("source: {serviceAccounts: {names: [runner]}}"),
        "shop/db < shop/web tcp 80 = allow",
    );
    // The same for the endpoints that a policy selects.
    let subject = calico(
        "GlobalNetworkPolicy",
        "p",
        "serviceAccountSelector: \"projectcalico.org/name == 'runner'\", ingress: [{action: Deny}]",
    );
    says(&subject, "shop/web < out tcp 80 = allow: no policy selects it for ingress");
    says(&format!("{subject}{object}"), "shop/web < out tcp 80 = deny");
}

#[test]
fn beside_a_selector_of_namespaces_or_accounts_all_in_a_global_policys_selector_is_no_host() {
    let no_team = "namespaceSelector: \"team not in {'a'}\"";
    let no_role = "serviceAccountSelector: \"role != 'x'\"";
    for (subject, host, lab, shop) in [
        (format!("selector: all(), {no_team}"), false, true, false),
        (format!("selector: all(), {no_role}"), false, true, true),
        (format!("selector: all(), {no_team}, {no_role}"), false, true, false),
        (format!("selector: 'has(none) || all()', {no_team}"), false, true, false),
        (format!("selector: 'has(none) || !all()', {no_team}"), true, false, false),
        ("selector: all(), serviceAccountSelector: all()".to_owned(), false, true, true),
        ("serviceAccountSelector: all()".to_owned(), false, true, true),
        ("namespaceSelector: all()".to_owned(), false, true, true),
        // Calico replaces the exact text, and an absent selector does not contain it.
        (format!("selector: 'all( )', {no_team}"), true, true, false),
        (no_team.to_owned(), true, true, false),
        (format!("selector: '', {no_role}"), true, true, true),
        (format!("selector: '!has(none)', {no_team}"), true, true, false),
        ("selector: all()".to_owned(), true, true, true),
    ] {
        let policy = format!("{subject}, applyOnForward: true, ingress: [{{action: Deny}}]");
        let verdict = |selected: bool| if selected { "deny" } else { "allow" };
        says(
            &(not_pods() + &calico("GlobalNetworkPolicy", "p", &policy)),
            &format!(
                "h@forward < out tcp 80 = {}
                 lab/web < out tcp 80 = {}
                 shop/db < out tcp 80 = {}",
                verdict(host),
                verdict(lab),
                verdict(shop)
            ),
        );
    }
}
